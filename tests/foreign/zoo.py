"""Count foreign models, made small, and compare with torch's counter on real tensors.

A program, so that a crash of torch costs one part of the zoo: it reads lines
``LIBRARY NAME VARIANT`` and prints one JSON object for each.  A variant is how the
sizes of a configuration are made small; ``?`` tries all.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mhaprof.errors import UsageError
from mhaprof.measure.flops import ModuleFlops, count_module

Call = tuple[torch.nn.Module, list[torch.Tensor], dict[str, torch.Tensor]]

WIDTHS = (
    "hidden_size d_model n_embd dim embed_dim encoder_hidden_size decoder_hidden_size emb_dim "
    "embedding_size word_embed_proj_dim text_embed_dim projection_dim embedding_dim proj_dim "
    "d_embed out_hidden_size vision_embed_dim cross_attention_hidden_size fpn_hidden_size "
    "vision_hidden_size"
)
DEPTHS = (
    "num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers depth "
    "num_decoder_layers num_encoder_layers num_hidden_groups encoder_num_layers "
    "decoder_num_layers num_block_layers"
)
HEADS = (
    "num_attention_heads n_head n_heads num_heads encoder_attention_heads encoder_num_heads "
    "decoder_attention_heads decoder_num_heads num_encoder_attention_heads"
)
KV_HEADS = (
    "num_key_value_heads num_kv_heads encoder_num_key_value_heads decoder_num_key_value_heads"
)
INNER = (
    "intermediate_size d_ff ffn_dim encoder_ffn_dim decoder_ffn_dim d_inner n_inner hidden_dim "
    "moe_intermediate_size shared_expert_intermediate_size dim_feedforward"
)
HEAD_WIDTHS = "head_dim d_kv attention_head_size kv_channels d_head"
OTHERS = {
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 128),
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "image_size": 32,
    "patch_size": 8,
    "rotary_dim": 8,
}


def sizes(*, width: int, heads: int, kv_heads: int, **others: int) -> dict[str, int]:
    """Return the small size of every key that means a width, a depth or a number of heads."""
    by_names = {
        WIDTHS: width,
        DEPTHS: 2,
        HEADS: heads,
        KV_HEADS: kv_heads,
        INNER: 48,
        HEAD_WIDTHS: width // heads,
    }
    small = {name: size for names, size in by_names.items() for name in names.split()}
    return {**small, **OTHERS, **others}


VARIANTS = {
    "small": sizes(width=32, heads=4, kv_heads=2),
    "all heads": sizes(width=32, heads=4, kv_heads=4),
    "wide": sizes(width=256, heads=2, kv_heads=2, vocab_size=2000, pad_token_id=0),
    "half wide": sizes(width=128, heads=2, kv_heads=2, vocab_size=2000, pad_token_id=0),
    "images": sizes(width=32, heads=4, kv_heads=4, image_size=224, patch_size=16),
    "shallow": {**dict.fromkeys(DEPTHS.split(), 2), "num_local_experts": 4},
}
LARGEST = 80_000_000


def shrunk(base: Any, small: dict[str, int], **wanted: Any) -> Any:
    """Return a configuration with its sizes, and those of the ones in it, made small."""
    given = dict(wanted)
    for name, value in base.to_dict().items():
        inner = vars(base).get(name)
        if name in small and type(value) is int and value >= 0:
            given[name] = min(small[name], value)
        elif hasattr(inner, "to_dict") and hasattr(type(inner), "model_type"):
            given[name] = shrunk(inner, small).to_dict()
        elif name.endswith("layer_types") and isinstance(value, list):
            kinds = list(dict.fromkeys(value))
            given[name] = (kinds * 2)[:2]
    return type(base)(**given)


WANTED = {
    "reformer": {"axial_pos_embds": False},
    "xmod": {"default_language": "en_XX"},
}
"""What the constructor of a configuration asks for."""


def inputs_of(model: Any, config: Any, *, turned: bool) -> dict[str, torch.Tensor]:
    """Make what ``forward`` asks for by name; ``turned`` has the features of sound last."""
    random = torch.Generator().manual_seed(0)
    parts = ("vision_config", "audio_config", "encoder", "text_config", "backbone_config")
    configs = [config, *(getattr(config, part, None) for part in parts)]

    def size_of(*names: str, default: Any) -> Any:
        found = (getattr(each, name, None) for each in configs if each for name in names)
        return next((value for value in found if value is not None), default)

    def randn(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=random)

    side = size_of("image_size", "img_size", default=32)
    if isinstance(side, dict):
        side = (side["height"], side["width"])
    height, width = (side, side) if isinstance(side, int) else tuple(side)[-2:]
    channels = size_of("num_channels", "in_channels", "in_chans", default=3)
    channels = channels if isinstance(channels, int) else 3
    mels = size_of("num_mel_bins", "feature_size", "n_mels", "input_feat_per_channel", default=80)
    pictures = (size_of("num_frames", default=4),) if turned else ()
    frames = 2 * size_of("max_source_positions", default=50)
    patch = size_of("patch_size", default=8)
    patch = patch if isinstance(patch, int) else patch[0]
    volume = channels * patch**2 * size_of("temporal_patch_size", default=1)
    ids = torch.randint(5, 20, (1, 8), generator=random)
    made: dict[str, Callable[[], torch.Tensor]] = {
        "input_ids": lambda: ids,
        "decoder_input_ids": lambda: ids[:, :6],
        "qformer_input_ids": lambda: ids,
        "bbox": lambda: torch.zeros(1, 8, 4, dtype=torch.int64),
        "pixel_values": lambda: randn(1, *pictures, channels, height, width),
        "pixel_values_videos": lambda: randn(
            1, size_of("num_frames", "frames_per_clip", default=4), channels, height, width
        ),
        "input_features": lambda: randn(1, *((frames, mels) if turned else (mels, frames))),
        "input_values": lambda: randn(1, 1, 2000) if turned else randn(1, 2000),
        "past_values": lambda: randn(
            1, size_of("context_length", default=32), size_of("num_input_channels", default=1)
        ),
        "hidden_states": lambda: randn(16, volume),
        "grid_thw": lambda: torch.tensor([[1, 4, 4]]),
        "query_embeds": lambda: randn(1, 4, config.hidden_size),
        "inputs_embeds": lambda: randn(1, 8, config.hidden_size),
        "inputs": lambda: randn(1, 16, config.d_model),
    }
    main = getattr(model, "main_input_name", "input_ids")
    names = [main]
    for name, parameter in inspect.signature(model.forward).parameters.items():
        named = parameter.kind is not parameter.VAR_KEYWORD
        if named and (parameter.default is parameter.empty or name == "bbox"):
            names.append(name)
        pictured = not any(hasattr(config, f"image_token_{key}") for key in ("id", "index"))
        if name in ("input_ids", "pixel_values") and pictured:
            names.append(name)
        if name == "decoder_input_ids" and config.is_encoder_decoder:
            names.append(name)
    if main not in made:
        raise NotImplementedError(f"nothing is made for {main}")
    return {name: made[name]() for name in dict.fromkeys(names) if name in made}


def of_transformers(name: str, variant: str) -> Iterator[tuple[str, Call]]:
    """Yield the model of an architecture, in the ways of making it small that build it."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    classes = MODEL_MAPPING_NAMES[name]
    cls = getattr(transformers, classes if isinstance(classes, str) else classes[0])
    base, wanted = transformers.CONFIG_MAPPING[name](), WANTED.get(name, {})
    tried = [variant] if variant != "?" else [*VARIANTS, *(f"{v}, turned" for v in VARIANTS)]
    for how in tried:
        sized, _, turned = how.partition(", ")
        try:
            config = shrunk(base, VARIANTS[sized], **wanted)
            with torch.device("meta"):
                count = sum(parameter.numel() for parameter in cls(config).parameters())
        except Exception:  # noqa: BLE001  (some constructors do not run on meta)
            count = 0
        if count < LARGEST:
            torch.manual_seed(0)
            try:
                config = shrunk(base, VARIANTS[sized], **wanted)
                model = cls(config).eval().requires_grad_(requires_grad=False)
                yield how, (model, [], inputs_of(model, config, turned=bool(turned)))
            except Exception as error:
                if how == tried[-1]:
                    raise error from None


