"""A green gate means that every point of today's plan was measured and compared."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from mhaprof.compare import RunRows, compare, preset
from mhaprof.errors import NotComparable
from mhaprof.store import load
from mhaprof.store.reading import Reader

CONFIG = """
version: 1
name: c
defaults: {{batch: 1, tokens: 16, dim: 64, heads: 8}}
points: [{points}]
measure: [flops]
reference: false
"""
TWO = "{name: a, kv_heads: 2}, {name: b, kv_heads: 4}"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def sweep(mhaprof: Any) -> Any:
    """Count points into one result file, as the same line of a CI job does."""

    def run(points: str, *flags: object) -> Any:
        Path("c.yaml").write_text(CONFIG.format(points=points))
        return mhaprof("sweep", "c.yaml", "--out", "c.sqlite", "--inline", *flags)

    return run


@pytest.fixture
def baseline(mhaprof: Any, sweep: Any) -> Path:
    """Return the baseline of the two points."""
    assert sweep(TWO).code == 0
    assert mhaprof("baseline", "update", "c.sqlite", "--name", "n").code == 0
    return Path("results/baselines/counts/n.json")


def gate(mhaprof: Any, base: object, new: object, *flags: object) -> Any:
    return mhaprof("gate", base, new, "--format", "json", *flags)


def reasons(ran: Any) -> list[tuple[str, str, str]]:
    rows = [row for row in ran.rows if row["verdict"] != "unchanged"]
    return [(row["name"], row["verdict"], row["reason"]) for row in rows]


def interrupt(*names: str) -> None:
    """Take the results of points away, as if the sweep had been stopped before them."""
    with sqlite3.connect("c.sqlite") as plain:
        for table in ("results", "rows"):
            for name in names:
                plain.execute(
                    f"DELETE FROM {table} WHERE identity = "
                    "(SELECT identity FROM points WHERE name = ?)",
                    [name],
                )


@pytest.mark.parametrize(
    ("kv_heads", "code", "verdict", "kv"),
    [(8, 1, "regressed", "KV cache x 4"), (1, 0, "improved", "KV cache x 0.5")],
)
def test_a_changed_definition_is_compared_with_its_old_self_and_its_cost_decides(
    mhaprof: Any, sweep: Any, baseline: Path, kv_heads: int, code: int, verdict: str, kv: str
) -> None:
    sweep(f"{{name: a, kv_heads: {kv_heads}}}, {{name: b, kv_heads: 4}}")
    ran = gate(mhaprof, baseline, "c.sqlite")
    assert (ran.code, reasons(ran)) == (code, [("a", verdict, "definition_changed")])
    (row,) = (row for row in ran.rows if row["reason"] == "definition_changed")
    assert row["message"].startswith(f"kv_heads 2 -> {kv_heads}: MACs 19")
    assert row["message"].endswith(kv)
    assert ran.json["comparison"]["coverage"] == {"compared": 2, "skipped": 0}
    assert "1 rows" not in ran.err
    assert "mhaprof: c.sqlite: rows of earlier plans, not judged: 1\n" in ran.err


@pytest.mark.parametrize(
    ("field", "before", "after"),
    [
        ("batch", 2, 1),
        ("tokens", 16, 8),
        ("kv_tokens", 16, 8),
        ("phase", "prefill", "decode"),
        ("inputs", ["2x16x64"], ["1x16x64"]),
    ],
)
def test_less_work_under_the_same_name_is_no_improvement(
    mhaprof: Any, write_run: Any, make_rows: Any, field: str, before: Any, after: Any
) -> None:
    rows = make_rows(seed=1, points=1, rounds=None)
    base = write_run("base.json", [row | {field: before} for row in rows])
    less = [row | {field: after, "macs": 10, "macs_exact": 10} for row in rows]
    ran = gate(mhaprof, base, write_run("new.json", less))
    assert (ran.code, reasons(ran)[0]) == (1, ("p00", "regressed", "definition_changed"))
    assert f"{field} {before} -> {after}, which is other work: MACs" in ran.rows[0]["message"]


def test_a_gate_of_a_file_with_itself_says_that_it_tests_nothing(
    mhaprof: Any, baseline: Path
) -> None:
    Path("link.sqlite").symlink_to("c.sqlite")
    for new in ("c.sqlite", "./c.sqlite", "link.sqlite"):
        ran = mhaprof("gate", "c.sqlite", new)
        assert f"mhaprof: {Path(new)} is on both sides" in ran.err
    assert "both sides" not in gate(mhaprof, baseline, "c.sqlite").err


def test_an_export_of_a_cut_sweep_names_what_is_missing_and_is_no_baseline(
    mhaprof: Any, baseline: Path
) -> None:
    interrupt("b")
    ran = mhaprof("results", "c.sqlite", "--format", "json", "-o", "cut.json")
    assert ran.code == 0
    document = json.loads(Path("cut.json").read_text())
    assert [row["name"] for row in document["rows"]] == ["a"]
    assert [(row["name"], row["reason"]) for row in document["missing"]] == [("b", "not_measured")]
    ran = mhaprof("baseline", "update", "cut.json")
    assert (ran.code, "1 of 2 points failed or were not measured (b)" in ran.err) == (2, True)
    assert reasons(gate(mhaprof, baseline, "cut.json")) == [("b", "regressed", "newly_failing")]


def test_times_that_were_cut_short_are_no_baseline(
    mhaprof: Any, write_run: Any, make_rows: Any
) -> None:
    rows = make_rows(seed=1, points=3)
    for row, status in zip(rows[1:], ("ok", "skipped"), strict=True):
        row |= {"status": status, "reason": "interrupted"}
    ran = mhaprof("baseline", "update", write_run("run.json", rows))
    assert (ran.code, "2 of 3 points failed or were not measured" in ran.err) == (2, True)


@pytest.mark.parametrize("name", ["", ".", "../x", "a/b", "ü x", "漢字", "a\nb"])
def test_a_name_that_would_become_another_is_refused(
    mhaprof: Any, baseline: Path, name: str
) -> None:
    ran = mhaprof("baseline", "update", "c.sqlite", "--name", name)
    assert (ran.code, f"--name {name!r} is no name of a baseline" in ran.err) == (2, True)
    assert list(baseline.parent.iterdir()) == [baseline]


def test_a_baseline_out_of_its_place_is_accepted_by_its_new_one(
    mhaprof: Any, sweep: Any, baseline: Path
) -> None:
    baseline.rename("mine.json")
    sweep("{name: a, kv_heads: 8}, {name: b, kv_heads: 4}")
    ran = gate(mhaprof, "mine.json", "c.sqlite")
    accept = "mhaprof baseline update c.sqlite (and give the file it writes as BASE)"
    assert ran.err.endswith(f"accept it: {accept}\n")


def test_a_policy_that_ignores_every_count_compares_nothing(
    mhaprof: Any, sweep: Any, baseline: Path
) -> None:
    counts = "macs macs_exact params softmax_ops kv_cache_bytes predicted_peak_bytes"
    rules = "".join(f"  {name}: {{gate: ignore}}\n" for name in counts.split())
    Path("p.yaml").write_text(f"version: 1\nextends: default\nmetrics:\n{rules}")
    ran = gate(mhaprof, baseline, "c.sqlite", "--policy", "p.yaml")
    assert (ran.code, ran.json["comparison"]["coverage"]["compared"]) == (3, 0)


def test_a_point_deleted_from_the_file_is_vanished_and_not_unchanged(
    mhaprof: Any, sweep: Any, baseline: Path
) -> None:
    sweep("{name: a, kv_heads: 2}")
    ran = gate(mhaprof, baseline, "c.sqlite")
    assert (ran.code, reasons(ran)) == (1, [("b", "regressed", "point_vanished")])


def test_every_reader_shows_the_last_plan_and_names_the_rows_of_earlier_ones(
    mhaprof: Any, sweep: Any
) -> None:
    sweep(TWO)
    ran = sweep("{name: a, kv_heads: 8}", "--format", "json")
    assert [row["kv_heads"] for row in ran.rows] == [8]
    assert "2 rows of earlier plans" in ran.err
    for form in ("json", "jsonl", "csv", "table"):
        shown = mhaprof("results", "c.sqlite", "--format", form)
        assert shown.err == "mhaprof: 2 rows of earlier plans: --all\n"
        assert len(shown.out.splitlines()) < len(
            mhaprof("results", "c.sqlite", "--format", form, "--all").out.splitlines()
        )
    every = mhaprof("results", "c.sqlite", "--format", "json", "--all")
    assert [(row["name"], row["plan"]) for row in every.rows] == [
        ("a", "last"),
        ("a", "earlier"),
        ("b", "earlier"),
    ]
    Path("all.json").write_text(every.out)
    judged = gate(mhaprof, "c.sqlite", "all.json")
    assert (judged.code, judged.json["comparison"]["points"]) == (0, 1)
    with pytest.warns(UserWarning, match="2 rows of earlier plans"):
        assert list(load("c.sqlite")["kv_heads"]) == [8]
    assert list(load("c.sqlite", every_plan=True)["kv_heads"]) == [8, 2, 4]
    mhaprof("baseline", "update", "c.sqlite", "--name", "n")
    document = json.loads(Path("results/baselines/counts/n.json").read_text())
    assert [row["kv_heads"] for row in document["rows"]] == [8]


def test_a_plan_that_comes_back_finds_its_rows_again(mhaprof: Any, sweep: Any) -> None:
    first = sweep(TWO, "--format", "json")
    sweep("{name: a, kv_heads: 8}")
    again = sweep(TWO, "--format", "json")
    assert (again.rows, "1 row of earlier plans" in again.err) == (first.rows, True)


def test_a_renamed_point_has_its_new_name_without_being_measured_again(sweep: Any) -> None:
    sweep(TWO)
    ran = sweep("{name: new, kv_heads: 2}, {name: b, kv_heads: 4}", "--format", "json")
    assert [row["name"] for row in ran.rows] == ["new", "b"]


def test_a_planned_point_that_was_not_measured_fails_the_gate_and_is_no_baseline(
    mhaprof: Any, sweep: Any, baseline: Path
) -> None:
    interrupt("b")
    shown = mhaprof("results", "c.sqlite")
    assert shown.err == (
        "mhaprof: 1 planned point lacks results (b); the same sweep command resumes\n"
    )
    ran = gate(mhaprof, baseline, "c.sqlite")
    assert (ran.code, reasons(ran)) == (1, [("b", "regressed", "newly_failing")])
    assert ran.json["comparison"]["coverage"] == {"compared": 1, "skipped": 0, "not_compared": 1}
    refused = mhaprof("baseline", "update", "c.sqlite")
    assert refused.code == 2
    assert "1 of 2 points failed or were not measured (b)" in refused.err
    sweep(TWO)
    assert gate(mhaprof, baseline, "c.sqlite").code == 0


def test_a_point_without_one_of_its_rounds_is_named(mhaprof: Any, sweep: Any) -> None:
    sweep(TWO, "--rounds", "2")
    with sqlite3.connect("c.sqlite") as plain:
        plain.execute("DELETE FROM results WHERE round = 1")
    assert "2 planned points lack results (a, b)" in mhaprof("results", "c.sqlite").err
    sweep(TWO)
    assert mhaprof("results", "c.sqlite").err == ""


def test_the_plan_of_merged_shards_is_the_union_of_theirs(mhaprof: Any, sweep: Any) -> None:
    sweep(TWO)
    whole = {row["identity"] for row in mhaprof("results", "c.sqlite", "--format", "json").rows}
    for part in (1, 2):
        for points in ("{name: old, kv_heads: 1}", TWO):
            Path("c.yaml").write_text(CONFIG.format(points=points))
            mhaprof("sweep", "c.yaml", "--out", f"{part}.sqlite", "--inline", f"--shard={part}/2")
    assert mhaprof("merge", "1.sqlite", "2.sqlite", "--out", "all.sqlite").code == 0
    ran = mhaprof("results", "all.sqlite", "--format", "json")
    assert {row["identity"] for row in ran.rows} == whole
    assert ran.err == "mhaprof: 1 row of earlier plans: --all\n"


def test_all_rows_of_a_file_without_a_plan_are_its_plan(mhaprof: Any, sweep: Any) -> None:
    sweep(TWO)
    with sqlite3.connect("c.sqlite") as plain:
        plain.execute("ALTER TABLE points DROP COLUMN planned")
        plain.execute("PRAGMA user_version = 1")
    assert len(mhaprof("results", "c.sqlite", "--format", "json").rows) == 2
    sweep("{name: a, kv_heads: 2}")
    with Reader(Path("c.sqlite")) as reader:
        assert [row["name"] for row in reader.rows()] == ["a"]
        assert reader.meta()["config"] == Path("c.yaml").read_text()


def skipped(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row as skipped, with a prediction that is the same on both sides."""
    said = {"status": "skipped", "reason": "predicted_oom", "message": "needs 9 TiB"}
    return row | said | {"predicted_peak_bytes": 9, "latency_median_s": None}


