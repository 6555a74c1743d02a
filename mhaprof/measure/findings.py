"""What has to be said beside a count: who spoke, where they differ, what is left out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from torch import nn

from mhaprof.measure.fvcore_counter import FvcoreCount, FvcoreMissing
from mhaprof.measure.refusals import reason
from mhaprof.measure.torch_counter import TorchCount
from mhaprof.records import Finding


def silent_counters(errors: Mapping[str, Exception]) -> Iterator[Finding]:
    """Say why a counter did not count, where the other did."""
    fvcore, torch = errors.get("fvcore"), errors.get("torch")
    if isinstance(fvcore, FvcoreMissing):
        yield Finding(
            code="fvcore_missing",
            message=f"fvcore cannot be imported ({fvcore}): torch counted alone; "
            "for both counters: pip install fvcore",
        )
    elif fvcore is not None:
        yield Finding(
            code="fvcore_cannot_trace",
            message=f"fvcore cannot trace this module ({reason(fvcore)}); torch counted alone",
        )
    if torch is not None:
        yield Finding(
            code="torch_cannot_count",
            message=f"torch's counter cannot run this module ({reason(torch)}); "
            "fvcore counted alone",
        )


def left_out(
    what: str, operators: Mapping[str, int], allowed: Collection[str]
) -> Iterator[Finding]:
    """Say what a number is without: blocking, but for operators that are allowed."""
    refused = {name: calls for name, calls in operators.items() if not _may_miss(name, allowed)}
    accepted = {name: calls for name, calls in operators.items() if name not in refused}
    if refused:
        message = (
            f"{what} are without {_named(refused)}, of which no counter knows the cost; "
            f"to take them as they are: --allow-uncounted {','.join(refused)}"
        )
        yield Finding(code="uncounted_ops", message=message, blocking=True)
    if accepted:
        message = f"{what} are without {_named(accepted)}, as allow_uncounted says"
        yield Finding(code="uncounted_allowed", message=message)


def _may_miss(operator: str, allowed: Collection[str]) -> bool:
    return operator in allowed or operator.partition("::")[2] in allowed


def disagreement(
    fvcore: FvcoreCount | None, traced: TorchCount | None, allowed: Collection[str] = ()
) -> Iterator[Finding]:
    """Say that the counters differ: blocking, unless what they left out explains it."""
    if fvcore is None or traced is None or fvcore.macs == traced.macs:
        return
    numbers = f"fvcore {fvcore.macs}, torch {traced.macs} MACs"
    if bool(fvcore.uncounted_ops) == bool(traced.uncounted_ops):
        left_out = [*fvcore.uncounted_ops, *traced.uncounted_ops]
        blocking = not left_out or not all(_may_miss(name, allowed) for name in left_out)
        yield Finding(
            code="counters_disagree", message=f"counters disagree: {numbers}", blocking=blocking
        )
    elif fvcore.uncounted_ops:
        yield Finding(
            code="fvcore_incomplete",
            message=f"fvcore cannot count {_named(fvcore.uncounted_ops)} ({numbers}): "
            "torch's number is taken",
        )
    else:
        yield Finding(
            code="torch_incomplete",
            message=f"torch cannot count {_named(traced.uncounted_ops)} ({numbers}): "
            "fvcore's number is taken",
        )


def recomputed(backward: TorchCount) -> Iterator[Finding]:
    """Say what checkpointed blocks compute once more in the backward pass."""
    if backward.recomputed:
        message = (
            f"the backward MACs include {backward.recomputed} of the forward that checkpointed "
            "blocks compute again"
        )
        yield Finding(code="recomputed", message=message)


def shared_modules(module: nn.Module, by_module: Mapping[str, int]) -> Iterator[Finding]:
    """Say which names of ``by_module`` hold the MACs of a module that has several names."""
    names: dict[int, list[str]] = {}
    for name, child in module.named_modules(remove_duplicate=False):
        names.setdefault(id(child), []).append(name)
    shared = [each for each in names.values() if len(each) > 1 and by_module.get(each[0])]
    if shared:
        told = "; ".join(f"{' and '.join(each[1:])} under {each[0]}" for each in shared)
        message = f"a module with several names is counted under the first: {told}"
        yield Finding(code="shared_modules", message=message)


def _named(operators: Mapping[str, int]) -> str:
    return ", ".join(f"{name} (x{calls})" for name, calls in operators.items())
