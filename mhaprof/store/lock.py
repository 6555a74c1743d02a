"""One writer at a time, whatever kills it.

A POSIX record lock on a file beside the store: it works on network file systems as
SQLite's own locks do, is not inherited by workers, and is gone when the process is.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from pathlib import Path

from mhaprof.errors import Unavailable


class WriterLock:
    """Hold ``FILE.lock`` from construction to ``release``.

    Raises Unavailable (code ``store_locked``), naming the holder, when another
    process has it, and OSError when the file cannot be made or locked.
    """

    def __init__(self, store: Path) -> None:
        self.path = store.with_name(store.name + ".lock")
        self._handle = self._acquire(store)
        self._sign()

    def _acquire(self, store: Path) -> int:
        try:
            import fcntl
        except ImportError as error:
            raise Unavailable(
                "sweep, merge and ab need Linux, macOS or WSL: they lock their files by fcntl, "
                f"which {sys.platform} has not; counts, times, results and gates work here",
                code="no_fcntl",
            ) from error

        while True:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = os.read(handle, 1000).decode(errors="replace").strip()
                os.close(handle)
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                raise Unavailable(
                    f"{store} is being written by {holder or 'another process'}; "
                    "wait for it, or give another --out",
                    code="store_locked",
                ) from error
            # Whoever held it may have removed the file between our open and our lock.
            if self._is_current(handle):
                return handle
            os.close(handle)

    def _is_current(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), self.path.stat())
        except FileNotFoundError:
            return False

    def _sign(self) -> None:
        """Write who holds the lock; on a full disk the lock works unsigned."""
        holder = f"process {os.getpid()} on {socket.gethostname()}\n"
        try:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, holder.encode(), 0)
        except OSError:
            pass

    def release(self) -> None:
        """Remove the file, then the lock."""
        self.path.unlink(missing_ok=True)
        os.close(self._handle)
