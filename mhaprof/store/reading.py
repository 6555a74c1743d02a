"""The reader of a result file: rows, records and what is missing.

Reads while a sweep writes; each call sees what was committed when it began.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import isfinite, isinf
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from pydantic import ValidationError

from mhaprof.errors import UsageError
from mhaprof.records import Environment, Failed, Measured, Point, Record, Result, Skipped
from mhaprof.store.columns import from_sql, kind_of
from mhaprof.store.connection import connect_to_read, worded
from mhaprof.store.database import KEY_COLUMNS, PLAN_COLUMN, Key, PlannedRow, quoted

CHUNK = 5000
"""Rows fetched at once: bounds memory, costs nothing in time."""

_LAST = "coalesce(planned, 1) > 0"
_ORDERED = (
    # The places are sorted and not the rows: those are wide.
    "WITH places AS MATERIALIZED (SELECT {table}.rowid AS place FROM {table} "
    "LEFT JOIN points ON points.identity = {table}.identity WHERE {which} "
    "ORDER BY planned = 0, ordinal, {table}.identity, round LIMIT ? OFFSET ?) "
    "SELECT {columns} FROM places CROSS JOIN {table} ON {table}.rowid = place "
    "LEFT JOIN points ON points.identity = {table}.identity"
)


class Stored(NamedTuple):
    """What became of one point in one round.

    ``outcome`` is the record's status; a measured point with a blocking finding has
    the ``status`` failed all the same.
    """

    identity: str
    round: int
    role: str | None
    status: str
    reason: str | None
    outcome: str


class Reader:
    """Read one result file; a context manager.

    Rows are those of the last plan; with ``every_plan`` those of earlier ones follow, and
    a column ``plan`` tells them apart (last, earlier).  Raises UsageError when there is no
    such file, or it is damaged, newer or not ours.
    """

    def __init__(self, path: Path, *, every_plan: bool = False) -> None:
        self.path = path
        self._every_plan = every_plan
        self._connection = connect_to_read(path)

    def _ordered(
        self, table: str, columns: str, *, limit: int = -1, skip: int = 0
    ) -> Iterator[tuple[Any, ...]]:
        """Yield columns of the rows that are read, in the order of the plan."""
        which = "1" if self._every_plan else _LAST
        query = _ORDERED.format(table=table, which=which, columns=columns)
        return self._select(query, [limit, skip], wide=table == "rows")

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._connection.close()

    def _select(
        self, query: str, parameters: Sequence[Any] = (), *, wide: bool = False
    ) -> Iterator[tuple[Any, ...]]:
        """Yield tuples without bytes, which no store of ours has; ``wide`` ones unchecked."""
        with worded(self.path):
            cursor = self._connection.execute(query, parameters)
            cursor.arraysize = CHUNK
            while chunk := cursor.fetchmany():
                if not wide and any(bytes in map(type, values) for values in chunk):
                    raise self._damaged()
                yield from chunk

    def meta(self) -> dict[str, str]:
        """Return the facts that ``Store.describe`` kept."""
        return dict(self._select("SELECT key, value FROM meta"))

    def environments(self) -> dict[str, tuple[str, Environment]]:
        """Return (device, environment) by fingerprint, in order of first use."""
        found = self._select(
            "SELECT fingerprint, device, environment FROM environments ORDER BY first_used"
        )
        with self._sound():
            return {
                fingerprint: (device, Environment.model_validate_json(text))
                for fingerprint, device, text in found
            }

    def points(self) -> list[PlannedRow]:
        """Return what is planned, in order, and what earlier plans left (0 rounds)."""
        found = self._select(
            "SELECT identity, ordinal, name, role, implementation, planned FROM points "
            "ORDER BY ordinal"
        )
        return [
            PlannedRow(
                identity=identity,
                ordinal=ordinal,
                name=name,
                role=role,
                implementation=implementation,
                rounds=rounds,
            )
            for identity, ordinal, name, role, implementation, rounds in found
        ]

    def count(self) -> int:
        """Return the number of rows."""
        (found,) = next(self._select("SELECT count(*) FROM results"))
        return int(found) - (0 if self._every_plan else self.earlier())

    def earlier(self) -> int:
        """Return the number of stored results that the last plan does not ask for."""
        query = "SELECT count(*) FROM results JOIN points USING (identity) WHERE planned = 0"
        return int(next(self._select(query))[0])

    def stored(self) -> list[Stored]:
        """Return what became of every point and round that has a result."""
        columns = "results.identity, round, role, status, reason, outcome"
        return [Stored(*found) for found in self._ordered("results", columns)]

    def missing(self) -> list[PlannedRow]:
        """Return the planned points that lack the result of a round, in order.

        ``rounds`` is how many there are of it.
        """
        query = (
            "SELECT points.identity, count(results.identity) FROM points "
            "LEFT JOIN results ON results.identity = points.identity "
            "GROUP BY points.identity HAVING count(results.identity) < planned"
        )
        there = dict(self._select(query))
        found = [point for point in self.points() if point.identity in there] if there else []
        return [replace(point, rounds=there[point.identity]) for point in found]

    def columns(self) -> list[str]:
        """Return the columns of a row: what was measured, then the store's own."""
        found = [row[1] for row in self._select("PRAGMA table_info(rows)")]
        measured = [name for name in found if name not in KEY_COLUMNS]
        return [*measured, *KEY_COLUMNS, *[PLAN_COLUMN] * self._every_plan]

    def filled(self) -> set[str]:
        """Return the columns that hold a value in at least one row."""
        columns = [name for name in self.columns() if name != PLAN_COLUMN]
        counts = ", ".join(f"count({quoted(name)})" for name in columns)
        numbers = next(self._select(f"SELECT {counts} FROM rows"))
        return {name for name, number in zip(columns, numbers, strict=True) if number}

    def raw_tuples(
        self, columns: Sequence[str], *, limit: int = -1, skip: int = 0
    ) -> Iterator[tuple[Any, ...]]:
        """Yield identity, round and the columns as SQLite has them, in planned order."""
        # A point may have been renamed since it was measured.
        special = {
            PLAN_COLUMN: f"iif({_LAST}, 'last', 'earlier')",
            "name": "coalesce(points.name, rows.name)",
        }
        selected = "".join(", " + (special.get(name) or f"rows.{quoted(name)}") for name in columns)
        found = self._ordered("rows", "rows.identity, round" + selected, limit=limit, skip=skip)
        return self._numeric(("identity", "round", *columns), found)

    def _numeric(
        self, columns: Sequence[str], found: Iterable[tuple[Any, ...]]
    ) -> Iterator[tuple[Any, ...]]:
        """Pass tuples on; raises UsageError for text where a number belongs, and infinity."""
        numeric = [
            place
            for place, name in enumerate(columns)
            if kind_of(name) in ("INTEGER", "REAL", "BOOLEAN")
        ]
        known: dict[tuple[type, ...], list[int]] = {}
        for values in found:
            kinds = tuple(map(type, values))
            if kinds not in known:
                if bytes in kinds:
                    raise self._damaged()
                self._refuse(columns, [place for place in numeric if kinds[place] is str])
                known[kinds] = [place for place, kind in enumerate(kinds) if kind is float]
            floats = known[kinds]
            if not isfinite(sum([values[place] for place in floats])):
                self._refuse(columns, [place for place in floats if isinf(values[place])])
            yield values

    def _refuse(self, columns: Sequence[str], places: Sequence[int]) -> None:
        if places:
            raise UsageError(
                f"{self.path}: the column {columns[places[0]]} holds what is no number; "
                "restore a copy or give another file"
            )

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """Turn what no store of ours would have written into one line."""
        try:
            yield
        except (ValueError, TypeError) as error:
            raise self._damaged() from error

    def _damaged(self) -> UsageError:
        return UsageError(
            f"{self.path} is damaged: a value is not of its column's kind; "
            "restore a copy or give another file"
        )

    def tuples(
        self, columns: Sequence[str], *, limit: int = -1, skip: int = 0
    ) -> Iterator[tuple[Any, ...]]:
        """Yield rows as tuples in the order of the plan; ``limit`` < 0 yields all."""
        kinds = [(place, kind_of(name), name) for place, name in enumerate(columns)]
        booleans = [place for place, kind, _ in kinds if kind == "BOOLEAN"]
        documents = [(place, name) for place, kind, name in kinds if kind == "JSON"]
        places = {name: place for place, name in enumerate(columns)}
        exact = self.big_integers()
        for identity, number, *values in self.raw_tuples(columns, limit=limit, skip=skip):
            for place in booleans:
                if values[place] is not None:
                    values[place] = values[place] != 0
            for place, name in documents:
                values[place] = self._document(name, values[place])
            for name, value in exact.get((identity, number), {}).items() if exact else ():
                if name in places:
                    values[places[name]] = value
            yield tuple(values)

    def rows(
        self, columns: Sequence[str] | None = None, *, limit: int = -1, skip: int = 0
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows of ``tuples`` as dicts, of all columns unless some are named."""
        columns = self.columns() if columns is None else columns
        for values in self.tuples(columns, limit=limit, skip=skip):
            yield dict(zip(columns, values, strict=True))

    def big_integers(self) -> Mapping[tuple[str, int], dict[str, int]]:
        """Return the exact values of counts beyond 64 bits, by identity and round."""
        found: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)
        query = "SELECT identity, round, column_name, value FROM big_integers"
        with self._sound():
            for identity, number, name, value in self._select(query):
                found[identity, number][name] = int(value)
        return found

    def results(self) -> Iterator[Result]:
        """Yield the full records, raw samples included, in the order of the plan."""
        for (text,) in self._ordered("results", "result"):
            yield self._record(text)

    def _record(self, text: str) -> Result:
        try:
            return Result.model_validate_json(text)
        except ValidationError as error:
            raise UsageError(
                f"{self.path} holds records of another version of mhaprof: update mhaprof"
            ) from error

    def outcomes(self) -> Iterator[tuple[Key, bool, int]]:
        """Yield the key of every plan's results, whether it was measured, the record's hash."""
        found = self._select("SELECT identity, round, outcome, result FROM results")
        for identity, number, outcome, text in found:
            yield (identity, number), outcome == "ok", hash(text)

    def text(self, key: Key) -> str:
        """Return the record of a point and round as JSON."""
        query = "SELECT result FROM results WHERE identity = ? AND round = ?"
        return str(next(self._select(query, key))[0])

    def table(self, table: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Yield columns of ``results``, ``rows`` or ``big_integers`` as they are, once checked.

        Each begins with identity and round.
        """
        query = f"SELECT {', '.join(map(quoted, columns))} FROM {table}"
        found = self._select(query, wide=table == "rows")
        if table == "results":
            return self._recorded(columns, found)
        return self._flat(columns, found) if table == "rows" else found

    def _flat(
        self, columns: Sequence[str], found: Iterable[tuple[Any, ...]]
    ) -> Iterator[tuple[Any, ...]]:
        """Pass flat rows on; raises UsageError for what is no number, or no JSON."""
        documents = [(i, name) for i, name in enumerate(columns) if kind_of(name) == "JSON"]
        for values in self._numeric(columns, found):
            for place, name in documents:
                self._document(name, values[place])
            yield values

    def _document(self, name: str, value: Any) -> Any:
        try:
            return from_sql(name, value)
        except (ValueError, RecursionError) as error:
            raise self._damaged() from error

    def _recorded(
        self, columns: Sequence[str], found: Iterable[tuple[Any, ...]]
    ) -> Iterator[tuple[Any, ...]]:
        """Pass results on; raises UsageError for a record that is none, or says otherwise."""
        record, outcome = columns.index("result"), columns.index("outcome")
        for values in found:
            text, status = values[record], values[outcome]
            # Whoever reads a record validates it, which takes several times as long.
            if not _is_record(text, status) and self._record(text).outcome.status != status:
                raise self._damaged()
            yield values


_OUTCOMES: Mapping[str, type[Record]] = {"ok": Measured, "skipped": Skipped, "failed": Failed}


def _is_record(text: str, status: str) -> bool:
    """Say whether JSON has the fields of a record that ended so, and no others."""
    try:
        document = json.loads(text)
        outcome = document["outcome"]
        return bool(
            document.keys() == Result.model_fields.keys()
            and document["point"].keys() == Point.model_fields.keys()
            and outcome["status"] == status
            and outcome.keys() == _OUTCOMES[status].model_fields.keys()
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False
