"""Merging: idempotent, contradictions refused, nothing lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from mhaprof.errors import NotComparable, UsageError
from mhaprof.records import Environment, Failed, Measured, Outcome, Result, Skipped
from mhaprof.report.tabular import row_of
from mhaprof.store import Entry, PlannedRow, Store, merge
from mhaprof.store.environments import fingerprint
from mhaprof.store.reading import Reader
from mhaprof.sweep.plan import PlanEntry, Shard

Planner = Callable[..., list[PlanEntry]]

OK = Measured()
BROKEN = Failed(code="error", message="it broke")


def write(
    path: Path,
    results: Iterable[tuple[PlanEntry, Outcome]],
    *,
    environment: Environment | None = None,
    device: str = "cpu",
) -> Path:
    """Make a result file."""
    results = list(results)
    with Store(path) as store:
        store.plan(
            [
                PlannedRow(
                    identity=entry.identity,
                    ordinal=entry.ordinal,
                    name=entry.point.name,
                    role="point",
                    implementation="eager",
                )
                for entry, _ in results
            ]
        )
        mark = None
        if environment is not None:
            mark = fingerprint(device, environment)
            store.add_environment(mark, device, environment)
        for entry, outcome in results:
            result = Result(point=entry.point, outcome=outcome)
            store.commit(
                [
                    Entry(
                        identity=entry.identity,
                        round=0,
                        result=result,
                        row=row_of(result),
                        environment=mark,
                    )
                ]
            )
    return path


def statuses(path: Path) -> list[str]:
    with Reader(path) as reader:
        return [f"{row['name']} {row['status']}" for row in reader.rows()]


def test_shards_merge_to_the_whole_in_the_order_of_the_plan(
    tmp_path: Path, planned: Planner
) -> None:
    entries = planned(30)
    parts = []
    for index in (1, 2, 3):
        shard = Shard(index=index, count=3)
        own = [(entry, OK) for entry in entries if shard.has(entry.identity)]
        parts.append(write(tmp_path / f"{index}.sqlite", own))
    merged = merge(parts, tmp_path / "all.sqlite")
    assert (merged.added, merged.known) == (30, 0)
    assert statuses(tmp_path / "all.sqlite") == [f"heads={n} ok" for n in range(1, 31)]


def test_merging_again_changes_nothing(tmp_path: Path, planned: Planner) -> None:
    entries = planned(4)
    first = write(tmp_path / "1.sqlite", [(entry, OK) for entry in entries[:3]])
    second = write(tmp_path / "2.sqlite", [(entry, OK) for entry in entries[2:]])
    out = tmp_path / "all.sqlite"
    merge([first, second], out)
    before = statuses(out)
    again = merge([second, out, first], out)
    assert (again.added, again.known) == (0, 5)
    assert statuses(out) == before


def test_a_measured_result_takes_the_place_of_a_failed_one_whatever_the_order(
    tmp_path: Path, planned: Planner
) -> None:
    entries = planned(2)
    good = write(tmp_path / "good.sqlite", [(entries[0], OK), (entries[1], BROKEN)])
    bad = write(tmp_path / "bad.sqlite", [(entries[0], BROKEN), (entries[1], BROKEN)])
    for name, order in (("a", [good, bad]), ("b", [bad, good])):
        merge(order, tmp_path / name)
        assert statuses(tmp_path / name) == ["heads=1 ok", "heads=2 failed"]


def test_two_different_measurements_of_one_point_are_refused_and_nothing_is_written(
    tmp_path: Path, planned: Planner, findings: Callable[[str], Measured]
) -> None:
    entries = planned(9)
    first = write(tmp_path / "1.sqlite", [(entry, findings("a")) for entry in entries])
    second = write(tmp_path / "2.sqlite", [(entry, findings("b")) for entry in entries])
    with pytest.raises(NotComparable) as caught:
        merge([first, second], tmp_path / "all.sqlite")
    message = str(caught.value)
    assert message.startswith("9 points were measured twice with different results")
    assert f"heads=1 ({entries[0].identity}, round 0) in {first} and {second}" in message
    assert message.endswith("and 4 more")
    assert not (tmp_path / "all.sqlite").exists()


@pytest.fixture
def findings() -> Callable[[str], Measured]:
    """Make outcomes that differ."""
    return lambda code: Measured.model_validate({"findings": [{"code": code, "message": code}]})


def test_other_environments_are_refused_by_name_unless_allowed(
    mhaprof: Any, tmp_path: Path, planned: Planner, somewhere: Environment
) -> None:
    entries = planned(2)
    newer = somewhere.model_copy(update={"software": {**somewhere.software, "torch": "2.7.1"}})
    first = write(tmp_path / "1.sqlite", [(entries[0], OK)], environment=somewhere)
    second = write(tmp_path / "2.sqlite", [(entries[1], OK)], environment=newer)
    with pytest.raises(NotComparable, match=r"torch: 2\.6\.0 there, 2\.7\.1 here"):
        merge([first, second], tmp_path / "all.sqlite")
    for allowed in (["torch"], ["all"]):
        merge([first, second], tmp_path / f"{allowed[0]}.sqlite", allow_env_mismatch=allowed)
        with Reader(tmp_path / f"{allowed[0]}.sqlite") as reader:
            assert len(reader.environments()) == 2
            assert len({row["environment"] for row in reader.rows()}) == 2
    command = ("merge", first, second, "--out", tmp_path / "c.sqlite", "--allow-env-mismatch")
    assert mhaprof(*command, "cpu_model").code == 3
    assert mhaprof(*command, "cpu_model,torch").code == 0


def test_counts_from_different_machines_merge_without_being_told(
    tmp_path: Path, planned: Planner, somewhere: Environment
) -> None:
    entries = planned(2, device=None)
    other = somewhere.model_copy(update={"hardware": {"cpu_model": "Abacus 4000"}})
    paths = [
        write(tmp_path / "1.sqlite", [(entries[0], OK)], environment=somewhere, device="none"),
        write(tmp_path / "2.sqlite", [(entries[1], OK)], environment=other, device="none"),
    ]
    assert merge(paths, tmp_path / "all.sqlite").added == 2


def test_a_missing_part_is_refused_before_anything_is_written(
    tmp_path: Path, planned: Planner
) -> None:
    skip = Skipped(code="no_cuda", message="none here")
    part = write(tmp_path / "1.sqlite", [(planned(1)[0], skip)])
    with pytest.raises(UsageError, match="there is no such result file"):
        merge([part, tmp_path / "2.sqlite"], tmp_path / "all.sqlite")
    assert not (tmp_path / "all.sqlite").exists()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("DELETE FROM rows WHERE rowid = 1", "its results and rows are not the same"),
        ("UPDATE results SET outcome = 'failed' WHERE rowid = 1", "not of its column's kind"),
        ("UPDATE results SET result = '{}' WHERE rowid = 1", "records of another version"),
        ("UPDATE rows SET tokens = 'many' WHERE rowid = 1", "tokens holds what is no number"),
        ("UPDATE rows SET name = X'FF00' WHERE rowid = 1", "not of its column's kind"),
    ],
)
def test_of_a_damaged_file_nothing_is_merged(
    damage: str, said: str, tmp_path: Path, planned: Planner
) -> None:
    source = write(tmp_path / "1.sqlite", [(entry, OK) for entry in planned(3)])
    with sqlite3.connect(source) as plain:
        plain.execute(damage)
    plain.close()
    with pytest.raises(UsageError, match=said):
        merge([source], tmp_path / "all.sqlite")
    assert statuses(tmp_path / "all.sqlite") == []
