"""The point boundary: whatever breaks in a measurement becomes that point's outcome."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from mhaprof.errors import MhaprofError, Unavailable
from mhaprof.records import Failed, ModulePoint, Outcome, Point, Result, Skipped


def guarded(point: Point | ModulePoint, measure: Callable[[], Outcome]) -> Result:
    """Run one measurement; whatever breaks in it becomes that point's outcome.

    This is the one place where every exception is caught, so that one broken point
    never costs the others.  ``KeyboardInterrupt`` passes.
    """
    try:
        outcome = measure()
    except Unavailable as error:
        outcome = Skipped(code=error.code, message=str(error))
    except MhaprofError as error:
        outcome = Failed(code="refused", message=str(error))
    except Exception as error:  # noqa: BLE001  (the point boundary)
        outcome = Failed(
            code=_code_of(error),
            message=f"{type(error).__name__}: {_first_line(error)}",
            traceback=traceback.format_exc(),
        )
    return Result.trusted(point=point, outcome=outcome, reference_macs=point.reference_macs)


def _code_of(error: Exception) -> str:
    """Tell what Python, CUDA and torch's CPU allocator raise for memory from other errors."""
    named = type(error).__name__ == "OutOfMemoryError"
    if isinstance(error, MemoryError) or named or "DefaultCPUAllocator" in str(error):
        return "out_of_memory"
    return "error"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"
