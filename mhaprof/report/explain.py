"""The formula of one spec with its numbers in it, and what grows with what."""

from __future__ import annotations

from collections.abc import Callable

from mhaprof import formulas
from mhaprof.spec import AttentionSpec
from mhaprof.units import flops_of, format_ratio


def explain(spec: AttentionSpec) -> str:
    """Return the stages as formulas with numbers, the sum, growth and the crossover.

    MACs, dense (1 per multiply-add), forward; for decode the growth is along the cache.
    """
    stages = formulas.stage_macs(spec)
    worded = _latent_terms(spec) if spec.is_latent else _terms(spec)
    if "gate_proj" in stages:
        width = "heads x v_head_dim" if spec.output_gate == "elementwise" else "heads"
        worded["gate_proj"] = (f"batch x tokens x dim x {width}", _gate_numbers(spec))
    lines = [f"{'stage':<10} {'MACs':>22}  formula"]
    for stage, macs in stages.items():
        if stage in worded:
            formula, numbers = worded[stage]
            lines.append(f"{stage:<10} {macs:>22}  {formula} = {_product(numbers)}")
        else:
            lines.append(f"{stage:<10} {macs:>22}  not in this attention")
    total = sum(stages.values())
    lines.append(f"{'sum':<10} {total:>22}  MACs = {flops_of(total)} FLOPs (2 per MAC)")
    if spec.is_masked:
        lines += _masked(spec)
    return "\n".join([*lines, "", *_growth(spec), *_crossover(spec)]) + "\n"


def _product(numbers: tuple[int, ...]) -> str:
    return " x ".join(map(str, numbers))


