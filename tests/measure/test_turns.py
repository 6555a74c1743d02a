"""Turns: one side's end of the pipes."""

from __future__ import annotations

import os
import threading
import time

import pytest

from mhaprof.measure.turns import BATCH, GO, POINT, VARIABLE, Turns


@pytest.fixture
def ends() -> tuple[Turns, int, int]:
    """Return a side with the other ends: where its requests are read, answers written."""
    answers, requests = os.pipe(), os.pipe()
    return Turns(answers[0], requests[1]), requests[0], answers[1]


def test_a_side_asks_and_waits_for_its_turn(ends: tuple[Turns, int, int]) -> None:
    turns, requests, answers = ends
    waited = []
    asking = threading.Thread(target=lambda: (turns.point(), waited.append(turns.batch())))
    asking.start()
    assert os.read(requests, 1) == POINT
    os.write(answers, GO)
    assert os.read(requests, 1) == BATCH
    time.sleep(0.05)
    assert asking.is_alive()
    os.write(answers, GO)
    asking.join(10)
    assert waited[0] >= 0.04


def test_a_side_ends_when_the_other_end_is_gone(ends: tuple[Turns, int, int]) -> None:
    turns, requests, answers = ends
    os.close(answers)
    with pytest.raises(KeyboardInterrupt):
        turns.point()
    os.close(requests)
    with pytest.raises(KeyboardInterrupt):
        turns.batch()


def test_the_end_is_left_in_the_environment_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "7,8")
    assert isinstance(Turns.from_environment(), Turns)
    assert VARIABLE not in os.environ
    assert Turns.from_environment() is None
