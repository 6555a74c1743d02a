"""What a row of the table of families may say: where facts are kept, and what is fixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mhaprof.spec import OutputGate, QKNorm

Names = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Key:
    """A flag that the file may state; ``default`` is what the code does without it."""

    names: Names
    default: bool = False


Fact = bool | Key
"""Fixed in the code, or stated by the file."""

KvRule = Literal["key", "heads", "multi-query", "falcon"]
"""Where kv_heads comes from: a key, always heads, 1 if ``multi_query``, or falcon's rule."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """How a vision encoder makes tokens: patches, and ``extra`` learned tokens beside."""

    extra: int = 1
    extra_key: str | None = None


@dataclass(frozen=True, kw_only=True)
class Norm:
    """The norm on queries and keys.  ``bias``: a LayerNorm with as many biases as weights."""

    kind: QKNorm
    given: Fact = True
    bias: bool = False


@dataclass(frozen=True, kw_only=True)
class Apart:
    """What a layer holds that is no softmax attention, as sums of products of keys.

    ``state``: elements of a sequence, whatever its tokens; ``per_token``: of each token.
    ``name`` says what it is, where the kind of the layer does not.
    """

    name: str = ""
    params: str = "0"
    state: str = ""
    per_token: str = "0"


@dataclass(frozen=True, kw_only=True)
class Family:
    """Where one family keeps its facts.  Tuples of names are the same key under old names.

    An empty ``head_dim`` means dim / heads, whatever the file says.  ``*_required``: the
    code does not derive the number, so that a file without it cannot be believed.
    ``latent`` families have ranks in place of kv_heads and head_dim.

    ``pattern`` names how layers alternate when the file has no ``layer_types``: see
    ``patterns.py``.
    ``half_window``: the key counts both sides of a bidirectional window.  ``bidirectional``
    names the flag that turns the causal mask off (and halves the window).  ``kv_shared``
    names how many last layers reuse an earlier layer's keys and values, ``cross_layers``
    the list of layers that attend to another sequence, with ``cross_norm``.

    ``by_type`` maps a kind of layer to the keys that it reads in place of another, each
    with the flag that it needs, if any; ``sinks`` may say a kind too.  ``kv_group`` is the
    object that holds ``kv_heads``; ``v_is_k`` the flag with which layers that do not slide
    have no projection of values.  ``cached`` is false for a causal encoder, ``built`` names
    how many layers have parameters of their own.  ``apart`` is of kinds of layers,
    ``states`` what those without a row may keep of a sequence.
    """

    dim: Names = ("hidden_size",)
    heads: Names = ("num_attention_heads",)
    kv_heads: Names = ("num_key_value_heads",)
    kv_rule: KvRule = "key"
    kv_heads_required: bool = False
    head_dim: Names = ("head_dim",)
    head_dim_required: bool = False
    v_head_dim: Names = ()
    layers: Names = ("num_hidden_layers",)
    layers_otherwise: Names = ()
    qkv_bias: Fact = False
    k_bias: Fact | None = None
    out_bias: Fact = False
    norm: Norm = Norm(kind="none")
    output_gate: OutputGate = "none"
    sinks: bool | Mapping[str, Fact] = False
    softcap: str | None = None
    latent: bool = False
    causal: Fact = True
    pattern: str = "full"
    period: int = 0
    period_names: Names = ()
    window: Names = ("sliding_window",)
    half_window: bool = False
    bidirectional: str | None = None
    kv_shared: str | None = None
    cross_layers: str | None = None
    cross_norm: QKNorm = "none"
    image: Image | None = None
    by_type: Mapping[str, Mapping[str, Names]] = field(default_factory=dict)
    kv_group: str | None = None
    v_is_k: str | None = None
    cached: bool = True
    built: Names = ()
    apart: Mapping[str, Apart] = field(default_factory=dict)
    states: Names = ()


@dataclass(frozen=True, kw_only=True)
class Seq2Seq:
    """An encoder, and a decoder with cross-attention in each layer.

    ``source_tokens`` names the key that fixes the encoder's length, if one does.
    """

    encoder: Family
    decoder: Family
    source_tokens: str | None = None
