"""How a point ended: the same, worse, better, or not there at all."""

from __future__ import annotations

from collections.abc import Sequence

from mhaprof.compare.policy import Statuses
from mhaprof.compare.rows import Pair, Row
from mhaprof.compare.verdicts import Gate, Judgement, Verdict
from mhaprof.units import format_si

_COSTS = {"macs": "MACs", "macs_exact": "exact MACs", "kv_cache_bytes": "KV cache"}

_OK = Judgement(
    metric="status",
    verdict="unchanged",
    reason="exact_equal",
    message="ok on both sides",
    base="ok",
    new="ok",
)
_WORK = frozenset({"batch", "tokens", "kv_tokens", "phase", "inputs"})
"""What is computed on.  Fewer tokens cost less whatever the code does: that is no improvement."""

Finding = tuple[Verdict, str, str]
"""A verdict, its reason code and a message."""


def judge_status(pair: Pair, gates: Statuses, costs: Sequence[Judgement] = ()) -> Judgement:
    """Judge how a point ended on both sides, or that a side does not have it.

    ``costs`` are the counts of a point that was redefined, judged: they are its verdict.
    """
    if not pair.redefined and _measured(pair.base) and _measured(pair.new):
        return _OK
    if pair.new is None:
        verdict, reason, message = _vanished(pair)
    elif pair.new.get("status") == "failed":
        verdict, reason, message = _failing(pair.base, pair.new)
    elif pair.base is None:
        verdict, reason = "inconclusive", "new_point"
        message = "the baseline has no such point"
    elif pair.redefined and _measured(pair.base) and _measured(pair.new):
        verdict, reason, message = _redefined(pair, pair.base, pair.new, costs)
    else:
        verdict, reason, message = _ended_on_both(pair.base, pair.new)
    sides = (_defined(pair, pair.base), _defined(pair, pair.new))
    return Judgement(
        metric="status",
        verdict=verdict,
        reason=reason,
        message=message,
        gate=_gate(getattr(gates, reason, "block"), costs),
        base=sides[0] if reason == "definition_changed" else ended(pair.base),
        new=sides[1] if reason == "definition_changed" else ended(pair.new),
    )


def _defined(pair: Pair, row: Row | None) -> str:
    """Word the spec fields in which the two sides differ."""
    return ", ".join(f"{name} {row.get(name)}" for name in pair.redefined) if row else ""


def _vanished(pair: Pair) -> Finding:
    message = f"the candidate has no such point ({ended(pair.base)} in the baseline)"
    return "regressed", "point_vanished", message


def _failing(base: Row | None, new: Row) -> Finding:
    if base is not None and base.get("status") == "failed":
        return "failed", "still_failing", f"{ended(new)}{_why(new)}"
    message = f"{ended(base) or 'not in the baseline'} -> {ended(new)}{_why(new)}"
    return "regressed", "newly_failing", message


def _measured(row: Row | None) -> bool:
    return row is not None and row.get("status") == "ok"


def _redefined(pair: Pair, base: Row, new: Row, costs: Sequence[Judgement]) -> Finding:
    """Judge another problem under the same name by the change of its counts.

    Where none changed, there are none, or the work is another, nothing vouches for it: regressed.
    """
    changes = ", ".join(f"{name} {base.get(name)} -> {new.get(name)}" for name in pair.redefined)
    verdicts = {judgement.verdict for judgement in costs}
    work = not _WORK.isdisjoint(pair.redefined)
    improved = "improved" in verdicts and "regressed" not in verdicts and not work
    changed = [each for each in costs if each.verdict != "unchanged"]
    if [each.metric for each in changed[:2]] == ["macs", "macs_exact"] and (
        (changed[0].base, changed[0].new) == (changed[1].base, changed[1].new)
    ):
        del changed[1]
    cost = "; ".join(map(_cost, changed)) or ("at the same counts" if costs else "not counted")
    message = f"{changes}{', which is other work' * work}: {cost}"
    return "improved" if improved else "regressed", "definition_changed", message


def _cost(judgement: Judgement) -> str:
    """Word the change of one count: with its percentage, bytes by their ratio."""
    name = _COSTS.get(judgement.metric, judgement.metric)
    base, new, ratio = judgement.base, judgement.new, judgement.ratio
    if not isinstance(base, int) or not isinstance(new, int) or base == new or ratio is None:
        return judgement.message
    if judgement.metric == "kv_cache_bytes":
        return f"{name} x {ratio:.4g}"
    return f"{name} {format_si(base)} -> {format_si(new)}, {100 * (ratio - 1):+.3g} %"


def _gate(gate: Gate, costs: Sequence[Judgement]) -> Gate:
    """Let a changed definition warn where all counts that grew only warn."""
    grown = [judgement.gate for judgement in costs if judgement.verdict == "regressed"]
    return "warn" if gate == "block" and grown and "block" not in grown else gate


def _ended_on_both(base: Row, new: Row) -> Finding:
    """Judge two rows of one point of which the new one did not fail."""
    if new.get("status") == "skipped" and base.get("status") == "skipped":
        return "unchanged", "still_skipped", f"{ended(new)}{_why(new)}"
    if new.get("status") == "skipped":
        return "regressed", "newly_skipped", f"{ended(base)} -> {ended(new)}{_why(new)}"
    return "improved", "newly_passing", f"{ended(base)} -> {ended(new)}"


def ended(row: Row | None) -> str | None:
    """Word how a row ended: its status, and the reason code unless it is ok."""
    if row is None:
        return None
    status, reason = str(row.get("status")), row.get("reason")
    return f"{status} ({reason})" if reason and status != "ok" else status


def _why(row: Row) -> str:
    """Word a row's message on one line, with nothing in it that moves a terminal."""
    words = " ".join(str(row.get("message") or "").split())
    shown = "".join(letter if letter.isprintable() else "?" for letter in words)
    return f": {shown}" if shown else ""
