"""The file of a comparison: each round is on disk before the next begins."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mhaprof.ab.sides import Pair, Plan, Round, SideName
from mhaprof.errors import UsageError
from mhaprof.records import SCHEMA_VERSION


class Journal:
    """The file of a comparison: a header, then one line per round."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path = path
        self.pairs: list[Pair] = []
        header = {"schema_version": SCHEMA_VERSION, "kind": "ab", "key": plan.key()}
        try:
            content = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise UsageError(f"{path} is not a file of mhaprof ab; give another --out") from error
        if json.dumps(header).encode().startswith(content):
            path.write_bytes(b"")
            self._append(json.dumps(header))
        else:
            self._read(content, header)

    def _read(self, content: bytes, header: Mapping[str, Any]) -> None:
        """Read the rounds; a last line cut short by a kill is dropped from the file."""
        # Of bytes: a kill may have cut it inside a letter.
        whole = content[: content.rfind(b"\n") + 1]
        try:
            first, *lines = whole.decode().removesuffix("\n").split("\n")
            found = json.loads(first)
            pairs = [Pair.model_validate_json(line) for line in lines]
        except (ValueError, ValidationError) as error:
            raise UsageError(f"{self.path} is not a file of mhaprof ab; give another --out") from (
                error
            )
        if found != header:
            raise UsageError(
                f"{self.path} holds another comparison (other configuration, interpreters, "
                "paths, code, rounds or flags); give another --out, or delete it"
            )
        if whole != content:
            os.truncate(self.path, len(whole))
        self.pairs = pairs

    def _append(self, line: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def add(self, pair: Pair) -> None:
        """Store a round: on disk when this returns."""
        self._append(pair.model_dump_json())
        self.pairs.append(pair)

    def has(self, number: int) -> bool:
        """Say whether a round is stored."""
        return any(pair.base.number == number for pair in self.pairs)

    def of(self, side: SideName) -> list[Round]:
        """Return the rounds of one side in the order in which they were planned."""
        found: list[Round] = [getattr(pair, side) for pair in self.pairs]
        return sorted(found, key=lambda found: found.number)
