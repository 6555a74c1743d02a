"""Public reports of counters that got attention wrong, with the right values.

One test a case; its name or id is where it was reported.  MACs as fvcore counts, dense
unless said.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from mhaprof import AttentionSpec, count_flops, formulas, measure_latency
from mhaprof.point import MeasureOptions


class Core(nn.Module):
    """scaled_dot_product_attention alone."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v)


class Products(nn.Module):
    """Attention out of products: ``torch.matmul`` or ``@``."""

    def __init__(self, *, infix: bool) -> None:
        super().__init__()
        self.infix = infix

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if self.infix:
            return (q @ k.transpose(-2, -1)).softmax(-1) @ v
        scores = torch.matmul(q, k.transpose(-2, -1))
        return torch.matmul(scores.softmax(-1), v)


SPECS: dict[str, tuple[dict[str, Any], int]] = {
    "mission, one full head": ({"heads": 1, "out_proj": False}, 60129542144),
    "mission, eight heads": ({}, 68719476736),
    "mission, eight heads without W_O": ({"out_proj": False}, 60129542144),
    "pytorch#177188, xformers#1404": ({"kv_heads": 2, "batch": 1}, 1744830464),
    "ptflops#65": ({"heads": 4, "tokens": 580, "batch": 1}, 952647680),
    "mobile-vision#205": (
        {"dim": 16, "heads": 2, "batch": 2, "tokens": 10, "kv_tokens": 20},
        43520,
    ),
    "torchtitan#1920, NeMo-RL#2736": (
        {"dim": 2560, "heads": 32, "kv_heads": 8, "head_dim": 128, "batch": 1},
        35433480192,
    ),
    "modular#6623": ({"tokens": 1048576}, 36063981391052800),
    "DeepSpeed docs, BERT-Large": (
        {"dim": 1024, "heads": 16, "batch": 80, "tokens": 128},
        45634027520,
    ),
}


@pytest.mark.parametrize("implementation", ["eager", "eager-separate", "per-head", "sdpa"])
@pytest.mark.parametrize(("fields", "macs"), SPECS.values(), ids=list(SPECS))
def test_all_counters_give_the_right_number(
    fields: dict[str, Any], macs: int, implementation: str
) -> None:
    counts = count_flops(AttentionSpec(**fields), implementation=implementation)
    assert counts.fvcore_flops == counts.torch_macs == counts.closed_form_macs == macs
    assert counts.flops == 2 * macs  # fvcore#69, #133, #119, calflops#56


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("shape", "macs"),
    [((1, 12, 64, 64), 6291456), ((2, 5, 9, 4), 6480)],
    ids=["pytorch#195460", "pytorch#134804"],
)
def test_the_core_alone_is_counted_once_on_every_device(
    shape: tuple[int, ...], macs: int, device: str
) -> None:
    q = torch.empty(shape, device=device)
    counted = count_flops(Core(), [q, q, q])
    assert counted.macs == counted.fvcore_macs == counted.torch_macs == macs


@pytest.mark.parametrize("heads", [4, 8])
def test_fvcore_153_heads_change_neither_flops_nor_parameters(heads: int) -> None:
    layer = nn.MultiheadAttention(448, heads, batch_first=True)
    x = torch.empty(1, 300, 448, device="meta")
    counted = count_flops(layer, [x, x, x])
    assert (counted.macs, counted.params) == (321484800, 804608)
    spec = AttentionSpec(dim=448, heads=heads, tokens=300, batch=1, qkv_bias=True, out_bias=True)
    counts = count_flops(spec, implementation="torch-mha")
    assert (counts.macs, counts.params) == (321484800, 804608)


def test_gqa_core_of_pytorch_177188() -> None:
    counts = count_flops(AttentionSpec(kv_heads=2, batch=1), implementation="sdpa")
    assert counts.by_stage["scores"] + counts.by_stage["context"] == 1073741824


def test_pytorch_134385_flex_attention_gives_the_dense_number(mhaprof: Any) -> None:
    ran = mhaprof("flops", "--impl", "flex", "--impl", "sdpa", "--no-reference", "--format", "json")
    flex, sdpa = ran.rows
    assert ran.code == 0
    assert flex["macs"] == sdpa["macs"] == 68719476736
    assert (flex["fvcore_flops"], flex["reason"]) == (None, "closed_form_only")
    assert "flex_attention" in ran.err


