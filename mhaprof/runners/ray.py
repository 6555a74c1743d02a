"""Measure on a Ray cluster: one actor per GPU, per CPU node, or per core for counting.

Ray decides where actors run and that no two share what they were promised.  In each
actor a worker process measures, as on one machine: what breaks a worker fails its
point, with the same codes.  What breaks an actor or its node costs nothing but time:
its task goes to another.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any

from mhaprof import signals
from mhaprof.errors import MissingExtra, Unavailable, UsageError
from mhaprof.records import Failed
from mhaprof.runners.base import COUNTING, MEASURER, Admit, Done, Task, failed_result
from mhaprof.runners.messages import Reply, understood
from mhaprof.runners.slot import Slot

LOCAL = "local"

CONNECT_TIMEOUT_S = 10.0

TICK_S = 1.0

MOST_LOSSES = 3
"""How many actors a task may lose before it is taken for the cause."""

PATIENCE_S = 300.0
"""How long to wait for any actor to start when none is running."""

TASKS_PER_CORE = 50
"""Counting so many points takes about as long as starting one more actor."""


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Actors to start: what they serve, and what Ray has to give each of them."""

    device: str
    resources: Mapping[str, float]
    node: str | None = None
    count: int = 1


@dataclass(eq=False, kw_only=True)
class _Seat:
    """One actor: its task, if it has one, and what it is called once it has said hello."""

    slots: Slots
    actor: Any
    lane: str | None = None
    task: Task | None = None


@dataclass(kw_only=True)
class RayRunner:
    """Measure tasks on a Ray cluster.

    ``address`` is ``auto``, ``HOST:PORT``, or ``local``, which starts a cluster of this
    machine.  ``environment`` is set for workers.  Raises MissingExtra without ray, and
    Unavailable (codes ``no_ray``, ``ray_nodes``) when the cluster cannot be reached or
    none of it is left.
    """

    address: str
    timeout_s: float | None
    measurer: str = MEASURER
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, tasks: Sequence[Task], admit: Admit) -> Generator[list[Done]]:
        """Yield results as they land; tasks start in the order given."""
        # Ray prints the last words of dead nodes to standard output, where data belongs.
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            session = _Session(_connected(self.address), self, tasks, admit)
            try:
                while session.is_busy:
                    if landed := session.step():
                        yield landed
            finally:
                session.close()


def auto_device(address: str) -> str:
    """Return ``cuda`` if the cluster has a GPU, else ``cpu``."""
    return "cuda" if _connected(address).cluster_resources().get("GPU") else "cpu"


def _connected(address: str) -> Any:
    """Return the module ray, connected; raises MissingExtra or Unavailable."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(package="ray", extra="ray", purpose="--ray") from error
    if not ray.is_initialized():
        given: dict[str, Any] = {} if address == LOCAL else {"address": address}
        try:
            _knock(address)
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **given)
            signals.reinstall()
        except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            reason = str(error).strip().splitlines()[0]
            raise Unavailable(
                f"--ray {address}: no cluster there ({reason}); start one with "
                "ray start --head, or give --ray local",
                code="no_ray",
            ) from error
    return ray


def _knock(address: str) -> None:
    """Raise OSError at once where nobody listens: Ray itself would try for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()


