"""A spec is complete or refused with all its faults at once."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from mhaprof.errors import SpecError
from mhaprof.spec import AttentionSpec, PartialSpec


def faults(**fields: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        AttentionSpec(**fields)
    return [fault.message for fault in caught.value.faults]


def test_defaults_are_the_missions() -> None:
    spec = AttentionSpec()
    assert (spec.batch, spec.tokens, spec.dim, spec.heads) == (32, 1024, 512, 8)
    assert (spec.kv_tokens, spec.kv_heads, spec.head_dim, spec.v_head_dim) == (1024, 8, 64, 64)
    assert spec.out_proj
    assert not spec.qkv_bias


def test_indivisible_dim_says_what_to_do() -> None:
    assert faults(dim=512, heads=7) == ["dim 512 is not divisible by heads 7; give --head-dim"]
    assert AttentionSpec(dim=512, heads=7, head_dim=64).head_dim == 64


def test_all_faults_are_reported_at_once() -> None:
    assert faults(dim=512, heads=7, kv_heads=3, batch=0, tokens="x", foo=3, causal="up") == [
        "batch 0 is not a whole number of at least 1",
        "tokens 'x' is not a whole number of at least 1",
        "causal 'up' is not one of none, top-left, bottom-right",
        "foo is not a field of an attention spec",
        "heads 7 is not a multiple of kv_heads 3; kv_heads must divide heads",
        "dim 512 is not divisible by heads 7; give --head-dim",
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch": True}, "batch true is not a whole number of at least 1"),
        ({"tokens": 1.5}, "tokens 1.5 is not a whole number of at least 1"),
        ({"heads": -8}, "heads -8 is not a whole number of at least 1"),
        ({"out_proj": 1}, "out_proj 1 is not true or false"),
        ({"softcap": 0}, "softcap 0 is not a number above 0"),
        (
            {"phase": "decode", "tokens": 7},
            "phase decode computes one query token, tokens 7 was given; "
            "give --kv-tokens 7 for the cache",
        ),
        (
            {"causal": True, "tokens": 4, "kv_tokens": 10},
            "causal with tokens 4 and kv_tokens 10 needs an alignment; "
            "give --causal top-left or --causal bottom-right",
        ),
        (
            {"window": 3, "tokens": 4, "kv_tokens": 10},
            "window 3 with tokens 4 and kv_tokens 10 needs an alignment; "
            "give --causal top-left or bottom-right",
        ),
        (
            {"out_proj": False, "out_bias": True},
            "out_bias is the bias of W_O, and out_proj is false; drop one of them",
        ),
        (
            {"q_lora_rank": 4},
            "q_lora_rank 4 is of latent attention; give --kv-lora-rank",
        ),
    ],
)
def test_each_fault_says_what_was_given_and_expected(fields: dict[str, Any], message: str) -> None:
    assert faults(**fields) == [message]


def test_an_integral_float_is_the_number_that_it_is() -> None:
    assert AttentionSpec(tokens=1e3).tokens == 1000


def test_causal_true_needs_no_alignment_when_the_lengths_agree() -> None:
    assert AttentionSpec(causal=True).causal == "top-left"


def test_decode_has_one_query_against_the_cache() -> None:
    spec = AttentionSpec(phase="decode", kv_tokens=77)
    assert (spec.tokens, spec.kv_tokens, spec.new_kv_tokens) == (1, 77, 1)


def test_latent_attention_derives_its_widths_and_form() -> None:
    latent = {
        "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    }  # fmt: skip
    prefill = AttentionSpec(**latent)
    assert (prefill.head_dim, prefill.kv_heads, prefill.latent_form) == (12, 8, "expanded")
    assert AttentionSpec(**latent, phase="decode").latent_form == "absorbed"


def test_equal_specs_share_a_key_and_any_field_changes_it() -> None:
    spec = AttentionSpec()
    assert spec.key() == AttentionSpec(dim=512, heads=8, kv_heads=8).key()
    changes: list[dict[str, Any]] = [
        {"batch": 1}, {"causal": "top-left"}, {"out_proj": False}, {"qk_norm": "full"},
        {"window": 3, "causal": "top-left"}, {"v_head_dim": 3},
    ]  # fmt: skip
    keys = {spec.replace(**change).key() for change in changes} | {spec.key()}
    assert len(keys) == len(changes) + 1


def test_a_spec_survives_json() -> None:
    spec = AttentionSpec(kv_heads=2, causal="bottom-right", kv_tokens=2048)
    assert AttentionSpec.model_validate_json(spec.model_dump_json()) == spec


def test_a_spec_is_frozen_and_hashable() -> None:
    spec = AttentionSpec()
    assert len({spec, AttentionSpec()}) == 1
    with pytest.raises(ValidationError):
        spec.heads = 4  # type: ignore[misc]


def test_partial_and_resolved_specs_have_the_same_fields_in_the_same_order() -> None:
    assert list(PartialSpec.model_fields) == list(AttentionSpec.model_fields)


def test_the_reference_is_one_full_head_without_w_o() -> None:
    reference = AttentionSpec(kv_heads=2, causal="top-left").reference()
    assert (reference.heads, reference.head_dim, reference.out_proj) == (1, 512, False)
    assert (reference.causal, reference.batch) == ("none", 32)