def _terms(spec: AttentionSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return each stage's formula in words and its factors."""
    queries = (spec.batch, spec.tokens)
    new = (spec.batch, spec.new_kv_tokens)
    pairs = (spec.tokens, spec.kv_tokens)
    source = "tokens" if spec.phase == "decode" else "kv_tokens"
    terms: dict[str, tuple[str, tuple[int, ...]]] = {
        "q_proj": (
            "batch x tokens x dim x heads x head_dim",
            (*queries, spec.dim, spec.heads, spec.head_dim),
        ),
        "k_proj": (
            f"batch x {source} x dim x kv_heads x head_dim",
            (*new, spec.dim, spec.kv_heads, spec.head_dim),
        ),
        "v_proj": (
            f"batch x {source} x dim x kv_heads x v_head_dim",
            (*new, spec.dim, spec.kv_heads, spec.v_head_dim),
        ),
        "scores": (
            "batch x heads x tokens x kv_tokens x head_dim",
            (spec.batch, spec.heads, *pairs, spec.head_dim),
        ),
        "context": (
            "batch x heads x tokens x kv_tokens x v_head_dim",
            (spec.batch, spec.heads, *pairs, spec.v_head_dim),
        ),
        "out_proj": (
            "batch x tokens x heads x v_head_dim x dim",
            (*queries, spec.heads, spec.v_head_dim, spec.dim),
        ),
    }
    absent = [] if spec.out_proj else ["out_proj"]
    absent += [] if spec.kv_proj else ["k_proj", "v_proj"]
    return {stage: term for stage, term in terms.items() if stage not in absent}


def _latent_terms(spec: AttentionSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the stages of latent attention; q_proj with a rank is two products."""
    rank, nope, rope = (
        spec.kv_lora_rank or 0,
        spec.qk_nope_head_dim or 0,
        spec.qk_rope_head_dim or 0,
    )
    queries = (spec.batch, spec.tokens)
    q_term: tuple[str, tuple[int, ...]]
    core = (spec.batch, spec.heads, spec.tokens, spec.kv_tokens)
    latents = (spec.batch, spec.kv_tokens)
    if spec.q_lora_rank is None:
        q_term = (
            "batch x tokens x dim x heads x head_dim",
            (*queries, spec.dim, spec.heads, spec.head_dim),
        )
    else:
        weights = spec.dim * spec.q_lora_rank + spec.q_lora_rank * spec.heads * spec.head_dim
        q_term = (
            "batch x tokens x (dim x q_lora_rank + q_lora_rank x heads x head_dim)",
            (*queries, weights),
        )
    terms: dict[str, tuple[str, tuple[int, ...]]] = {
        "q_proj": q_term,
        "kv_down": (
            "batch x new tokens x dim x (kv_lora_rank + qk_rope_head_dim)",
            (spec.batch, spec.new_kv_tokens, spec.dim, rank + rope),
        ),
        "out_proj": (
            "batch x tokens x heads x v_head_dim x dim",
            (*queries, spec.heads, spec.v_head_dim, spec.dim),
        ),
    }
    if spec.latent_form == "absorbed":
        terms |= {
            "q_absorb": (
                "batch x tokens x heads x qk_nope_head_dim x kv_lora_rank",
                (*queries, spec.heads, nope, rank),
            ),
            "scores": (
                "batch x heads x tokens x kv_tokens x (kv_lora_rank + qk_rope_head_dim)",
                (*core, rank + rope),
            ),
            "context": ("batch x heads x tokens x kv_tokens x kv_lora_rank", (*core, rank)),
            "v_absorb": (
                "batch x tokens x heads x kv_lora_rank x v_head_dim",
                (*queries, spec.heads, rank, spec.v_head_dim),
            ),
        }
    else:
        terms |= {
            "k_proj": (
                "batch x kv_tokens x kv_lora_rank x heads x qk_nope_head_dim",
                (*latents, rank, spec.heads, nope),
            ),
            "v_proj": (
                "batch x kv_tokens x kv_lora_rank x heads x v_head_dim",
                (*latents, rank, spec.heads, spec.v_head_dim),
            ),
            "scores": ("batch x heads x tokens x kv_tokens x head_dim", (*core, spec.head_dim)),
            "context": (
                "batch x heads x tokens x kv_tokens x v_head_dim",
                (*core, spec.v_head_dim),
            ),
        }
    return terms if spec.out_proj else {k: term for k, term in terms.items() if k != "out_proj"}


def _gate_numbers(spec: AttentionSpec) -> tuple[int, ...]:
    width = (spec.heads, spec.v_head_dim) if spec.output_gate == "elementwise" else (spec.heads,)
    return (spec.batch, spec.tokens, spec.dim, *width)


def _masked(spec: AttentionSpec) -> list[str]:
    pairs, dense = formulas.exact_pairs(spec), formulas.dense_pairs(spec)
    return [
        f"The mask lets {pairs} of {dense} query-key pairs through; over those alone the sum is "
        f"{formulas.total_macs(spec, exact=True)} MACs (macs_exact)."
    ]


def _growth(spec: AttentionSpec) -> list[str]:
    """Say what doubling tokens, dim and heads does, by counting it."""
    if spec.phase == "decode":
        tokens_twice = spec.replace(kv_tokens=2 * spec.kv_tokens)
        what = "kv_tokens (the cache)"
    else:
        tokens_twice = spec.replace(tokens=2 * spec.tokens, kv_tokens=2 * spec.kv_tokens)
        what = "tokens" if spec.tokens == spec.kv_tokens else "tokens and kv_tokens"
    lines = ["What grows with what:", _doubling(spec, what, tokens_twice)]
    if not spec.is_latent:
        wider = spec.replace(
            dim=2 * spec.dim, head_dim=2 * spec.head_dim, v_head_dim=2 * spec.v_head_dim
        )
        lines.append(_doubling(spec, "dim (and with it head_dim)", wider))
        if spec.head_dim % 2 == 0 and spec.v_head_dim % 2 == 0:
            split = spec.replace(
                heads=2 * spec.heads,
                kv_heads=2 * spec.kv_heads,
                head_dim=spec.head_dim // 2,
                v_head_dim=spec.v_head_dim // 2,
            )
            lines.append(_doubling(spec, "heads (head_dim halves)", split))
        more = spec.replace(heads=2 * spec.heads, kv_heads=2 * spec.kv_heads)
        lines.append(_doubling(spec, "heads (head_dim kept)", more))
    lines.append(_doubling(spec, "batch", spec.replace(batch=2 * spec.batch)))
    return lines


def _doubling(spec: AttentionSpec, what: str, doubled: AttentionSpec) -> str:
    def rest(of: AttentionSpec) -> int:
        return formulas.total_macs(of) - formulas.core_macs(of)

    def factor(count: Callable[[AttentionSpec], int]) -> str:
        return format_ratio(count(doubled) / count(spec)) if count(spec) else "no"

    return (
        f"  twice the {what}: {factor(formulas.total_macs)} x in all, "
        f"projections {factor(rest)} x, scores and context {factor(formulas.core_macs)} x, "
        f"softmax {factor(formulas.softmax_ops)} x"
    )


def crossover_tokens(spec: AttentionSpec) -> float | None:
    """Return the tokens at which scores and context cost what the projections cost.

    For self-attention, dense: projections per token / (heads x (head_dim + v_head_dim));
    2 x dim for plain MHA with W_O.  In decode the kv_tokens at which one token's core
    costs what its projections cost.  None where they grow alike and never cross, or
    for cross-attention.
    """
    if spec.is_cross:
        return None
    one = spec.replace(batch=1, tokens=1, kv_tokens=1, causal="none", window=None, chunk=None)
    projections = formulas.total_macs(one) - formulas.core_macs(one)
    core = formulas.core_macs(one)
    if spec.phase == "decode":
        two = one.replace(kv_tokens=2)
        per_cached = formulas.total_macs(two) - formulas.core_macs(two) - projections
        slope = core - per_cached
        fixed = projections - per_cached
        return fixed / slope if slope > 0 else None
    return projections / core


def _crossover(spec: AttentionSpec) -> list[str]:
    crossing = crossover_tokens(spec)
    if crossing is None:
        return []
    axis = "kv_tokens" if spec.phase == "decode" else "tokens"
    multiple = f" ({crossing / spec.dim:.3g} x dim)"
    return [
        f"Scores and context overtake the projections beyond {crossing:g} {axis}{multiple}; "
        f"here {axis} is {spec.kv_tokens}."
    ]
