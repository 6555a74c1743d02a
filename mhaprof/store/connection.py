"""Connections to a result file, and SQLite's errors in words."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from mhaprof.errors import MhaprofError, Unavailable, UsageError
from mhaprof.store.schema import STEPS, check, migrate

WAIT_S = 60.0
"""How long a writer waits for readers that are in the way, and they for it."""

LONGEST_VALUE = 64 * 1024**2
"""Bytes of one value of a file: far more than a record has, far less than memory."""

CHECK_RATE = 100e6
CHECK_MOST_S = 30.0
"""Bytes a second at which the pages of a file have to be checked, and how long at most: ours
are checked ten times as fast; a crafted file may have no end."""

CHECK_STEPS = 10_000
"""Steps of SQLite's machine between two looks at the clock."""

_WAL = b"\x02"
_sound: set[tuple[int, ...]] = set()


@contextmanager
def worded(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the file system into one line about ``path``.

    Raises Unavailable (codes ``disk_full``, ``store_gone``, ``store_locked``,
    ``store_io``) when the disk or another process is in the way, UsageError when the
    file or folder is wrong.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise _explained(path, error) from error
    except UnicodeDecodeError as error:  # a name in the schema
        raise UsageError(f"{path} is damaged: it holds text that is no UTF-8") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error


_NOT_OURS = (
    0,  # Python's own: text that is no UTF-8
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_TOOBIG,
)


def _explained(path: Path, error: sqlite3.Error) -> MhaprofError:
    whole = getattr(error, "sqlite_errorcode", 0)
    code = whole & 0xFF
    if whole == sqlite3.SQLITE_READONLY_DBMOVED:
        return Unavailable(
            f"{path} was deleted or replaced while it was written; run the same command again",
            code="store_gone",
        )
    if code in _NOT_OURS:
        return UsageError(
            f"{path} is no result file of mhaprof, or it is damaged ({error}); "
            "restore a copy or give another file"
        )
    if code == sqlite3.SQLITE_FULL:
        return Unavailable(
            f"the disk of {path} is full; what was committed is intact: "
            "free space and run the same command to resume",
            code="disk_full",
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
            _distrust(connection)
            check(connection, name=str(path))
            connection.execute("PRAGMA journal_mode = DELETE")
            migrate(connection, name=str(path))
        except BaseException:
            connection.close()
            raise
        return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open an existing file for reading; an older version is migrated in memory.

    The file and its folder are left as they are, but for a transaction that a kill cut
    off: only a writer can roll that back.
    """
    if not path.is_file():
        raise UsageError(f"{path}: there is no such result file")
    with worded(path):
        _refuse_wal(path)
        journal = path.with_name(path.name + "-journal")
        mode = "rw" if journal.exists() else "ro"
        uri = f"file:{quote(str(path))}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=WAIT_S, isolation_level=None)
        try:
            return _readable(connection, path)
        except BaseException:
            connection.close()
            raise


def _readable(connection: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """Return a connection that is safe to read: this one, or a migrated copy in memory."""
    _distrust(connection)
    version = check(connection, name=str(path))
    if version == 0:
        raise UsageError(f"{path} is empty; it holds no results of mhaprof")
    _quick_check(connection, path)
    if version < len(STEPS):
        copy = sqlite3.connect(":memory:", isolation_level=None)
        connection.backup(copy)
        connection.close()
        migrate(copy, name=str(path))
        connection = copy
    connection.execute("PRAGMA query_only = ON")
    return connection


def _distrust(connection: sqlite3.Connection) -> None:
    """Let nothing in the file run or grow: it may come from a stranger."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
    for pragma in ("trusted_schema = OFF", "ignore_check_constraints = ON", "mmap_size = 0"):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _refuse_wal(path: Path) -> None:
    """Raise UsageError for a file in WAL mode: reading it would write files beside it."""
    with path.open("rb") as file:
        header = file.read(20)
    if _WAL in header[18:20]:
        raise UsageError(
            f"{path} is in WAL mode, which mhaprof does not write; close what has it open "
            "and convert it: sqlite3 FILE 'PRAGMA journal_mode = DELETE'"
        )


def _quick_check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise UsageError for pages that do not fit together; once while a file is unchanged.

    Pages that are linked twice make rows without an end out of a small file.
    """
    stat = path.stat()
    key = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
    if key in _sound:
        return
    seconds = min(CHECK_MOST_S, 1 + stat.st_size / CHECK_RATE)
    deadline = time.thread_time() + seconds
    connection.set_progress_handler(lambda: time.thread_time() > deadline, CHECK_STEPS)
    try:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        raise UsageError(
            f"{path} is not read: that it is sound could not be seen in {seconds:.0f} s; restore "
            "a copy or give a smaller file"
        ) from error
    finally:
        connection.set_progress_handler(None, 0)
    if found != "ok":
        first = " ".join(str(found).split())
        raise UsageError(f"{path} is damaged ({first}); restore a copy or give another file")
    _sound.add(key)
