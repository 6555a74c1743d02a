"""What a driver and its workers say to each other: one JSON document a line.

They talk through a socket of their own, so that whatever a worker or the libraries
in it print can never be taken for a record.
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from mhaprof.errors import Unavailable
from mhaprof.records import Environment, Record, Result

Message = TypeVar("Message", bound=Record)


class Hello(Record):
    """A worker's first message: it is ready, and where it is."""

    environment: Environment


class Answer(Record):
    """The result of a task; ``device_lost`` asks for a fresh worker."""

    result: Result
    device_lost: bool = False


class Reply(Record):
    """What an actor returns: who it is, and its environment, a result, or a trouble."""

    lane: str
    environment: Environment | None = None
    result: Result | None = None
    trouble: str | None = None


class Lines:
    """Bytes as they arrive -> the lines that are complete."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that ``data`` completes, without their newlines."""
        *complete, rest = data.split(b"\n")
        if complete:
            complete[0] = b"".join(self._parts) + complete[0]
            self._parts = []
        self._parts.append(rest)
        return complete


def understood(kind: type[Message], data: bytes) -> Message:
    """Read a message.  Raises Unavailable (code ``worker_version``) if it cannot be read.

    Driver and worker run the same code, unless it was changed or updated meanwhile.
    """
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise Unavailable(
            "a worker runs another version of mhaprof than this process; "
            "what was measured is stored: run the same command again",
            code="worker_version",
        ) from error
