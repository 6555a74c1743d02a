"""What Ctrl-C, SIGTERM and a terminal that is gone do to the command line.

The first signal interrupts the measurement under way; the command prints what it has, and
writing is never cut.  The second ends the process now, with all that it started.  Where
there is nothing to keep yet the first interrupts no import: it ends the process as well,
for libraries swallow exceptions while they load.  Imports nothing heavy: it comes first.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from types import FrameType
from typing import Literal

SAME_S = 0.1
"""A signal this soon after the first is the same request: timeout(1) sends each twice."""

SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"

Phase = Literal["importing", "nothing to keep", "keeping", "writing"]


class _State:
    """What the one set of handlers of this process knows."""

    phase: Phase = "importing"
    has_written = False
    handled: tuple[int, ...] = ()
    received = 0


def install() -> None:
    """Handle the signals that the caller does not ignore (nohup, a shell's background job)."""
    named = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")]
    _State.handled = tuple(
        number for number in named if number and signal.getsignal(number) != signal.SIG_IGN
    )
    reinstall()
    with suppress(OSError, RuntimeError):  # no descriptor or thread is left: no second signal
        ours, pythons = socket.socketpair()
        pythons.setblocking(False)
        signal.set_wakeup_fd(pythons.detach(), warn_on_full_buffer=False)
        threading.Thread(target=_watch, args=(ours,), daemon=True, name="signals").start()


def reinstall() -> None:
    """Take back what a library took: Ray takes SIGTERM."""
    for number in _State.handled:
        signal.signal(number, _on_signal)


def enter(phase: Phase) -> None:
    """Say what the process does from now on."""
    _State.phase = phase


def begin() -> None:
    """Say that a command begins: nothing was measured or written yet."""
    _State.phase, _State.has_written, _State.received = "nothing to keep", False, 0


def interrupted() -> None:
    """Say that the command was interrupted, by a signal or by whoever raised for one."""
    _State.received = _State.received or signal.SIGINT


def wrote() -> None:
    """Say that data is on standard output: a document about an error would come too late."""
    _State.phase, _State.has_written = "writing", True


def has_written() -> bool:
    """Say whether data is on standard output."""
    return _State.has_written


def exit_code(code: int) -> int:
    """Return 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, else ``code``."""
    return 128 + _State.received if _State.received else code


@contextmanager
def interruptible() -> Iterator[None]:
    """Let a signal interrupt the body, and hold it back around it if results are kept."""
    before = _State.phase
    if before == "writing":
        _State.phase = "keeping"
    try:
        if _State.received:
            raise KeyboardInterrupt
        yield
    finally:
        _State.phase = before


def wants_json(arguments: Sequence[str]) -> bool:
    """Say whether stdout has to hold valid JSON whatever happens."""
    return "--format=json" in arguments or ("--format", "json") in pairwise(arguments)


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Take the first signal; the second is the watcher's, for C code can delay this."""
    if _State.received:
        return
    _State.received = number
    if _State.phase == "importing" or (_State.phase == "nothing to keep" and _imports(frame)):
        leave()
    if _State.phase != "writing":
        raise KeyboardInterrupt


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _watch(wakeups: socket.socket) -> None:
    """Read the numbers of signals as they come; end the process at the second."""
    first_s = None
    while seen := wakeups.recv(1):
        if seen[0] not in _State.handled:
            continue
        if first_s is None:
            first_s = time.monotonic()
        elif time.monotonic() - first_s > SAME_S:
            _State.received = _State.received or seen[0]
            leave()


def leave() -> None:
    """End the process now, and all that it started; the terminal gets its cursor back."""
    if _State.phase != "importing":
        _kill_descendants()
    code = exit_code(0)
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, SHOW_CURSOR)
        os.write(2, b"mhaprof: interrupted\n")
    if wants_json(sys.argv[1:]) and not _State.has_written:
        error = {"message": "interrupted", "exit_code": code}
        document = {"schema_version": 1, "error": error, "rows": []}
        with suppress(OSError):
            os.write(1, json.dumps(document, indent=2).encode() + b"\n")
    os._exit(code)


def _kill_descendants() -> None:
    """Kill what this process started and what that started, in sessions of their own too."""
    import psutil

    with suppress(psutil.Error):
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                child.kill()
