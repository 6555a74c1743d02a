"""The table of commands: where each lives and the line that the list of commands shows.

Only the command that runs is imported, so that ``--help`` stays fast.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import typer


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One command: ``module:function`` below this package, and its first help line.

    ``module`` alone names a module whose ``app`` is a group of commands.
    """

    target: str
    help: str

    def load(self) -> Callable[..., int] | typer.Typer:
        """Import the command's function, or the app of a group."""
        module, _, attribute = self.target.partition(":")
        loaded = importlib.import_module(f"mhaprof.cli.{module}")
        return cast("Callable[..., int] | typer.Typer", getattr(loaded, attribute or "app"))


COMMANDS: dict[str, Entry] = {
    "claim": Entry(
        target="claim:claim",
        help="Reproduce the paper's claim: the heads cost about the same as one full head.",
    ),
    "flops": Entry(
        target="flops:flops",
        help="Count the operations of attention, exactly: by fvcore, torch and the closed form.",
    ),
    "latency": Entry(
        target="latency:latency",
        help="Time attention: warmed up, checked against float64, with its spread.",
    ),
    "model": Entry(
        target="model:model",
        help="Say what the attention of a model costs: for each kind of layer, and in all.",
    ),
    "presets": Entry(
        target="model:presets",
        help="List the models whose shapes mhaprof knows, with the source of the facts.",
    ),
    "sweep": Entry(
        target="sweep:sweep",
        help="Measure every point of a file and store each as it lands; again: resume.",
    ),
    "results": Entry(
        target="results:results",
        help="Show or export a result file: one row per point and round of the last plan.",
    ),
    "merge": Entry(
        target="merge:merge",
        help="Join result files.  Doing it again changes nothing; contradictions are refused.",
    ),
    "compare": Entry(
        target="compare:compare",
        help="Compare two runs point by point: metrics, ratio with interval, verdict, reason.",
    ),
    "gate": Entry(
        target="gate:gate",
        help="Fail when a count, a status, a time or a peak became worse than in the baseline.",
    ),
    "ab": Entry(
        target="ab:ab",
        help="Measure two sides in interleaved rounds of fresh processes, and judge like a gate.",
    ),
    "baseline": Entry(
        target="baseline",
        help="Keep what later runs are compared with.",
    ),
    "schema": Entry(
        target="schema:schema",
        help="Print the JSON Schema (draft 2020-12) of configuration files.",
    ),
    "implementations": Entry(
        target="implementations:implementations",
        help="List the implementations: which can count and run the attention asked for, "
        "and why not.",
    ),
    "verify": Entry(
        target="verify:verify",
        help="Check every implementation against the float64 reference, and all counters.",
    ),
    "env": Entry(
        target="environment:env",
        help="Show the environment that results are valid for: versions, device, threads.",
    ),
}


def add_commands(app: typer.Typer, arguments: Sequence[str], *, everything: bool) -> None:
    """Register the command that ``arguments`` name, and the others by their line alone."""
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    for name, entry in COMMANDS.items():
        if name != chosen and not everything:
            app.command(name, help=entry.help)(_unloaded)
            continue
        loaded = entry.load()
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=name, help=entry.help)
        else:
            app.command(name)(loaded)


def _unloaded() -> None:
    """Stand for a command that this run does not need."""
    raise AssertionError("a command that was not loaded cannot run")
