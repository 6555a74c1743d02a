"""The table of commands: where each lives and the line that the list of commands shows.

Only the command that runs is imported, so that ``--help`` stays fast.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One command: ``module:function`` below this package, and how its help opens.

    ``module`` alone names a module whose ``app`` is a group of commands.  ``examples`` are
    separated by semicolons; ``options`` are those that ``--help`` shows, of many.
    """

    target: str
    help: str
    examples: str
    options: str = ""

    def load(self) -> Callable[..., int] | typer.Typer:
        """Import the command's function, or the app of a group."""
        module, _, attribute = self.target.partition(":")
        loaded = importlib.import_module(f"mhaprof.cli.{module}")
        return cast("Callable[..., int] | typer.Typer", getattr(loaded, attribute or "app"))


ROOT = Entry(
    target="app:root",
    help="What attention costs: exact FLOP counts, trustworthy times, a gate for CI.",
    examples="claim; flops --heads 1,2,4,8; latency --batch 1 --impl eager,sdpa",
)

COMMANDS: dict[str, Entry] = {
    "claim": Entry(
        target="claim:claim",
        help="Reproduce the paper's claim: the heads cost about the same as one full head.",
        examples="claim; claim --dim 1024 --tokens 4096; claim --latency --device cpu",
    ),
    "flops": Entry(
        target="flops:flops",
        help="Count the operations of attention, exactly: by fvcore, torch and the closed form.",
        examples="flops --heads 1,2,4,8 --breakdown; "
        "flops --preset llama-3-8b --tokens 8192; "
        "flops configs/paper-claim.yaml -o counts.csv",
        options="impl breakdown explain backward module input tokens "
        "dim heads kv_heads preset format output",
    ),
    "latency": Entry(
        target="latency:latency",
        help="Time attention: warmed up, checked against float64, with its spread.",
        examples="latency --batch 1 --impl eager,sdpa; "
        "latency --preset llama-3-8b --dtype bf16; "
        "latency --batch 1 --threads 1,2 -o times.csv",
        options="impl replicates batch tokens dim heads kv_heads preset "
        "device dtype threads format output",
    ),
    "model": Entry(
        target="model:model",
        help="Say what the attention of a model costs: for each kind of layer, and in all.",
        examples="model llama-3-8b --tokens 1024,8192; "
        "model llama-3-8b --what-if kv_heads=1,2,4; "
        "model gemma-2-27b --phase decode -o cost.md",
        options="preset tokens batch phase kv_tokens cache_dtype what_if "
        "part partial assume format output",
    ),
    "presets": Entry(
        target="model:presets",
        help="List the models whose shapes mhaprof knows, with the source of the facts.",
        examples="presets; presets -o presets.csv",
    ),
    "sweep": Entry(
        target="sweep:sweep",
        help="Measure every point of a file and store each as it lands; again: resume.",
        examples="sweep configs/paper-claim.yaml --dry-run; "
        "sweep configs/paper-claim.yaml; "
        "sweep --heads 1,2,4 --out results/heads.sqlite",
        options="out impl measure dry_run retry_failed rounds devices "
        "preset device dtype threads format output",
    ),
    "results": Entry(
        target="results:results",
        help="Show or export a result file: one row per point and round of the last plan.",
        examples="results results/paper-claim.sqlite; "
        "results results/paper-claim.sqlite -o rows.csv",
    ),
    "merge": Entry(
        target="merge:merge",
        help="Join result files.  Doing it again changes nothing; contradictions are refused.",
        examples="merge part1.sqlite part2.sqlite --out all.sqlite; "
        "merge new.sqlite --out all.sqlite",
    ),
    "compare": Entry(
        target="compare:compare",
        help="Compare two runs point by point: metrics, ratio with interval, verdict, reason.",
        examples="compare base.sqlite new.sqlite; compare base.sqlite new.sqlite -o changes.md",
    ),
    "gate": Entry(
        target="gate:gate",
        help="Fail when a count, a status, a time or a peak became worse than in the baseline.",
        examples="gate baseline.json new.sqlite; "
        "gate baseline.json new.sqlite --policy strict; "
        "gate baseline.json new.sqlite --junit gate.xml",
    ),
    "ab": Entry(
        target="ab:ab",
        help="Measure two sides in interleaved rounds of fresh processes, and judge like a gate.",
        examples="ab points.yaml --new-path ../candidate; "
        "ab points.yaml --rounds 20 -- --threads 1",
        options="base new base_path new_path rounds out policy strict format output",
    ),
    "baseline": Entry(
        target="baseline",
        help="Keep what later runs are compared with.",
        examples="baseline update results/paper-claim.sqlite; "
        "baseline update new.sqlite --name nightly",
    ),
    "schema": Entry(
        target="schema:schema",
        help="Print the JSON Schema (draft 2020-12) of configuration files.",
        examples="schema; schema -o schema.json",
    ),
    "implementations": Entry(
        target="implementations:implementations",
        help="List the implementations: which can count and run the attention asked for, "
        "and why not.",
        examples="implementations; implementations --kv-heads 2 --dtype bf16",
        options="device dtype dim heads kv_heads head_dim causal window phase format output",
    ),
    "verify": Entry(
        target="verify:verify",
        help="Check every implementation against the float64 reference, and all counters.",
        examples="verify; verify --impl sdpa --all",
    ),
    "env": Entry(
        target="environment:env",
        help="Show the environment that results are valid for: versions, device, threads.",
        examples="env; env --device cpu --calibrate",
    ),
    "help": Entry(
        target="help:show",
        help="Show the help of a command, or a page of the guide.",
        examples="help latency; help timing",
    ),
    "version": Entry(
        target="help:version",
        help="Show the versions of mhaprof, torch, fvcore and Python.",
        examples="version",
    ),
}


def add_commands(
    app: typer.Typer,
    arguments: Sequence[str],
    *,
    command: type[TyperCommand],
    group: type[TyperGroup],
    everything: bool,
) -> None:
    """Register the command that ``arguments`` name, and the others by their line alone."""
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    for name, entry in COMMANDS.items():
        if name != chosen and not everything:
            app.command(name, help=entry.help)(_unloaded)
            continue
        loaded = entry.load()
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=name, help=entry.help, cls=group)
        else:
            app.command(name, cls=command)(loaded)


def _unloaded() -> None:
    """Stand for a command that this run does not need."""
    raise AssertionError("a command that was not loaded cannot run")
