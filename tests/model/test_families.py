"""Each row of the table of families against the family's own module in transformers.

The module is built on meta from the same raw config.json that ``layers_of`` reads.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from mhaprof import formulas
from mhaprof.huggingface import layers_of
from mhaprof.huggingface.patterns import PATTERNS
from mhaprof.huggingface.plan import LayerKind
from mhaprof.huggingface.towers import row_of, said_types, seq2seq_rows

torch = pytest.importorskip("torch")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One family: a raw config, and the class of its attention block.

    ``also`` names modules that the class does not hold (BERT's output projection);
    ``layer`` picks the layer that is built, ``sizes`` builds from sizes, not a config.
    """

    model_type: str
    block: str
    raw: dict[str, Any]
    also: str | None = None
    layer: int = 0
    sizes: str | None = None


def load() -> tuple[tuple[Case, ...], dict[str, str]]:
    """Read the cases, and the names that stand for another family."""
    path = Path(__file__).with_name("families.yaml")
    document = YAML(typ="safe", pure=True).load(path)
    cases = []
    for row in document["cases"]:
        base = document["bases"].get(row.pop("base", None), {})
        raw = {"model_type": row["model_type"], **base, **row.pop("own", {})}
        cases.append(Case(raw=raw, **row))
    return tuple(cases), document["aliases"]


CASES, ALIASES = load()


REPRESENTATIVES = ("llama", "falcon", "gemma2", "gpt_oss", "deepseek_v3", "bert", "t5")
"""Families with a case in the default run: one for each way that facts are kept.  Every
other case is ``slow``: each imports another module of transformers."""


def ids(one: Case) -> str:
    return f"{one.model_type}-{CASES.index(one)}"


def each(cases: Iterable[Case]) -> list[Any]:
    """Return the cases as parameters; the first of each representative is not slow."""
    quick = set(REPRESENTATIVES)
    parameters = []
    for one in cases:
        marks = () if one.model_type in quick else (pytest.mark.slow,)
        quick.discard(one.model_type)
        parameters.append(pytest.param(one, marks=marks, id=ids(one)))
    return parameters


@pytest.fixture(scope="module")
def config_of(transformers: Any) -> Callable[[Case], Any]:
    """Make the family's own config object, once for each case."""
    made: dict[int, Any] = {}

    def make(one: Case) -> Any:
        if id(one) not in made:
            raw = {key: value for key, value in one.raw.items() if key != "model_type"}
            config = transformers.AutoConfig.for_model(one.model_type, **raw)
            config._attn_implementation = "eager"
            made[id(one)] = config
        return made[id(one)]

    return make


def plan_kinds(one: Case) -> tuple[LayerKind, ...]:
    return layers_of(one.raw, tokens=24, kv_tokens=20, partial=True).kinds_of(one.layer)


def build(one: Case, config: Any) -> list[Any]:
    """Return the block on meta, in eval mode, and what belongs to it beside."""
    cls = _class(one.block + "Attention")
    heads = getattr(config, one.sizes) if one.sizes else None
    values = {
        "config": config,
        "layer_idx": one.layer,
        "layer_id": one.layer,
        "attention_type": "global",
        "embed_dim": config.hidden_size,
        "num_heads": heads,
    }
    wanted = inspect.signature(cls).parameters
    given = {name: value for name, value in values.items() if name in wanted}
    with torch.device("meta"):
        blocks = [cls(**given)]
        if one.also is not None:
            blocks.append(_class(one.also)(config))
    return [block.eval() for block in blocks]


def _class(path: str) -> Any:
    package, name = path.split(":")
    module = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
    return getattr(module, name)


def counted(blocks: list[Any]) -> tuple[int, int, int]:
    """Count projections, norms of q and k, and sinks of built modules."""
    projections = norms = sinks = 0
    for block in blocks:
        for name, parameter in block.named_parameters():
            size = parameter.numel()
            if "relative_attention_bias" in name or name.startswith("LayerNorm"):
                continue
            if "sinks" in name:
                sinks += size
            elif "norm" in name.lower():
                norms += size
            else:
                projections += size
    return projections, norms, sinks


@pytest.mark.parametrize("one", each(CASES))
def test_parameters_are_those_of_the_module_that_transformers_builds(
    one: Case, config_of: Any
) -> None:
    expected = counted(build(one, config_of(one)))
    for kind in plan_kinds(one):
        got = formulas.params(kind.stored)
        assert (got.projections, got.norms + kind.norm_biases, got.sinks) == expected, kind.name


@pytest.mark.parametrize("one", each(CASES))
def test_layers_alternate_as_the_config_class_of_transformers_says(
    one: Case, config_of: Any
) -> None:
    if one.model_type in seq2seq_rows() or "cross_attention_layers" in one.raw:
        expected = []
    else:
        expected = types_of(config_of(one))
    plan = layers_of(one.raw, tokens=24, kv_tokens=20, partial=True)
    got = {index: kind.name.split(",")[0] for kind in plan.kinds for index in kind.indices} | {
        index: layers.name for layers in plan.apart for index in layers.indices
    }
    assert [WORDS.get(got[index], got[index]) for index in range(len(expected))] == expected


