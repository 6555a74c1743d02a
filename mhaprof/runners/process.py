"""One worker process as its driver sees it: started, sent a task, heard, judged, killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mhaprof.errors import signal_name
from mhaprof.records import Failed
from mhaprof.runners.base import MEASURER, Task
from mhaprof.runners.messages import Lines

TAIL_BYTES = 4000
"""How much of a dead worker's output goes into its point's row."""

CHUNK = 1 << 16

VMSTAT = Path("/proc/vmstat")


@dataclass(frozen=True, kw_only=True)
class Lane:
    """What works on one task at a time: a device, or a core for counting.

    ``serves`` lists the devices that tasks ask for which this lane does;
    ``local_device`` is the device's name inside the worker, where it differs.
    ``environment`` holds variables to set for the worker.
    """

    name: str
    serves: tuple[str, ...]
    local_device: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


class WorkerProcess:
    """One worker, in a session of its own; all it prints goes to an unnamed file.

    ``task`` is what it works on, ``None`` before and between tasks.
    """

    def __init__(self, lane: Lane, *, measurer: str = MEASURER) -> None:
        self.lane = lane
        self.task: Task | None = None
        self.since_s = time.monotonic()
        self.ready = False
        self._kills_before = oom_kills()
        self._lines = Lines()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by ``kill``)
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                _command(lane, measurer, theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, **lane.environment},
            )
        self._socket = ours

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    def fileno(self) -> int:
        """Return the socket's descriptor, for ``selectors``."""
        return self._socket.fileno()

    def send(self, task: Task) -> None:
        """Give it a task; that it is dead shows when it is heard."""
        self.task = task
        self.since_s = time.monotonic()
        self._kills_before = oom_kills()
        try:
            self._socket.sendall(task.model_dump_json().encode() + b"\n")
        except OSError:
            return

    def receive(self) -> list[bytes] | None:
        """Return the messages that have arrived, or None when the worker is gone."""
        try:
            data = self._socket.recv(CHUNK)
        except OSError:
            data = b""
        return self._lines.feed(data) if data else None

    def has_exited(self) -> bool:
        """Say whether the process is dead, though others may hold its socket open."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill it with all that it started, and release what it held."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._socket.close()
        self._log.close()

    def bury(self) -> Failed:
        """Say why it died, and release what it held."""
        # The socket closes a moment before the process can be waited for.
        try:
            status = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            status = 0
        failed = died(status, oom_killed=oom_kills() > self._kills_before, output=self.output())
        self.kill()
        return failed

    def output(self) -> str:
        """Return the end of what it printed."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - TAIL_BYTES))
        return self._log.read().decode(errors="replace").strip()


def _command(lane: Lane, measurer: str, socket_number: int) -> list[str]:
    command = [sys.executable, "-m", "mhaprof.runners.child"]
    command += ["--socket", str(socket_number), "--parent", str(os.getpid())]
    command += ["--measurer", measurer, "--device", lane.serves[0]]
    if lane.local_device is not None:
        command += ["--local-device", lane.local_device]
    return command


def died(status: int, *, oom_killed: bool, output: str) -> Failed:
    """Return the outcome of a point whose worker ended with this wait status."""
    if status == -signal.SIGKILL and oom_killed:
        code, message = "out_of_memory_killed", "the kernel killed the worker for want of memory"
    elif status == -signal.SIGKILL:
        code = "worker_killed"
        message = "something killed the worker (SIGKILL): a person, or a limit on memory"
    elif status < 0:
        code, message = "worker_crashed", f"the worker died of {signal_name(-status)}"
    else:
        code, message = "worker_crashed", f"the worker exited with status {status}"
    return Failed(code=code, message=message, traceback=output or None)


def oom_kills(vmstat: Path = VMSTAT) -> int:
    """Return how many processes the kernel has killed for want of memory; 0 if unknown."""
    try:
        text = vmstat.read_text()
    except OSError:
        return 0
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return 0
