"""Transformers of diffusers (Flux, SD3, DiT): an image's tokens and a text's attend jointly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mhaprof import formulas
from mhaprof.huggingface.family import Image
from mhaprof.huggingface.formats import diffusers_row
from mhaprof.huggingface.keys import MAX_LAYERS, Keys
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
    heads = keys.size(row["heads"], required=True)
    head_dim = keys.size(row["head_dim"], required=True)
    layers = {
        name: keys.size(row[name], required=True, limit=MAX_LAYERS)
        for name in ("double", "single", "alone")
        if name in row
    }
    image = None if tokens_given else _image(keys, row)
    if image is None and not tokens_given:
        warnings.append(f"{run.tokens} tokens of the image: --tokens says otherwise")
    image = image or run.tokens
    text = 0
    if "text_tokens" in row:
        text = run.source_tokens or row["text_tokens"]
        warnings.append(f"{text} tokens of the text beside the image's: --kv-tokens says otherwise")
    both = keys.indices(row["beside"], layers["double"] or 0) if "beside" in row else set()
    if heads is None or head_dim is None or None in layers.values():
        return Stack(drafts=(), apart=())
    biased = keys.flag(row["bias"], default=True) if "bias" in row else True
    normed = row.get("norm") is True or keys.given(str(row.get("norm"))) is not None
    shared = {
        "batch": run.batch, "dim": heads * head_dim, "heads": heads, "kv_heads": heads,
        "head_dim": head_dim, "qkv_bias": biased, "out_bias": True, "causal": "none",
        "qk_norm": "per-head" if normed else "none",
    }  # fmt: skip
    double, single, alone = (layers.get(name) or 0 for name in ("double", "single", "alone"))
    drafts = [_draft(JOINT, each, shared, image + text, streams=2) for each in range(double)]
    drafts += [_draft("self_attention", each, shared, image) for each in sorted(both)]
    drafts += [
        _draft("single_attention", double + each, shared, image + text) for each in range(single)
    ]
    drafts += [_draft("self_attention", each, shared, image) for each in range(alone)]
    if single:
        warnings.append(
            "the output projection of a single block is fused with its MLP's; the attention's "
            "part of it is counted"
        )
    if row.get("last_text_projects") is False:
        last = _draft(JOINT, double - 1, shared, image + text, streams=2, projects=False)
        drafts[double - 1] = last
        warnings.append(
            "the last block makes no output for the text: its parameters are not counted, "
            "its MACs are, as if it were"
        )
    return Stack(drafts=tuple(drafts), apart=())


def _image(keys: Keys, row: Mapping[str, Any]) -> int | None:
    """Return the tokens of an image of the size in the file."""
    if "sides" not in row:
        return None
    size, patch = (keys.values.get(name) for name in row["sides"])
    sides = Keys(values={"image_size": size, "patch_size": patch}, faults=keys.faults)
    return image_tokens(sides, Image(extra=0))


def _draft(
    name: str,
    index: int,
    shared: Mapping[str, Any],
    tokens: int,
    *,
    streams: int = 1,
    projects: bool = True,
) -> Draft:
    """Draft a block; of a second stream ``projects`` says whether it has an output."""
    fields = {**shared, "tokens": tokens, "kv_tokens": tokens}
    beside = 0
    if streams == 2:
        other = AttentionSpec(**{**shared, "out_proj": projects, "out_bias": projects})
        learned = formulas.params(other)
        beside = learned.projections
        norms = learned.norms
    else:
        norms = 0
    return Draft(
        name=name,
        index=index,
        spec=pairs(fields),
        stored=pairs(fields),
        cached=False,
        norm_biases=norms,
        params_beside=beside,
    )
