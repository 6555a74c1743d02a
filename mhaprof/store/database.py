"""The writer of a result file: the driver of a sweep, and nobody else."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mhaprof.errors import UsageError
from mhaprof.records import Environment, Result, Role
from mhaprof.store.columns import is_big, sql_type, to_sql
from mhaprof.store.connection import connect_to_write, worded
from mhaprof.store.lock import WriterLock

if TYPE_CHECKING:
    from mhaprof.store.reading import Reader

KEY_COLUMNS = ("identity", "round", "environment", "lane", "finished")
"""The columns of ``rows`` that come from the store; the others come from the caller."""

PLAN_COLUMN = "plan"
"""Says of each row, where those of earlier plans are read too, which plan it is of."""


Key = tuple[str, int]
"""What tells results apart: identity and round."""


@dataclass(frozen=True, kw_only=True)
class PlannedRow:
    """One planned row: its identity, its place in the plan and what it is called.

    ``rounds`` is how often the last plan measures it; 0: an earlier plan did.
    """

    identity: str
    ordinal: int
    name: str
    role: Role
    implementation: str
    rounds: int = 1


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One result to store: the record, its flat row, and where it was measured.

    ``row`` holds at least ``status`` and ``reason``; ``environment`` is a fingerprint
    that ``add_environment`` knows and ``lane`` the device, core or actor that measured
    it; both are None for what was not measured at all.
    """

    identity: str
    round: int
    result: Result
    row: Mapping[str, Any]
    environment: str | None = None
    lane: str | None = None
    finished: str = ""


