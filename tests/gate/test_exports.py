"""What CI systems read: each format is checked by its real reader or documented schema.

Goldens are rewritten by ``MHAPROF_UPDATE_GOLDENS=1 pytest tests/gate``.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from mhaprof.compare import Comparison, RunRows, compare, preset
from mhaprof.report import markdown
from mhaprof.report.benchmarks import bencher, github_benchmark, pyperf
from mhaprof.report.ci import SUMMARY_LIMIT, summary, workflow_commands
from mhaprof.report.comparison import view_of
from mhaprof.report.junit import to_junit

GOLDEN = Path(__file__).parent / "golden"

BMF_SCHEMA = {
    "type": "object",
    "patternProperties": {
        ".+": {
            "type": "object",
            "patternProperties": {
                ".+": {
                    "type": "object",
                    "properties": {
                        name: {"type": "number"} for name in ("value", "lower_value", "upper_value")
                    },
                    "required": ["value"],
                    "additionalProperties": False,
                }
            },
        }
    },
}
"""Bencher's published schema (bencher.dev/bmf.json), closed to other keys."""

BENCHMARK_SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "unit": {"type": "string"},
            "value": {"type": "number"},
            "range": {"type": "string"},
            "extra": {"type": "string"},
        },
        "required": ["name", "unit", "value"],
        "additionalProperties": False,
    },
}
"""The fields that github-action-benchmark documents for its custom tools."""


def verdicts(base: list[dict[str, Any]], new: list[dict[str, Any]]) -> Comparison:
    runs = (RunRows(source="base", rows=base), RunRows(source="new", rows=new))
    return compare(*runs, preset("default"))


@pytest.fixture
def comparison(make_rows: Any) -> Comparison:
    """One of everything: slower, faster, noisy, one MAC more, lost, broken, skipped, new."""
    base, new = make_rows(seed=1, points=9), make_rows(seed=2, points=10)
    fixed = [1.000, 1.001, 1.002, 1.003, 1.004]
    for place, factor in enumerate((1.2, 0.8, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)):
        for row, scale in ((base[place], 1e-3), (new[place], 1e-3 * factor)):
            row["replicate_medians_s"] = [scale * step for step in fixed]
            row["latency_median_s"] = scale * 1.002
    new[2]["replicate_medians_s"] = [0.5e-3, 0.7e-3, 1e-3, 1.4e-3, 2e-3]
    new[3]["macs"] += 1
    new[3]["macs_scores"] += 1
    broken = {"status": "failed", "reason": "out_of_memory", "message": "no room <&> | \x00"}
    new[4].update(broken)
    base[5].update(broken)
    new[5].update(broken)
    for row in (base[6], new[6]):
        row.update(status="skipped", reason="no_cuda", message="there is no device")
    del new[7]
    return verdicts(base, new)


def check_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("MHAPROF_UPDATE_GOLDENS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_the_markdown_table_is_the_golden_one_and_its_tally_adds_up(
    comparison: Comparison,
) -> None:
    text = markdown.render(view_of(comparison, title="base -> new", everything=True))
    check_golden("comparison.md", text)
    (tally,) = re.findall(r"^(\d+) points: (.*)$", text, re.MULTILINE)
    assert int(tally[0]) == sum(map(int, re.findall(r"\d+", tally[1]))) == len(comparison.points)


def test_the_table_is_the_golden_one(comparison: Comparison) -> None:
    import io

    from rich.console import Console

    from mhaprof.report import table

    buffer = io.StringIO()
    view = view_of(comparison, title="base -> new", everything=False)
    table.render(view, Console(file=buffer, width=200, no_color=True, highlight=False))
    check_golden("comparison.txt", "\n".join(map(str.rstrip, buffer.getvalue().splitlines())))
    assert buffer.getvalue().count("\np0") == len(view.rows)


def test_junit_is_the_golden_one_and_junitparser_agrees_with_its_totals(
    comparison: Comparison, tmp_path: Path
) -> None:
    junitparser = pytest.importorskip("junitparser")
    text = to_junit(comparison)
    check_golden("comparison.xml", text)
    path = tmp_path / "junit.xml"
    path.write_text(text, encoding="utf-8")
    (suite,) = junitparser.JUnitXml.fromfile(str(path))
    outcomes = [type(found).__name__ for case in suite for found in case.result]
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (
        len(list(suite)),
        outcomes.count("Failure"),
        outcomes.count("Error"),
        outcomes.count("Skipped"),
    )
    assert suite.failures == len({point.label for point, _ in comparison.blocking()}) - 1
    assert suite.errors == 1
    before = (suite.tests, suite.failures, suite.errors, suite.skipped)
    suite.update_statistics()
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == before