def of_timm(name: str, variant: str) -> Iterator[tuple[str, Call]]:
    """Yield an image model, its image as small as the variant says."""
    import timm

    torch.manual_seed(0)
    model = timm.create_model(name).eval().requires_grad_(requires_grad=False)
    for side in (64, 96, 128, 224, 256) if variant == "?" else [int(variant)]:
        yield str(side), (model, [torch.randn(1, 3, side, side)], {})


def _product(first: int) -> Callable[..., int]:
    return lambda *sizes, out_shape=None, **_: 2 * math.prod(out_shape) * sizes[first][-1]


def _grouped(a: Any, b: Any, *_: Any, **__: Any) -> int:
    return 2 * (a[0] if len(a) == len(b) == 3 else 1) * a[-2] * a[-1] * b[-1]


def _triangular(a: Any, b: Any, **_: Any) -> int:
    return math.prod(b[:-2]) * b[-1] * a[-1] * (a[-1] - 1)


def on_real_tensors(call: Call) -> int:
    """Return the MACs of torch's own counter on real tensors, with attention unfused.

    Products that it does not know are added; each is written out here, by itself.
    """
    aten = torch.ops.aten
    mapping = {
        **dict.fromkeys((aten.mv, aten.dot, aten.vdot), _product(0)),
        **dict.fromkeys((aten.addmv, aten.baddbmm_, aten.addmm_), _product(1)),
        aten._grouped_mm: _grouped,
        aten.linalg_solve_triangular: _triangular,
    }
    fallback = getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    if fallback is not None:
        mapping[fallback] = _grouped
    model, args, kwargs = call
    counter = FlopCounterMode(display=False, custom_mapping=mapping)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # An LSTM of oneDNN is one operator, which torch's counter does not know.
        with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False), counter:
            model(*args, **kwargs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return counter.get_total_flops() // 2


def verdict_on(call: Call, real: int) -> tuple[str, str]:
    """Return how the count compares, and what was said."""
    model, args, kwargs = call
    try:
        found: ModuleFlops = count_module(model, args, kwargs=kwargs)
    except UsageError as error:
        return "refused", str(error)
    said = "; ".join(finding.message for finding in found.findings)
    blocked = any(finding.blocking for finding in found.findings)
    if found.macs != real:
        return "blocked" if blocked else "wrong", f"{found.macs} MACs for {real}; {said}"
    if blocked:
        return "blocked", said
    return "both" if found.fvcore_macs == found.torch_macs else "one", said


def judge(library: str, name: str, variant: str) -> dict[str, str]:
    """Return the verdict on one model: both, one, blocked, refused, wrong, or not run."""
    said = "every variant is too large"
    try:
        for how, call in {"transformers": of_transformers, "timm": of_timm}[library](name, variant):
            try:
                real = on_real_tensors(call)
            except Exception as error:  # noqa: BLE001  (another variant may run)
                said = f"{type(error).__name__}: {error}"
                continue
            verdict, said = verdict_on(call, real)
            return {"verdict": verdict, "variant": how, "said": said}
    except Exception as error:  # noqa: BLE001  (this model cannot be built here)
        said = f"{type(error).__name__}: {error}"
    return {"verdict": "not run", "variant": "", "said": said}


def load_torchvision() -> Any:
    """Let torchvision load beside any build of torch, as the tests' own fixture does."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float threshold) -> Tensor")
        importlib.import_module("torchvision")
        return library


def main() -> None:
    """Judge the models named on standard input, a line each."""
    warnings.filterwarnings("ignore")
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    out, sys.stdout = sys.stdout, sys.stderr  # packages print what they please
    kept = load_torchvision()
    for line in sys.stdin:
        library, name, variant = line.rstrip("\n").split("\t")
        found = {"library": library, "name": name, **judge(library, name, variant)}
        print(json.dumps(found), flush=True, file=out)
    del kept


if __name__ == "__main__":
    main()
