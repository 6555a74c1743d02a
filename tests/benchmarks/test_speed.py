"""What counting costs: start-up, memory, grids; each beside a peer in the same run.

Start-up and grids are compared by processor time, which other work on the machine
disturbs least; the article's script runs on all cores and is compared by the clock.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from mhaprof.point import COUNTERS, count_point
from mhaprof.records import Measured, Point
from mhaprof.spec import AttentionSpec

pytestmark = pytest.mark.benchmark

MHAPROF = [sys.executable, "-m", "mhaprof"]
CLAIM = Path(__file__).parents[2] / "configs" / "paper-claim.yaml"


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a finished process took."""

    cpu_s: float
    wall_s: float
    peak_bytes: int
    out: str


def used_by(command: Sequence[str], tmp_path: Path) -> Usage:
    """Run a command that has to succeed; its peak is the kernel's own for that process."""
    with (tmp_path / "out").open("w+") as out:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, command
        out.seek(0)
        return Usage(
            cpu_s=usage.ru_utime + usage.ru_stime,
            wall_s=wall_s,
            peak_bytes=usage.ru_maxrss * 1024,
            out=out.read(),
        )


def alternated(
    ours: Sequence[str], peer: Sequence[str], tmp_path: Path, *, rounds: int
) -> tuple[list[Usage], list[Usage]]:
    """Run both in turns: a disturbance of some seconds meets both."""
    pairs = [(used_by(ours, tmp_path), used_by(peer, tmp_path)) for _ in range(rounds)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def least(runs: Sequence[Usage]) -> float:
    """Return the processor seconds of the least disturbed run."""
    return min(run.cpu_s for run in runs)


@pytest.mark.parametrize(
    ("arguments", "peer", "limit"),
    [
        (["--help"], "import torch", 0.35),
        (["flops", "--dim", "512", "--heads", "8"], "import torch, fvcore.nn", 1.5),
    ],
)
def test_starting_takes_a_bounded_share_of_an_import(
    arguments: list[str], peer: str, limit: float, tmp_path: Path
) -> None:
    command = [*MHAPROF, *arguments]
    ours, theirs = alternated(command, [sys.executable, "-c", peer], tmp_path, rounds=4)
    ratio = least(ours) / least(theirs)
    print(f"\nmhaprof {' '.join(arguments)}: {ratio:.2f} of {peer!r} ({least(theirs):.2f} s)")
    assert ratio <= limit


ARTICLE = """
import torch
from torch import nn
from fvcore.nn import FlopCountAnalysis

class Attention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attn = ((q @ k.transpose(-2, -1)) * self.scale).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))

x = torch.rand(32, 1024, 512)
for heads, proj in ((1, False), (8, True), (8, False)):
    module = Attention(512, heads)
    if not proj:
        module.proj = nn.Identity()
    print(FlopCountAnalysis(module, x).total())
"""
"""The experiment of "Self-attention and multi-head attention explained", on real tensors."""


def test_the_articles_experiment_takes_half_the_time_and_a_fifth_of_the_memory(
    tmp_path: Path,
) -> None:
    command = [*MHAPROF, "flops", str(CLAIM), "--no-reference", "--format", "json"]
    script = [sys.executable, "-c", ARTICLE]
    ours, theirs = alternated(command, script, tmp_path, rounds=2)
    numbers = [60129542144, 68719476736, 60129542144]
    assert [int(line) for line in theirs[0].out.split()] == numbers
    rows = json.loads(ours[0].out)["rows"]
    assert set(numbers) <= {row["fvcore_flops"] for row in rows}
    faster = min(run.wall_s for run in theirs) / min(run.wall_s for run in ours)
    # The kernel's peaks of whole processes: both hold torch itself, which is most of ours.
    smaller = min(run.peak_bytes for run in theirs) / max(run.peak_bytes for run in ours)
    print(f"\nthe article's script: {faster:.1f} x our time, {smaller:.1f} x our memory")
    assert faster >= 2
    assert smaller >= 5


def test_131072_tokens_take_the_memory_of_16(tmp_path: Path) -> None:
    def peak(tokens: int) -> int:
        command = [*MHAPROF, "flops", "--tokens", str(tokens), "--impl", "eager", "--impl", "sdpa"]
        return min(used_by(command, tmp_path).peak_bytes for _ in range(2))

    assert peak(131072) == pytest.approx(peak(16), rel=0.1)


def test_a_million_tokens_are_counted_exactly_by_every_counter(tmp_path: Path) -> None:
    command = [*MHAPROF, "flops", "--tokens", "1048576", "--batch", "32", "--format", "json"]
    row = json.loads(used_by(command, tmp_path).out)["rows"][-1]
    counted = {row[name] for name in ("fvcore_flops", "torch_macs", "closed_form_macs", "macs")}
    assert counted == {4 * 32 * 1048576 * 512**2 + 2 * 32 * 1048576**2 * 512}
    assert counted == {36_063_981_391_052_800}


SPECS = [
    AttentionSpec(batch=1, dim=512, heads=heads, tokens=tokens)
    for heads in (1, 2, 4, 8, 16)
    for tokens in range(1, 201)
]


def counted(specs: Sequence[AttentionSpec], counters: Sequence[str]) -> None:
    """Count with us: nothing may be found."""
    for spec in specs:
        point = Point(name="point", spec=spec, implementation="eager")
        outcome = count_point(point, counters=counters).outcome
        assert isinstance(outcome, Measured)
        assert outcome.findings == []


def bare(specs: Sequence[AttentionSpec]) -> None:
    """Count the article's module of the same sizes with a bare loop of fvcore on meta tensors."""
    import torch
    from fvcore.nn import FlopCountAnalysis

    made: dict[str, Any] = {}
    exec(ARTICLE.partition("x = torch.rand")[0], made)
    for spec in specs:
        with torch.device("meta"):
            module = made["Attention"](spec.dim, spec.heads)
            x = torch.empty(spec.batch, spec.tokens, spec.dim)
        analysis = FlopCountAnalysis(module, (x,))
        analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
        analysis.total()


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def test_1000_points_cost_little_more_than_a_bare_loop_of_fvcore_and_no_memory() -> None:
    logging.getLogger("fvcore").setLevel(logging.ERROR)
    work: dict[str, Callable[[list[AttentionSpec]], None]] = {
        "bare": bare,
        "fvcore": lambda specs: counted(specs, ("fvcore",)),
        "all": lambda specs: counted(specs, COUNTERS),
    }
    taken: dict[str, list[float]] = {name: [] for name in work}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for run in work.values():
            run(SPECS[::50])
        before = psutil.Process().memory_info().rss
        for part in (SPECS[start::10] for start in range(10)):
            for name, run in work.items():
                taken[name].append(cpu_seconds(partial(run, part)))
    grown = psutil.Process().memory_info().rss - before
    share = {name: min(times) / min(taken["bare"]) for name, times in taken.items()}
    print(
        f"\nfvcore part {share['fvcore']:.2f} and all counters {share['all']:.2f} of a bare loop; "
        f"{100 / min(taken['all']):.0f} points/s; grown by {grown / 2**20:.1f} MiB"
    )
    assert share["fvcore"] <= 1.6
    assert share["all"] <= 2.5
    assert grown < 10 * 2**20


def vision_transformer(request: pytest.FixtureRequest) -> tuple[Any, list[Any]]:
    timm, torch = request.getfixturevalue("timm"), pytest.importorskip("torch")
    with torch.device("meta"):
        return timm.create_model("vit_large_patch16_224"), [torch.empty(1, 3, 224, 224)]


def decoder(request: pytest.FixtureRequest) -> tuple[Any, list[Any]]:
    transformers, torch = request.getfixturevalue("transformers"), pytest.importorskip("torch")
    sizes = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 32}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))
        return model, [torch.zeros(1, 128, dtype=torch.long)]


