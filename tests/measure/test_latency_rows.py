"""A row of latency: checked first, every setting in it, flags with their sentence."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from mhaprof.measure import backend, calls, conditions, devices, latency
from mhaprof.measure.latency import Subject, Timed, measure
from mhaprof.measure.sampling import Progress, StopRule
from mhaprof.measure.timers import Batch
from mhaprof.records import AUTO_BACKEND, Failed, Settings, Skipped

CPU = Settings(device="cpu", dtype="float32", threads=1, cache="hot")
QUICK = StopRule(samples=8)


class Twice(nn.Module):
    """Twice its input, through a parameter; breaks its result when told to."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))
        self.log: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.log.append("forward")
        return x * self.factor


class Doubled(nn.Module):
    """Twice its input, without a log that would change from call to call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def drawn(index: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(index)
    return (torch.randn(2, 3, 4, generator=generator),)


def subject(module: Callable[..., torch.Tensor] | None = None) -> Subject:
    return Subject(
        module=module or Twice(),
        inputs=drawn,
        shape=(2, 3, 4),
        reference=drawn(0)[0][-1:].double() * 2,
        part=lambda result: result[-1:],
        tolerance=1e-6,
    )


@pytest.fixture(autouse=True)
def short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        latency, "WarmUp", lambda: latency.ACCELERATOR_WARM_UP.__class__(min_time_s=0.001)
    )


def timed(**options: Any) -> Timed:
    row = measure(options.pop("subject", subject()), rule=QUICK, **{"settings": CPU, **options})
    assert isinstance(row, Timed), row
    return row


def test_a_row_names_its_device_timer_cache_threads_and_error() -> None:
    row = timed().latency
    assert (row.device, row.timer, row.cache, row.threads) == ("cpu", "wall", "hot", 1)
    assert (row.mode, row.compiled, row.tf32, row.dtype) == ("forward", False, None, "float32")
    assert row.device_name == devices.cpu_model()
    assert row.max_error <= row.tolerance == 1e-6
    assert row.process_time_s is not None
    assert len(row.process_time_s) == len(row.samples_s) >= 6
    assert row.warmup_calls >= 3
    assert row.first_call_s > 0


def test_a_wrong_result_has_no_time() -> None:
    module = Twice(factor=2.001)
    row = measure(subject(module), settings=CPU, rule=QUICK)
    assert isinstance(row, Failed)
    assert row.code == "wrong_result"
    assert "is above 1e-06" in row.message
    assert module.log == ["forward"], "it was called again after the wrong result"


def test_nan_has_no_time() -> None:
    row = measure(subject(lambda x: x * float("nan")), settings=CPU, rule=QUICK)
    assert isinstance(row, Failed)
    assert row.code == "wrong_result"
    assert "NaN" in row.message


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda x: torch.cat([x[:1] * math.nan, x[1:] * 2]), "12 of 24 values are NaN"),
        (lambda x: x[1:] * 2, "has shape [1, 3, 4], expected [2, 3, 4]"),
        (lambda x: (x * 2, None), "the result is a tuple, expected a tensor"),
    ],
    ids=["nan beside the checked part", "a sequence too few", "no tensor"],
)
def test_what_lies_beside_the_checked_part_is_looked_at_too(
    broken: Callable[..., Any], said: str
) -> None:
    row = measure(subject(broken), settings=CPU, rule=QUICK)
    assert isinstance(row, Failed)
    assert row.code == "wrong_result"
    assert said in row.message


def test_a_nan_gradient_has_no_time() -> None:
    class Kink(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x + 0 * torch.sqrt(x - x)

    settings = CPU.model_copy(update={"mode": "backward"})
    row = measure(subject(Kink()), settings=settings, rule=QUICK)
    assert isinstance(row, Failed)
    assert "gradient" in row.message


def test_a_backend_that_refuses_is_a_skip_with_torchs_reason() -> None:
    def refuse(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("No available kernel. Aborting execution.")

    row = measure(subject(refuse), settings=CPU, rule=QUICK)
    assert row == Skipped(
        code="backend_unavailable", message="No available kernel. Aborting execution."
    )


def test_the_first_call_is_not_among_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(Twice):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.log:
                time.sleep(0.05)
            return super().forward(x)

    row = timed(subject=subject(Lazy())).latency
    assert row.first_call_s >= 0.05
    assert row.summary.median < 0.05


@pytest.mark.parametrize("mode", ["backward", "forward-backward"])
def test_gradients_are_timed_in_the_mode_that_the_row_names(mode: str) -> None:
    module = Twice()
    row = timed(subject=subject(module), settings=CPU.model_copy(update={"mode": mode})).latency
    assert row.mode == mode
    forwards = len(module.log)
    calls = row.warmup_calls + len(row.samples_s)
    assert forwards >= calls if mode == "forward-backward" else forwards <= 4


def test_threads_are_set_while_timing_and_restored() -> None:
    seen = set()

    def module(x: torch.Tensor) -> torch.Tensor:
        seen.add(torch.get_num_threads())
        return 2 * x

    before = torch.get_num_threads()
    timed(subject=subject(module), settings=CPU.model_copy(update={"threads": 1}))
    assert seen == {1}
    assert torch.get_num_threads() == before


def test_threads_that_were_not_given_are_the_default_and_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "default_threads", lambda: 1)
    seen = set()

    def module(x: torch.Tensor) -> torch.Tensor:
        seen.add(torch.get_num_threads())
        return 2 * x

    row = timed(subject=subject(module), settings=CPU.model_copy(update={"threads": None}))
    assert (row.latency.threads, seen) == (1, {1})


def test_contention_marks_the_row_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "contention", lambda *_, **__: "a burner ran beside")
    row = timed()
    assert row.latency.flags == ["contended"]
    assert [(found.code, found.message) for found in row.findings] == [
        ("contended", "a burner ran beside")
    ]
    assert not row.findings[0].blocking


def test_a_time_that_did_not_converge_says_what_it_lacks() -> None:
    turns = iter(range(10**9))

    def uneven(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.001 * (next(turns) % 2))
        return 2 * x

    rule = StopRule(max_time_s=0.05, precision=1e-9)
    row = measure(subject(uneven), settings=CPU, rule=rule)
    assert isinstance(row, Timed)
    assert not row.latency.converged
    assert "not_converged" in [found.code for found in row.findings]


def test_auto_that_became_math_is_a_warning_only_where_torch_chose() -> None:
    def math(x: torch.Tensor) -> torch.Tensor:
        bias = torch.zeros(3, 3, requires_grad=True)
        with torch.enable_grad():
            torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=bias)
        return 2 * x

    chosen = timed(subject=replace(subject(math), backend=AUTO_BACKEND))
    assert chosen.latency.resolved_backend == "math"
    assert "auto_became_math" in [found.code for found in chosen.findings]
    pinned = timed(subject=subject(math))
    assert "auto_became_math" not in [found.code for found in pinned.findings]


def test_math_that_the_compiler_took_apart_is_seen_on_the_module_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def resolved(call: Callable[[], object], *, compiled: bool = False) -> str | None:
        seen.append(compiled)
        call()
        return None if compiled else "math"

    @contextlib.contextmanager
    def compiled(module: Any) -> Iterator[calls.Compiled]:
        yield calls.Compiled(module=module)

    monkeypatch.setattr(backend, "resolved_backend", resolved)
    monkeypatch.setattr(calls, "compiled", compiled)
    settings = CPU.model_copy(update={"compile": True})
    row = timed(subject=replace(subject(Doubled()), backend=AUTO_BACKEND), settings=settings)
    assert seen == [True, False]
    assert row.latency.resolved_backend == "math"
    assert "auto_became_math" in [found.code for found in row.findings]


def test_a_backend_that_no_operator_tells_of_is_the_one_declared() -> None:
    assert timed(subject=replace(subject(), backend="flex")).latency.resolved_backend == "flex"
    assert timed(subject=replace(subject(), backend="flash")).latency.resolved_backend is None


def test_a_backend_is_pinned_once_around_all_calls() -> None:
    seen = set()

    def module(x: torch.Tensor) -> torch.Tensor:
        seen.add((torch.backends.cuda.math_sdp_enabled(), torch.backends.cuda.flash_sdp_enabled()))
        return 2 * x

    timed(subject=replace(subject(module), backend="math"))
    assert seen == {(True, False)}
    assert torch.backends.cuda.flash_sdp_enabled()


def test_progress_covers_warm_up_and_sampling() -> None:
    told: list[Progress] = []
    timed(progress=told.append)
    assert told[0].stage == "warm-up"
    assert told[-1].stage == "sampling"


def test_an_interrupt_while_sampling_keeps_the_row() -> None:
    def interrupting(progress: Progress) -> None:
        if progress.stage == "sampling" and progress.samples >= 1:
            raise KeyboardInterrupt

    row = timed(progress=interrupting)
    assert row.interrupted
    assert row.latency.samples_s


def test_a_compiled_row_says_so_and_keeps_its_compilation_apart() -> None:
    original = calls.compiled
    settings = CPU.model_copy(update={"compile": True})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "compiled", lambda module: original(module, backend="aot_eager"))
        row = timed(subject=subject(Doubled()), settings=settings).latency
    assert row.compiled
    assert row.flags in ([], ["contended"])
    assert row.first_call_s > row.summary.median


def test_a_wall_timer_waits_for_the_accelerator_in_each_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    monkeypatch.setattr(devices, "synchronize", lambda device: log.append("wait"))
    timer = latency.WallTimer()
    call = latency._waiting(lambda: log.append("call"), timer, "cuda")
    taken: Batch = timer.batch(call, 2)
    assert log == ["call", "wait"] * 2
    assert len(taken.samples_s) == 2
