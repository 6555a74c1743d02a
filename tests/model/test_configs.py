"""Config files of recent models, and the values that follow from them by hand: ``configs.yaml``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from mhaprof.huggingface import layers_of
from mhaprof.huggingface.cost import ModelCost, cost_of
from mhaprof.report.model import model_rows

FOLDER = Path(__file__).with_name("configs")
CASES: list[dict[str, Any]] = YAML(typ="safe", pure=True).load(FOLDER.with_suffix(".yaml"))
NOTES = {"file", "why", "layer"}


def answers(cost: ModelCost, case: dict[str, Any]) -> dict[str, Any]:
    """Return what the plan says of everything that a case names."""
    kinds = dict(zip(cost.plan.kinds, cost.kinds, strict=True))
    of_layer = cost.plan.kinds_of(case["layer"])[0] if "layer" in case else cost.plan.kinds[0]
    apart = [row for row in model_rows(cost) if row["role"] == "apart"]
    return {
        "causal": of_layer.spec.causal,
        "window": of_layer.spec.window or "none",
        "head_dim": of_layer.spec.head_dim,
        "params": kinds[of_layer].params,
        "params_model": cost.total.params,
        "kv": cost.total.kv_bytes_per_token,
        "kv_layer": kinds[of_layer].kv_bytes_per_token,
        "kv_layers": [each.kv_bytes_per_token for each in cost.kinds],
        "layers": cost.plan.layers,
        "blocks": cost.plan.layers,
        "apart": {
            row["name"]: {key: row[key] for key in case["apart"][row["name"]]} for row in apart
        }
        if "apart" in case
        else None,
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["file"])
def test_a_file_gives_the_values_that_its_code_builds(case: dict[str, Any]) -> None:
    config = json.loads((FOLDER / case["file"]).read_text())
    cost = cost_of(layers_of(config, tokens=4096))
    said = answers(cost, case)
    expected = {key: value for key, value in case.items() if key not in NOTES}
    assert {key: said[key] for key in expected} == expected, case["why"]
    assert not any("not known" in warning for warning in cost.plan.warnings)


def test_the_state_of_a_linear_layer_is_the_same_at_any_number_of_tokens() -> None:
    config = json.loads((FOLDER / "nemotron3_nano.json").read_text())
    few, many = (model_rows(cost_of(layers_of(config, tokens=count))) for count in (8, 1 << 20))
    states = [
        [row["state_bytes"] for row in rows if row["role"] == "apart"] for rows in (few, many)
    ]
    assert states == [[1097728, 0]] * 2
    assert few[-1]["state_bytes"] is None


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_an_indexer_bounds_the_pairs_and_not_the_cache(phase: Any) -> None:
    config = json.loads((FOLDER / "deepseek_v32.json").read_text())
    plain = {key: value for key, value in config.items() if not key.startswith("index")}
    chosen = cost_of(layers_of(config, tokens=8192, phase=phase)).kinds[0]
    every = cost_of(
        layers_of(plain | {"model_type": "deepseek_v3"}, tokens=8192, phase=phase)
    ).kinds[0]
    pairs = 8192 * 8193 // 2 if phase == "prefill" else 8192
    kept = 2048 * 2049 // 2 + (8192 - 2048) * 2048 if phase == "prefill" else 2048
    assert chosen.core_macs == every.core_macs
    assert chosen.core_macs_exact * pairs == every.core_macs_exact * kept
    assert chosen.kv_cache_bytes == every.kv_cache_bytes == 8192 * 1152
    assert chosen.params == every.params
