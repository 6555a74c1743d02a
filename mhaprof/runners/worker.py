"""Measure in worker processes, one per lane, kept warm from task to task."""

from __future__ import annotations

import itertools
import selectors
import time
from collections import deque
from collections.abc import Generator, Sequence

from mhaprof.errors import Unavailable
from mhaprof.records import Failed
from mhaprof.runners.base import COUNTING, MEASURER, Admit, Done, Task, failed_result
from mhaprof.runners.messages import Answer, Hello, understood
from mhaprof.runners.process import Lane, WorkerProcess

DEFAULT_TIMEOUT_S = 600.0
"""How long one task may take before its worker is killed."""

START_TIMEOUT_S = 180.0
"""How long a worker may take to say hello: imports from a cold network disk."""

TICK_S = 0.5
"""How often deadlines and deaths are looked for when nothing is heard."""


class WorkerRunner:
    """Measure tasks in worker processes, one per lane.

    A worker that crashes, is killed, or takes longer than ``timeout_s`` (None: no
    limit) fails its task alone; a fresh one goes on.  Raises Unavailable (code
    ``worker_start``) when a worker dies before its first task: the next would too.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        *,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        measurer: str = MEASURER,
    ) -> None:
        self._lanes = lanes
        self._timeout_s = timeout_s
        self._measurer = measurer

    def run(self, tasks: Sequence[Task], admit: Admit) -> Generator[list[Done]]:
        """Yield results as they land; a lane starts its tasks in their order."""
        pool = WorkerPool(self._lanes, admit, timeout_s=self._timeout_s, measurer=self._measurer)
        try:
            pool.add(tasks)
            while pool.is_busy:
                if landed := pool.step():
                    yield landed
        finally:
            pool.close()


class WorkerPool:
    """The workers of some lanes, and the tasks that wait for them.

    Workers start when there are tasks for their lanes, or by ``start``.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        admit: Admit,
        *,
        timeout_s: float | None,
        measurer: str,
    ) -> None:
        self._lanes = lanes
        self._admit = admit
        self._timeout_s = timeout_s
        self._measurer = measurer
        self._waiting = _Waiting()
        self._workers: list[WorkerProcess] = []
        self._selector = selectors.DefaultSelector()

    @property
    def is_busy(self) -> bool:
        """Say whether a task waits or is worked on."""
        return bool(self._waiting) or any(worker.task is not None for worker in self._workers)

    def add(self, tasks: Sequence[Task]) -> None:
        """Queue tasks, and start the workers that they need."""
        served = {device for lane in self._lanes for device in lane.serves}
        assert {task.device for task in tasks} <= served, "a task that no lane can do"
        self._waiting.add(tasks)
        started = {worker.lane.name for worker in self._workers}
        for lane in self._lanes:
            if lane.name not in started and self._waiting.has_for(lane):
                self._start(lane)

    def start(self) -> None:
        """Start a worker for every lane, tasks or not."""
        for lane in self._lanes:
            self._start(lane)

    def step(self) -> list[Done]:
        """Give idle workers tasks, and wait a moment; return the tasks that ended.

        A device gets its next task in the next step: when the results of this one are
        stored, so that no more than one task of a device is lost when the driver dies,
        and nothing is written while it is timed.
        """
        for worker in self._workers:
            if worker.ready and worker.task is None:
                self._next(worker)
        heard = self._heard()
        silent = [worker for worker in self._workers if worker not in heard]
        landed = [done for worker in heard for done in self._serve(worker)]
        return landed + [done for worker in silent for done in self._check(worker)]

    def close(self) -> None:
        """Kill all workers."""
        for worker in list(self._workers):
            self._drop(worker)
            worker.kill()
        self._selector.close()

    def _start(self, lane: Lane) -> None:
        worker = WorkerProcess(lane, measurer=self._measurer)
        self._workers.append(worker)
        self._selector.register(worker, selectors.EVENT_READ)

    def _drop(self, worker: WorkerProcess) -> None:
        self._workers.remove(worker)
        self._selector.unregister(worker)

    def _heard(self) -> list[WorkerProcess]:
        events = self._selector.select(timeout=TICK_S)
        return [key.fileobj for key, _ in events if isinstance(key.fileobj, WorkerProcess)]

    def _serve(self, worker: WorkerProcess) -> list[Done]:
        """Take what a worker says: its hello, an answer, or its end."""
        messages = worker.receive()
        if messages is None:
            return self._replace(worker, None)
        landed: list[Done] = []
        for message in messages:
            if not worker.ready:
                hello = understood(Hello, message)
                self._admit(worker.lane.name, worker.lane.serves[0], hello.environment)
                worker.ready = True
                self._next(worker)
                continue
            answer = understood(Answer, message)
            task = worker.task
            assert task is not None
            worker.task = None
            if answer.device_lost:
                self._replace(worker, None)
            elif task.device == COUNTING:
                # Counts are cheap: rather count one again than let a core wait for a disk.
                self._next(worker)
            landed.append(Done(task=task, result=answer.result, lane=worker.lane.name))
        return landed

    def _next(self, worker: WorkerProcess) -> None:
        task = self._waiting.pop_for(worker.lane)
        worker.task = None
        if task is not None:
            worker.send(task)

    def _check(self, worker: WorkerProcess) -> list[Done]:
        """End a worker that is dead or beyond its time."""
        elapsed_s = time.monotonic() - worker.since_s
        if worker.has_exited():
            return self._replace(worker, None)
        if not worker.ready and elapsed_s > START_TIMEOUT_S:
            raise Unavailable(
                f"a worker did not start within {START_TIMEOUT_S:.0f} s", code="worker_start"
            )
        if worker.task and self._timeout_s is not None and elapsed_s > self._timeout_s:
            message = f"took longer than --timeout {self._timeout_s:g} s; its worker was killed"
            failed = Failed(code="timeout", message=message, traceback=worker.output() or None)
            return self._replace(worker, failed)
        return []

    def _replace(self, worker: WorkerProcess, failed: Failed | None) -> list[Done]:
        """End a worker, fail its task, and start another if there is work for it."""
        self._drop(worker)
        if failed is not None or (worker.ready and worker.task is None):
            worker.kill()
        else:
            failed = worker.bury()
        if not worker.ready:
            assert failed is not None
            last = (failed.traceback or failed.message).splitlines()[-1]
            raise Unavailable(f"a worker cannot start: {last}", code="worker_start")
        if self._waiting.has_for(worker.lane):
            self._start(worker.lane)
        if worker.task is None or failed is None:
            return []
        return [
            Done(task=worker.task, result=failed_result(worker.task, failed), lane=worker.lane.name)
        ]


class _Waiting:
    """Tasks that nobody works on yet, in order, by the device that they ask for."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[tuple[int, Task]]] = {}
        self._numbers = itertools.count()

    def add(self, tasks: Sequence[Task]) -> None:
        """Put tasks behind those that wait."""
        for task in tasks:
            queue = self._queues.setdefault(task.device, deque())
            queue.append((next(self._numbers), task))

    def __bool__(self) -> bool:
        return any(self._queues.values())

    def _queues_of(self, lane: Lane) -> list[deque[tuple[int, Task]]]:
        return [queue for device in lane.serves if (queue := self._queues.get(device))]

    def has_for(self, lane: Lane) -> bool:
        """Say whether a task waits that this lane can do."""
        return bool(self._queues_of(lane))

    def pop_for(self, lane: Lane) -> Task | None:
        """Take the first task that this lane can do."""
        queues = self._queues_of(lane)
        if not queues:
            return None
        return min(queues, key=lambda queue: queue[0][0]).popleft()[1]
