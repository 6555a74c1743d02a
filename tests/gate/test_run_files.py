"""Run files: JSON, a record, JSON Lines, CSV and SQLite mean the same rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mhaprof.errors import UsageError
from mhaprof.records import Environment, Latency, Measured, Point, Result, Run
from mhaprof.report.runfile import fold_rounds, load_run
from mhaprof.report.tabular import jsonl_chunks, row_of, to_csv, to_json
from mhaprof.spec import AttentionSpec


def result(samples: list[float]) -> Result:
    latency = Latency(
        device="cpu",
        device_name="a cpu",
        dtype="float32",
        threads=1,
        timer="wall",
        cache="cold",
        mode="forward",
        compiled=False,
        tf32=None,
        resolved_backend="math",
        samples_s=samples,
        first_call_s=1.0,
        warmup_calls=3,
        converged=True,
        max_error=0.0,
        tolerance=1e-5,
        replicate_medians_s=[1e-3, 1.1e-3],
        flags=["contended"],
    )
    point = Point(name="1e3", spec=AttentionSpec(window=7), implementation="eager")
    return Result(point=point, outcome=Measured(latency=latency))


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    return [row_of(result([1e-3] * 6), latency=True)]


@pytest.mark.parametrize("write", [to_json, lambda rows: "".join(jsonl_chunks(rows)), to_csv])
def test_every_text_format_reads_back_as_it_was_written(
    tmp_path: Path, rows: list[dict[str, Any]], write: Any
) -> None:
    path = tmp_path / "run"
    path.write_text(write(rows * 2))
    assert load_run(path).rows == rows * 2


def test_a_record_of_a_run_keeps_raw_samples_and_environment(tmp_path: Path) -> None:
    samples = [1e-3, 2e-3, 3e-3]
    environment = Environment(software={"torch": "2.13"}, hardware={}, state={})
    path = tmp_path / "run.json"
    path.write_text(Run(environment=environment, results=[result(samples)]).model_dump_json())
    loaded = load_run(path)
    assert loaded.environment == environment
    assert loaded.rows[0]["samples_s"] == samples


def test_the_rounds_of_one_point_are_folded_into_replicates() -> None:
    rounds = [
        {
            "name": "a",
            "identity": "x",
            "round": number,
            "implementation": "eager",
            "status": "ok",
            "latency_median_s": 1e-3 * number,
            "flags": flags,
        }
        for number, flags in ((1, None), (2, "contended"), (3, None))
    ]
    (row,) = fold_rounds(rounds)
    assert row["replicate_medians_s"] == [1e-3, 2e-3, 3e-3]
    assert row["flags"] == "contended"
    assert row["latency_median_s"] == 2e-3
    assert row["latency_ci_low_s"] is None
    (broken,) = fold_rounds([*rounds, rounds[0] | {"round": 4, "status": "failed"}])
    assert broken["status"] == "failed"


@pytest.mark.parametrize(
    ("later", "said"),
    [
        ({"macs": 9000}, "macs 4000, 9000"),
        ({"macs_scores": 7}, "macs_scores None, 7"),
        ({"resolved_backend": "math"}, "resolved_backend flash, math"),
        ({"torch": "2.12"}, "torch 2.13, 2.12"),
        ({"device_name": "NVIDIA A100"}, "device_name NVIDIA H200, NVIDIA A100"),
        ({"threads": 2}, "threads 1, 2"),
    ],
)
def test_rounds_that_contradict_each_other_are_a_failed_point(
    later: dict[str, Any], said: str
) -> None:
    first = {
        "name": "a",
        "identity": "x",
        "implementation": "eager",
        "status": "ok",
        "macs": 4000,
        "resolved_backend": "flash",
        "torch": "2.13",
        "device_name": "NVIDIA H200",
        "device": "cuda:0",
        "threads": 1,
        "latency_median_s": 1e-3,
    }
    same = [first | {"round": number, "device": f"cuda:{number}"} for number in range(3)]
    assert fold_rounds(same)[0]["status"] == "ok"
    (row,) = fold_rounds([*same, first | {"round": 3} | later])
    assert (row["status"], row["reason"]) == ("failed", "rounds_disagree")
    assert said in row["message"]


def test_the_peak_of_several_rounds_is_their_median() -> None:
    first = {"name": "a", "identity": "x", "implementation": "eager", "status": "ok"}
    peaks = (900, 100, 120)
    rounds = [first | {"round": place, "peak_bytes": peak} for place, peak in enumerate(peaks)]
    assert fold_rounds(rounds)[0]["peak_bytes"] == 120
    assert fold_rounds(rounds[:2])[0]["peak_bytes"] == 100


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"a,b\n1,2\n", "lacks the column name, implementation, status"),
        (b"name,implementation,status\na,eager\n", "not as many fields"),
        (b"name,implementation,status,macs\na,eager,ok,many\n", "'many' is not of type INTEGER"),
        (b'{"schema_version": 99, "rows": []}', "schema_version 99 is newer"),
        (b'{"rows": [3]}', "row 1 is a int"),
        (b'{"rows": [{"name": "a"}]}', "row 1 has no implementation, status"),
        (b'{"rows": [{"name": "a", "implementation": "e", "status": "fine"}]}', "'fine'"),
        (
            b'{"rows": [{"name": "a", "implementation": "e", "status": "ok",'
            b' "latency_median_s": NaN}]}',
            "NaN is no JSON",
        ),
        (
            b'{"rows": [{"name": ["a"], "implementation": "e", "status": "ok"}]}',
            "name is a list or an object",
        ),
        (b'{"rows": [{"name": "a", "macs": 1' + b"0" * 5000 + b"}]}", "not to be read as JSON"),
        (b'{"other": 1}', "no rows in it"),
    ],
)
def test_a_file_that_is_no_run_is_refused_in_one_line(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "run"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="run") as caught:
        load_run(path)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_csv_and_json_of_one_run_gate_alike(
    mhaprof: Any, write_run: Any, make_rows: Any, tmp_path: Path
) -> None:
    base, new = make_rows(seed=1), make_rows(seed=2, slower={7: 1.06})
    paths = []
    for name, found in (("base.csv", base), ("new.csv", new)):
        path = tmp_path / name
        path.write_text(to_csv(found))
        paths.append(path)
    from_csv = mhaprof("gate", *paths, "--format", "json")
    from_json = mhaprof(
        "gate", write_run("b.json", base), write_run("n.json", new), "--format", "json"
    )
    assert from_csv.code == from_json.code == 1
    assert from_csv.rows == from_json.rows


def test_the_sqlite_file_of_a_sweep_is_read_with_its_rounds_and_environment(
    tmp_path: Path,
) -> None:
    from mhaprof.store import Entry, Store

    path = tmp_path / "run.sqlite"
    environment = Environment(software={"torch": "2.13"}, hardware={"driver": "570"}, state={})
    with Store(path) as store:
        store.add_environment("here", "cpu", environment)
        store.commit(
            [
                Entry(
                    identity="x",
                    round=number,
                    result=(measured := result([number * 1e-3] * 6)),
                    row=row_of(measured, latency=True),
                    environment="here",
                )
                for number in (1, 2)
            ]
        )
    (row,) = load_run(path).rows
    assert row["replicate_medians_s"] == [1e-3, 2e-3]
    assert (row["torch"], row["driver"]) == ("2.13", "570")


def test_json_numbers_stay_exact_integers(tmp_path: Path) -> None:
    row = {"name": "a", "implementation": "e", "status": "ok", "macs": 36_063_981_391_052_801}
    for text in (json.dumps({"rows": [row]}), to_csv([row])):
        path = tmp_path / "run"
        path.write_text(text)
        assert load_run(path).rows[0]["macs"] == 36_063_981_391_052_801