class Store:
    """Write one result file; a context manager.

    Creates the file and its folder; an older version is migrated.  Every method that
    writes is one transaction, on disk when it returns.  Raises Unavailable (codes
    ``store_locked``, ``disk_full``, ``store_io``) and UsageError (not writable, not
    ours, damaged, newer), each with one line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with worded(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = WriterLock(path)
        try:
            self._connection = connect_to_write(path)
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and let others write it."""
        self._connection.close()
        self._lock.release()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Make everything in the body one transaction, rolled back on any exception."""
        connection = self._connection
        try:
            with worded(self.path):
                connection.execute("BEGIN IMMEDIATE")
                yield
                connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def describe(self, facts: Mapping[str, str], *, keep: bool = False) -> None:
        """Keep facts about the run (config, settings); ``keep`` lets older ones stand."""
        action = "IGNORE" if keep else "REPLACE"
        with self._transaction():
            self._connection.executemany(
                f"INSERT OR {action} INTO meta (key, value) VALUES (?, ?)", facts.items()
            )

    def plan(self, points: Sequence[PlannedRow], *, keep: bool = False) -> None:
        """Make these points the last plan, in order.

        Points that are no longer planned stay, behind the others, if they have results.
        With ``keep`` all stay planned as they are, and these join them.
        """
        with self._transaction():
            if not keep:
                self._connection.execute(
                    "DELETE FROM points WHERE identity NOT IN (SELECT identity FROM results)"
                )
                self._connection.execute(
                    "UPDATE points SET planned = 0, ordinal = ordinal + ?", (len(points),)
                )
            self._connection.executemany(
                "INSERT INTO points (identity, ordinal, name, role, implementation, planned) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (identity) DO UPDATE SET "
                "ordinal = excluded.ordinal, name = excluded.name, role = excluded.role, "
                "implementation = excluded.implementation, "
                "planned = max(planned, excluded.planned)",
                [
                    (p.identity, p.ordinal, p.name, p.role, p.implementation, p.rounds)
                    for p in points
                ],
            )

    def finished(self) -> dict[tuple[str, int], str]:
        """Return the status of every stored result, by identity and round."""
        with worded(self.path):
            found = self._connection.execute("SELECT identity, round, status FROM results")
            return {(identity, number): status for identity, number, status in found}

    def environments(self) -> list[tuple[str, str, Environment]]:
        """Return (fingerprint, device, environment) of all that was used, in that order."""
        with worded(self.path):
            found = self._connection.execute(
                "SELECT fingerprint, device, environment FROM environments ORDER BY first_used"
            ).fetchall()
        return [
            (fingerprint, device, Environment.model_validate_json(text))
            for fingerprint, device, text in found
        ]

    def add_environment(self, fingerprint: str, device: str, environment: Environment) -> None:
        """Keep an environment, unless it is known."""
        with self._transaction():
            self._connection.execute(
                "INSERT OR IGNORE INTO environments VALUES (?, ?, ?, ?)",
                (fingerprint, device, _now(), environment.model_dump_json()),
            )

    def commit(self, entries: Sequence[Entry]) -> None:
        """Store results, replacing those of the same identity and round.

        An interrupt while writing is honoured after the write.
        """
        if not entries:
            return
        try:
            self._write(entries)
        except KeyboardInterrupt:
            self._write(entries)
            raise

    def copy(self, reader: Reader, keys: Collection[Key]) -> int:
        """Store the results of these keys as another file has them; return their number.

        Raises UsageError, and stores nothing, when that file is damaged.
        """
        there = [
            name for name in reader.columns() if name not in ("identity", "round", PLAN_COLUMN)
        ]
        copied: dict[str, int] = {}
        with self._transaction():
            self._add_columns(there)
            self._connection.executemany(_FORGET, keys)
            for table, others in (("results", _RESULT), ("rows", there), ("big_integers", _BIG)):
                columns = ("identity", "round", *others)
                found = (values for values in reader.table(table, columns) if values[:2] in keys)
                done = self._connection.executemany(_insertion(table, columns), found)
                copied[table] = done.rowcount
            if copied["rows"] != copied["results"]:
                raise UsageError(f"{reader.path} is damaged: its results and rows are not the same")
        return copied["results"]

    def _add_columns(self, names: Iterable[str]) -> None:
        """Add the columns that the flat rows do not have yet."""
        known = {row[1] for row in self._connection.execute("PRAGMA table_info(rows)")}
        for name in names:
            if name not in known:
                self._connection.execute(
                    f"ALTER TABLE rows ADD COLUMN {quoted(name)} {sql_type(name)}"
                )

    def _write(self, entries: Sequence[Entry]) -> None:
        with self._transaction():
            self._add_columns(dict.fromkeys(name for entry in entries for name in entry.row))
            for entry in entries:
                self._write_one(entry)

    def _write_one(self, entry: Entry) -> None:
        finished = entry.finished or _now()
        key = (entry.identity, entry.round)
        execute = self._connection.execute
        place = (entry.environment, entry.lane, finished)
        ended = (entry.row["status"], entry.row["reason"], entry.result.outcome.status)
        execute(
            _insertion("results", ("identity", "round", *_RESULT)),
            (*key, *ended, *place, entry.result.model_dump_json()),
        )
        flat = {name: value for name, value in entry.row.items() if name not in KEY_COLUMNS}
        values = [*key, *place, *map(to_sql, flat.values())]
        execute(_insertion("rows", (*KEY_COLUMNS, *flat)), values)
        execute(_FORGET, key)
        for name, value in flat.items():
            if is_big(value):
                execute("INSERT INTO big_integers VALUES (?, ?, ?, ?)", (*key, name, str(value)))


_RESULT = ("status", "reason", "outcome", "environment", "lane", "finished", "result")
_BIG = ("column_name", "value")
_FORGET = "DELETE FROM big_integers WHERE identity = ? AND round = ?"


@lru_cache(maxsize=64)
def _insertion(table: str, columns: tuple[str, ...]) -> str:
    names, values = ", ".join(map(quoted, columns)), ", ".join("?" * len(columns))
    return f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({values})"


def quoted(name: str) -> str:
    """Return a column's name as SQL takes it."""
    return '"' + name.replace('"', '""') + '"'


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
