"""The tables of a result file, and the steps from each version to the next."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence

from mhaprof.errors import UsageError

APPLICATION_ID = 0x6D686170
"""Marks an SQLite file as ours (``mhap``), in the file's own header."""

STEPS: Sequence[str] = (
    """
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE environments (
        fingerprint TEXT PRIMARY KEY,
        device TEXT NOT NULL,
        first_used TEXT NOT NULL,
        environment TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE points (
        identity TEXT PRIMARY KEY,
        ordinal INTEGER NOT NULL,
        name TEXT NOT NULL,
        role TEXT NOT NULL,
        implementation TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE results (
        identity TEXT NOT NULL,
        round INTEGER NOT NULL,
        status TEXT NOT NULL,
        reason TEXT,
        outcome TEXT NOT NULL,
        environment TEXT,
        lane TEXT,
        finished TEXT NOT NULL,
        result TEXT NOT NULL,
        PRIMARY KEY (identity, round)
    );
    CREATE TABLE rows (
        identity TEXT NOT NULL,
        round INTEGER NOT NULL,
        environment TEXT,
        lane TEXT,
        finished TEXT NOT NULL,
        PRIMARY KEY (identity, round)
    );
    CREATE TABLE big_integers (
        identity TEXT NOT NULL,
        round INTEGER NOT NULL,
        column_name TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (identity, round, column_name)
    ) WITHOUT ROWID;
    """,
    """
    ALTER TABLE points ADD COLUMN planned INTEGER NOT NULL DEFAULT 1;
    """,
)
"""``STEPS[n]`` takes a file of version n to n + 1; version 0 is an empty file."""


_CREATED = r"CREATE (?:UNIQUE )?(TABLE|INDEX|VIEW|TRIGGER) (?:IF NOT EXISTS )?(\w+)"


def migrate(connection: sqlite3.Connection, *, name: str) -> None:
    """Bring an open file to the newest version, in one transaction.

    Raises UsageError for an SQLite file of another program and for a newer version;
    ``name`` is the file's name in the message.
    """
    version = check(connection, name=name)
    if version == len(STEPS):
        return
    statements = "".join(STEPS[version:])
    connection.executescript(
        f"BEGIN IMMEDIATE; {statements} "
        f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {len(STEPS)}; COMMIT;"
    )


def check(connection: sqlite3.Connection, *, name: str) -> int:
    """Return the file's version (0: empty); raises UsageError if it is not for us."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    objects = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    if not objects:
        return 0
    if application != APPLICATION_ID:
        raise UsageError(f"{name} is an SQLite file, but holds no results of mhaprof")
    if version > len(STEPS):
        raise UsageError(
            f"{name} has schema version {version}; this mhaprof reads up to {len(STEPS)}: "
            "update mhaprof"
        )
    _refuse_strange(connection, objects, name=name)
    return int(version)


def _refuse_strange(
    connection: sqlite3.Connection, objects: Sequence[tuple[str, str, str | None]], *, name: str
) -> None:
    """Raise UsageError for what no step makes: it may compute, and without an end."""
    ours = {(kind.lower(), made) for kind, made in re.findall(_CREATED, "".join(STEPS))}
    for kind, made, sql in objects:
        if sql is None and str(made).startswith("sqlite_autoindex_"):
            continue
        computes = kind == "table" and (
            str(sql).upper().startswith("CREATE VIRTUAL")
            or any(
                column[6] or column[1].lower() == "rowid"
                for column in connection.execute("SELECT * FROM pragma_table_xinfo(?)", [made])
            )
        )
        if computes or (kind, made) not in ours:
            raise UsageError(
                f"{name} holds the {kind} {made!r} that mhaprof did not make; expected a file "
                "as a sweep leaves it: restore a copy or give another file"
            )