def test_a_baseline_without_a_measured_point_is_refused(
    mhaprof: Any, write_run: Any, make_rows: Any
) -> None:
    rows = [skipped(row) for row in make_rows(seed=1, points=2)]
    base = write_run("base.json", rows, kind="baseline")
    ran = gate(mhaprof, base, write_run("new.json", make_rows(seed=1, points=2)))
    assert ran.code == 3
    assert ran.err == (
        f"mhaprof: {base} holds no measured point: there is no baseline to compare with\n"
    )


@pytest.mark.parametrize("policy", ["default", "permissive", "strict"])
def test_a_gate_that_compared_nothing_is_exit_3_and_says_so(
    mhaprof: Any, write_run: Any, make_rows: Any, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    rows = make_rows(seed=1, points=3)
    metrics = ("macs", "macs_exact", "params", "softmax_ops", "kv_cache_bytes")
    bare = [row | dict.fromkeys((*metrics, "resolved_backend")) for row in rows]
    empty = [row | dict.fromkeys(("latency_median_s", "replicate_medians_s")) for row in bare]
    base, new = write_run("base.json", empty), write_run("new.json", empty)
    ran = gate(mhaprof, base, new, "--policy", policy, "--junit", "junit.xml")
    assert ran.code == 3
    assert "the gate fails: nothing was compared (0 compared, 0 skipped" in ran.err
    assert "::error title=mhaprof gate::nothing was compared" in ran.err
    suite = ElementTree.parse("junit.xml").getroot()[0]
    assert suite.get("errors") == "1"
    assert mhaprof("compare", base, new).code == 0


def test_skips_alone_are_no_pass_and_their_reason_is_on_the_terminal(
    mhaprof: Any, write_run: Any, make_rows: Any
) -> None:
    rows = make_rows(seed=1, points=3)
    base = write_run("base.json", [rows[0], *map(skipped, rows[1:])])
    new = write_run("new.json", [*map(skipped, rows[1:])])
    policy = Path("p.yaml")
    policy.write_text("version: 1\nstatus: {point_vanished: ignore}\n")
    ran = mhaprof("gate", base, new, "--policy", policy)
    assert ran.code == 3
    assert "nothing was compared (0 compared, 2 skipped, 1 not compared)" in ran.err
    assert "skipped: skipped (predicted_oom): needs 9 TiB: p01 [sdpa]" in ran.out


def test_how_much_was_compared_and_what_is_new_is_always_said(
    mhaprof: Any, write_run: Any, make_rows: Any
) -> None:
    rows = make_rows(seed=1, points=3)
    base = write_run("base.json", [*rows[:1], skipped(rows[1])])
    new = write_run("new.json", [rows[0], skipped(rows[1]), rows[2]])
    for policy in ("default", "permissive"):
        ran = mhaprof("gate", base, new, "--policy", policy, "--junit", "junit.xml")
        assert ran.code == 0
        assert "1 compared, 1 skipped, 1 new" in ran.err
        assert "new: not in the baseline: p02 [sdpa] (cuda, float16)" in ran.out
        properties = ElementTree.parse("junit.xml").iter("property")
        assert {each.get("name"): each.get("value") for each in properties} == {
            "compared": "1",
            "skipped": "1",
            "new": "1",
        }


def test_a_baseline_in_the_place_of_the_run_is_refused(
    mhaprof: Any, write_run: Any, make_rows: Any
) -> None:
    rows = make_rows(seed=1, points=2)
    run, base = write_run("run.json", rows), write_run("base.json", rows, kind="baseline")
    for command in (("gate", run, base), ("gate", base, base), ("compare", run, base)):
        ran = mhaprof(*command)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith(f"mhaprof: {base} is a baseline, where a run file is expected")
    assert mhaprof("baseline", "update", base).code == 2
    assert [mhaprof("compare", base, base).code, mhaprof("gate", run, run).code] == [0, 0]


def test_a_changed_definition_of_a_warning_count_only_warns(
    mhaprof: Any, sweep: Any, baseline: Path
) -> None:
    sweep("{name: a, kv_heads: 8}, {name: b, kv_heads: 4}")
    rules = ", ".join(f"{name}: {{gate: warn}}" for name in ("macs", "macs_exact", "params"))
    Path("p.yaml").write_text(f"version: 1\nmetrics: {{{rules}, kv_cache_bytes: {{gate: warn}}}}\n")
    assert gate(mhaprof, baseline, "c.sqlite", "--policy", "p.yaml").code == 0


def test_a_changed_definition_that_costs_less_and_takes_longer_regresses(
    mhaprof: Any, write_run: Any, make_rows: Any
) -> None:
    base = make_rows(seed=1, points=2, heads=8)
    new = make_rows(seed=2, points=2, heads=4, slower={1: 1.5})
    cheaper = [row | {"macs": 10, "macs_exact": 10} for row in new]
    stages = [{k: v for k, v in row.items() if not k.startswith("macs_q")} for row in cheaper]
    ran = gate(mhaprof, write_run("base.json", base), write_run("new.json", stages))
    assert ran.code == 1
    assert ("p01", "regressed", "rank_test") in reasons(ran)


def test_fewer_macs_do_not_pay_for_a_larger_cache(
    mhaprof: Any, write_run: Any, make_rows: Any
) -> None:
    rows = make_rows(seed=1, points=1)
    new = [row | {"heads": 4, "macs": 10, "kv_cache_bytes": 512} for row in rows]
    ran = gate(mhaprof, write_run("base.json", rows), write_run("new.json", new))
    assert (ran.code, reasons(ran)[0]) == (1, ("p00", "regressed", "definition_changed"))


def test_a_reference_is_no_point(mhaprof: Any, write_run: Any, make_rows: Any) -> None:
    point, other = make_rows(seed=1, points=2)
    reference = other | {"role": "reference"}
    base = write_run("base.json", [point, reference])
    policy = Path("p.yaml")
    policy.write_text("version: 1\nstatus: {point_vanished: ignore}\n")
    ran = gate(mhaprof, base, write_run("new.json", [reference]), "--policy", policy)
    assert (ran.code, "0 compared, 0 skipped" in ran.err) == (3, True)
    alone = write_run("alone.json", [reference])
    assert gate(mhaprof, alone, base).code == 3


def test_a_side_that_measured_nothing_is_no_base_in_process(make_rows: Any) -> None:
    rows = make_rows(seed=1, points=2)
    broken = [row | {"status": "failed", "reason": "error"} for row in rows]
    with pytest.raises(NotComparable, match="no measured point"):
        compare(RunRows(source="a", rows=broken), RunRows(source="b", rows=rows), preset("default"))


def test_what_one_merged_file_plans_is_planned_though_another_gave_it_up(
    mhaprof: Any, sweep: Any
) -> None:
    sweep(TWO)
    Path("a.sqlite").write_bytes(Path("c.sqlite").read_bytes())
    sweep("{name: a, kv_heads: 8}")
    for order in (("a", "c"), ("c", "a")):
        out = f"{''.join(order)}.sqlite"
        ran = mhaprof("merge", *(f"{name}.sqlite" for name in order), "--out", out)
        assert "the files come of 2 different plans: the plan is now their union" in ran.err
        shown = mhaprof("results", out, "--format", "json")
        assert sorted(row["kv_heads"] for row in shown.rows) == [2, 4, 8]


def test_merging_a_new_plan_into_an_old_file_replaces_the_old_plan(
    mhaprof: Any, sweep: Any
) -> None:
    sweep(TWO)
    for _ in range(2):
        assert mhaprof("merge", "c.sqlite", "--out", "all.sqlite").code == 0
        assert len(mhaprof("results", "all.sqlite", "--format", "json").rows) == 2
    Path("c.sqlite").unlink()
    sweep("{name: a, kv_heads: 8}, {name: b, kv_heads: 1}")
    assert mhaprof("merge", "c.sqlite", "--out", "all.sqlite").code == 0
    ran = mhaprof("results", "all.sqlite", "--format", "json", "--all")
    assert [row["plan"] for row in ran.rows] == ["last", "last", "earlier", "earlier"]
    assert [row["kv_heads"] for row in ran.rows[:2]] == [8, 1]
    assert len(mhaprof("results", "all.sqlite", "--format", "json").rows) == 2
