"""The store: what is committed stays, what cannot be read costs one line."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mhaprof.errors import Unavailable, UsageError
from mhaprof.records import Counts, Environment, Measured, Result, Skipped
from mhaprof.report.tabular import row_of
from mhaprof.store import Entry, PlannedRow, Store, load
from mhaprof.store import schema as store_schema
from mhaprof.store.connection import connect_to_write
from mhaprof.store.database import quoted
from mhaprof.store.environments import fingerprint
from mhaprof.store.reading import Reader
from mhaprof.sweep.plan import PlanEntry

Planner = Callable[..., list[PlanEntry]]

HUGE = 3 * 2**64 + 1
"""A count beyond 64 bits, which no float holds."""


def counted(entry: PlanEntry, *, macs: int = 7) -> Entry:
    """Return an entry that was counted, the numbers all made up."""
    counts = Counts(
        fvcore_flops=macs,
        torch_macs=macs,
        closed_form_macs=macs,
        macs=macs,
        macs_exact=macs,
        pairs_exact=1,
        by_stage={"q_proj": macs},
        params=1,
        norm_params=0,
        sink_params=0,
        softmax_ops=1,
        cache_dtype="bfloat16",
        kv_bytes_per_token=1,
        kv_cache_bytes=1,
        arithmetic_intensity=1.5,
    )
    result = Result(point=entry.point, outcome=Measured(counts=counts), reference_macs=7)
    return Entry(identity=entry.identity, round=0, result=result, row=row_of(result))


def skipped(entry: PlanEntry, *, message: str = "not here") -> Entry:
    result = Result(point=entry.point, outcome=Skipped(code="no_cuda", message=message))
    return Entry(identity=entry.identity, round=0, result=result, row=row_of(result))


def planned_rows(entries: list[PlanEntry]) -> list[PlannedRow]:
    return [
        PlannedRow(
            identity=entry.identity,
            ordinal=entry.ordinal,
            name=entry.point.name,
            role="point",
            implementation="eager",
        )
        for entry in entries
    ]


def test_what_is_committed_is_read_back_in_the_order_of_the_plan(
    tmp_path: Path, planned: Planner
) -> None:
    entries = planned(4, device=None)
    with Store(tmp_path / "a.sqlite") as store:
        store.plan(planned_rows(entries))
        for entry in reversed(entries[:3]):
            store.commit([counted(entry)])
    with Reader(tmp_path / "a.sqlite") as reader:
        rows = list(reader.rows())
        assert [row["heads"] for row in rows] == [1, 2, 3]
        assert list(reader.results()) == [counted(entry).result for entry in entries[:3]]
        assert [point.name for point in reader.missing()] == ["heads=4"]
    expected = counted(entries[0]).row
    assert {name: rows[0][name] for name in expected} == expected


def test_a_result_replaces_that_of_the_same_point_and_round(
    tmp_path: Path, planned: Planner
) -> None:
    (entry,) = planned(1, device=None)
    with Store(tmp_path / "a.sqlite") as store:
        store.commit([counted(entry, macs=HUGE)])
        store.commit([counted(entry, macs=8)])
        assert store.finished() == {(entry.identity, 0): "ok"}
    with Reader(tmp_path / "a.sqlite") as reader:
        assert [row["macs"] for row in reader.rows()] == [8]


def test_counts_beyond_64_bits_stay_exact(tmp_path: Path, planned: Planner) -> None:
    small, huge = planned(2, device=None)
    with Store(tmp_path / "a.sqlite") as store:
        store.commit([counted(small, macs=2**62), counted(huge, macs=HUGE)])
    with Reader(tmp_path / "a.sqlite") as reader:
        assert {row["macs"] for row in reader.rows()} == {2**62, HUGE}
    frame = load(tmp_path / "a.sqlite").set_index("heads")
    assert frame.macs[2] == HUGE
    assert frame.macs[1] == 2**62


def test_the_frame_has_exact_integers_truth_values_and_gaps(
    tmp_path: Path, planned: Planner
) -> None:
    first, second = planned(2, device=None)
    with Store(tmp_path / "a.sqlite") as store:
        store.commit([counted(first, macs=2**60 + 1), skipped(second)])
    frame = load(tmp_path / "a.sqlite").set_index("heads")
    assert str(frame.dtypes["macs"]) == "Int64"
    assert frame.macs[1] == 2**60 + 1
    assert frame.macs.isna().tolist() == [False, True]
    assert str(frame.dtypes["out_proj"]) == "boolean"
    assert frame.reason[2] == "no_cuda"


def test_other_programs_see_typed_columns(tmp_path: Path, planned: Planner) -> None:
    (entry,) = planned(1, device=None)
    with Store(tmp_path / "a.sqlite") as store:
        store.commit([counted(entry)])
    with sqlite3.connect(tmp_path / "a.sqlite") as plain:
        types = {row[1]: row[2] for row in plain.execute("PRAGMA table_info(rows)")}
        (found,) = plain.execute("SELECT macs, out_proj, arithmetic_intensity FROM rows")
    assert (types["macs"], types["out_proj"], types["name"]) == ("INTEGER", "BOOLEAN", "TEXT")
    assert types["arithmetic_intensity"] == "REAL"
    assert found == (7, 1, 1.5)
    assert "" not in types.values()


def test_reading_leaves_no_trace_while_a_sweep_writes(tmp_path: Path, planned: Planner) -> None:
    first, second = planned(2, device=None)
    with Store(tmp_path / "a.sqlite") as store:
        store.commit([counted(first)])
        with Reader(tmp_path / "a.sqlite") as reader:
            assert reader.count() == 1
            store.commit([counted(second)])
            assert reader.count() == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.sqlite"]


def test_points_that_are_no_longer_planned_stay_if_they_have_results(
    tmp_path: Path, planned: Planner
) -> None:
    entries = planned(3, device=None)
    with Store(tmp_path / "a.sqlite") as store:
        store.plan(planned_rows(entries))
        store.commit([counted(entries[0])])
        store.plan(planned_rows(entries[2:]))
    with Reader(tmp_path / "a.sqlite") as reader:
        assert {point.name for point in reader.points()} == {"heads=1", "heads=3"}


def test_an_older_file_is_migrated_when_written_and_read_without_a_change(
    tmp_path: Path, planned: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.sqlite"
    (entry,) = planned(1, device=None)
    with Store(path) as store:
        store.commit([counted(entry)])
    old = path.read_bytes()
    steps = (*store_schema.STEPS, "ALTER TABLE points ADD COLUMN colour TEXT DEFAULT 'blue';")
    monkeypatch.setattr("mhaprof.store.schema.STEPS", steps)
    monkeypatch.setattr("mhaprof.store.connection.STEPS", steps)
    with Reader(path) as reader:
        assert reader.count() == 1
    assert path.read_bytes() == old
    with Store(path) as store:
        assert store.finished() == {(entry.identity, 0): "ok"}
    with sqlite3.connect(path) as plain:
        assert plain.execute("PRAGMA user_version").fetchone() == (len(steps),)
        plain.execute("SELECT colour FROM points")


def test_a_newer_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    Store(path).close()
    with sqlite3.connect(path) as plain:
        plain.execute("PRAGMA user_version = 99")
    for open_it in (Store, Reader, load):
        with pytest.raises(UsageError, match=r"a\.sqlite has schema version 99.*update mhaprof"):
            open_it(path)


def another_database(path: Path) -> None:
    with sqlite3.connect(path) as plain:
        plain.execute("CREATE TABLE birds (name TEXT)")


def truncated(path: Path) -> None:
    Store(path).close()
    with path.open("rb+") as file:
        file.truncate(path.stat().st_size - 4096)


def overwritten(path: Path) -> None:
    Store(path).close()
    with path.open("rb+") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))


def no_database(path: Path) -> None:
    path.write_text("name,role\n" * 1000)


@pytest.mark.parametrize("damage", [another_database, truncated, overwritten, no_database])
def test_a_file_that_is_not_ours_or_damaged_is_refused_and_left_alone(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / "a.sqlite"
    damage(path)
    before = path.read_bytes()
    for open_it in (_write, load):
        with pytest.raises(UsageError, match=r"a\.sqlite") as caught:
            open_it(path)
        assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    assert not (tmp_path / "a.sqlite.lock").exists()


def _write(path: Path) -> None:
    with Store(path) as store:
        store.finished()
        store.describe({"config": "x"})


def test_a_missing_and_an_empty_file_hold_no_results(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such result file"):
        load(tmp_path / "a.sqlite")
    (tmp_path / "b.sqlite").touch()
    with pytest.raises(UsageError, match="is empty"):
        load(tmp_path / "b.sqlite")


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "a.sqlite", Path("/proc/a.sqlite")):
        with pytest.raises(UsageError, match="cannot be") as caught:
            Store(path)
        assert "\n" not in str(caught.value)


IN_READ_ONLY_FOLDER = """
import fcntl, os, sys
from pathlib import Path
from mhaprof.errors import UsageError
from mhaprof.store import Store
from mhaprof.store.reading import Reader
os.chdir(sys.argv[1])
if os.geteuid() == 0:
    os.setuid(65534)
