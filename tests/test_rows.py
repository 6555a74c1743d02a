"""Fast paths for large grids give what the slow ones would: records and CSV."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from mhaprof.cli.planning import Planned, points_of
from mhaprof.point import count_point
from mhaprof.records import Counts, Latency, Measured, Record, Result
from mhaprof.report.tabular import row_of, to_csv
from mhaprof.spec import AttentionSpec


def counted() -> Result:
    planned = Planned(name="point", spec=AttentionSpec(batch=2, tokens=3, dim=8, heads=2))
    (point,) = points_of(planned, ["eager"], {"eager": 1})
    return count_point(point, counters=("closed-form",))


def test_records_made_without_validation_are_those_that_validation_makes() -> None:
    result = counted()
    assert isinstance(result.outcome, Measured)
    assert isinstance(result.outcome.counts, Counts)
    made: list[Record] = [result, result.point, result.outcome, result.outcome.counts]
    for record in made:
        kind = type(record)
        assert list(vars(record)) == list(kind.model_fields)
        again = kind.model_validate_json(record.model_dump_json())
        assert again == record
        assert again.model_dump() == record.model_dump()
        assert again.model_fields_set == record.model_fields_set


def test_a_row_keeps_its_columns_and_their_order() -> None:
    result = counted()
    assert "by_stage" not in row_of(result)
    assert [*row_of(result, latency=True)][: len(row_of(result))] == [*row_of(result)]


def test_the_exact_rate_counts_the_pairs_of_the_mask_alone() -> None:
    spec = AttentionSpec(batch=1, tokens=64, dim=8, heads=1, causal="top-left")
    (point,) = points_of(Planned(name="point", spec=spec), ["eager"], {"eager": 1})
    counted = count_point(point, counters=("closed-form",)).outcome
    assert isinstance(counted, Measured)
    assert counted.counts is not None
    latency = Latency(
        device="cpu",
        device_name="a",
        dtype="float32",
        threads=1,
        timer="wall",
        cache="hot",
        mode="forward",
        compiled=False,
        tf32=None,
        resolved_backend=None,
        samples_s=[1e-3] * 6,
        first_call_s=1.0,
        warmup_calls=3,
        converged=True,
        max_error=0.0,
        tolerance=1.0,
    )
    outcome = Measured(counts=counted.counts, latency=latency)
    row = row_of(Result(point=point, outcome=outcome), latency=True)
    macs, exact = 4 * 64 * 8 * 8 + 2 * 64 * 64 * 8, 4 * 64 * 8 * 8 + 64 * 65 * 8
    assert row["tflops_per_s"] == pytest.approx(2 * macs / 1e-3 / 1e12)
    assert row["tflops_per_s_exact"] == pytest.approx(2 * exact / 1e-3 / 1e12)


ODD: list[dict[str, Any]] = [
    {"a": 1, "b": None, "c": 0.1},
    {"a": "x,y", "b": 'say "so"', "c": True},
    {"a": "two\nlines", "b": "a\r", "c": ""},
    {"a": [1], "b": ["x"], "c": {"k": [1, 2]}},
    {"c": 2**60, "a": -1e-300},
    {"b": " spaced ", "d": "new"},
]


@pytest.mark.parametrize("rows", [ODD, [{"only": None}, {"only": "x"}], [{"e,f": 1}]])
def test_csv_is_what_the_standard_library_writes(rows: list[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=columns, restval="")
    writer.writeheader()
    for row in rows:
        nested = {key: isinstance(value, list | dict) for key, value in row.items()}
        writer.writerow({k: json.dumps(v) if nested[k] else v for k, v in row.items()})
    assert to_csv(rows) == buffer.getvalue().replace("\r\n", "\n")
