"""Two real processes that take turns: never both at once, point by point together."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from mhaprof.ab.turns import Start, alternate

CHILD = """
import sys, time
from mhaprof.measure.turns import Turns

name, log, points, batches, trouble = sys.argv[1:]
turns = Turns.from_environment()

def write(word):
    with open(log, "a") as file:
        file.write(f"{name} {word}\\n")

for point in range(int(points)):
    turns.point()
    write(f"point {point}")
    for batch in range(int(batches)):
        write("begins")
        time.sleep(0.01)
        write("ends")
        if trouble == "dies" and point == 1:
            sys.exit(3)
        turns.batch()
"""


def side(log: Path, name: str, *, points: int = 3, batches: int = 3, trouble: str = "") -> Start:
    arguments = (name, str(log), str(points), str(batches), trouble)

    def start(variables: dict[str, str], descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", CHILD, *arguments],
            env={**os.environ, **variables},
            pass_fds=descriptors,
        )

    return start


def logged(log: Path) -> list[tuple[str, str]]:
    lines = (line.split(" ", 1) for line in log.read_text().splitlines())
    return [(name, word) for name, word in lines]


def test_the_sides_never_measure_at_once_and_begin_each_point_together(tmp_path: Path) -> None:
    log = tmp_path / "log"
    codes = alternate(side(log, "a", batches=2), side(log, "b", batches=4))
    assert codes == (0, 0)
    found = logged(log)
    assert found[0] == ("a", "point 0")
    running = ""
    for name, word in found:
        assert not (word == "begins" and running)
        running = {"begins": name, "ends": ""}.get(word, running)
    for point in range(1, 3):
        begun = [place for place, (_, word) in enumerate(found) if word == f"point {point}"]
        before = [place for place, (_, word) in enumerate(found) if word == f"point {point - 1}"]
        batches = [name for name, word in found[min(before) : min(begun)] if word == "ends"]
        assert sorted(batches) == ["a"] * 2 + ["b"] * 4
        assert batches[:4] in (["a", "b"] * 2, ["b", "a"] * 2)


def test_the_one_that_is_named_first_begins(tmp_path: Path) -> None:
    log = tmp_path / "log"
    alternate(side(log, "b"), side(log, "a"))
    assert logged(log)[0] == ("b", "point 0")


@pytest.mark.parametrize(("points", "trouble", "code"), [(1, "", 0), (3, "dies", 3)])
def test_a_side_that_ends_early_leaves_the_other_to_finish(
    tmp_path: Path, points: int, trouble: str, code: int
) -> None:
    log = tmp_path / "log"
    codes = alternate(side(log, "a", points=points, trouble=trouble), side(log, "b"))
    assert codes == (code, 0)
    assert sum(name == "b" and word == "ends" for name, word in logged(log)) == 9


def test_a_process_that_knows_no_turns_is_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def stranger(variables: dict[str, str], descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["/bin/sh", "-c", f"sleep 1; echo stranger done >> {log}"], pass_fds=descriptors
        )

    assert alternate(side(log, "a", points=1), stranger) == (0, 0)
    assert logged(log)[0] == ("stranger", "done")


def test_whatever_is_raised_ends_both(tmp_path: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def first(variables: dict[str, str], descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "60"], pass_fds=descriptors))
        return started[0]

    def second(variables: dict[str, str], descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
        raise KeyboardInterrupt

    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        alternate(first, second)
    assert started[0].poll() is not None
    assert time.perf_counter() - began < 30
