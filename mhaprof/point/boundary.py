"""The point boundary: whatever breaks in a measurement becomes that point's outcome."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping

from mhaprof.errors import MhaprofError, Unavailable
from mhaprof.records import Failed, ModulePoint, Outcome, Point, Result, Skipped

CODES: Mapping[str, str] = {
    "out_of_memory": r"DefaultCPUAllocator|(CUDA|HIP) (error: )?out of memory|STATUS_ALLOC_FAILED",
    "no_kernel_image": r"no kernel image is available",
    "no_compiler": r"[Ff]ailed to find C compiler|(working|find).* C\+\+ compiler|working triton",
    "no_execution_plan": r"No (valid )?(execution plans?|engines?|plans?)\b",
    "out_of_resources": r"out of resources?\b",
}
"""What torch, CUDA, cuBLAS, cuDNN and Triton say, by the code that a row gets."""


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
            code=_code_of(error, point.settings.device),
            message=worded(error),
            traceback=traceback.format_exc(),
        )
    return Result.trusted(point=point, outcome=outcome, reference_macs=point.reference_macs)


def _code_of(error: Exception, device: str | None) -> str:
    """Return the code of an error on a device; ``device_lost`` where every later call fails too."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "out_of_memory"
    from mhaprof.measure.devices import is_lost

    if is_lost(device or "cpu"):
        return "device_lost"
    found = (code for code, words in CODES.items() if re.search(words, str(error)))
    return next(found, "error")


def worded(error: BaseException) -> str:
    """Return the kind of an error and its first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