@pytest.mark.parametrize("build", [vision_transformer, decoder])
def test_both_counts_of_a_whole_model_take_little_more_than_torchs_counter_on_meta(
    build: Callable[[pytest.FixtureRequest], tuple[Any, list[Any]]],
    request: pytest.FixtureRequest,
) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from mhaprof.measure.flops import count_module

    model, inputs = build(request)
    model.eval()
    flops: list[int] = []

    def theirs() -> None:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(*inputs)
        flops.append(counter.get_total_flops())

    def ours() -> None:
        count = count_module(model, inputs)
        assert count.findings == ()
        flops.append(count.flops)

    pairs = [(cpu_seconds(ours), cpu_seconds(theirs)) for _ in range(5)]
    ratio = min(pair[0] for pair in pairs) / min(pair[1] for pair in pairs)
    print(f"\n{type(model).__name__}: {ratio:.2f} of FlopCounterMode on meta tensors")
    assert len(set(flops)) == 1
    assert ratio <= 2.0  # 1.3 on a quiet machine, up to 1.7 beside other work; 1.5 is aimed at


GRID = """
version: 1
defaults: {dim: 512}
sweep: {heads: [1, 2, 4, 8, 16], batch: {range: [1, 20]}, tokens: {range: [8, 8000, 8]}}
reference: false
"""

WITHOUT_TORCH = """
import sys
from mhaprof.cli.app import run
code = run(sys.argv[1:])
assert "torch" not in sys.modules and "fvcore" not in sys.modules
sys.exit(code)
"""


def test_100000_points_by_the_closed_form_cost_a_few_times_the_writing_of_their_rows(
    tmp_path: Path,
) -> None:
    (tmp_path / "grid.yaml").write_text(GRID)
    out = tmp_path / "rows.csv"
    arguments = ["flops", str(tmp_path / "grid.yaml"), "--counter", "closed-form"]
    arguments += ["--format", "csv", "--output", str(out)]
    command = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
    ours, writing = [], []
    for _ in range(2):
        ours.append(used_by(command, tmp_path))
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 100_000
        writing.append(cpu_seconds(partial(written, rows)))
    ratio = least(ours) / min(writing)
    print(
        f"\n100000 points: {least(ours):.1f} s of processor time, {ratio:.1f} times "
        f"csv.DictWriter ({min(writing):.1f} s), {ours[0].peak_bytes / 2**20:.0f} MiB"
    )
    assert ratio <= 10  # rows of a large grid are made anew, not kept: 8 was seen


def written(rows: Sequence[dict[str, Any]]) -> str:
    """Write rows as the standard library does."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()
