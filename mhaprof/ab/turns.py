"""Two processes that measure the same points, one batch of samples each in turn."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from mhaprof.measure.turns import BATCH, GO, POINT, VARIABLE

State = Literal["busy", "batch", "point", "done"]

_STATES: dict[bytes, State] = {POINT: "point", BATCH: "batch", b"": "done"}

LOOK_S = 1.0
"""Seconds of silence after which processes are looked at."""

Start = Callable[[dict[str, str], Sequence[int]], subprocess.Popen[bytes]]
"""Start a process with these further variables, leaving it these file descriptors."""


@dataclass(kw_only=True, eq=False)
class Seat:
    """One process: what it last asked for, and how many points it has begun.

    A process that never asks is busy until it ends.
    """

    process: subprocess.Popen[bytes]
    requests: int
    answers: int
    state: State = "busy"
    begun: int = 0

    def may_go(self, other: Seat) -> bool:
        """Say whether this side may go on: to begin a point it waits for the other."""
        if self.state != "point":
            return self.state == "batch"
        ahead = self.begun - other.begun
        return other.state == "done" or ahead < 0 or (ahead == 0 and other.state == "point")

    def go(self) -> None:
        """Let it go on."""
        self.begun += self.state == "point"
        self.state = "busy"
        try:
            os.write(self.answers, GO)
        except OSError:
            self.state = "done"

    def hear(self) -> None:
        """Read what it asks for; the end of its file means that it is done."""
        self.state = _STATES.get(os.read(self.requests, 1), "busy")


def alternate(first: Start, second: Start) -> tuple[int, int]:
    """Run two processes to their ends, one at a time; return their exit codes.

    Both start at once; none measures before the other is ready to.  ``first`` begins.
    Whatever is raised meanwhile, an interrupt too, ends both.
    """
    with _seated(first) as one, _seated(second) as other:
        last = other
        with selectors.DefaultSelector() as selector:
            for seat in (one, other):
                selector.register(seat.requests, selectors.EVENT_READ, seat)
            while not one.state == other.state == "done":
                if "busy" in (one.state, other.state):
                    _listen(selector)
                    continue
                ready = [seat for seat in (one, other) if seat.may_go(_beside(seat, one, other))]
                last = next((seat for seat in ready if seat is not last), ready[0])
                last.go()
        return one.process.wait(), other.process.wait()


def _beside(seat: Seat, one: Seat, other: Seat) -> Seat:
    return other if seat is one else one


def _listen(selector: selectors.BaseSelector) -> None:
    """Wait until somebody asks for something or ends.

    A process that left its end of the pipe to children of its own is asked whether it
    still runs.
    """
    heard = [key.data for key, _ in selector.select(timeout=LOOK_S)]
    for seat in heard:
        seat.hear()
    for key in list(selector.get_map().values()):
        seat = key.data
        if not heard and seat.process.poll() is not None:
            seat.state = "done"
        if seat.state == "done":
            selector.unregister(seat.requests)


@contextmanager
def _seated(start: Start) -> Iterator[Seat]:
    """Start a process with a pipe each way; end it when the body does."""
    answers_read, answers_write = os.pipe()
    requests_read, requests_write = os.pipe()
    try:
        theirs = (answers_read, requests_write)
        try:
            process = start({VARIABLE: f"{answers_read},{requests_write}"}, theirs)
        finally:
            for end in theirs:
                os.close(end)
        try:
            yield Seat(process=process, requests=requests_read, answers=answers_write)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
    finally:
        os.close(requests_read)
        os.close(answers_write)
