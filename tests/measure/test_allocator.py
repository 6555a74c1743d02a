"""Freed memory is kept while times are taken, and handed back after."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from mhaprof.measure import allocator

FAULTS = """
import ctypes, resource, sys
from contextlib import nullcontext
from mhaprof.measure.allocator import freed_memory_kept

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def touched(size):
    block = library.malloc(size)
    ctypes.memset(block, 1, size)
    library.free(block)

def faults(size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        touched(size)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with freed_memory_kept() if sys.argv[1] == "kept" else nullcontext():
    touched(16 << 20)
    inside = faults(16 << 20)
resident = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
print(inside, resident)
"""


def measured(how: str) -> tuple[int, int]:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, how],
        capture_output=True,
        text=True,
        check=True,
        # As after a program that fixed the threshold: every block is mapped anew.
        env={"MALLOC_TRIM_THRESHOLD_": "131072"},
    )
    inside, resident = map(int, done.stdout.split())
    return inside, resident


@pytest.mark.skipif(allocator.glibc() is None, reason="the C library is not glibc")
def test_blocks_are_reused_whatever_the_process_did_before_and_handed_back_after() -> None:
    pages = (16 << 20) // resource.getpagesize()
    assert measured("as it was")[0] > 10 * pages
    inside, resident = measured("kept")
    assert inside < pages / 10
    assert resident < measured("as it was")[1] + (8 << 20)


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "glibc", lambda: None)
    with allocator.freed_memory_kept():
        pass
