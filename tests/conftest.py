"""Fixtures that every test may use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A finished command line."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Parse standard output as JSON."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the JSON document."""
        rows: list[dict[str, Any]] = self.json["rows"]
        return rows


Mhaprof = Callable[..., Ran]


@pytest.fixture
def mhaprof(capfd: pytest.CaptureFixture[str]) -> Mhaprof:
    """Run a command line in this process and return its code and output."""
    from mhaprof.cli.app import run

    def call(*arguments: object) -> Ran:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Ran(code=code, out=captured.out, err=captured.err)

    return call


@pytest.fixture
def fresh_mhaprof() -> Mhaprof:
    """Run a command line in a fresh process, as a user would."""

    def call(*arguments: object, env: dict[str, str] | None = None) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "mhaprof", *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, **(env or {})},
            check=False,
        )
        return Ran(code=done.returncode, out=done.stdout, err=done.stderr)

    return call
