"""A point's peak is measured under the settings that its time is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from mhaprof import attention
from mhaprof.measure import calls, peak
from mhaprof.point.timing import make_subject, peak_bytes
from mhaprof.records import Point, Settings
from mhaprof.spec import AttentionSpec

SPEC = AttentionSpec(batch=1, tokens=8, dim=16, heads=2)


def test_the_peak_is_of_the_call_that_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    @contextlib.contextmanager
    def compiled(module: Any) -> Iterator[calls.Compiled]:
        seen.append("compile")
        yield calls.Compiled(module=module)
        seen.append("compiler emptied")

    def measured(build: Callable[[], Callable[[], object]], *, device: str, dtype: str) -> int:
        call = build()
        seen.append((device, dtype, torch.get_float32_matmul_precision()))
        seen.append((torch._functorch.config.donated_buffer, torch.get_num_threads()))
        seen.append((is_enabled(), len(call())))  # type: ignore[arg-type]
        return 7

    is_enabled = torch.backends.cuda.flash_sdp_enabled
    monkeypatch.setattr(calls, "compiled", compiled)
    monkeypatch.setattr(peak, "measured_peak", measured)
    settings = Settings(
        device="cpu", dtype="bfloat16", threads=1, mode="backward", compile=True, tf32=True
    )
    point = Point(name="p", spec=SPEC, implementation="sdpa-math", settings=settings)
    assert peak_bytes(point, attention.get("sdpa-math"), seed=0) == 7
    gradients = 3
    assert seen == [
        "compile",
        ("cpu", "bfloat16", "high"),
        (False, 1),
        (False, gradients),
        "compiler emptied",
    ]
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch._functorch.config.donated_buffer


def test_each_set_of_inputs_has_values_of_its_own() -> None:
    point = Point(name="p", spec=SPEC, implementation="eager", settings=Settings(device="cpu"))
    subject = make_subject(point, attention.get("eager"), seed=3)
    first, again, second = (subject.inputs(index)[0] for index in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
