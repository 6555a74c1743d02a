"""mhaprof: what attention costs, in operations, time and memory.

The names below are the same objects that the command line uses.  Importing this
package imports no torch; using ``count_flops`` or ``measure_latency`` does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["AttentionSpec", "count_flops", "load", "measure_latency", "__version__"]

if TYPE_CHECKING:
    from mhaprof.api import count_flops, measure_latency
    from mhaprof.spec import AttentionSpec
    from mhaprof.store.frame import load

_HOMES = {
    "AttentionSpec": "mhaprof.spec",
    "count_flops": "mhaprof.api",
    "load": "mhaprof.store.frame",
    "measure_latency": "mhaprof.api",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its home when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mhaprof' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
