"""The oracle of the model tests: transformers, beside whatever build of torch is here."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def transformers() -> Iterator[Any]:
    """Import transformers; skip without it.

    It imports torchvision where that is installed.  The published torchvision is linked
    against a CUDA build of torch and fails beside a CPU build, for want of two operators
    that nothing here calls: declaring them lets its Python part load.
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
    yield pytest.importorskip("transformers")
    del library  # alive until here: freeing it withdraws the operators
