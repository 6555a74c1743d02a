"""The explanation is the formula: its factors multiply to what is counted."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mhaprof import formulas
from mhaprof.report.explain import crossover_tokens, explain
from mhaprof.spec import AttentionSpec

LATENT = {
    "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6,
}  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kv_heads": 2, "v_head_dim": 32, "out_proj": False},
        {"tokens": 7, "kv_tokens": 20, "causal": "bottom-right"},
        {"phase": "decode", "kv_tokens": 100},
        {"kv_proj": False},
        {"output_gate": "elementwise"},
        {"output_gate": "per-head"},
        LATENT,
        {**LATENT, "q_lora_rank": 24, "phase": "decode"},
        {**LATENT, "latent_form": "absorbed"},
    ],
)
def test_the_factors_of_every_stage_multiply_to_its_macs(fields: dict[str, Any]) -> None:
    spec = AttentionSpec(**fields)
    stages = formulas.stage_macs(spec)
    lines = {line.split()[0]: line for line in explain(spec).splitlines() if line.strip()}
    assert f" {sum(stages.values())}  MACs" in lines["sum"]
    for stage, macs in stages.items():
        assert lines[stage].split()[1] == str(macs)
        if macs:
            numbers = lines[stage].rpartition(" = ")[2].split(" x ")
            assert math.prod(int(number) for number in numbers) == macs


def test_scores_overtake_projections_at_twice_dim_for_mha() -> None:
    for dim, heads in ((512, 8), (768, 12), (64, 1)):
        assert crossover_tokens(AttentionSpec(dim=dim, heads=heads)) == 2 * dim


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_heads": 2},
        {"head_dim": 16, "v_head_dim": 48},
        {"phase": "decode"},
        LATENT,
        {**LATENT, "phase": "decode"},
    ],
)
def test_at_the_crossover_core_and_projections_are_equal(fields: dict[str, Any]) -> None:
    spec = AttentionSpec(**fields)
    crossing = crossover_tokens(spec)
    assert crossing is not None
    at = round(crossing)
    sizes = {"kv_tokens": at} if spec.phase == "decode" else {"tokens": at, "kv_tokens": at}
    there = spec.replace(**sizes)
    core = formulas.core_macs(there)
    rest = formulas.total_macs(there) - core
    assert core == pytest.approx(rest, rel=1 / at)


def test_a_core_that_grows_no_faster_than_the_projections_never_overtakes_them() -> None:
    spec = AttentionSpec(phase="decode", kv_tokens=100, latent_form="expanded", **LATENT)
    assert crossover_tokens(spec) is None
    assert crossover_tokens(spec.replace(latent_form="absorbed")) is not None
