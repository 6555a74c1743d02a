"""Every error that mhaprof raises on purpose, and the exit code of each.

    MhaprofError                 one clear line for the user, never a traceback
    ├── UsageError          2    what was asked for cannot be meant (flags, values)
    │   ├── SpecError       2    an impossible attention: all its faults at once
    │   ├── ConfigError     2    a file's faults, each with file:line:column
    │   └── MissingExtra    2    an optional package is needed; names the extra
    ├── NotComparable       3    baseline missing, or measured under other conditions
    └── Unavailable         4    a device, backend or implementation is not there

Exit codes of outcomes that are not errors: 0 fine, 1 regressed, claim not
reproduced or counters disagree, 4 a point failed, 5 inconclusive under
``--strict``, 130 interrupted.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

EXIT_OK = 0
EXIT_FINDING = 1
EXIT_USAGE = 2
EXIT_NOT_COMPARABLE = 3
EXIT_POINT_FAILED = 4
EXIT_INCONCLUSIVE = 5
EXIT_INTERRUPTED = 130


class MhaprofError(Exception):
    """Be the root of all errors that are shown to the user as one line."""

    exit_code = EXIT_USAGE


class UsageError(MhaprofError):
    """Say that the request itself is wrong: what was given, what is expected."""

    exit_code = EXIT_USAGE


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing wrong with one field.

    ``field`` is the name as in YAML (``kv_heads``), ``message`` says what was
    given, what was expected and what to do.
    """

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class SpecError(UsageError):
    """Carry all faults of one attention spec; ``str`` joins them with ``; ``."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(fault.message for fault in self.faults))


@dataclass(frozen=True, kw_only=True, order=True)
class LocatedFault:
    """One fault of a file, at ``line`` and ``column`` (both counted from 1)."""

    file: str
    line: int
    column: int
    key: str
    message: str

    def __str__(self) -> str:
        text = f"{self.file}:{self.line}:{self.column}: {self.key}: {self.message}"
        return printable(text)


class ConfigError(UsageError):
    """Carry all located faults of a file; ``str`` gives one line for each."""

    def __init__(self, faults: Sequence[LocatedFault]) -> None:
        self.faults = tuple(sorted(faults))
        super().__init__("\n".join(str(fault) for fault in self.faults))


class MissingExtra(UsageError):
    """Say which extra installs an optional package that is needed now."""

    def __init__(self, *, package: str, extra: str, purpose: str) -> None:
        self.extra = extra
        super().__init__(f"{purpose} needs {package}: pip install 'mhaprof[{extra}]'")


class NotComparable(MhaprofError):
    """Refuse a comparison, naming what differs or what is missing."""

    exit_code = EXIT_NOT_COMPARABLE


class Unavailable(MhaprofError):
    """Say that a device, backend or implementation is not there, and what to do.

    ``code`` is the stable reason code of the row (``no_cuda``).
    """

    exit_code = EXIT_POINT_FAILED

    def __init__(self, message: str, *, code: str) -> None:
        self.code = code
        super().__init__(message)


def printable(text: str) -> str:
    """Return text without line breaks and terminal escapes: names come from strangers."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def signal_name(number: int) -> str:
    """Return the name of a signal that ended a process; real-time signals have only numbers."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
