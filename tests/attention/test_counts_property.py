"""Whatever the spec and the implementation: closed form, fvcore and torch agree, per stage."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mhaprof import attention, formulas
from mhaprof.attention.rejections import REJECTION_CODES
from mhaprof.point import count_point
from mhaprof.point.counting import trace
from mhaprof.point.options import MeasureOptions
from mhaprof.records import Counts, Measured, Point, Skipped
from mhaprof.spec import AttentionSpec
from mhaprof.units import flops_of

QUICK = settings(
    max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
LONG = settings(QUICK, max_examples=150, derandomize=False)

small = st.integers(min_value=1, max_value=6)


@st.composite
def sizes(draw: st.DrawFn, *, plain: bool) -> dict[str, Any]:
    """Draw batch, width and heads; ``plain`` as everyone builds them: dim / heads wide."""
    groups = draw(st.integers(1, 3))
    heads = groups * draw(st.integers(1, 3))
    fields = {"batch": draw(st.integers(1, 3)), "heads": heads}
    if plain:
        return {**fields, "dim": heads * draw(small)}
    widths = {"dim": draw(st.integers(1, 20)), "head_dim": draw(small), "v_head_dim": draw(small)}
    return {**fields, **widths, "kv_heads": groups}


@st.composite
def masked_tokens(draw: st.DrawFn) -> dict[str, Any]:
    """Draw tokens of a prefill or a decode step, and a mask that they allow."""
    phase = draw(st.sampled_from(["prefill", "prefill", "decode"]))
    tokens = 1 if phase == "decode" else draw(st.integers(1, 9))
    cross = phase == "decode" or draw(st.booleans())
    kv_tokens = draw(st.integers(1, 9)) if cross else tokens
    fields: dict[str, Any] = {"phase": phase, "tokens": tokens, "kv_tokens": kv_tokens}
    fields["causal"] = draw(st.sampled_from(["none", "top-left", "bottom-right"]))
    cut = draw(st.sampled_from([None, "window", "chunk"]))
    if cut == "chunk" and fields["causal"] == "none":
        cut = None
    if cut == "window" and fields["causal"] == "none" and tokens != kv_tokens:
        cut = None
    return fields if cut is None else {**fields, cut: draw(st.integers(1, 9))}


@st.composite
def plain_specs(draw: st.DrawFn) -> AttentionSpec:
    """Draw what nn.MultiheadAttention can be, too: biases on all or on none."""
    bias = draw(st.booleans())
    masks = draw(masked_tokens().filter(lambda fields: fields["phase"] == "prefill"))
    masks.pop("chunk", None)
    return AttentionSpec(**draw(sizes(plain=True)), **masks, qkv_bias=bias, out_bias=bias)


@st.composite
def rich_specs(draw: st.DrawFn) -> AttentionSpec:
    """Draw any standard attention: grouped, biased here and there, normed, gated, capped."""
    out_proj = draw(st.booleans())
    return AttentionSpec(
        **draw(sizes(plain=False)),
        **draw(masked_tokens()),
        out_proj=out_proj,
        kv_proj=draw(st.sampled_from([True, True, False])),
        qkv_bias=draw(st.booleans()),
        k_bias=draw(st.booleans()),
        out_bias=out_proj and draw(st.booleans()),
        qk_norm=draw(st.sampled_from(["none", "per-head", "full"])),
        output_gate=draw(st.sampled_from(["none", "per-head", "elementwise"])),
        sinks=draw(st.sampled_from([False, False, True])),
        softcap=draw(st.sampled_from([None, None, 3.0])),
    )


@st.composite
def latent_specs(draw: st.DrawFn) -> AttentionSpec:
    """Draw latent attention, expanded or absorbed, with and without a query rank."""
    out_proj = draw(st.booleans())
    return AttentionSpec(
        batch=draw(st.integers(1, 3)),
        dim=draw(st.integers(1, 20)),
        heads=draw(small),
        **draw(masked_tokens()),
        out_proj=out_proj,
        qkv_bias=draw(st.booleans()),
        out_bias=out_proj and draw(st.booleans()),
        q_lora_rank=draw(st.sampled_from([None, 1, 5])),
        kv_lora_rank=draw(small),
        qk_nope_head_dim=draw(small),
        qk_rope_head_dim=draw(small),
        v_head_dim=draw(small),
        latent_form=draw(st.sampled_from(["expanded", "absorbed"])),
        qk_norm=draw(st.sampled_from(["none", "latent"])),
        output_gate=draw(st.sampled_from(["none", "per-head", "elementwise"])),
        sinks=draw(st.booleans()),
    )


def specs() -> st.SearchStrategy[AttentionSpec]:
    return st.one_of(plain_specs(), rich_specs(), latent_specs())


def counts_of(name: str, spec: AttentionSpec, *, backward: bool = False) -> Counts | None:
    """Count a spec; nothing may be found.  None if rejected, with a code that is documented."""
    point = Point(name="point", spec=spec, implementation=name)
    outcome = count_point(point, backward=backward).outcome
    if isinstance(outcome, Skipped):
        assert outcome.code in REJECTION_CODES
        return None
    assert isinstance(outcome, Measured), outcome
    assert [finding for finding in outcome.findings if finding.blocking] == []
    assert outcome.counts is not None
    assert outcome.counts.uncounted_ops == {}
    return outcome.counts


def assert_agreement(name: str, spec: AttentionSpec) -> None:
    """All counters agree, on the total, the parameters and what the modules tell apart."""
    counts = counts_of(name, spec)
    if counts is None:
        return
    total = formulas.total_macs(spec)
    followed = attention.get(name).counter_note is None
    assert counts.closed_form_macs == counts.macs == total
    assert counts.fvcore_flops == counts.torch_macs == (total if followed else None)
    assert counts.by_stage == formulas.stage_macs(spec)
    traced = trace(attention.get(name), spec, MeasureOptions(counters=("fvcore", "torch")))
    assert traced.macs == total
    assert traced.params == sum(formulas.params(spec))
    if name.startswith("torch-mha"):
        core = sum(macs for operator, macs in traced.by_operator.items() if operator != "linear")
        assert core == formulas.core_macs(spec)
    else:
        assert_stages(traced.by_module, spec)


def assert_stages(by_module: dict[str, int], spec: AttentionSpec) -> None:
    """Compare modules named like stages, wherever they are in the tree, with the closed form.

    ``in_proj`` is q, k and v in one; what no projection holds is scores and context.
    """
    stages = formulas.stage_macs(spec)
    expected = {stage: macs for stage, macs in stages.items() if stage not in formulas.CORE_STAGES}
    found: dict[str, int] = {}
    for path, macs in by_module.items():
        module = path.rpartition(".")[2]
        if module in expected or module == "in_proj":
            found[module] = found.get(module, 0) + macs
    assert by_module[""] - sum(found.values()) == formulas.core_macs(spec)
    if "in_proj" in found:
        names = [name for name in ("q_proj", "k_proj", "v_proj") if name not in found]
        expected["in_proj"] = sum(expected.pop(name) for name in names)
    assert found == {name: macs for name, macs in expected.items() if macs or name in found}


@pytest.mark.parametrize("name", attention.names())
@given(spec=specs())
@QUICK
def test_every_counter_agrees_stage_by_stage_on_any_spec(name: str, spec: AttentionSpec) -> None:
    assert_agreement(name, spec)


@pytest.mark.parametrize("name", attention.names())
@given(spec=plain_specs())
@QUICK
def test_every_implementation_counts_the_plain_specs(name: str, spec: AttentionSpec) -> None:
    assert_agreement(name, spec)


@pytest.mark.slow
@pytest.mark.parametrize("name", attention.names())
@given(spec=specs())
@LONG
def test_every_counter_agrees_on_very_many_specs(name: str, spec: AttentionSpec) -> None:
    assert_agreement(name, spec)


def assert_backward(name: str, spec: AttentionSpec) -> None:
    """The counted backward is twice the forward, and the scores again where they are not kept."""
    counts = counts_of(name, spec, backward=True)
    if counts is None:
        return
    again = counts.by_stage["scores"] if attention.get(name).fused else 0
    assert counts.flops_backward == flops_of(2 * counts.macs + again)
    assert counts.flops_forward_backward == flops_of(3 * counts.macs + again)


BACKWARD = ("eager", "eager-separate", "per-head", "sdpa", "sdpa-math", "torch-mha")


@pytest.mark.parametrize("name", BACKWARD)
@given(spec=specs())
@QUICK
def test_backward_is_counted_as_the_closed_form_says(name: str, spec: AttentionSpec) -> None:
    assert_backward(name, spec)


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKWARD)
@given(spec=specs())
@LONG
def test_backward_of_very_many_specs(name: str, spec: AttentionSpec) -> None:
    assert_backward(name, spec)


@given(spec=specs())
@settings(QUICK, max_examples=200)
def test_the_reference_costs_what_its_own_spec_says(spec: AttentionSpec) -> None:
    assert formulas.reference_macs(spec) == formulas.total_macs(spec.reference())