for name in ("new.sqlite", "a.sqlite"):
    try:
        Store(Path(name))
    except UsageError as error:
        print(error)
with Reader(Path("a.sqlite")) as reader:
    print(reader.count())
"""


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """Make a folder that every user may enter: pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_read_only_folder_can_be_read_but_not_written(
    public_folder: Path, planned: Planner
) -> None:
    folder = public_folder / "locked"
    with Store(folder / "a.sqlite") as store:
        store.commit([counted(entry) for entry in planned(2, device=None)])
    folder.chmod(0o555)
    command = [sys.executable, "-c", IN_READ_ONLY_FOLDER, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    folder.chmod(0o755)
    assert done.stdout.splitlines() == [
        "new.sqlite cannot be written: Permission denied",
        "a.sqlite cannot be written: Permission denied",
        "2",
    ], done.stderr


HOLD = """
import sys, time
from pathlib import Path
from mhaprof.store import Store
store = Store(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Hold the store in another process."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "a.sqlite")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_two_writers_exclude_each_other_and_the_second_names_the_first(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(
        Unavailable, match=rf"is being written by process {holder.pid} on "
    ) as caught:
        Store(tmp_path / "a.sqlite")
    assert caught.value.code == "store_locked"
    Store(tmp_path / "b.sqlite").close()


def test_the_lock_of_a_killed_writer_is_gone(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    Store(tmp_path / "a.sqlite").close()
    assert not (tmp_path / "a.sqlite.lock").exists()


def test_a_lock_file_that_its_holder_just_removed_is_not_taken_for_the_lock(
    tmp_path: Path,
) -> None:
    first = Store(tmp_path / "a.sqlite")
    stale = os.open(tmp_path / "a.sqlite.lock", os.O_RDWR)
    first.close()
    second = Store(tmp_path / "a.sqlite")
    assert not os.path.samestat(os.fstat(stale), (tmp_path / "a.sqlite.lock").stat())
    second.close()
    os.close(stale)


def commit_wide_rows(store: Store, entries: list[PlanEntry]) -> None:
    for entry in entries:
        store.commit([skipped(entry, message="x" * 5000)])


def test_a_full_disk_stops_cleanly_with_what_was_committed_intact(
    tmp_path: Path, planned: Planner
) -> None:
    entries = planned(60, device=None)
    path = tmp_path / "a.sqlite"
    with Store(path) as store:
        store._connection.execute("PRAGMA max_page_count = 60")
        with pytest.raises(Unavailable, match="is full; what was committed is intact") as caught:
            commit_wide_rows(store, entries)
        assert caught.value.code == "disk_full"
    with Reader(path) as reader:
        committed = [row["heads"] for row in reader.rows()]
    assert sorted(committed) == list(range(1, len(committed) + 1))
    assert len(committed) > 3
    with Store(path) as store:
        store.commit([counted(entry) for entry in entries])
    assert len(load(path)) == len(entries)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 1 MiB, where that is allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_really_full_disk_stops_cleanly_and_the_store_goes_on_when_there_is_space(
    small_disk: Path, planned: Planner
) -> None:
    entries = planned(20, device=None)
    ballast = small_disk / "ballast"
    path = small_disk / "a.sqlite"
    with Store(path) as store:
        store.commit([counted(entries[0])])
        with pytest.raises(OSError, match="No space"):
            ballast.write_bytes(bytes(2**20))
        with pytest.raises(Unavailable) as caught:
            commit_wide_rows(store, entries)
        assert caught.value.code == "disk_full"
    with Reader(path) as reader:
        committed = reader.count()
    assert 1 <= committed < len(entries)
    ballast.unlink()
    with Store(path) as store:
        store.commit([counted(entry) for entry in entries])
    assert len(load(path)) == len(entries)


def test_an_interrupt_while_storing_is_honoured_after_the_result_is_stored(
    tmp_path: Path, planned: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    (entry,) = planned(1, device=None)
    real = Store._write_one
    calls = []

    def interrupted_once(self: Store, *arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            raise KeyboardInterrupt
        real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "_write_one", interrupted_once)
    with Store(tmp_path / "a.sqlite") as store:
        with pytest.raises(KeyboardInterrupt):
            store.commit([counted(entry)])
        assert store.finished() == {(entry.identity, 0): "ok"}


def test_a_transaction_that_a_kill_cut_off_is_rolled_back_by_the_next_reader(
    tmp_path: Path, planned: Planner
) -> None:
    first, second = planned(2, device=None)
    path = tmp_path / "a.sqlite"
    with Store(path) as store:
        store.commit([counted(first)])
    connection = connect_to_write(path)
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("BEGIN IMMEDIATE")
    wide = quoted("message")
    connection.execute("CREATE TABLE big (x)")
    connection.executemany("INSERT INTO big VALUES (?)", [("y" * 4000,) for _ in range(200)])
    connection.execute(f"UPDATE rows SET {wide} = 'half done'")
    copy = tmp_path / "copy.sqlite"
    for suffix in ("", "-journal"):
        Path(f"{copy}{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
    connection.close()
    with Reader(copy) as reader:
        assert [row["message"] for row in reader.rows()] == [None]
    assert second.identity != first.identity


def test_the_fingerprint_of_counting_ignores_the_hardware_and_of_timing_does_not(
    somewhere: Environment,
) -> None:
    faster = somewhere.model_copy(update={"hardware": {"cpu_model": "Abacus 4000"}})
    assert fingerprint("none", somewhere) == fingerprint("none", faster)
    assert fingerprint("cpu", somewhere) != fingerprint("cpu", faster)
    other = somewhere.model_copy(update={"software": {**somewhere.software, "pandas": "9"}})
    assert fingerprint("cuda:0", somewhere) == fingerprint("cuda:1", other)