def test_natten_194_a_norm_in_front_changes_no_macs() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(64)
            self.attention = nn.MultiheadAttention(64, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(x)
            result: torch.Tensor = self.attention(y, y, y)[0]
            return result

    x = torch.empty(2, 10, 64, device="meta")
    plain = count_flops(nn.MultiheadAttention(64, 4, batch_first=True), [x, x, x])
    normed = count_flops(Normed(), [x])
    assert normed.macs == plain.macs
    assert sum(normed.elementwise.values()) > 0


def test_fvcore_143_silent_about_elementwise_loud_about_products() -> None:
    q = torch.empty(1, 2, 4, 8, device="meta")
    quiet = count_flops(Products(infix=True), [q, q, q])
    assert (quiet.uncounted_ops, quiet.findings) == ({}, ())

    class Distances(nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return torch.cdist(q, q)

    loud = count_flops(Distances(), [q])
    assert any("cdist" in name for name in loud.uncounted_ops)
    assert any(finding.blocking for finding in loud.findings)


def test_pytorch_145947_counting_twice_gives_the_same() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, batch_first=True).eval()
    x = torch.empty(2, 16, 64)
    with torch.no_grad():
        first, second = count_flops(layer, [x]), count_flops(layer, [x])
    assert first == second
    assert first.macs == 2 * (16 * (4 * 64**2 + 2 * 64 * 2048) + 2 * 16**2 * 64)


@pytest.mark.slow
def test_pytorch_140909_a_compiled_point_is_as_fast_after_counting_it() -> None:
    spec = AttentionSpec(batch=1, tokens=256)
    options = MeasureOptions(max_time_s=3.0, samples=30)
    times = []
    for _ in range(2):
        timed = measure_latency(spec, device="cpu", compile=True, threads=1, options=options)
        assert "compile_fallback" not in timed.flags
        times.append(timed.summary.minimum)
        count_flops(spec, implementation="sdpa")
    assert times[1] < 1.5 * times[0]


def test_deepspeed_4723_matmul_and_infix_are_equal() -> None:
    q = torch.empty(2, 3, 10, 8, device="meta")
    counted = [count_flops(Products(infix=infix), [q, q, q]) for infix in (True, False)]
    assert counted[0].macs == counted[1].macs == 2 * 2 * 3 * 10 * 10 * 8


def test_calflops_26_46_48_twice_the_tokens() -> None:
    once = count_flops(AttentionSpec(tokens=128)).by_stage
    twice = count_flops(AttentionSpec(tokens=256)).by_stage
    factor = {stage: twice[stage] / macs for stage, macs in once.items()}
    assert factor == {
        "q_proj": 2, "k_proj": 2, "v_proj": 2, "scores": 4, "context": 4, "out_proj": 2,
    }  # fmt: skip


def test_torchinfo_226_a_linear_on_three_dimensions() -> None:
    x = torch.empty(5, 10, 3, device="meta")
    assert count_flops(nn.Linear(3, 8, bias=False), [x]).macs == 1200


@pytest.mark.parametrize(
    ("fields", "pairs"),
    [
        ({"causal": "top-left"}, 524800),
        ({"causal": "top-left", "tokens": 2048, "window": 512}, 917760),
        ({"causal": "top-left", "tokens": 32768, "window": 1024}, 33030656),
        ({"causal": "top-left", "tokens": 131072}, 131072 * 131073 // 2),
    ],
    ids=["torchtitan#341, maxtext#1972", "Megatron-LM#3280", "aiter#5662", "cudnn-frontend#347"],
)
def test_exact_pairs_stand_beside_the_dense_number(fields: dict[str, Any], pairs: int) -> None:
    spec = AttentionSpec(batch=1, **fields)
    counts = count_flops(spec, implementation="sdpa")
    assert counts.pairs_exact == pairs
    assert counts.macs == formulas.total_macs(spec)
    assert counts.macs - counts.macs_exact == 2 * 512 * (spec.tokens**2 - pairs)


def test_xformers_1402_bottom_right_with_wider_values() -> None:
    spec = AttentionSpec(
        causal="bottom-right", tokens=4, kv_tokens=10, dim=8, heads=1, v_head_dim=16, batch=1
    )
    counts = count_flops(spec)
    assert counts.pairs_exact == 34
    projections = sum(
        macs for stage, macs in counts.by_stage.items() if stage not in ("scores", "context")
    )
    assert 2 * (counts.macs_exact - projections) == 1632


def test_the_published_number_of_deepspeed_is_the_projections_alone() -> None:
    counts = count_flops(AttentionSpec(dim=1024, heads=16, batch=80, tokens=128))
    core = counts.by_stage["scores"] + counts.by_stage["context"]
    assert counts.macs == 45634027520
    # Published: 42.97 GMACs, which is the four projections plus 3 operations a score.
    assert round((counts.macs - core + counts.softmax_ops / 3) / 1e9, 2) == 42.97