WORDS = {
    "mamba": "linear_attention",
    "attention": "full_attention",
    "global": "full_attention",
    "local": "sliding_attention",
}


def types_of(config: Any) -> list[str]:
    """Return each layer's type as the config class of transformers understands the file."""
    types = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    if types is None:
        slides = getattr(config, "sliding_window", None)
        types = ["sliding_attention" if slides else "full_attention"] * config.num_hidden_layers
    return [WORDS.get(word, word) for word in types]


BATCH, LENGTH = 2, 10


def call(one: Case, block: Any, config: Any) -> Any:
    """Run the block's forward on meta with what its family expects beside x."""
    x = torch.empty((BATCH, LENGTH, config.hidden_size), device="meta")
    wanted = inspect.signature(block.forward).parameters
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    factor = (getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor", 1.0)
    rotated = int(getattr(config, "qk_rope_head_dim", None) or width * factor)
    shape = (LENGTH, rotated) if one.model_type == "pixtral" else (BATCH, LENGTH, rotated)
    cos_sin = tuple(torch.empty(shape, device="meta") for _ in range(2))
    mask = torch.empty((BATCH, 1, LENGTH, LENGTH), device="meta")
    values = {
        "position_embeddings": cos_sin,
        "attention_mask": mask if one.model_type in ("falcon", "bloom") else None,
        "position_ids": torch.empty((BATCH, LENGTH), dtype=torch.long, device="meta"),
        "alibi": None,
    }
    return block(x, **{name: value for name, value in values.items() if name in wanted})


UNTRACED = {
    "bloom": "needs alibi and the residual beside its input",
    "codegen": "rotates inside, by position ids",
    "deepseek_v2": "rotates by complex numbers",
    "dinov3_vit": "rotates patches alone",
    "gemma3n_text": "a sharing layer needs the states of another",
    "gpt_oss": "rotates by half-width cosines",
    "gptj": "rotates inside, by position ids",
    "llama4_text": "rotates by complex numbers",
    "llama4_vision_model": "rotates by complex numbers",
    "mllama_text_model": "needs the states of the image",
    "mpt": "needs the position bias",
    "whisper": "masks by its own rule",
}


def traced(one: Case) -> bool:
    return one.model_type not in UNTRACED and one.raw.get("alibi") is not True


@pytest.mark.parametrize("one", each(one for one in CASES if traced(one)))
def test_macs_are_those_that_torch_counts_in_the_module(one: Case, config_of: Any) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    block, *beside = build(one, config_of(one))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        call(one, block, config_of(one))
    out_proj = sum(module.dense.weight.numel() for module in beside)
    kind = layers_of(one.raw, tokens=LENGTH, batch=BATCH, partial=True).kinds_of(one.layer)[0]
    spec = kind.spec.replace(tokens=LENGTH, kv_tokens=LENGTH)
    expected = formulas.total_macs(spec) - BATCH * LENGTH * out_proj
    assert counter.get_total_flops() == 2 * expected


def test_every_row_names_a_pattern_that_there_is() -> None:
    rows = [row_of(name) for name in said_types()]
    families = [row.family for row in rows if row is not None]
    for pair in seq2seq_rows().values():
        families += [pair.encoder, pair.decoder]
    assert {family.pattern for family in families} <= set(PATTERNS)


OTHER_NAMES = {"mluke", "kimi_k2", "RefinedWeb", "RefinedWebModel", "nemotron-nas", "MiniMaxText01"}
"""Other names of a family that has a case."""


def test_every_family_of_the_table_has_a_case() -> None:
    covered = {one.model_type for one in CASES} | set(ALIASES)
    files = Path(__file__).with_name("configs").glob("*.json")
    covered |= set(re.findall(r'"model_type": "([^"]+)"', " ".join(map(Path.read_text, files))))
    walked = Path(__file__).parents[1] / "foreign" / "every_model_type.yaml"
    covered |= set(YAML(typ="safe", pure=True).load(walked))
    assert said_types() | set(seq2seq_rows()) <= covered | OTHER_NAMES


def test_an_alias_is_read_as_the_family_it_stands_for() -> None:
    for name, real in ALIASES.items():
        assert row_of(name).family == row_of(real).family, name


@pytest.mark.parametrize("one", each(CASES))
def test_a_file_saved_anew_by_transformers_gives_the_same_answer(one: Case, config_of: Any) -> None:
    saved = json.loads(json.dumps(config_of(one).to_dict()))
    as_it_was = layers_of(one.raw, tokens=24, kv_tokens=20, partial=True)
    assert layers_of(saved, tokens=24, kv_tokens=20, partial=True).kinds == as_it_was.kinds
