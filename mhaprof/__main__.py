"""Run the command line: ``mhaprof`` and ``python -m mhaprof``."""

from __future__ import annotations

import gc
import os
import sys

from mhaprof import signals

COLLECT_AFTER = 50_000
"""New objects after which Python looks for cycles; by default 700.

Grids and imports make many objects and hardly a cycle: looking often costs a tenth.
"""


def main() -> None:
    """Run the command line and exit with its code."""
    signals.install()
    gc.set_threshold(COLLECT_AFTER)
    try:
        _fill_standard_streams()
        from mhaprof.cli.app import run

        code = run(sys.argv[1:])
    except (ImportError, MemoryError, OSError, SystemError) as error:
        code = _not_loaded(error)
    signals.enter("importing")  # nothing is left to keep: a signal ends the process
    sys.exit(code)


def _fill_standard_streams() -> None:
    """Let no file be opened in the place of a stream that the caller closed (``2>&-``).

    What libraries write to standard error would else go into a result file.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)


def _not_loaded(error: Exception) -> int:
    """Say in one line why nothing can start; exit code 4."""
    if os.environ.get("MHAPROF_TRACEBACK"):
        raise error
    reason = str(error) or type(error).__name__
    if sys.stderr is not None:
        line = f"cannot be loaded: {reason.splitlines()[0]}: a limit (`ulimit -a`), or the install"
        print(f"mhaprof: {line}", file=sys.stderr)
    return 4


if __name__ == "__main__":
    main()
