"""A large grid is counted row by row: nothing of it is kept, and nothing else changes."""

from __future__ import annotations

import io
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from mhaprof.cli import flops
from mhaprof.cli.app import run
from mhaprof.config import expansion

GRID = """
version: 1
defaults: {{dim: 64}}
sweep: {{heads: [1, 3, 8], tokens: {{range: [1, {last}]}}, exclude: tokens == 2}}
"""
COUNTED = ("--counter", "closed-form", "--format")


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a grid, a third of it impossible, of which so many points are kept."""

    def make(*, last: int, kept: int) -> Path:
        monkeypatch.setattr(expansion, "KEPT", kept)
        path = tmp_path / "grid.yaml"
        path.write_text(GRID.format(last=last))
        return path

    return make


@pytest.mark.parametrize("reference", ["--reference", "--no-reference"])
@pytest.mark.parametrize("form", ["csv", "json", "table"])
def test_a_streamed_grid_says_what_a_kept_one_says(
    form: str, reference: str, grid: Any, mhaprof: Any
) -> None:
    kept = mhaprof("flops", grid(last=9, kept=1000), reference, *COUNTED, form)
    streamed = mhaprof("flops", grid(last=9, kept=1), reference, *COUNTED, form)
    assert "heads=3 tokens=9" in kept.out
    assert kept == streamed


def test_the_memory_of_a_streamed_grid_does_not_grow_with_its_points(
    grid: Any, mhaprof: Any
) -> None:
    peaks = []
    for last in (10, 40, 400):  # the first fills the caches
        path = grid(last=last, kept=20)
        tracemalloc.start()
        ran = mhaprof(
            "flops", path, "--no-reference", *COUNTED, "csv", "-o", path.with_suffix(".csv")
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert ran.code == 0
        assert path.with_suffix(".csv").read_text().count("\n") == 1 + 3 * last
    assert peaks[2] < 1.5 * peaks[1]


class _Listening(io.StringIO):
    """Standard output that knows how many points were counted at each line."""

    def __init__(self, counted: list[object]) -> None:
        super().__init__()
        self.counted, self.heard = counted, dict[str, int]()

    def write(self, text: str) -> int:
        self.heard.setdefault(text.partition(",")[0], len(self.counted))
        return super().write(text)


def test_the_first_row_of_csv_is_written_before_the_second_point_is_counted(
    grid: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[object] = []
    count = flops.measure_point
    monkeypatch.setattr(
        flops, "measure_point", lambda point, **kw: counted.append(point) or count(point, **kw)
    )
    listening = _Listening(counted)
    monkeypatch.setattr(sys, "stdout", listening)
    path = grid(last=9, kept=1)
    assert run(["flops", str(path), "--no-reference", *COUNTED, "csv"]) == 0
    assert len(counted) == 2 * 8
    assert (listening.heard["name"], listening.heard["heads=1 tokens=1"]) == (1, 1)
    assert listening.heard["heads=8 tokens=9"] == 16


def test_rows_that_cannot_be_written_go_to_stdout_whole(grid: Any, mhaprof: Any) -> None:
    path = grid(last=9, kept=1)
    whole = mhaprof("flops", path, *COUNTED, "csv")
    ran = mhaprof("flops", path, *COUNTED, "csv", "-o", "/dev/full")
    assert (ran.code, ran.out) == (2, whole.out)
    assert "No space left on device; wrote to standard output instead" in ran.err


def test_a_reader_that_leaves_changes_no_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(GRID.format(last=3500))
    command = [sys.executable, "-m", "mhaprof", "flops", str(path), "--no-reference"]
    with subprocess.Popen(
        [*command, *COUNTED, "csv"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("name,role,")
        process.stdout.close()
        assert process.wait(60) == 0
