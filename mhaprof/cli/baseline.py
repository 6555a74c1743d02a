"""``mhaprof baseline update``: make a run the one that later runs are compared with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from mhaprof.cli.help import HelpCommand
from mhaprof.cli.options import takes
from mhaprof.cli.output import Output, OutputFlags, say, write_atomically
from mhaprof.compare.baseline import ROOT, baselines
from mhaprof.errors import EXIT_OK, UsageError
from mhaprof.report.runfile import load_candidate
from mhaprof.report.view import View, count, text

app = typer.Typer(help="Keep what later runs are compared with.")


@app.callback()
def baseline() -> None:
    """Keep what later runs are compared with."""


@takes(out=OutputFlags)
def update(
    run: Annotated[Path, typer.Argument(help="run file to accept", metavar="RUN")],
    name: Annotated[
        str | None,
        typer.Option(help="name of the baseline", show_default="the run file's name"),
    ] = None,
    directory: Annotated[
        Path, typer.Option(help="folder of the baselines; each device has its own inside")
    ] = ROOT,
    *,
    out: Output,
) -> int:
    """Write DIRECTORY/<device>/<name>.json, small and sorted, to be reviewed and committed.

    Refuses a run in which a point failed or is missing, or that measured nothing.
    """
    name = run.stem if name is None else name
    if not re.fullmatch(r"[\w .-]*[A-Za-z0-9][\w .-]*", name, re.ASCII):
        wanted = "letters a to z, digits, spaces, dots, underscores and hyphens"
        raise UsageError(f"--name {name!r} is no name of a baseline; expected {wanted}")
    loaded = load_candidate(run)
    if loaded.earlier:
        say(f"{run}: {loaded.earlier} rows of earlier plans are left out")
    rows = []
    for relative, document in baselines(loaded, name=name):
        path = directory / relative
        state = _written(path, document)
        rows.append({"baseline": str(path), "state": state, "bytes": len(document.encode())})
    columns = [text("baseline", "baseline"), text("state", "state"), count("bytes", "bytes")]
    out.emit(rows, [View(title="Baselines", columns=columns, rows=rows)])
    if any(row["state"] == "changed" for row in rows):
        say("review the change with git diff, and commit it")
    return EXIT_OK


app.command("update", cls=HelpCommand)(update)


def _written(path: Path, document: str) -> str:
    """Write one baseline, unless it is there already; return new, changed or unchanged."""
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else None
        if before == document:
            return "unchanged"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, document)
    except OSError as error:
        raise UsageError(f"--directory: {path} cannot be written: {error.strerror}") from error
    return "new" if before is None else "changed"
