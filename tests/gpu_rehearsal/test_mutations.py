"""Every promise of the timer, broken on purpose, is noticed by a test of the rehearsal."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor

import mutants
import pytest

pytestmark = pytest.mark.slow

BOTH = 2


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, Future[tuple[int, str]]]]:
    """Try all mutations, each in a process that is forked from one with torch in it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch._dynamo", "pytest", "simcuda", "pydantic", "typer", "rich.table", "ruamel.yaml"]
    )
    with ProcessPoolExecutor(BOTH, mp_context=context, max_tasks_per_child=1) as pool:
        yield {name: pool.submit(mutants.outcome_of, name) for name in mutants.MUTATIONS}


@pytest.mark.parametrize("name", mutants.MUTATIONS)
def test_a_broken_promise_is_noticed(
    outcomes: dict[str, Future[tuple[int, str]]], name: str
) -> None:
    code, said = outcomes[name].result(timeout=200)
    assert code == pytest.ExitCode.TESTS_FAILED, said[-2000:]