def test_pyperf_reads_its_suite_with_one_run_per_process(make_rows: Any, tmp_path: Path) -> None:
    real = pytest.importorskip("pyperf")
    rows = make_rows(seed=1, points=3) + make_rows(seed=2, points=1, rounds=None, cache="hot")
    rows.append(rows[0] | {"status": "failed"})
    path = tmp_path / "pyperf.json"
    path.write_text(pyperf(rows), encoding="utf-8")
    suite = real.BenchmarkSuite.load(str(path))
    found = {bench.get_name(): bench for bench in suite.get_benchmarks()}
    assert list(found) == [
        "p00 [sdpa] (cuda, float16)",
        "p01 [sdpa] (cuda, float16)",
        "p02 [sdpa] (cuda, float16)",
        "p00 [sdpa] (cuda, float16, cache=hot)",
    ]
    bench = found["p01 [sdpa] (cuda, float16)"]
    assert bench.get_nrun() == 5
    assert list(bench.get_values()) == rows[1]["replicate_medians_s"]
    assert bench.median() == pytest.approx(rows[1]["latency_median_s"])
    assert bench.get_unit() == "second"


def test_bencher_metric_format_fits_its_schema_in_nanoseconds(make_rows: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    rows = make_rows(seed=1, points=2, peak_bytes=1024)
    document = json.loads(bencher(rows))
    jsonschema.validate(document, BMF_SCHEMA)
    measures = document["p01 [sdpa] (cuda, float16)"]
    assert set(measures) == {"latency", "macs", "peak-bytes"}
    assert measures["latency"]["value"] == pytest.approx(1e9 * rows[1]["latency_median_s"])
    assert measures["macs"] == {"value": 4001}


def test_github_benchmark_fits_its_documented_fields(make_rows: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    rows = make_rows(seed=1, points=2)
    entries = json.loads(github_benchmark(rows))
    jsonschema.validate(entries, BENCHMARK_SCHEMA)
    names = [entry["name"] for entry in entries]
    assert len(set(names)) == len(names) == 4
    assert entries[0]["unit"] == "ms"
    assert entries[0]["value"] == pytest.approx(1e3 * rows[0]["latency_median_s"])
    assert entries[0]["range"].startswith("± ")


def test_annotations_are_escaped_capped_and_worst_first(make_rows: Any) -> None:
    base, new = make_rows(seed=1, points=30), make_rows(seed=1, points=30)
    for row in new:
        row.update(status="failed", reason="error", message="a,b: 100%")
    commands = list(workflow_commands(verdicts(base, new)))
    assert len(commands) == 10
    assert commands[0] == (
        "::error title=regressed%3A p00 [sdpa] (cuda%2C float16)::"
        "ok -> failed (error): a,b: 100%25 (newly_failing)"
    )
    assert commands[-1] == "::error title=mhaprof gate::21 more of this kind in the log"


def test_a_summary_of_many_points_stays_under_the_limit_and_says_what_is_left_out(
    make_rows: Any,
) -> None:
    base = make_rows(seed=1, points=100, rounds=None)
    new = [row | {"macs": row["macs"] + 1} for row in base]
    text = summary(verdicts(base, new), title="gate", limit=9000)
    assert 8500 < len(text.encode()) <= 9000
    assert SUMMARY_LIMIT == 1024 * 1024
    kept = sum(re.match(r"\| p\d", line) is not None for line in text.splitlines())
    left = int(re.findall(r"(\d+) rows left out: a job summary holds 1024 KiB", text)[0])
    assert kept + left == 100 * 2
    assert "100 points: 100 regressed" in text


def test_the_gate_writes_every_export_and_tells_github(
    mhaprof: Any,
    write_run: Any,
    make_rows: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = tmp_path / "summary.md"
    target.write_text("before\n")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(target))
    base = write_run("base.json", make_rows(seed=1))
    new = write_run("new.json", make_rows(seed=2, slower={7: 1.06}))
    flags = [
        word
        for name in ("junit", "github-benchmark", "bencher", "pyperf")
        for word in (f"--{name}", tmp_path / name)
    ]
    ran = mhaprof("gate", base, new, *flags)
    assert ran.code == 1
    assert "::error title=regressed%3A p07" in ran.out
    assert target.read_text().startswith("before\n### gate: ")
    assert "| p07 | sdpa | latency |" in target.read_text()
    assert all((tmp_path / str(name).lstrip("-")).stat().st_size for name in flags[::2])


def test_a_suite_without_a_time_is_not_written_for_pyperf_and_that_is_said(
    mhaprof: Any, write_run: Any, make_rows: Any, tmp_path: Path
) -> None:
    counted = make_rows(seed=1, latency_median_s=None, replicate_medians_s=None)
    run = write_run("base.json", counted)
    ran = mhaprof("gate", run, run, "--pyperf", tmp_path / "suite.json")
    assert ran.code == 0
    assert "suite.json is not written: no point of the candidate has a time" in ran.err
    assert not (tmp_path / "suite.json").exists()


def test_annotations_do_not_spoil_data_on_standard_output(
    mhaprof: Any, write_run: Any, make_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    base = write_run("base.json", make_rows(seed=1))
    new = write_run("new.json", make_rows(seed=2, slower={7: 1.06}))
    ran = mhaprof("gate", base, new, "--format", "json")
    assert ran.json["comparison"]["exit_code"] == 1
    assert "::error" in ran.err


def test_an_export_that_cannot_be_written_is_refused_before_anything_is_read(
    mhaprof: Any, tmp_path: Path
) -> None:
    ran = mhaprof("gate", "absent", "absent", "--junit", tmp_path / "no" / "junit.xml")
    assert ran.code == 2
    assert f"--junit {tmp_path / 'no' / 'junit.xml'}: the directory" in ran.err


def test_labels_do_not_depend_on_which_points_ended_well(make_rows: Any) -> None:
    settings: dict[str, Any] = {"device": "cpu", "cache": "hot", "points": 1}
    rows = [make_rows(seed=1, threads=threads, **settings)[0] for threads in (1, 2, 4)]
    rows += [dict(rows[0]), dict(rows[0])]
    labels = list(json.loads(bencher(rows)))
    assert labels == [
        *(f"p00 [sdpa] (cpu, float16, threads={threads}, cache=hot)" for threads in (1, 2, 4)),
        *(f"p00 [sdpa] (cpu, float16, threads=1, cache=hot) #{number}" for number in (2, 3)),
    ]
    rows[0]["status"] = rows[3]["status"] = "failed"
    assert list(json.loads(bencher(rows))) == [labels[place] for place in (1, 2, 4)]


def test_points_that_differ_in_threads_alone_have_other_names_in_a_verdict(
    make_rows: Any,
) -> None:
    settings: dict[str, Any] = {"device": "cpu", "points": 1, "driver": None}
    rows = [make_rows(seed=1, threads=threads, **settings)[0] for threads in (1, 2)]
    labels = {point.label for point in verdicts(rows, rows).points}
    assert labels == {f"p00 [sdpa] (cpu, float16, threads={threads})" for threads in (1, 2)}


def test_a_list_without_a_number_is_not_written_for_github_and_that_is_said(
    mhaprof: Any, write_run: Any, tmp_path: Path
) -> None:
    skipped = {"name": "a", "implementation": "sdpa", "status": "skipped", "reason": "no_cuda"}
    base = write_run("base.json", [skipped | {"status": "ok", "reason": None, "macs": 1}])
    run = write_run("run.json", [skipped])
    ran = mhaprof("gate", base, run, "--github-benchmark", tmp_path / "out.json")
    assert ran.code == 1
    assert "out.json is not written: the candidate has no number" in ran.err
    assert not (tmp_path / "out.json").exists()


def test_a_time_of_zero_is_none_that_pyperf_reads(make_rows: Any) -> None:
    from mhaprof.report.benchmarks import has_times

    rows = make_rows(seed=1, points=1, latency_median_s=0.0)
    assert not has_times(rows)
    assert json.loads(pyperf(rows))["benchmarks"] == []


def test_a_summary_that_has_no_room_is_empty(make_rows: Any) -> None:
    rows = make_rows(seed=1, points=100)
    for limit in (0, 50, 200):
        assert summary(verdicts(rows, rows), title="gate", limit=limit) == ""
