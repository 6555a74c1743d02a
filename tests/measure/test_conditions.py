"""Contention: which readings mark a CPU row, and which do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mhaprof.measure.conditions import CpuState, contention, cpu_state

BEFORE = CpuState(wall_s=0.0, process_s=0.0, switches=0, busy_s=100.0, steal_s=1.0, cores=4)
QUIET = CpuState(wall_s=2.0, process_s=2.0, switches=3, busy_s=102.1, steal_s=1.0, cores=4)


def judged(threads: int = 1, share: float = 0.99, **changes: float) -> str | None:
    after = replace(QUIET, **changes)  # type: ignore[arg-type]
    return contention(
        BEFORE, after, threads=threads, samples_s=[1.0] * 3, process_time_s=[share] * 3
    )


def test_a_quiet_machine_is_not_contended() -> None:
    assert judged() is None


def test_a_thread_that_waited_for_its_core_is_contended() -> None:
    assert judged(share=0.951) is None
    assert judged(share=0.94) == "this process had a core for 94 % of the time it was timed"


def test_the_share_of_cpu_time_says_nothing_at_more_threads() -> None:
    assert judged(threads=2, share=0.5) is None


def test_steal_by_the_hypervisor_is_contended() -> None:
    assert judged(steal_s=1.07) is None
    assert "hypervisor" in (judged(steal_s=1.2) or "")


def test_a_burner_beside_is_contended_where_it_takes_most_of_what_is_free() -> None:
    assert judged(threads=3, busy_s=104.1) == "other processes used 1.05 of 4 cores meanwhile"
    assert judged(threads=1, busy_s=104.1) is None
    assert judged(threads=4, busy_s=104.1) is not None


def test_involuntary_switches_count_by_second_and_thread() -> None:
    assert "lost its core 150 times" in (judged(switches=300) or "")
    assert judged(threads=4, switches=300) is None


def test_ticks_say_nothing_about_a_short_time() -> None:
    short = replace(QUIET, wall_s=0.1, steal_s=9.0)
    assert contention(BEFORE, short, threads=2) is None


def test_counters_that_the_system_lacks_accuse_nobody() -> None:
    unknown = replace(QUIET, busy_s=None, steal_s=None)
    assert contention(unknown, replace(unknown, wall_s=4.0), threads=2) is None


def test_the_systems_times_are_read_in_seconds_of_all_cores(tmp_path: Path) -> None:
    stat = tmp_path / "proc" / "stat"
    stat.parent.mkdir()
    stat.write_text("cpu 100 20 30 9999 888 5 5 40 7 0\ncpu0 1\ncpu1 1\nintr 5\n")
    state = cpu_state(root=tmp_path)
    assert (state.busy_s, state.steal_s, state.cores) == (
        pytest.approx(1.6),
        pytest.approx(0.4),
        2,
    )
    assert cpu_state(root=tmp_path / "none").busy_s is None
