"""``mhaprof merge``: join the result files of shards or machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mhaprof.cli.options import MAY_DIFFER, flag, listed
from mhaprof.cli.output import check_result_file, say
from mhaprof.errors import EXIT_OK
from mhaprof.store.merge import merge as merge_files


def merge(
    files: Annotated[list[Path], typer.Argument(help="result files", metavar="FILE...")],
    out: Annotated[
        Path, typer.Option("--out", help="file to make or to add to", show_default=False)
    ],
    allow_env_mismatch: Annotated[list[str] | None, flag("NAME", MAY_DIFFER)] = None,
) -> int:
    """Join result files.  Doing it again changes nothing; contradictions are refused."""
    check_result_file(out)
    merged = merge_files(files, out, allow_env_mismatch=listed(allow_env_mismatch or ()))
    say(f"{out}: {merged.added} results added, {merged.known} were there already")
    if merged.plans > 1:
        say(f"the files come of {merged.plans} different plans: the plan is now their union")
    return EXIT_OK
