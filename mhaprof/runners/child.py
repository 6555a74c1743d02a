"""A worker process: says hello, then measures the tasks it is sent, until told to stop.

It ends with its driver, however the driver ends: the kernel kills it (Linux), and a
thread that waits for tasks sees the socket close.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import os
import queue
import signal
import socket
import sys
import threading

from mhaprof.records import Failed
from mhaprof.runners.base import Task, describe, measure_as, measurer_of
from mhaprof.runners.messages import Answer, Hello, Lines

PR_SET_PDEATHSIG = 1
"""``prctl``: the signal to get when the parent dies (linux/prctl.h)."""

CHUNK = 1 << 16


def main() -> None:
    """Serve one driver through the inherited socket that ``--socket`` numbers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--measurer", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--local-device")
    given = parser.parse_args()
    die_with(given.parent)
    faulthandler.enable()
    driver = socket.socket(fileno=given.socket)
    driver.set_inheritable(False)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(driver, tasks), daemon=True).start()
    measurer = measurer_of(given.measurer)
    _send(driver, Hello(environment=describe(given.local_device or given.device)))
    while True:
        task = Task.model_validate_json(tasks.get())
        result = measure_as(measurer, task, given.local_device)
        lost = isinstance(result.outcome, Failed) and result.outcome.code == "device_lost"
        _send(driver, Answer(result=result, device_lost=lost))


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies; Linux alone can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _receive(driver: socket.socket, tasks: queue.SimpleQueue[bytes]) -> None:
    """Queue the tasks that arrive; end the process when the driver is gone."""
    lines = Lines()
    while data := driver.recv(CHUNK):
        for line in lines.feed(data):
            tasks.put(line)
    os._exit(0)


def _send(driver: socket.socket, message: Hello | Answer) -> None:
    driver.sendall(message.model_dump_json().encode() + b"\n")


if __name__ == "__main__":
    main()
