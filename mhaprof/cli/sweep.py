"""``mhaprof sweep``: measure everything that a file asks for, resumably."""

from __future__ import annotations

import json
import math
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from mhaprof import __version__, signals
from mhaprof.cli.exits import FATAL_SKIPS
from mhaprof.cli.model import ModelChoice, ModelFlags
from mhaprof.cli.options import (
    MAY_DIFFER,
    AllowImport,
    ConfigFile,
    SpecFlags,
    flag,
    impl_option,
    listed,
    takes,
)
from mhaprof.cli.output import Output, OutputFlags, check_result_file, say
from mhaprof.cli.progress import Bar
from mhaprof.cli.results import earlier_rows, emit
from mhaprof.cli.sweep_plan import (
    SweepPlan,
    SweepRequest,
    parse_metrics,
    parse_shard,
    plan_rows,
    plan_sweep,
    plan_view,
)
from mhaprof.cli.timing_options import TimingFlags, section_of
from mhaprof.config import SettingsSection
from mhaprof.errors import (
    EXIT_FINDING,
    EXIT_OK,
    EXIT_POINT_FAILED,
    UsageError,
)
from mhaprof.point.measuring import METRICS
from mhaprof.records import MOST
from mhaprof.runners.base import Done, Runner
from mhaprof.runners.inline import InlineRunner
from mhaprof.runners.process import Lane
from mhaprof.runners.worker import DEFAULT_TIMEOUT_S, WorkerRunner
from mhaprof.store import Store
from mhaprof.store.merge import PLAN_FACT
from mhaprof.store.reading import Reader
from mhaprof.sweep import drive, lanes_for
from mhaprof.sweep.devices import named_device, pool_of
from mhaprof.sweep.drive import remaining
from mhaprof.sweep.plan import Shard

FOLDER = Path("results")
RUNNING: dict[str, Any] = {"rich_help_panel": "Running"}
TIMEOUT = f"{DEFAULT_TIMEOUT_S:g}"


