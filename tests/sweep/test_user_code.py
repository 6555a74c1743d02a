"""A user's modules and implementations in sweeps: measured anew when their code changed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mhaprof.module_source import code_of
from mhaprof.store import load

ATTENTION = """
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class Attention(nn.Module):
    def __init__(self, dim, heads, kv_heads=2):
        super().__init__()
        self.head_dim = dim // heads
        self.q, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.k, self.v = (nn.Linear(dim, kv_heads * self.head_dim) for _ in "kv")

    def forward(self, x):
        q, k, v = (
            part(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        y = scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))
"""

POINTS = """
version: 1
points:
  - name: our attention
    module: attn:Attention
    kwargs: {dim: 256, heads: 8}
    inputs: 2x128x256
"""

SWEEP = "mhaprof sweep points.yaml --allow-import --out results/attn.sqlite"
UPDATE = "mhaprof baseline update results/attn.sqlite --name attn"
GATE = "mhaprof gate results/baselines/counts/attn.json results/attn.sqlite"

BASE_MACS = 2 * 128 * 256 * (2 * 256 + 2 * 64) + 2 * 2 * 128 * 128 * 256
NEW_MACS = 2 * 128 * 256 * (2 * 256 + 2 * 128) + 2 * 2 * 128 * 128 * 256


@pytest.fixture(autouse=True)
def a_small_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("attn.py").write_text(ATTENTION)
    Path("points.yaml").write_text(POINTS)


@pytest.fixture
def shell(mhaprof: Any) -> Iterator[Any]:
    """Yield the runner of a command line as it is typed; what it imported is forgotten."""
    before = set(sys.modules)
    yield lambda line, *more: mhaprof(*shlex.split(line)[1:], *more)
    for name in {"attn", "layer", "sizes"}.intersection(sys.modules).difference(before):
        del sys.modules[name]


def measured() -> list[tuple[str, str]]:
    frame = load("results/attn.sqlite")
    return list(zip(frame["identity"], frame["finished"], strict=True))


def change(old: str, new: str) -> None:
    assert old in ATTENTION
    Path("attn.py").write_text(ATTENTION.replace(old, new))


@pytest.mark.parametrize("fresh", [True, False], ids=["in a checkout of its own", "resumed"])
def test_a_change_that_makes_ones_own_attention_cost_more_fails_the_gate(
    shell: Any, fresh: bool
) -> None:
    for line in (SWEEP, UPDATE, GATE):
        assert shell(line).code == 0
    change("kv_heads=2", "kv_heads=4")
    if fresh:
        Path("results/attn.sqlite").unlink()
    assert shell(SWEEP).code == 0
    gate = shell(GATE, "--format", "json")
    assert gate.code == 1
    (verdict,) = [row for row in gate.rows if row["metric"] == "macs"]
    assert (verdict["name"], verdict["base"], verdict["new"]) == (
        "our attention",
        BASE_MACS,
        NEW_MACS,
    )


def test_a_row_is_measured_anew_only_when_the_code_changed(shell: Any) -> None:
    assert shell(SWEEP).code == 0
    assert shell(UPDATE).code == 0
    first = measured()
    assert shell(SWEEP).code == 0
    assert measured() == first
    Path("attn.py").write_text(ATTENTION + "# no other cost\n")
    assert shell(SWEEP).code == 0
    (again,) = measured()
    assert again not in first
    assert shell(GATE).code == 0


def test_kwargs_that_changed_under_one_name_do_not_pass_as_the_same_point(shell: Any) -> None:
    assert shell(SWEEP, "--inline").code == 0
    assert shell(UPDATE).code == 0
    Path("points.yaml").write_text(POINTS.replace("heads: 8", "heads: 4, kv_heads: 1"))
    Path("results/attn.sqlite").unlink()
    assert shell(SWEEP, "--inline").code == 0
    gate = shell(GATE)
    assert gate.code != 0
    assert "kwargs" in gate.out + gate.err


def test_a_module_that_cannot_be_imported_fails_its_row_and_costs_no_other(shell: Any) -> None:
    missing = "\n  - {name: gone, module: 'nowhere_at_all:X', inputs: 2x3}\n"
    Path("points.yaml").write_text(POINTS.rstrip() + missing)
    ran = shell(SWEEP, "--inline", "--format", "json")
    assert ran.code == 4
    rows = {row["name"]: row for row in ran.rows}
    assert rows["our attention"]["status"] == "ok"
    assert (rows["gone"]["status"], rows["gone"]["reason"]) == ("failed", "refused")
    assert "nowhere_at_all cannot be imported" in rows["gone"]["message"]


def test_a_file_that_names_a_module_needs_leave_to_import_it(shell: Any) -> None:
    ran = shell(SWEEP.replace(" --allow-import", ""))
    assert ran.code == 2
    assert "--allow-import" in ran.err
    assert not Path("results/attn.sqlite").exists()


def test_a_module_is_shown_in_every_format_and_times_asked_of_it_are_said_not_taken(
    shell: Any,
) -> None:
    ran = shell(SWEEP, "--inline", "--measure", "flops,latency", "--device", "cpu")
    assert ran.code == 0
    assert "modules are counted, not timed: our attention" in ran.err
    results = "mhaprof results results/attn.sqlite"
    (row,) = shell(results, "--format", "json").rows
    assert row["fvcore_flops"] == row["torch_macs"] == row["macs"] == BASE_MACS
    assert row["kwargs"] == {"dim": 256, "heads": 8}
    assert row["inputs"] == ["2x128x256"]
    assert sum(row["by_operator"].values()) == row["by_module"][""] == BASE_MACS
    for form in ("table", "markdown", "csv", "jsonl"):
        shown = shell(results, "--format", form)
        assert shown.code == 0
        assert "our attention" in shown.out
    assert shell(results, "--format", "parquet", "-o", "rows.parquet").code == 0
    only = shell(SWEEP, "--measure", "latency", "--device", "cpu", "--dry-run", "--format", "json")
    assert [row["reason"] for row in only.rows] == ["module_not_timed"]
    assert "not timed:" not in only.err
    (again,) = shell(SWEEP, "--measure", "flops,latency", "--dry-run", "--format", "json").rows
    assert again["status"] == "stored"


def test_shards_of_modules_are_merged(shell: Any) -> None:
    Path("points.yaml").write_text(
        POINTS.replace("our attention", "a")
        + POINTS.partition("points:")[2].replace("heads: 8", "heads: 4")
    )
    for part in ("1/2", "2/2"):
        out = f"part{part[0]}.sqlite"
        shell("mhaprof sweep points.yaml --allow-import --inline", "--shard", part, "--out", out)
    assert shell("mhaprof merge part1.sqlite part2.sqlite --out whole.sqlite").code == 0
    assert sorted(load("whole.sqlite")["name"]) == ["a", "our attention"]


LAYER = """
from torch import nn
from sizes import WIDTH


