"""Was the machine ours: what competed with a measurement, and what slowed it down.

Nothing is dropped because of it: a row is marked, with a sentence that says why.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mhaprof.measure.devices import ROOT

LEAST_CPU_SHARE = 0.95
"""CPU time / wall time at one thread; runs above kept within 1 % of the truth."""

MOST_STEAL = 0.01
"""Share of all cores' time that a hypervisor may take away."""

MOST_SWITCHES_PER_S = 50.0
"""Involuntary context switches per second and thread; a shared core has hundreds."""

MOST_FOREIGN_SHARE = 0.5
"""Share of the cores that this process leaves free which others may use."""

SHORTEST_S = 0.2
"""Below this the system's 10 ms ticks say nothing."""


@dataclass(frozen=True, kw_only=True)
class CpuState:
    """Counters since the system or the process started; None where not kept.

    Seconds: ``wall_s``, ``process_s`` (all threads of this process), ``busy_s`` (all
    processes, all cores), ``steal_s`` (taken by the hypervisor).
    """

    wall_s: float
    process_s: float
    switches: int
    busy_s: float | None
    steal_s: float | None
    cores: int


def cpu_state(*, root: Path = ROOT) -> CpuState:
    """Read the counters now."""
    busy, steal, cores = _system_times(root)
    return CpuState(
        wall_s=time.perf_counter(),
        process_s=time.process_time(),
        switches=_involuntary_switches(),
        busy_s=busy,
        steal_s=steal,
        cores=cores,
    )


def _system_times(root: Path) -> tuple[float | None, float | None, int]:
    """Return busy and stolen seconds of all cores, and the number of cores (proc(5))."""
    cores = os.cpu_count() or 1
    try:
        lines = (root / "proc/stat").read_text().splitlines()
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, lines[0].split()[1:9])
    except (OSError, ValueError, IndexError):
        return None, None, cores
    hertz = os.sysconf("SC_CLK_TCK")
    cores = sum(line.startswith("cpu") for line in lines) - 1
    return (user + nice + system + irq + softirq) / hertz, steal / hertz, max(1, cores)


def _involuntary_switches() -> int:
    """Return how often this process lost its core to another; 0 where not kept."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def contention(
    before: CpuState,
    after: CpuState,
    *,
    threads: int,
    samples_s: Sequence[float] = (),
    process_time_s: Sequence[float] | None = None,
    paused_s: float = 0.0,
) -> str | None:
    """Return the sentence that says what competed with a CPU measurement, or None.

    At one thread CPU time must be 0.95 of wall time in the samples; more threads wait
    for one another by nature, so that other processes' CPU time, steal and involuntary
    switches speak for them.  In ``paused_s`` seconds another measurement had its turn,
    whose work is not held against this one.
    """
    if threads == 1 and process_time_s:
        share = sum(process_time_s) / sum(samples_s)
        if share < LEAST_CPU_SHARE:
            return f"this process had a core for {100 * share:.0f} % of the time it was timed"
    wall = after.wall_s - before.wall_s
    if wall < SHORTEST_S:
        return None
    if before.steal_s is not None and after.steal_s is not None:
        steal = (after.steal_s - before.steal_s) / (wall * after.cores)
        if steal > MOST_STEAL:
            return f"the hypervisor took {100 * steal:.1f} % of the machine away"
    switches = (after.switches - before.switches) / max(wall - paused_s, SHORTEST_S)
    if switches > MOST_SWITCHES_PER_S * threads:
        return f"this process lost its core {switches:.0f} times a second"
    if before.busy_s is not None and after.busy_s is not None and not paused_s:
        own = after.process_s - before.process_s
        others = max(0.0, (after.busy_s - before.busy_s - own) / wall)
        if others > MOST_FOREIGN_SHARE * max(1, after.cores - threads):
            return f"other processes used {others:.2f} of {after.cores} cores meanwhile"
    return None
