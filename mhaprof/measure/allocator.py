"""What the C library does with freed memory, while times and peaks are taken.

glibc hands freed memory back to the system or keeps it by rules that depend on what the
process did before, and whoever gets new pages pays for their first touch.  Measured: the
same attention takes 1 or 1.5 times as long in two processes, for the life of each, and
peaks at 63 or 80 MB.  While times are taken it is kept, as a GPU's allocator keeps it;
while a peak is taken it goes back, so that the peak is what was in use.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Parameters of mallopt(3)."""

MMAP_BYTES = 32 * 2**20
"""Blocks above this are always mapped anew: glibc's own limit for its moving threshold."""

MAPPED_BYTES = 2**17
"""Blocks above this are mapped while a peak is taken: glibc's threshold at its start."""

KEPT_BYTES = 2**31 - 1
"""Free memory above which glibc hands it back."""


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep what is freed inside the body, and hand it back after it.

    Blocks up to 32 MiB are reused, and larger ones mapped anew each time, whatever the
    process did before.  glibc's own moving threshold is off from then on.  Where the C
    library is another, nothing is done.
    """
    library = glibc()
    if library is None:
        yield
        return
    library.mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)
    library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    try:
        yield
    finally:
        library.mallopt(M_TRIM_THRESHOLD, 2 * MMAP_BYTES)
        library.malloc_trim(0)


@contextmanager
def freed_memory_returned() -> Iterator[None]:
    """Map each block of 128 KiB or more inside the body, so that it goes when it is freed.

    Where the C library is another than glibc, nothing is done.
    """
    library = glibc()
    if library is None:
        yield
        return
    library.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
    library.malloc_trim(0)
    try:
        yield
    finally:
        library.mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)


def glibc() -> Any:
    """Return the C library if it is glibc, else None."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None
