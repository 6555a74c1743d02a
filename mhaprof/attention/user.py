"""Implementations that the user brings: ``package.module:attribute``.

The attribute is one of

- an object that satisfies ``base.Implementation``, used as it is;
- an nn.Module class, or a function, that takes an ``AttentionSpec`` and returns an
  nn.Module whose ``forward`` takes the inputs listed in ``base``.  The module should
  have ``load_canonical(weights)``, which copies the canonical weights of ``base`` into
  it: without it the module can be counted but not timed, for nothing is timed before
  its result was checked.  It raises NotImplementedError for a spec that it cannot do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from mhaprof.attention.base import Implementation, Rejection
from mhaprof.errors import UsageError
from mhaprof.module_source import imported
from mhaprof.records import Mode
from mhaprof.spec import AttentionSpec

PROTOCOL = (
    "name",
    "version",
    "fused",
    "backend",
    "counter_note",
    "description",
    "rejects",
    "holds_scores",
    "build",
    "load",
)
"""What an object must have to be used as an implementation as it is."""

EXPECTED = """\
an nn.Module class, or a function, that takes an AttentionSpec and returns an nn.Module
whose forward(x) maps batch x tokens x dim to the same (NotImplementedError: not this spec),
and to be timed load_canonical(weights); an example: mhaprof/guide/extending.md"""


@dataclass(frozen=True, kw_only=True)
class UserModule:
    """A module factory as an ``Implementation``.

    Whether it is fused is not known, so it counts as holding its scores; nor is who
    chooses its backend.
    """

    name: str
    factory: Callable[[AttentionSpec], nn.Module]
    version: int = 1
    fused: bool = False
    backend: str | None = None
    counter_note: str | None = None
    description: str = "brought by the user"

    def rejects(
        self, spec: AttentionSpec, *, device: str, dtype: str, mode: Mode = "forward"
    ) -> Rejection | None:
        """Return the factory's refusal, found by building on meta, or None."""
        try:
            with torch.device("meta"):
                module = self.build(spec)
        except NotImplementedError as error:
            return Rejection(code="spec_unsupported", message=f"{self.name}: {error}")
        if device != "meta" and not hasattr(module, "load_canonical"):
            return Rejection(
                code="not_checkable",
                message=f"{self.name} has no load_canonical(weights), so its result cannot be "
                "checked before it is timed",
            )
        return None

    def holds_scores(self, *, device: str) -> bool:
        """Return true: nothing is known of the user's code."""
        return True

    def build(self, spec: AttentionSpec) -> nn.Module:
        """Return what the factory makes.  Raises UsageError when it is no nn.Module."""
        module = self.factory(spec)
        if not isinstance(module, nn.Module):
            raise _refusal(self.name, f"returned {type(module).__name__}, not an nn.Module")
        return module

    def load(self, module: nn.Module, spec: AttentionSpec, weights: dict[str, Tensor]) -> None:
        """Copy canonical weights into the module by its ``load_canonical``."""
        module.load_canonical(weights)  # type: ignore[operator]


def load_user(name: str) -> Implementation:
    """Import ``package.module:attribute`` and return it as an implementation.

    Raises UsageError when the module or attribute is not there, or is nothing that can
    be measured.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UsageError(f"implementation {name!r} is not of the form package.module:attribute")
    found = imported(name, what=f"implementation {name!r}")
    if not isinstance(found, type):
        missing = [part for part in PROTOCOL if not hasattr(found, part)]
        if not missing:
            return cast(Implementation, found)
        if len(missing) < len(PROTOCOL) and not callable(found):
            raise _refusal(name, f"lacks {', '.join(missing)}")
    if not callable(found) or (isinstance(found, type) and not issubclass(found, nn.Module)):
        raise _refusal(name, "is neither a function nor an nn.Module class")
    return UserModule(name=name, factory=found)


def try_out(implementation: Implementation, spec: AttentionSpec) -> None:
    """Build once on meta, so that what is no implementation is refused before all measuring.

    Raises UsageError.  A spec that it cannot do is no fault.
    """
    try:
        with torch.device("meta"):
            module = implementation.build(spec)
    except NotImplementedError:
        return
    except UsageError:
        raise
    except Exception as error:
        why = f"cannot be built: {type(error).__name__}: {error}"
        raise _refusal(implementation.name, why) from error
    if type(module).forward is nn.Module.forward:
        raise _refusal(implementation.name, "has no forward")


def _refusal(name: str, why: str) -> UsageError:
    return UsageError(f"implementation {name!r} {why}; expected\n{EXPECTED}")
