"""Run the command line: ``mhaprof`` and ``python -m mhaprof``."""

from __future__ import annotations

import gc
import sys

COLLECT_AFTER = 50_000
"""New objects after which Python looks for cycles; by default 700.

Grids and imports make many objects and hardly a cycle: looking often costs a tenth.
"""


def main() -> None:
    """Run the command line and exit with its code."""
    gc.set_threshold(COLLECT_AFTER)
    from mhaprof.cli.app import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
