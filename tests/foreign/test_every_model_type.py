"""Every model type of transformers: what ``layers_of`` says of its default config.json.

The config is that of the class, saved whole (``to_dict``); the truth is the model that it
builds on meta.  ``every_model_type.yaml`` holds the verdict of each type, so that a change
is seen: ``exact``; ``noted`` (exact, with a warning); ``refused KEY``; ``wrong WHAT``
(with a warning) and ``silent WHAT`` (without one: this must not be); ``unbuilt`` where
the class's defaults make no model.  Other parts of a file follow after a bar.

``MHAPROF_UPDATE_GOLDENS=1 pytest -m slow tests/foreign/test_every_model_type.py`` writes
the verdicts anew.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from ruamel.yaml import YAML

from mhaprof import formulas
from mhaprof.errors import UsageError
from mhaprof.huggingface import ModelPlan, layers_of
from mhaprof.huggingface.parts import Part

FILE = Path(__file__).with_name("every_model_type.yaml")
VERDICTS: dict[str, str] = YAML(typ="safe", pure=True).load(FILE) if FILE.exists() else {}
UPDATED: dict[str, str] = {}

PLACES = {
    "vision": re.compile(r"vision|visual|image|vit\b|pixel|video|vqmodel|backbone", re.IGNORECASE),
    "audio": re.compile(r"audio|speech|sound|wav|acoustic", re.IGNORECASE),
}
"""Where the towers of a composite model lie, by the path of their modules."""

ASPECTS = ("blocks", "weights", "biases", "norms", "sinks", "cached", "causal", "window")


def part_of(path: str) -> str:
    return next(
        (name for step in path.split(".") for name, place in PLACES.items() if place.search(step)),
        "text",
    )


def told(plan: ModelPlan) -> Iterator[Mapping[str, Any]]:
    """Yield each block of a plan, with what it is compared in."""
    for kind in plan.kinds:
        bare = kind.stored.replace(qkv_bias=False, k_bias=False, out_bias=False)
        learned = kind.params
        biases = formulas.params(kind.stored).projections - formulas.params(bare).projections
        block = {
            "weights": learned.projections - biases,
            "biases": biases,
            "norms": learned.norms,
            "sinks": learned.sinks,
            "cached": formulas.kv_bytes_per_token(kind.stored, dtype_bytes=1),
            "causal": kind.spec.causal != "none",
            "window": kind.spec.window,
        }
        yield from [block] * (kind.count if kind.built is None else kind.built)


def counted(blocks: Iterable[Mapping[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Count equal blocks, by what is compared."""
    return Counter(tuple(block[aspect] for aspect in ASPECTS[1:]) for block in blocks)


def difference(blocks: Iterable[Any], plan: ModelPlan) -> list[str]:
    """Name the aspects in which the plan is not the model that was built."""
    real = [vars(block) for block in blocks]
    said = list(told(plan))
    left_out = any("left out" in warning for warning in plan.warnings)
    if len(real) != len(said):
        if left_out and not (counted(said) - counted(real)):
            return []
        return [f"blocks {len(said)}, not {len(real)}"]
    wrong = []
    for aspect in ASPECTS[1:]:
        if any(block[aspect] is None and aspect != "window" for block in real):
            continue
        counts = [Counter(block[aspect] for block in side) for side in (said, real)]
        if counts[0] != counts[1]:
            mine, theirs = (
                sorted(count - other, key=str) for count, other in (counts, counts[::-1])
            )
            wrong.append(f"{aspect} {mine[0] if mine else '-'}, not {theirs[0]}")
    return wrong


def verdict_of(config: Mapping[str, Any], built: Any, part: str) -> str | None:
    """Return the verdict of one part; None if the file has no such part."""
    try:
        plan = layers_of(config, part=part, tokens=64)
    except UsageError as error:
        first = str(error).splitlines()[0].removeprefix("config.json: ")
        if part != "text" and re.match(r"\w+_config: is missing", first):
            return None
        return f"refused {first.partition(':')[0]}"
    if built.failure:
        return "unbuilt"
    for warning in plan.warnings:
        if chosen := re.match(r"this file has no text; .*\(--part (\w+)\)", warning):
            part = chosen[1]
    nested = any(
        isinstance(value, Mapping) and name.endswith("_config") and "model_type" in value
        for name, value in config.items()
    )
    own = [b for b in built.blocks if not nested or part_of(b.path) == part]
    if part == "vision" and not own:  # a tower that is called encoder
        own = [b for b in built.blocks if "encoder" in b.path.split(".")]
    rest = len(built.blocks) - len(own)
    wrong = difference(own, plan)
    left_out = any("left out" in warning for warning in plan.warnings)
    if rest and not left_out:
        wrong.append(f"{rest} blocks left out")
    if wrong:
        known = any("assumed" in w or "left out" in w for w in plan.warnings)
        return f"{'wrong' if known else 'silent'} {'; '.join(wrong)}"
    return "noted" if plan.warnings else "exact"


def verdicts(config: Mapping[str, Any], built: Any) -> str:
    if not config:
        return "unbuilt"
    found = {part: verdict_of(config, built, part) for part in get_args(Part)}
    words = [str(found.pop("text"))]
    words += [f"{part} {verdict}" for part, verdict in found.items() if verdict is not None]
    return " | ".join(words)


@pytest.fixture(scope="module", autouse=True)
def updated() -> Iterator[None]:
    yield
    if UPDATED:
        lines = [f"{name}: {value!r}\n" for name, value in sorted(UPDATED.items())]
        FILE.write_text("".join(lines), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("model_type", VERDICTS)
def test_a_model_type_gets_the_verdict_that_is_kept(
    built: Callable[[str], Any], model_type: str
) -> None:
    model = built(model_type)
    verdict = verdicts(model.config, model)
    if os.environ.get("MHAPROF_UPDATE_GOLDENS"):
        UPDATED[model_type] = verdict
    else:
        assert verdict == VERDICTS[model_type]


def first(verdict: str) -> str:
    return verdict.split(maxsplit=1)[0]


def test_no_verdict_is_wrong_without_a_word() -> None:
    assert [name for name, verdict in VERDICTS.items() if "silent" in verdict] == []


def test_most_model_types_are_exact_and_few_are_wrong_with_a_warning() -> None:
    count = Counter(map(first, VERDICTS.values()))
    assert count["exact"] + count["noted"] >= 420
    assert count["wrong"] <= 10
    assert set(count) == {"exact", "noted", "refused", "unbuilt", "wrong"}


def test_every_refusal_names_a_key() -> None:
    refused = [verdict for verdict in VERDICTS.values() if first(verdict) == "refused"]
    assert all(re.match(r"refused [\w.-]+( \||$)", verdict) for verdict in refused)


@pytest.mark.slow
def test_every_model_type_has_a_verdict(transformers: Any) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    assert set(VERDICTS) == set(CONFIG_MAPPING_NAMES)
