"""The table of implementations: names, reason codes, and nothing imported too early."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from mhaprof import attention
from mhaprof.attention import rejections
from mhaprof.attention.rejections import REJECTION_CODES
from mhaprof.errors import UsageError
from mhaprof.records import AUTO_BACKEND
from mhaprof.spec import AttentionSpec


def test_listing_and_rejecting_import_no_torch() -> None:
    code = (
        "import sys\n"
        "from mhaprof import attention\n"
        "from mhaprof.spec import AttentionSpec\n"
        "spec = AttentionSpec(kv_heads=2, sinks=True)\n"
        "for name in attention.names():\n"
        "    attention.get(name).rejects(spec, device='meta', dtype='float32')\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "False"


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="did you mean eager-separate"):
        attention.get("eager-seperate")


def test_an_unknown_name_near_to_none_lists_them_all() -> None:
    with pytest.raises(UsageError, match="one of eager, eager-separate, per-head"):
        attention.get("xformers")


@pytest.mark.parametrize(
    ("name", "fields", "code"),
    [
        ("torch-mha", {"kv_heads": 2}, "gqa_unsupported"),
        ("torch-mha", {"head_dim": 32}, "head_dim_unsupported"),
        ("torch-mha", {"v_head_dim": 32}, "v_head_dim_unsupported"),
        ("torch-mha", {"out_proj": False}, "out_proj_required"),
        ("torch-mha", {"kv_proj": False}, "kv_proj_required"),
        ("torch-mha", {"qkv_bias": True}, "bias_unsupported"),
        ("torch-mha", {"qkv_bias": True, "k_bias": False, "out_bias": True}, "bias_unsupported"),
        ("torch-mha", {"qk_norm": "per-head"}, "qk_norm_unsupported"),
        ("torch-mha", {"output_gate": "per-head"}, "output_gate_unsupported"),
        ("torch-mha", {"sinks": True}, "sinks_unsupported"),
        ("torch-mha", {"softcap": 30.0}, "softcap_unsupported"),
        ("torch-mha", {"phase": "decode"}, "decode_unsupported"),
        ("torch-mha-fastpath", {}, "qkv_bias_required"),
        (
            "torch-mha-fastpath",
            {"qkv_bias": True, "out_bias": True, "kv_tokens": 7},
            "cross_unsupported",
        ),
        (
            "torch-mha-fastpath",
            {"qkv_bias": True, "out_bias": True, "heads": 1},
            "heads_unsupported",
        ),
        (
            "torch-mha-weights",
            {"tokens": 9, "kv_tokens": 4, "causal": "bottom-right"},
            "blind_queries_unsupported",
        ),
        ("per-head", {"qk_norm": "full"}, "qk_norm_unsupported"),
        ("eager-separate", {"kv_lora_rank": 8}, "latent_unsupported"),
        ("sdpa", {"sinks": True}, "sinks_unsupported"),
        ("sdpa", {"softcap": 30.0}, "softcap_unsupported"),
        ("flex", {"sinks": True}, "sinks_unsupported"),
    ],
)
def test_what_cannot_be_expressed_is_rejected_by_code(
    name: str, fields: dict[str, Any], code: str
) -> None:
    if "kv_lora_rank" in fields:
        fields = {**fields, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4}
    spec = AttentionSpec(**fields)
    rejection = attention.get(name).rejects(spec, device="meta", dtype="float32")
    assert rejection is not None
    assert rejection.code == code
    assert rejection.message.startswith(name + " ")


def test_every_code_in_use_is_documented() -> None:
    limits = [value for value in vars(rejections).values() if isinstance(value, rejections.Limit)]
    assert {limit.code for limit in limits} <= set(REJECTION_CODES)
    assert {limit.code for row in attention.TABLE.values() for limit in row.limits} <= {
        limit.code for limit in limits
    }


def test_mps_is_refused_float64() -> None:
    rejection = attention.get("eager").rejects(AttentionSpec(), device="mps", dtype="float64")
    assert rejection is not None
    assert rejection.code == "dtype_unsupported"


def test_forward_only_implementations_refuse_backward() -> None:
    spec = AttentionSpec(qkv_bias=True, out_bias=True)
    fast = attention.get("torch-mha-fastpath")
    assert fast.rejects(spec, device="meta", dtype="float32", mode="forward") is None
    rejection = fast.rejects(spec, device="meta", dtype="float32", mode="backward")
    assert rejection is not None
    assert rejection.code == "backward_unsupported"


def test_unfused_implementations_hold_their_scores_and_flex_does_on_a_cpu() -> None:
    holding = {name for name in attention.names() if attention.get(name).holds_scores(device="cpu")}
    assert holding == {
        "eager",
        "eager-separate",
        "per-head",
        "sdpa-math",
        "torch-mha-weights",
        "torch-mha-fastpath",
        "flex",
    }
    assert not attention.get("flex").holds_scores(device="cuda:0")


def test_each_implementation_says_which_backend_it_asks_for() -> None:
    asked = {name: attention.get(name).backend for name in attention.names()}
    assert {name: backend for name, backend in asked.items() if backend is not None} == {
        "sdpa": AUTO_BACKEND,
        "sdpa-expand": AUTO_BACKEND,
        "sdpa-math": "math",
        "sdpa-flash": "flash",
        "sdpa-efficient": "efficient",
        "sdpa-cudnn": "cudnn",
        "torch-mha": AUTO_BACKEND,
        "flex": "flex",
    }
