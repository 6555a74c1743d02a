"""Policies: presets and their files, overlays for points, located errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mhaprof.compare import PRESETS, load_policy, parse_policy, preset
from mhaprof.errors import ConfigError, UsageError

GATES = Path(__file__).parents[2] / "configs" / "gates"


@pytest.mark.parametrize("name", PRESETS)
def test_each_preset_is_the_file_of_its_name(name: str) -> None:
    assert load_policy(str(GATES / f"{name}.yaml")) == preset(name)


def test_every_file_in_configs_gates_loads() -> None:
    assert sorted(path.stem for path in GATES.iterdir()) == sorted(PRESETS)


def test_thresholds_and_floors_are_those_of_the_specification() -> None:
    rule = preset("default").metrics.latency
    clocks = ("device", "cpu", "quiet_wall", "shared_wall")
    assert [rule.threshold_for(clock) for clock in clocks] == [0.05, 0.05, 0.10, 0.25]
    assert [rule.floor_for(floor) for floor in ("events", "device", "host")] == [10e-6, 2e-6, 30e-6]


def test_a_file_changes_what_it_names_and_keeps_the_rest() -> None:
    policy = parse_policy("version: 1\nmetrics: {latency: {threshold: 0.2}}\n", file="g.yaml")
    assert policy.metrics.latency.threshold_for("device") == 0.2
    assert policy.metrics.latency.floor_s == preset("default").metrics.latency.floor_s
    assert policy.metrics.macs == preset("default").metrics.macs


def test_later_point_rules_overlay_earlier_ones() -> None:
    policy = parse_policy(
        """
version: 1
extends: strict
points:
  - {name: "decode-*", metrics: {latency: {threshold: 0.5, gate: warn}}}
  - {name: "*-long", implementation: "sdpa*", metrics: {latency: {threshold: 0.7}}}
""",
        file="g.yaml",
    )
    assert policy.rules_for("decode-short", "sdpa").latency.threshold == 0.5
    both = policy.rules_for("decode-long", "sdpa-math").latency
    assert (both.threshold, both.gate) == (0.7, "warn")
    assert policy.rules_for("prefill", "sdpa") == policy.metrics


def test_point_rules_decide_what_blocks(mhaprof: Any, write_run: Any, make_rows: Any) -> None:
    base = write_run("base.json", make_rows(seed=1))
    new = write_run("new.json", make_rows(seed=2, slower={7: 1.06, 9: 1.2}))
    folder = base.parent

    def gate(rules: str) -> int:
        (folder / "g.yaml").write_text(f"version: 1\npoints: [{rules}]\n")
        return int(mhaprof("gate", base, new, "--policy", folder / "g.yaml").code)

    warn7 = "{name: p07, metrics: {latency: {gate: warn}}}"
    assert gate(warn7) == 1
    assert gate(warn7 + ', {name: "*9", metrics: {latency: {threshold: 0.3}}}') == 0


def test_a_pattern_that_matches_nothing_is_pointed_out(
    mhaprof: Any, write_run: Any, make_rows: Any, tmp_path: Path
) -> None:
    run = write_run("run.json", make_rows(seed=1))
    policy = tmp_path / "g.yaml"
    policy.write_text("version: 1\npoints: [{name: q*, metrics: {latency: {gate: warn}}}]\n")
    assert "no point matches name 'q*'" in mhaprof("gate", run, run, "--policy", policy).err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["g.yaml:1:1: file: is empty; expected a policy"]),
        ("strict: true\n", ["g.yaml:1:1: version: is missing; expected version: 1"]),
        (
            "version: 1\nmetrics:\n  latncy: {gate: block}\nstatus: {new_point: maybe}\n",
            [
                "g.yaml:3:3: latncy: is not a key of a policy here; did you mean latency?",
                "g.yaml:4:21: new_point: 'maybe' was given; expected one of block, warn, ignore",
            ],
        ),
        (
            "version: 1\nmetrics: {latency: {threshold: {device: -1}}}\n",
            [
                "g.yaml:2:41: device: -1 was given; "
                "expected a fraction above 0, such as 0.05 for 5 %"
            ],
        ),
        (
            "version: 1\npoints:\n  - {name: a, metrics: {macs: {gate: no}}}\n",
            ["g.yaml:3:38: gate: 'no' was given; expected one of block, warn, ignore"],
        ),
        (
            "version: 1\nextends: harsh\n",
            [
                "g.yaml:2:10: extends: 'harsh' was given; "
                "expected one of default, strict, permissive"
            ],
        ),
    ],
)
def test_every_fault_of_a_policy_is_named_with_its_place(text: str, expected: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_policy(text, file="g.yaml")
    assert str(caught.value).splitlines() == expected


def test_a_name_that_is_neither_preset_nor_file_lists_the_presets() -> None:
    with pytest.raises(UsageError, match="default, strict, permissive"):
        load_policy("harsh")


def test_a_threshold_by_clock_over_a_single_number_keeps_that_number_for_the_others(
    tmp_path: Path,
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "version: 1\npoints:\n"
        "  - {name: '*', metrics: {latency: {threshold: 0.5, floor_s: 1e-6}}}\n"
        "  - {name: 'p*', metrics: {latency: {threshold: {cpu: 0.2}, floor_s: {host: 1e-3}}}}\n"
    )
    rule = load_policy(str(path)).rules_for("p1", "sdpa").latency
    assert [rule.threshold_for(clock) for clock in ("cpu", "device")] == [0.2, 0.5]
    assert [rule.floor_for(floor) for floor in ("host", "events")] == [1e-3, 1e-6]
