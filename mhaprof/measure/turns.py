"""Take turns with another process that measures: never both at once, and in step.

Noise of a shared machine lasts for seconds.  Two processes that alternate every few
hundredths of a second meet the same noise, and their ratio does not show it.  Who may go
is decided by the process that started both (``ab/turns.py``); here one side asks.
"""

from __future__ import annotations

import os
import time

VARIABLE = "MHAPROF_TURNS"
"""Environment variable with two file descriptors: answers are read, requests written."""

POINT, BATCH, GO = b"p", b"b", b"g"


class Turns:
    """One side's end: every request waits until it is this side's turn.

    Where the other end is gone nobody wants the result: KeyboardInterrupt is raised, as
    by Ctrl-C.
    """

    def __init__(self, answers: int, requests: int) -> None:
        self._answers, self._requests = answers, requests

    @classmethod
    def from_environment(cls) -> Turns | None:
        """Return the end that the starting process left in the environment, if any."""
        given = os.environ.pop(VARIABLE, None)
        if given is None:
            return None
        answers, requests = map(int, given.split(","))
        return cls(answers, requests)

    def point(self) -> None:
        """Wait to begin the next point: both sides begin it together."""
        self._ask(POINT)

    def batch(self) -> float:
        """Let the other side take a batch of samples; return the seconds waited."""
        return self._ask(BATCH)

    def _ask(self, request: bytes) -> float:
        started = time.perf_counter()
        try:
            os.write(self._requests, request)
            answer = os.read(self._answers, 1)
        except OSError:
            answer = b""
        if answer != GO:
            raise KeyboardInterrupt("the process that gives the turns is gone")
        return time.perf_counter() - started
