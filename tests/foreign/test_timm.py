"""timm's attention, which mhaprof has never seen, counts what the closed form says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mhaprof import AttentionSpec, count_flops, formulas
from mhaprof.huggingface import layers_of


def on_meta(cls: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.device("meta"):
        return cls(*args, **kwargs)


def assert_counts(counted: Any, spec: AttentionSpec, *, other_params: int = 0) -> None:
    """Compare totals, parameters and projections with the closed forms of the spec."""
    stages = formulas.stage_macs(spec)
    assert counted.fvcore_macs == counted.torch_macs == counted.macs == sum(stages.values())
    assert counted.params == formulas.params(spec).projections + other_params
    assert counted.uncounted_ops == {}
    assert counted.findings == ()
    assert counted.by_module[""] == counted.macs
    assert counted.by_module["qkv"] == stages["q_proj"] + stages["k_proj"] + stages["v_proj"]
    assert counted.by_module["proj"] == stages["out_proj"]


CASES = {
    "the article's module": ({}, {}),
    "biased qkv": ({"qkv_bias": True}, {"qkv_bias": True}),
    "no bias at all": ({"proj_bias": False}, {"out_bias": False}),
    "wide heads": ({"attn_head_dim": 96}, {"head_dim": 96}),
    "gated": ({"gated": True}, {"output_gate": "elementwise"}),
}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_attention_fused_or_not_counts_the_closed_form(timm: Any, case: str, fused: bool) -> None:
    options, fields = CASES[case]
    module = on_meta(timm.layers.Attention, 512, num_heads=8, **options)
    module.fused_attn = fused
    spec = AttentionSpec(batch=32, tokens=1024, dim=512, heads=8, **{"out_bias": True, **fields})
    counted = count_flops(module, torch.empty(32, 1024, 512, device="meta"))
    assert_counts(counted, spec)


@pytest.mark.parametrize("fused", [True, False])
def test_the_claims_three_numbers_from_timms_own_module(timm: Any, fused: bool) -> None:
    x = torch.empty(32, 1024, 512, device="meta")
    macs = []
    for heads, out_proj in ((1, False), (8, True), (8, False)):
        module = on_meta(timm.layers.Attention, 512, num_heads=heads)
        module.fused_attn = fused
        if not out_proj:
            module.proj = torch.nn.Identity()
        macs.append(count_flops(module, x).macs)
    assert macs == [60129542144, 68719476736, 60129542144]


@pytest.mark.parametrize("fused", [True, False])
def test_a_mask_and_norms_of_queries_and_keys_change_no_product(timm: Any, fused: bool) -> None:
    module = on_meta(
        timm.layers.Attention, 64, num_heads=4, qk_norm=True, norm_layer=torch.nn.LayerNorm
    )
    module.fused_attn = fused
    x = torch.empty(2, 10, 64, device="meta")
    mask = torch.empty(2, 1, 10, 10, dtype=torch.bool, device="meta")
    spec = AttentionSpec(batch=2, tokens=10, dim=64, heads=4, out_bias=True)
    for kwargs in ({}, {"attn_mask": mask}, {"is_causal": True}):
        assert_counts(count_flops(module, x, kwargs=kwargs), spec, other_params=2 * 2 * 16)


@pytest.mark.parametrize("fused", [True, False])
def test_a_real_module_on_real_inputs_counts_the_same(timm: Any, fused: bool) -> None:
    module = timm.layers.Attention(64, num_heads=4)
    module.fused_attn = fused
    spec = AttentionSpec(batch=2, tokens=10, dim=64, heads=4, out_bias=True)
    assert_counts(count_flops(module.eval(), torch.randn(2, 10, 64)), spec)
    assert_counts(count_flops(module.train(), torch.randn(2, 10, 64)), spec)


def test_every_block_of_a_vision_transformer_counts_its_attention(timm: Any) -> None:
    model = on_meta(timm.create_model, "vit_tiny_patch16_224", depth=3)
    counted = count_flops(model, torch.empty(2, 3, 224, 224, device="meta"))
    spec = AttentionSpec(batch=2, tokens=197, dim=192, heads=3, qkv_bias=True, out_bias=True)
    assert [counted.by_module[f"blocks.{index}.attn"] for index in range(3)] == 3 * [
        formulas.total_macs(spec)
    ]
    assert counted.by_module["blocks.0.mlp"] == 2 * 2 * 197 * 192 * 768
    assert counted.fvcore_macs == counted.torch_macs


def test_other_attention_of_timm_counts_its_closed_form(timm: Any) -> None:
    x = torch.empty(2, 50, 96, device="meta")
    plain = AttentionSpec(batch=2, tokens=50, dim=96, heads=6, out_bias=True)
    pooled = AttentionSpec(
        batch=2, tokens=1, kv_tokens=50, dim=96, heads=6, qkv_bias=True, out_bias=True
    )
    eva = timm.models.eva.EvaAttention
    rows = [
        (on_meta(timm.models.beit.Attention, 96, num_heads=6), plain),
        (on_meta(eva, 96, num_heads=6, qkv_fused=False, qkv_bias=False, scale_norm=False), plain),
        (on_meta(timm.models.cait.TalkingHeadAttn, 96, num_heads=6), plain),
        (on_meta(timm.layers.AttentionRope, 96, num_heads=6, qkv_bias=False), plain),
        (on_meta(timm.models.cait.ClassAttn, 96, num_heads=6, qkv_bias=True), pooled),
    ]
    for module, spec in rows:
        name = type(module).__name__
        for fused in (True, False):
            if hasattr(module, "fused_attn"):
                module.fused_attn = fused
            counted = count_flops(module, x)
            talking = 2 * 2 * 50 * 50 * 6 * 6 if name == "TalkingHeadAttn" else 0
            assert counted.macs == formulas.total_macs(spec) + talking, name
            assert counted.fvcore_macs == counted.torch_macs, name


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "vit_tiny_patch16_224",
        "vit_small_patch32_384",
        "vit_base_patch16_224",
        "vit_large_patch14_clip_336",
        "vit_huge_patch14_224",
        "vit_giant_patch14_224",
        "vit_gigantic_patch14_clip_224",
        "deit_small_patch16_224",
        "deit_base_distilled_patch16_384",
    ],
)
def test_a_config_of_timm_is_read_as_the_model_that_timm_builds(timm: Any, name: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name)
    config = {"architecture": name, "num_features": model.num_features, "pretrained_cfg": {}}
    (kind,) = layers_of(config).kinds
    blocks = [block.attn for block in model.blocks]
    learned = {sum(parameter.numel() for parameter in attn.parameters()) for attn in blocks}
    assert (kind.count, {kind.params.projections}) == (len(blocks), learned)
    assert (kind.spec.heads, kind.spec.tokens) == (blocks[0].num_heads, model.pos_embed.shape[1])
