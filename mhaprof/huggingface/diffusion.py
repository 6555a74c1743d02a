"""Transformers of diffusers (Flux, SD3, DiT): an image's tokens and a text's attend jointly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mhaprof import formulas
from mhaprof.huggingface.family import Image
from mhaprof.huggingface.formats import diffusers_row
from mhaprof.huggingface.keys import MAX_LAYERS, Keys, shown
from mhaprof.huggingface.stack import Draft, Run, Stack, image_tokens, pairs
from mhaprof.spec import AttentionSpec

JOINT = "joint_attention"


def read_diffusion(keys: Keys, run: Run, *, tokens_given: bool, warnings: list[str]) -> Stack:
    """Draft the blocks of a transformer of diffusers; faults are noted in ``keys``.

    In a double block image and text have projections of their own and attend to both: one
    draft over the tokens of both, with the text's projections as ``params_beside``.  The
    text's tokens are ``run.source_tokens``, else what the pipeline pads to.
    """
    row = diffusers_row(str(keys.values["_class_name"]))
    for name, value in row.get("requires", {}).items():
        if keys.values.get(name) != value:
            keys.fault(name, f"{shown(keys.values.get(name))} is another block than DiT's: {value}")
    double, single, alone = (
        keys.size(row[name], required=True, limit=MAX_LAYERS) or 0 if name in row else 0
        for name in ("double", "single", "alone")
    )
    also_alone = keys.indices(row["beside"], double) if "beside" in row else set()
    shared = _shared(keys, row, run)
    image, text = _tokens(keys, row, run, tokens_given, warnings)
    if keys.faults:
        return Stack(drafts=(), apart=())
    joint = {**shared, "tokens": image + text}
    drafts = [_draft(JOINT, each, joint, beside=shared) for each in range(double)]
    if row.get("last_text_projects") is False:
        without = {**shared, "out_proj": False, "out_bias": False}
        drafts[-1] = _draft(JOINT, double - 1, joint, beside=without)
    drafts += [_draft("single_attention", double + each, joint) for each in range(single)]
    for each in [*sorted(also_alone), *range(alone)]:
        drafts.append(_draft("self_attention", each, {**shared, "tokens": image}))
    warnings += row.get("notes", ())
    return Stack(drafts=tuple(drafts), apart=())


def _shared(keys: Keys, row: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Return the spec fields of every block."""
    heads = keys.size("num_attention_heads", required=True) or 1
    head_dim = keys.size("attention_head_dim", required=True) or 1
    normed = row.get("norm") is True or keys.given(str(row.get("norm"))) is not None
    return {
        "batch": run.batch,
        "dim": heads * head_dim,
        "heads": heads,
        "head_dim": head_dim,
        "qkv_bias": keys.flag("attention_bias", default=row.get("biased", True)),
        "out_bias": True,
        "causal": "none",
        "qk_norm": "per-head" if normed else "none",
    }


def _tokens(
    keys: Keys, row: Mapping[str, Any], run: Run, given: bool, warnings: list[str]
) -> tuple[int, int]:
    """Return the tokens of the image, of the size in the file if it has one, and of the text."""
    image, text = run.tokens, 0
    if not given and "sample_size" in keys.values:
        size, patch = keys.values["sample_size"], keys.values.get("patch_size")
        sides = Keys(values={"image_size": size, "patch_size": patch}, faults=keys.faults)
        image = image_tokens(sides, Image(extra=0)) or image
    elif not given:
        warnings.append(f"{image} tokens of the image: --tokens says otherwise")
    if "text_tokens" in row:
        text = run.source_tokens or row["text_tokens"]
        warnings.append(f"{text} tokens of the text beside the image's: --kv-tokens says otherwise")
    return image, text


def _draft(
    name: str, index: int, fields: Mapping[str, Any], *, beside: Mapping[str, Any] | None = None
) -> Draft:
    """Draft a block; ``beside`` are the spec fields of a second stream's projections."""
    spec = pairs({**fields, "kv_tokens": fields["tokens"]})
    learned = formulas.params(AttentionSpec(**beside)) if beside else formulas.Params(0, 0, 0)
    return Draft(
        name=name,
        indices=(index,),
        spec=spec,
        stored=spec,
        cached=False,
        norm_biases=learned.norms,
        params_beside=learned.projections,
    )