class _Session:
    """The actors of one run, and the tasks that wait for them."""

    def __init__(self, ray: Any, runner: RayRunner, tasks: Sequence[Task], admit: Admit) -> None:
        self._ray = ray
        self._runner = runner
        self._admit = admit
        self._waiting: dict[str, deque[Task]] = {}
        for task in tasks:
            self._waiting.setdefault(task.device, deque()).append(task)
        self._losses: dict[tuple[str, int], int] = {}
        self._seats: dict[Any, _Seat] = {}
        self._idle: list[_Seat] = []
        self._heard_s = time.monotonic()
        for slots in slots_for(
            {device: len(queue) for device, queue in self._waiting.items()}, ray.nodes()
        ):
            for _ in range(slots.count):
                self._start(slots)

    @property
    def is_busy(self) -> bool:
        """Say whether a task waits or is worked on."""
        return any(self._waiting.values()) or any(
            seat.task is not None for seat in self._seats.values()
        )

    def _start(self, slots: Slots) -> None:
        """Ask Ray for one actor; it may take until there is room for it."""
        options: dict[str, Any] = {"max_restarts": 0, **slots.resources}
        if slots.node is not None:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(
                node_id=slots.node, soft=False
            )
        actor = (
            self._ray.remote(Slot)
            .options(**options)
            .remote(
                device=slots.device,
                timeout_s=self._runner.timeout_s,
                measurer=self._runner.measurer,
                environment=dict(self._runner.environment),
            )
        )
        self._seats[actor.hello.remote()] = _Seat(slots=slots, actor=actor)

    def step(self) -> list[Done]:
        """Wait a moment for actors; return the tasks that ended."""
        ready: list[Any] = []
        if self._seats:
            ready, _ = self._ray.wait(list(self._seats), num_returns=1, timeout=TICK_S)
        if ready:
            self._heard_s = time.monotonic()
        elif self._is_stuck():
            raise Unavailable(
                "no node of the Ray cluster can measure what is left; what was measured is "
                "stored: run the same command when there are nodes again",
                code="ray_nodes",
            )
        landed: list[Done] = []
        for answer in ready:
            landed += self._hear(answer, self._seats.pop(answer))
        return landed

    def _is_stuck(self) -> bool:
        working = any(seat.task is not None for seat in self._seats.values())
        silent_s = time.monotonic() - self._heard_s
        return not working and (not self._seats or silent_s > PATIENCE_S)

    def _hear(self, answer: Any, seat: _Seat) -> list[Done]:
        """Take what an actor returned: its hello, a result, or its end."""
        try:
            reply = understood(Reply, self._ray.get(answer))
        except self._ray.exceptions.RayActorError:
            return self._lost(seat)
        if reply.trouble is not None:
            raise Unavailable(f"on {reply.lane}: {reply.trouble}", code="worker_start")
        landed: list[Done] = []
        if reply.environment is not None:
            self._admit(reply.lane, seat.slots.device, reply.environment)
            seat.lane = reply.lane
        elif reply.result is not None and seat.task is not None:
            landed = [Done(task=seat.task, result=reply.result, lane=reply.lane)]
        seat.task = self._next(seat.slots.device)
        if seat.task is not None:
            self._seats[seat.actor.measure.remote(seat.task.model_dump_json())] = seat
        else:
            self._idle.append(seat)
        return landed

    def _next(self, device: str) -> Task | None:
        """Take a task for a device; what only counts goes wherever there is room."""
        for name in (device, COUNTING):
            if queue := self._waiting.get(name):
                return queue.popleft()
        return None

    def _lost(self, seat: _Seat) -> list[Done]:
        """Give the task of a dead actor to another, and ask Ray for a new actor.

        The new one waits until there is room; bound to a node that is gone, it fails,
        and is not asked for again.
        """
        self._ray.kill(seat.actor)
        if seat.lane is not None or seat.slots.node is None:
            self._start(seat.slots)
        task = seat.task
        if task is None:
            return []
        key = (task.identity, task.round)
        self._losses[key] = self._losses.get(key, 0) + 1
        if self._losses[key] < MOST_LOSSES:
            self._waiting.setdefault(task.device, deque()).appendleft(task)
            self._wake()
            return []
        message = f"{MOST_LOSSES} actors or nodes died while they measured this point"
        failed = Failed(code="node_lost", message=message)
        return [Done(task=task, result=failed_result(task, failed), lane=seat.lane or "ray")]

    def _wake(self) -> None:
        """Give waiting tasks to actors that had nothing to do."""
        idle, self._idle = self._idle, []
        for seat in idle:
            seat.task = self._next(seat.slots.device)
            if seat.task is None:
                self._idle.append(seat)
            else:
                self._seats[seat.actor.measure.remote(seat.task.model_dump_json())] = seat

    def close(self) -> None:
        """End all actors; their workers end with them."""
        for seat in [*self._seats.values(), *self._idle]:
            self._ray.kill(seat.actor)
        self._ray.shutdown()


def slots_for(tasks: Mapping[str, int], nodes: Sequence[Mapping[str, Any]]) -> list[Slots]:
    """Return the actors to start for so many tasks per device, on these Ray nodes.

    A GPU is one slot; a CPU that is timed is its whole node, one slot; for counting
    every core is one, unless timed tasks have slots already, which then count too.

    Raises UsageError for devices that Ray does not hand out.
    """
    alive = [node for node in nodes if node["Alive"]]
    wanted = [device for device in tasks if device != COUNTING]
    for device in wanted:
        if device not in ("cpu", "cuda"):
            raise UsageError(
                f"--ray hands out devices itself: device {device!r} is not cuda or cpu"
            )
    found: list[Slots] = []
    if "cuda" in wanted:
        gpus = int(sum(node["Resources"].get("GPU", 0) for node in alive))
        if gpus == 0:
            raise Unavailable("the Ray cluster has no GPU; give --device cpu", code="no_cuda")
        count = min(gpus, tasks["cuda"])
        found.append(Slots(device="cuda", resources={"num_gpus": 1, "num_cpus": 1}, count=count))
    if "cpu" in wanted:
        found += [
            Slots(
                device="cpu",
                resources={"num_cpus": node["Resources"]["CPU"]},
                node=node["NodeID"],
            )
            for node in alive
            if node["Resources"].get("CPU", 0) >= 1
        ]
    if not wanted:
        cores = int(sum(node["Resources"].get("CPU", 0) for node in alive))
        count = max(1, min(cores, math.ceil(tasks[COUNTING] / TASKS_PER_CORE)))
        found.append(Slots(device=COUNTING, resources={"num_cpus": 1}, count=count))
    return found
