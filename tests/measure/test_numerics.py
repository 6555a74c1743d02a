"""Numerics: tolerances that right results keep and wrong ones break; the lean reference."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mhaprof.attention import get
from mhaprof.measure.numerics import check, checked_part, tolerance
from mhaprof.point.timing import make_subject
from mhaprof.records import Point, Settings
from mhaprof.spec import AttentionSpec


def attention(
    spec: AttentionSpec,
    x: torch.Tensor,
    context: torch.Tensor | None = None,
    *,
    scale: float = 1.0,
    drop_mask: bool = False,
) -> torch.Tensor:
    """Attention with identity projections, split heads, the mask by positions."""
    keys = x if context is None else context
    heads = spec.heads

    def split(t: torch.Tensor) -> torch.Tensor:
        return t.unflatten(-1, (heads, -1)).transpose(1, 2)

    scores = split(x) @ split(keys).transpose(-1, -2) * (scale / math.sqrt(spec.head_dim))
    if spec.causal != "none" and not drop_mask:
        offset = spec.kv_tokens - spec.tokens if spec.causal == "bottom-right" else 0
        rows = torch.arange(spec.tokens)[:, None] + offset
        columns = torch.arange(spec.kv_tokens)
        hidden = columns > rows
        if spec.window is not None:
            hidden |= columns <= rows - spec.window
        scores = scores.masked_fill(hidden, -math.inf)
    return (scores.softmax(-1) @ split(keys)).transpose(1, 2).flatten(2)


SPEC = AttentionSpec(batch=2, tokens=96, dim=128, heads=4, causal="top-left", window=40)
DTYPES = ["float64", "float32", "float16", "bfloat16"]


def inputs(dtype: str, spec: AttentionSpec = SPEC) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(spec.batch, spec.tokens, spec.dim, generator=generator).to(
        getattr(torch, dtype)
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_result_is_well_within_the_tolerance(dtype: str) -> None:
    x = inputs(dtype)
    limit = tolerance(SPEC, dtype=dtype)
    found = check(attention(SPEC, x), attention(SPEC, x.double()), tolerance=limit)
    assert found.ok, found.message
    assert found.max_error < 0.7 * limit


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", ["no mask", "scale", "window one short", "neighbour's row"])
def test_a_wrong_result_is_found_in_every_dtype(dtype: str, wrong: str) -> None:
    x = inputs(dtype)
    exact = attention(SPEC, x.double())
    result = {
        "no mask": lambda: attention(SPEC, x, drop_mask=True),
        "scale": lambda: attention(SPEC, x, scale=1.2),
        "window one short": lambda: attention(SPEC.replace(window=39), x),
        "neighbour's row": lambda: attention(SPEC, x).roll(1, dims=1),
    }[wrong]()
    found = check(result, exact, tolerance=tolerance(SPEC, dtype=dtype))
    assert not found.ok
    assert found.max_error > found.tolerance


def test_tolerances_grow_with_the_roundoff_and_with_the_sums() -> None:
    limits = [tolerance(SPEC, dtype=dtype) for dtype in DTYPES]
    assert limits == sorted(limits)
    assert limits[0] < 1e-12
    assert limits[-1] < 0.15
    long = SPEC.replace(kv_tokens=2**20, tokens=2**20)
    assert tolerance(long, dtype="float32") > 10 * tolerance(SPEC, dtype="float32")
    assert tolerance(long, dtype="float16") > 2 * tolerance(SPEC, dtype="float16")


def test_tf32_is_judged_by_its_ten_bits_and_only_in_float32() -> None:
    tf32 = tolerance(SPEC, dtype="float32", tf32=True)
    assert tf32 > 100 * tolerance(SPEC, dtype="float32")
    assert tolerance(SPEC, dtype="bfloat16", tf32=True) == tolerance(SPEC, dtype="bfloat16")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_nan_or_infinity_never_passes(bad: float) -> None:
    reference = torch.ones(1, 4, 8, dtype=torch.float64)
    result = reference.clone().float()
    result[0, 2, 3] = bad
    found = check(result, reference, tolerance=1e9)
    assert not found.ok
    assert "1 of 32 values" in found.message


def test_nan_does_not_pass_where_the_reference_has_it_too() -> None:
    both = torch.full((1, 2, 2), math.nan, dtype=torch.float64)
    assert not check(both.float(), both, tolerance=1e9).ok
    assert not check(torch.zeros(1, 2, 2), both, tolerance=1e9).ok


def test_another_shape_never_passes_by_broadcasting() -> None:
    reference = torch.zeros(2, 4, 8, dtype=torch.float64)
    found = check(torch.zeros(1, 4, 8), reference, tolerance=1.0)
    assert not found.ok
    assert "expected [2, 4, 8]" in found.message


def test_a_small_rows_error_is_not_hidden_by_a_large_row() -> None:
    reference = torch.ones(1, 2, 16, dtype=torch.float64)
    reference[0, 0] *= 50
    result = reference.clone()
    result[0, 1] *= 1.5
    found = check(result, reference, tolerance=0.1)
    assert found.max_error == pytest.approx(0.5)


def test_only_zeros_equal_a_reference_of_zeros() -> None:
    zeros = torch.zeros(1, 2, 4, dtype=torch.float64)
    assert check(zeros.float(), zeros, tolerance=1e-6).ok
    assert not check(zeros.float() + 1e-12, zeros, tolerance=1e-6).ok


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": 64},
        {"tokens": 64, "causal": "top-left"},
        {"tokens": 64, "causal": "bottom-right", "window": 9},
        {"tokens": 40, "kv_tokens": 64, "causal": "top-left"},
        {"tokens": 40, "kv_tokens": 64, "causal": "bottom-right"},
        {"tokens": 64, "kv_tokens": 40, "causal": "bottom-right"},
        {"tokens": 64, "kv_tokens": 8},
    ],
)
def test_the_checked_part_is_the_last_rows_of_the_last_sequence(fields: dict[str, int]) -> None:
    spec = AttentionSpec(batch=3, dim=32, heads=2, **fields)
    part = checked_part(spec, score_bytes=4 * 8 * spec.heads * spec.kv_tokens * 8)
    assert part.spec.batch == 1
    assert part.spec.tokens < spec.tokens
    # Its keys come from a second input: as many queries as keys would say otherwise.
    assert part.spec.is_cross
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(3, spec.tokens, 32, generator=generator, dtype=torch.float64)]
    if spec.is_cross:
        tensors.append(torch.randn(3, spec.kv_tokens, 32, generator=generator).double())
    cut = part.inputs(tensors)
    alone = attention(part.spec, *cut)
    whole = attention(spec, *tensors)
    assert torch.allclose(part.output(whole), alone, rtol=0, atol=1e-12, equal_nan=True)


def test_the_whole_sequence_is_checked_when_it_fits_or_cannot_be_cut() -> None:
    large = AttentionSpec(batch=8, tokens=1024, dim=512, heads=8)
    assert checked_part(large).spec == large.replace(batch=1)
    symmetric = AttentionSpec(batch=1, tokens=64, dim=32, heads=2, window=4)
    assert checked_part(symmetric, score_bytes=1).spec.tokens == 64


def test_a_small_problem_is_checked_whole() -> None:
    small = AttentionSpec(batch=8, tokens=32, dim=32, heads=2)
    part = checked_part(small)
    assert part.spec == small
    tensors = torch.arange(8.0)[:, None, None].expand(8, 32, 32)
    assert torch.equal(part.output(tensors), tensors)
    assert torch.equal(part.inputs([tensors])[0], tensors)


def test_of_more_sequences_than_fit_the_first_and_the_last_are_checked() -> None:
    many = AttentionSpec(batch=1000, tokens=64, dim=64, heads=4)
    part = checked_part(many)
    assert 2 <= part.spec.batch < 1000
    assert (part.sequences[0], part.sequences[-1]) == (0, 999)
    assert part.sequences == sorted(set(part.sequences))


def test_the_part_of_a_very_long_problem_stays_small() -> None:
    part = checked_part(AttentionSpec(batch=32, tokens=131072, causal="top-left"))
    assert part.spec.tokens * part.spec.heads * part.spec.kv_tokens * 8 * 4 <= 256 * 2**20
    assert part.spec.causal == "bottom-right"


def test_the_parts_inputs_are_copies() -> None:
    spec = AttentionSpec(batch=1, phase="decode", kv_tokens=8, dim=8, heads=2)
    cache = torch.zeros(1, 2, 8, 4)
    cut = checked_part(spec).inputs([torch.zeros(1, 1, 8), cache, cache])
    cut[1].fill_(7)
    assert float(cache.sum()) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"dim": 64, "heads": 4, "head_dim": 1, "tokens": 256},
        {"dim": 64, "heads": 1, "head_dim": 1, "tokens": 256, "causal": "top-left"},
        {"dim": 64, "heads": 1, "head_dim": 2, "tokens": 256},
    ],
)
def test_a_right_result_of_narrow_heads_passes_and_a_wrong_one_does_not(
    fields: dict[str, Any],
) -> None:
    spec = AttentionSpec(batch=2, **fields)
    settings = Settings(device="cpu", dtype="float32")
    point = Point(name="p", spec=spec, implementation="eager", settings=settings)
    for seed in range(4):
        subject = make_subject(point, get("eager"), seed=seed)
        with torch.no_grad():
            result = subject.module(*subject.inputs(0))
        for wrong, factor in ((False, 1.0), (True, 1.01)):
            found = check(
                result * factor, subject.reference,
                tolerance=subject.tolerance, values=subject.values,
            )  # fmt: skip
            assert found.ok is not wrong, found.message
            assert wrong or found.max_error < 0.7 * found.tolerance


def test_a_row_of_many_values_is_judged_by_itself_alone() -> None:
    reference = torch.ones(1, 9, 64, dtype=torch.float64)
    reference[0, 4] = 0.01
    result = reference.clone()
    result[0, 4] += 1e-4
    assert check(result, reference, tolerance=1e-3).max_error == pytest.approx(1e-2)
    assert check(result, reference, tolerance=1e-3, values=1).max_error < 2e-4