@takes(given=SpecFlags, model=ModelFlags, timing=TimingFlags, output=OutputFlags)
def sweep(
    config: ConfigFile = None,
    out: Annotated[
        Path | None,
        flag("FILE", "result file to make or to resume", "results/NAME.sqlite"),
    ] = None,
    impl: Annotated[list[str] | None, impl_option("instead of the file's", False)] = None,
    measure: Annotated[
        str | None,
        flag(",".join(METRICS), "what to measure, instead of what the file says", False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show the plan, measure nothing")
    ] = False,
    retry_failed: Annotated[
        bool,
        typer.Option("--retry-failed", help="measure failed points again, and skips that may pass"),
    ] = False,
    rounds: Annotated[
        int | None,
        flag("N", "interleaved rounds of fresh processes", "1", min=1, max=MOST, **RUNNING),
    ] = None,
    timeout: Annotated[
        float | None,
        flag("S", "seconds after which a point has failed (0: never)", TIMEOUT, min=0, **RUNNING),
    ] = None,
    devices: Annotated[
        str | None,
        flag("cuda:N,...|all", "CUDA devices to spread points over, a worker each", **RUNNING),
    ] = None,
    shard: Annotated[
        str | None,
        flag("I/N", "measure this part of N (join the files with mhaprof merge)", **RUNNING),
    ] = None,
    ray: Annotated[
        str | None,
        flag("ADDRESS", "a Ray cluster: auto, HOST:PORT, or local, which starts one", **RUNNING),
    ] = None,
    inline: Annotated[
        bool,
        typer.Option(
            "--inline",
            help="measure in this process: nothing survives a crash but what is stored",
            **RUNNING,
        ),
    ] = False,
    allow_env_mismatch: Annotated[list[str] | None, flag("NAME", MAY_DIFFER, **RUNNING)] = None,
    allow_uncounted: Annotated[
        list[str] | None,
        flag("NAME", "let these operators, such as mine::op, stay without a count (a list)"),
    ] = None,
    allow_import: AllowImport = False,
    *,
    given: dict[str, list[object]],
    model: ModelChoice | None,
    timing: SettingsSection,
    output: Output,
) -> int:
    """Measure every point of a file and store each as it lands; again: resume.

    Whatever dies, what was measured is in the result file, and the same command goes on.
    """
    if (ray is not None) + inline + (devices is not None) > 1:
        raise UsageError("--ray, --inline and --devices exclude each other; give one")
    check_result_file(out)
    if timeout is not None and not math.isfinite(timeout):
        raise UsageError(f"--timeout {timeout} is no number of seconds; 0 means never")
    part = parse_shard(shard) if shard is not None else None
    flags = timing.merged(section_of({"rounds": rounds, "allow_uncounted": allow_uncounted}))
    asked = SweepRequest(
        given=given,
        flags=flags,
        implementations=impl,
        measure=parse_metrics(measure) if measure is not None else None,
        allow_import=allow_import,
        pooled=devices is not None,
        resolve=named_device if ray is None else partial(_device_of_cluster, ray),
        shard=part,
    )
    plan = plan_sweep(config, model, asked)
    if plan.not_timed:
        say(f"modules are counted, not timed: {', '.join(plan.not_timed)}")
    if out is None and config is None and model is None and not dry_run:
        raise UsageError("a sweep of flags has no name of its own; give --out results/NAME.sqlite")
    path = out or FOLDER / _file_name(plan, part)
    lanes = _lanes(plan, pool_of(devices) if devices is not None else [])
    if dry_run:
        return _show_plan(plan, path, output, lanes=len(lanes))
    timeout_s = timeout if timeout is not None else plan.settings.timeout or DEFAULT_TIMEOUT_S
    runner = _runner(lanes, ray=ray, inline=inline, timeout_s=timeout_s or None)
    interrupted = False
    with Store(path) as store:
        store.describe(_facts(plan))
        try:
            signals.enter("keeping")
            _drive(plan, store, runner, retry_failed, listed(allow_env_mismatch or ()))
        except KeyboardInterrupt:
            signals.interrupted()
            interrupted = True
        signals.enter("writing")
    with Reader(path) as reader:
        emit(reader, output)
        return _conclude(plan, reader, interrupted=interrupted, whole=part is None)


def _drive(
    plan: SweepPlan,
    store: Store,
    runner: Runner,
    retry_failed: bool,
    allow_env_mismatch: list[str],
) -> None:
    left = sum(
        len(remaining(plan.entries, store, number, retry_failed=retry_failed))
        for number in range(plan.rounds)
    )
    with Bar(total=left) as bar:

        def landed(done: Done) -> None:
            bar.start(f"{done.task.point.name}, {done.task.point.implementation}")

        drive(
            plan.entries,
            store,
            runner,
            rounds=plan.rounds,
            seed=plan.settings.seed or 0,
            retry_failed=retry_failed,
            allow_env_mismatch=allow_env_mismatch,
            listener=landed,
        )


def _device_of_cluster(address: str, name: str) -> str:
    """Return a device as it was given; for ``auto``, the best that the cluster has."""
    if name != "auto":
        return "cuda" if name == "gpu" else name
    from mhaprof.runners.ray import auto_device

    return auto_device(address)


def _file_name(plan: SweepPlan, shard: Shard | None) -> str:
    """Return the default file's name; shards of one sweep may share a folder."""
    part = "" if shard is None else f".shard-{shard.index}-of-{shard.count}"
    return f"{plan.name}{part}.sqlite"


def _lanes(plan: SweepPlan, pool: list[str]) -> list[Lane]:
    from mhaprof.measure.devices import default_threads

    devices = [entry.task(0).device for entry in plan.entries if entry.skip is None]
    return lanes_for(devices, pool=pool, points=len(devices), cores=default_threads())


def _runner(lanes: list[Lane], *, ray: str | None, inline: bool, timeout_s: float | None) -> Runner:
    if inline:
        return InlineRunner()
    if ray is not None:
        from mhaprof.runners.ray import RayRunner

        return RayRunner(address=ray, timeout_s=timeout_s)
    return WorkerRunner(lanes, timeout_s=timeout_s)


def _facts(plan: SweepPlan) -> dict[str, str]:
    """Return what the store keeps about the run."""
    return {
        "config": plan.text,
        "settings": json.dumps(plan.settings.model_dump(mode="json", exclude_none=True)),
        "rounds": str(plan.rounds),
        PLAN_FACT: plan.digest,
        "mhaprof": __version__,
        "command": shlex.join(sys.argv[1:]),
    }


def _show_plan(plan: SweepPlan, path: Path, output: Output, *, lanes: int) -> int:
    if path.exists():
        with Reader(path) as reader:
            rows = plan_rows(plan, reader)
    else:
        rows = plan_rows(plan, None)
    output.emit(rows, [plan_view(rows, lanes=lanes)])
    return EXIT_OK


def _conclude(plan: SweepPlan, reader: Reader, *, interrupted: bool, whole: bool) -> int:
    """Say in one line how it ended, and return the exit code.

    A ``whole`` plan of which nothing was measured has failed; a shard may have skips alone.
    """
    planned = {entry.identity for entry in plan.entries}
    found = [each for each in reader.stored() if each.identity in planned]
    counted = {name: sum(each.status == name for each in found) for name in ("ok", "skipped")}
    failed = len(found) - sum(counted.values())
    skips = sum(entry.skip is not None for entry in plan.entries)
    expected = (len(planned) - skips) * plan.rounds + skips
    say(
        f"{reader.path}: {counted['ok']} ok, {counted['skipped']} skipped, {failed} failed"
        + (f"; {expected - len(found)} to go: the same command resumes" if interrupted else "")
    )
    if reader.earlier():
        say(f"{earlier_rows(reader.earlier())} of mhaprof results shows them")
    if interrupted:
        return signals.exit_code(EXIT_OK)
    if any(each.outcome == "failed" or each.reason in FATAL_SKIPS for each in found):
        return EXIT_POINT_FAILED
    if failed:
        return EXIT_FINDING
    points = [each for each in found if each.role == "point"]
    if whole and points and not any(each.outcome == "ok" for each in points):
        return EXIT_POINT_FAILED
    return EXIT_OK
