"""Fixtures that every test may use."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest

# The same examples in every run: a test that fails now and then is broken.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a CUDA device where there is none, saying so."""
    wanted = [item for item in items if item.get_closest_marker("gpu")]
    if not wanted:
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanted:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


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


@pytest.fixture(scope="session")
def torchvision_loads() -> Iterator[None]:
    """Let torchvision, which timm and transformers import, load beside any build of torch.

    The published torchvision is linked against a CUDA build of torch and fails beside a
    CPU build, for want of two operators that nothing here calls: declaring them lets its
    Python part load.
    """
    torch = pytest.importorskip("torch")
    library = None
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        pass
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float threshold) -> Tensor")
        importlib.import_module("torchvision")
    yield
    del library  # alive until here: freeing it withdraws the operators


@pytest.fixture(scope="session")
def transformers(torchvision_loads: None) -> Any:
    """Import transformers, the oracle of models; skip without it."""
    return pytest.importorskip("transformers")


@pytest.fixture(scope="session")
def timm(torchvision_loads: None) -> Any:
    """Import timm, the oracle of image models; skip without it."""
    return pytest.importorskip("timm")
