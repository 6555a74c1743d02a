"""Connections to a result file, and SQLite's errors in words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from mhaprof.errors import MhaprofError, Unavailable, UsageError
from mhaprof.store.schema import STEPS, check, migrate

WAIT_S = 60.0
"""How long a writer waits for readers that are in the way, and they for it."""


@contextmanager
def worded(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the file system into one line about ``path``.

    Raises Unavailable (codes ``disk_full``, ``store_locked``, ``store_io``) when the
    disk or another process is in the way, UsageError when the file or folder is wrong.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise _explained(path, error) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error


def _explained(path: Path, error: sqlite3.Error) -> MhaprofError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return Unavailable(
            f"the disk of {path} is full; what was committed is intact: "
            "free space and run the same command to resume",
            code="disk_full",
        )
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return UsageError(
            f"{path} is no result file of mhaprof, or it is damaged ({error}); "
            "restore a copy or give another file"
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return UsageError(f"{path} cannot be opened or written; check its folder's permissions")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable(f"{path} is in use by another program", code="store_locked")
    return Unavailable(f"{path}: {error}; what was committed is intact", code="store_io")


def connect_to_write(path: Path) -> sqlite3.Connection:
    """Open or create a file for writing, migrated to the newest version."""
    with worded(path):
        connection = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = DELETE")
            migrate(connection, name=str(path))
        except BaseException:
            connection.close()
            raise
        return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open an existing file for reading; an older version is migrated in memory."""
    if not path.is_file():
        raise UsageError(f"{path}: there is no such result file")
    with worded(path):
        # Read-write, so that a transaction cut off by a kill can be rolled back.
        uri = f"file:{quote(str(path))}?mode=rw"
        connection = sqlite3.connect(uri, uri=True, timeout=WAIT_S, isolation_level=None)
        version = check(connection, name=str(path))
        if version == 0:
            raise UsageError(f"{path} is empty; it holds no results of mhaprof")
        if version < len(STEPS):
            copy = sqlite3.connect(":memory:", isolation_level=None)
            connection.backup(copy)
            connection.close()
            migrate(copy, name=str(path))
            connection = copy
        connection.execute("PRAGMA query_only = ON")
        return connection
