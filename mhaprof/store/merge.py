"""Join result files: the shards of a sweep, or what several machines measured."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mhaprof.errors import NotComparable, UsageError
from mhaprof.records import Environment
from mhaprof.store.database import Entry, Store
from mhaprof.store.environments import require_same
from mhaprof.store.reading import Reader

BATCH = 1000
"""Results stored in one transaction."""

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
            batch: list[Entry] = []
            with Reader(path, every_plan=True) as reader:
                _copy_frame(reader, store, keep=not outdated or path != sources[0])
                for entry in reader.entries():
                    if winners[entry.identity, entry.round] != path:
                        known += 1
                        continue
                    batch.append(entry)
                    added += 1
                    if len(batch) == BATCH:
                        store.commit(batch)
                        batch.clear()
            store.commit(batch)
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


def _winners(paths: Sequence[Path]) -> dict[tuple[str, int], Path]:
    """Return which file's result to keep for each point and round.

    The first measured one, else the first one.  Raises NotComparable when two are
    measured and differ.
    """
    winners: dict[tuple[str, int], tuple[Path, bool, int]] = {}
    conflicts: list[str] = []
    for path in paths:
        for key, name, measured, content in _contents(path):
            if key not in winners:
                winners[key] = (path, measured, content)
                continue
            other, other_measured, other_content = winners[key]
            if measured and not other_measured:
                winners[key] = (path, measured, content)
            elif measured and content != other_content:
                conflicts.append(f"{name} ({key[0]}, round {key[1]}) in {other} and {path}")
    if conflicts:
        shown = "; ".join(conflicts[:SHOWN_CONFLICTS])
        more = len(conflicts) - SHOWN_CONFLICTS
        raise NotComparable(
            f"{len(conflicts)} points were measured twice with different results, nothing was "
            f"merged: {shown}{f'; and {more} more' if more > 0 else ''}"
        )
    return {key: path for key, (path, _, _) in winners.items()}


def _contents(path: Path) -> Iterator[tuple[tuple[str, int], str, bool, int]]:
    """Yield key, name, whether it was measured, and a digest of what was found."""
    with Reader(path) as reader:
        for identity, number, text in reader.texts():
            document = json.loads(text)
            outcome = document["outcome"]
            digest = hash(json.dumps(outcome, sort_keys=True))
            name = str(document["point"]["name"])
            yield (identity, number), name, outcome["status"] == "ok", digest
