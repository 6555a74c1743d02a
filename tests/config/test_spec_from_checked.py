"""The fast way to a spec is the same as the slow one."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhaprof.errors import SpecError
from mhaprof.spec import AttentionSpec, checked_fields

SIZES = st.one_of(st.none(), st.sampled_from([1, 2, 3, 4, 8, 12, 64]))
FLAGS = st.one_of(st.none(), st.booleans())


def one_of(*words: str | None) -> st.SearchStrategy[str | None]:
    return st.sampled_from([None, *words])


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("batch", "tokens", "kv_tokens", "dim", "heads", "kv_heads"), SIZES),
        **dict.fromkeys(("head_dim", "v_head_dim", "window", "q_lora_rank"), SIZES),
        **dict.fromkeys(("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"), SIZES),
        **dict.fromkeys(("out_proj", "kv_proj", "qkv_bias", "k_bias", "out_bias", "sinks"), FLAGS),
        "causal": st.one_of(one_of("none", "top-left", "bottom-right"), st.booleans()),
        "phase": one_of("prefill", "decode"),
        "qk_norm": one_of("none", "per-head", "full", "latent"),
        "output_gate": one_of("none", "per-head", "elementwise"),
        "softcap": st.one_of(st.none(), st.sampled_from([1.5, 30])),
        "latent_form": one_of("none", "expanded", "absorbed"),
    },
)


def outcome(make: Any, fields: dict[str, Any]) -> Any:
    try:
        return make(fields)
    except SpecError as error:
        return error.faults


@given(FIELDS)
def test_from_checked_gives_the_same_spec_or_the_same_faults(fields: dict[str, Any]) -> None:
    slow = outcome(lambda given: AttentionSpec(**given), fields)
    fast = outcome(lambda given: AttentionSpec.from_checked(checked_fields(given)), fields)
    assert fast == slow
    if isinstance(slow, AttentionSpec):
        assert (hash(fast), fast.key()) == (hash(slow), slow.key())
        assert list(fast.model_dump().items()) == list(slow.model_dump().items())


def test_a_fast_spec_is_a_full_citizen() -> None:
    spec = AttentionSpec.from_checked({"heads": 4, "dim": 64})
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert copy.deepcopy(spec) == spec
    assert AttentionSpec.model_validate_json(spec.model_dump_json()) == spec
    assert spec.replace(heads=2, kv_heads=2).heads == 2
    assert spec.model_copy(update={"batch": 1}).batch == 1
    assert spec.heads == 4
    with pytest.raises(ValueError, match="frozen"):
        spec.heads = 8  # type: ignore[misc]


def test_fast_specs_do_not_share_their_fields() -> None:
    one, other = (AttentionSpec.from_checked({"heads": heads}) for heads in (1, 2))
    assert (one.heads, other.heads) == (1, 2)
    assert AttentionSpec.from_checked({}).heads == 8


def test_checked_fields_turns_integral_floats_and_words_into_their_types() -> None:
    assert checked_fields({"tokens": 1e3, "causal": True, "window": None}) == {
        "tokens": 1000,
        "causal": "true",
    }
    with pytest.raises(SpecError, match=r"tokens 1\.5 is not a whole number"):
        checked_fields({"tokens": 1.5})
