"""Whatever breaks in a measurement becomes that point's outcome, with a stable code."""

from __future__ import annotations

import pytest
import torch

from mhaprof.errors import Unavailable, UsageError
from mhaprof.point import guarded
from mhaprof.records import Failed, Outcome, Point, Skipped
from mhaprof.spec import AttentionSpec

POINT = Point(name="p", spec=AttentionSpec(), implementation="eager")


def outcome_of(error: BaseException) -> Outcome:
    def broken() -> Outcome:
        raise error

    return guarded(POINT, broken).outcome


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), "out_of_memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "out_of_memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory"), "out_of_memory"),
        (RuntimeError("CUDA error: out of memory"), "out_of_memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), "out_of_memory"),
        (RuntimeError("CUDNN_STATUS_ALLOC_FAILED"), "out_of_memory"),
        (RuntimeError("HIP out of memory. Tried to allocate"), "out_of_memory"),
        (RuntimeError("out of resource: shared memory, Required: 300000"), "out_of_resources"),
        (RuntimeError("CUDA error: no kernel image is available for"), "no_kernel_image"),
        (RuntimeError("Failed to find C compiler. Please specify"), "no_compiler"),
        (RuntimeError("Cannot find a working triton installation."), "no_compiler"),
        (RuntimeError("cuDNN Frontend error: No valid execution plans"), "no_execution_plan"),
        (RuntimeError("a plan of no engineer"), "error"),
        (RuntimeError("shapes do not match\nsecond line"), "error"),
        (UsageError("cannot be"), "refused"),
    ],
)
def test_an_error_is_a_failed_row_with_its_code(error: Exception, code: str) -> None:
    outcome = outcome_of(error)
    assert isinstance(outcome, Failed)
    assert outcome.code == code
    assert "\n" not in outcome.message


def test_a_real_refusal_of_the_cpu_allocator_is_out_of_memory() -> None:
    def too_large() -> Outcome:
        torch.empty(2**45, dtype=torch.float64)
        raise AssertionError("nothing that large exists")

    outcome = guarded(POINT, too_large).outcome
    assert isinstance(outcome, Failed)
    assert outcome.code == "out_of_memory"
    assert outcome.traceback is not None


def test_what_is_not_there_is_a_skip_with_its_own_code() -> None:
    outcome = outcome_of(Unavailable("device cuda is not there", code="no_cuda"))
    assert isinstance(outcome, Skipped)
    assert outcome.code == "no_cuda"


def test_an_interruption_passes_the_boundary() -> None:
    with pytest.raises(KeyboardInterrupt):
        outcome_of(KeyboardInterrupt())
