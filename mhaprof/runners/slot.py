"""What runs inside a Ray actor: a lane of its own, one task at a time."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from mhaprof.errors import MhaprofError
from mhaprof.records import Environment
from mhaprof.runners.base import COUNTING, Task
from mhaprof.runners.messages import Reply
from mhaprof.runners.process import Lane
from mhaprof.runners.worker import WorkerPool


class Slot:
    """Measure tasks in a worker process on the machine where this object is.

    Takes and returns JSON, and raises nothing: exceptions lose their words on the way.
    """

    def __init__(
        self,
        *,
        device: str,
        timeout_s: float | None,
        measurer: str,
        environment: Mapping[str, str],
    ) -> None:
        self._name = f"{socket.gethostname()}/{os.getpid()}"
        self._environment: Environment | None = None
        lane = Lane(
            name=self._name,
            serves=tuple(dict.fromkeys((device, COUNTING))),
            environment=environment,
        )
        self._pool = WorkerPool([lane], self._note, timeout_s=timeout_s, measurer=measurer)

    def _note(self, lane: str, device: str, environment: Environment) -> None:
        self._environment = environment

    def hello(self) -> bytes:
        """Start the worker; return a ``Reply`` with its environment."""
        try:
            self._pool.start()
            while self._environment is None:
                self._pool.step()
        except MhaprofError as error:
            return self._reply(trouble=str(error))
        return self._reply(environment=self._environment)

    def measure(self, task: str) -> bytes:
        """Measure a task; return a ``Reply`` with its result."""
        try:
            self._pool.add([Task.model_validate_json(task)])
            while not (landed := self._pool.step()):
                pass
        except MhaprofError as error:
            return self._reply(trouble=str(error))
        return self._reply(result=landed[0].result)

    def _reply(self, **content: object) -> bytes:
        return Reply.model_validate({"lane": self._name, **content}).model_dump_json().encode()
