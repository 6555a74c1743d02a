"""Join result files: the shards of a sweep, or what several machines measured."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mhaprof.errors import NotComparable, UsageError
from mhaprof.records import Environment
from mhaprof.store.database import Key, Store
from mhaprof.store.environments import require_same
from mhaprof.store.reading import Reader

SHOWN_CONFLICTS = 5

PLAN_FACT = "plan"
"""The fact that holds the digest of a plan, before it is split into shards."""


@dataclass(frozen=True, kw_only=True)
class Merged:
    """How many results were added, how many were there already, of how many plans."""

    added: int
    known: int
    plans: int


def merge(paths: Sequence[Path], out: Path, *, allow_env_mismatch: Collection[str] = ()) -> Merged:
    """Add the results of ``paths`` to ``out``, which is made if need be.

    The plan is then the union of their plans; that of ``out`` counts if it is one of
    ``paths`` or has the same plan as one.  Merging again changes nothing.  A measured
    result takes the place of a failed or skipped one.  Raises NotComparable, before
    anything is written, when two files hold different measurements of one point and round,
    or when environments differ in more than the keys of ``allow_env_mismatch`` (``all``
    allows any).
    """
    if not paths:
        raise UsageError("nothing to merge: give at least one result file")
    sources = [path for path in paths if path.resolve() != out.resolve()]
    existing = [out] if out.exists() and out.stat().st_size > 0 else []
    _check_environments([*existing, *sources], allow_env_mismatch)
    winners = _winners([*existing, *sources])
    plans = _plans(paths)
    outdated = bool(existing) and len(sources) == len(paths) and not _plans(existing) & plans
    added = known = 0
    with Store(out) as store:
        if outdated:
            store.plan([])
        for path in sources:
            with Reader(path, every_plan=True) as reader:
                _copy_frame(reader, store, keep=not outdated or path != sources[0])
                won = {key for key, winner in winners.items() if winner == path}
                copied = store.copy(reader, won)
                added += copied
                known += reader.count() - copied
    return Merged(added=added, known=known, plans=len(plans))


def _plans(paths: Sequence[Path]) -> set[str | None]:
    """Return the digests of the whole plans that files are shards of."""
    found = set()
    for path in paths:
        with Reader(path) as reader:
            found.add(reader.meta().get(PLAN_FACT))
    return found


def _copy_frame(reader: Reader, store: Store, *, keep: bool) -> None:
    """Copy the plan, the environments and the facts; with ``keep`` only new facts."""
    store.describe(reader.meta(), keep=keep)
    store.plan(reader.points(), keep=True)
    for fingerprint, (device, environment) in reader.environments().items():
        store.add_environment(fingerprint, device, environment)


def _check_environments(paths: Sequence[Path], allowed: Collection[str]) -> None:
    seen: list[tuple[str, Environment]] = []
    first = paths[0]
    for path in paths:
        with Reader(path) as reader:
            found = list(reader.environments().values())
        if path != first:
            for device, environment in found:
                require_same(device, environment, seen, path=first, allowed=allowed)
        seen += found


def _winners(paths: Sequence[Path]) -> dict[Key, Path]:
    """Return which file's result to keep for each point and round.

    The first measured one, else the first one.  Raises NotComparable when two are
    measured and differ.
    """
    winners: dict[Key, tuple[Path, bool, int]] = {}
    twice: dict[tuple[Path, Path], list[Key]] = {}
    for path in paths:
        with Reader(path) as reader:
            for key, measured, mark in reader.outcomes():
                other, other_measured, other_mark = winners.setdefault(key, (path, measured, mark))
                if measured and not other_measured:
                    winners[key] = (path, measured, mark)
                elif measured and mark != other_mark:
                    twice.setdefault((other, path), []).append(key)
    conflicts = [each for files, keys in twice.items() for each in _different(files, keys)]
    if conflicts:
        shown = "; ".join(conflicts[:SHOWN_CONFLICTS])
        more = len(conflicts) - SHOWN_CONFLICTS
        raise NotComparable(
            f"{len(conflicts)} points were measured twice with different results, nothing was "
            f"merged: {shown}{f'; and {more} more' if more > 0 else ''}"
        )
    return {key: path for key, (path, *_) in winners.items()}


def _different(files: tuple[Path, Path], keys: Sequence[Key]) -> Iterator[str]:
    """Yield the points and rounds of which two files hold different outcomes."""
    with Reader(files[0]) as one, Reader(files[1]) as other:
        for key in keys:
            first, second = json.loads(one.text(key)), json.loads(other.text(key))
            if first["outcome"] != second["outcome"]:
                name = second["point"]["name"]
                yield f"{name} ({key[0]}, round {key[1]}) in {files[0]} and {files[1]}"