class Mine(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.inner = nn.Linear(spec.dim, WIDTH, bias=False)

    def forward(self, x):
        return self.inner(x)
"""


def test_an_implementation_of_ones_own_is_measured_anew_when_a_sibling_changed(shell: Any) -> None:
    Path("layer.py").write_text(LAYER)
    Path("points.yaml").write_text(
        "version: 1\nreference: false\n"
        "points: [{name: p, batch: 1, tokens: 8, dim: 16, heads: 2}]\n"
    )
    found = []
    for width in ("16", "32", "32"):
        Path("sizes.py").write_text(f"WIDTH = {width}  #{'x' * int(width)}\n")
        shell("mhaprof sweep points.yaml --impl layer:Mine --allow-import --out results/a.sqlite")
        found.append(sorted(load("results/a.sqlite", every_plan=True)["fvcore_flops"]))
    assert found == [[2048], [2048, 4096], [2048, 4096]]


def test_the_fingerprint_follows_what_the_code_imports_and_nothing_else() -> None:
    Path("pack").mkdir()
    Path("pack/__init__.py").write_text("")
    Path("pack/top.py").write_text("import torch, json\n\ndef late():\n    from alone import x\n")
    Path("alone.py").write_text("import further\n")
    Path("further.py").write_text("")
    Path("other.py").write_text("")
    first = code_of("pack.top:late")
    assert code_of("pack.top:late") == first
    Path("other.py").write_text("y = 1\n")
    assert code_of("pack.top:late") == first
    seen = {first}
    for file in ("pack/__init__.py", "pack/new.py", "alone.py", "further.py"):
        with Path(file).open("a") as source:
            source.write("z = 1\n")
        seen.add(code_of("pack.top:late"))
    assert len(seen) == 5
    assert code_of("torch.nn:Linear") != code_of("nowhere_at_all:X") == ""


def solving(times: int) -> str:
    """Return the module with an operator that no counter knows, run so often."""
    old = "return self.out(y.transpose(1, 2).flatten(2))"
    calls = "\n        ".join(["y = torch.linalg.svd(y, full_matrices=False)[0]"] * times)
    return "import torch\n" + ATTENTION.replace(old, f"{calls}\n        {old}")


def test_the_gate_sees_every_call_of_an_operator_that_may_stay_without_a_count(shell: Any) -> None:
    Path("attn.py").write_text(solving(1))
    assert shell(SWEEP, "--inline").code == 1
    allowed = (SWEEP, "--inline", "--allow-uncounted", "linalg_svd,mine::op")
    for line in (allowed, (UPDATE,), (GATE,)):
        assert shell(*line).code == 0
    Path("attn.py").write_text(solving(2))
    del sys.modules["attn"]
    assert shell(*allowed).code == 0
    gate = shell(GATE, "--format", "json")
    assert gate.code == 1
    assert [row["metric"] for row in gate.rows if row["verdict"] == "regressed"] == [
        "uncounted_ops"
    ]


TIMED = ["--device", "cpu", "--threads", 1, "--samples", 1, "--min-time", 0.01, "--max-time", 5]
MIXED = "\n  - {name: a, dim: 8, heads: 2, batch: 1, tokens: 4, implementations: [eager]}\n"


@pytest.mark.parametrize("flags", [["--impl", "sdpa"], ["--batch", 4], ["--heads", "2,4"]])
@pytest.mark.parametrize("command", ["sweep", "flops", "latency"])
def test_flags_that_change_nothing_of_a_module_are_refused_or_said(
    shell: Any, command: str, flags: list[Any]
) -> None:
    line = f"mhaprof {command} points.yaml --allow-import --format json"
    more = [*flags, *(["--dry-run"] if command == "sweep" else [])]
    ran = shell(line, *more)
    assert (ran.code, ran.json["rows"]) == (2, [])
    said = f"{flags[0]}: a module is measured as its kwargs and inputs in the file say"
    assert ran.err.startswith(f"mhaprof: {said}, and the file has no other point; drop the flag")
    Path("points.yaml").write_text(POINTS.rstrip() + MIXED)
    ran = shell(line, *more, *(TIMED if command == "latency" else []))
    assert ran.code == 0
    assert f"mhaprof: {said}: our attention\n" in ran.err


@pytest.mark.parametrize("command", ["sweep", "flops", "latency"])
def test_implementations_of_the_command_line_take_the_place_of_the_files(
    shell: Any, command: str
) -> None:
    Path("c.yaml").write_text(f"version: 1\nname: c\nreference: false\npoints:{MIXED}")
    more = {"sweep": ["--inline", "--out", "c.sqlite"], "flops": [], "latency": TIMED}[command]
    ran = shell(f"mhaprof {command} c.yaml --impl sdpa --format json", *more)
    assert (ran.code, [row["implementation"] for row in ran.rows]) == (0, ["sdpa"])


def test_a_file_of_modules_alone_has_nothing_to_time(shell: Any) -> None:
    ran = shell("mhaprof latency points.yaml --allow-import --format json")
    assert (ran.code, ran.json["rows"]) == (2, [])
    assert ran.err.startswith("mhaprof: modules are not timed: our attention; count them by")
