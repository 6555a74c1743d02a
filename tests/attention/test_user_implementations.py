"""What a user brings is imported only when allowed, and is checked before it is timed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import mhaprof as package
from mhaprof import attention
from mhaprof.errors import UsageError
from mhaprof.spec import AttentionSpec
from mhaprof.verification import verify

SOURCE = """
import torch
from torch import nn
import mhaprof.attention as attention


class Mine(nn.Module):
    def __init__(self, spec):
        super().__init__()
        if spec.heads > 1:
            raise NotImplementedError("one head only")
        self.inner = attention.get("eager").build(spec)

    def forward(self, x):
        return self.inner(x)

    def load_canonical(self, weights):
        self.inner.load_canonical(weights)


class Unloadable(nn.Module):
    def __init__(self, spec):
        super().__init__()


def factory(spec):
    return Mine(spec)


def broken(spec):
    return 3


ready = attention.get("per-head")
number = 3
"""


@pytest.fixture
def brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "brought_by_user.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "brought_by_user", raising=False)
    return "brought_by_user"


def test_code_is_not_imported_unless_allowed(brought: str) -> None:
    with pytest.raises(UsageError, match="allow it with --allow-import"):
        attention.get(f"{brought}:Mine")
    assert brought not in sys.modules


@pytest.mark.parametrize("attribute", ["Mine", "factory"])
def test_a_module_class_or_factory_is_checked_against_eager(brought: str, attribute: str) -> None:
    cases = {"one": AttentionSpec(batch=1, tokens=3, dim=4, heads=1), "two": AttentionSpec()}
    verdicts = verify(implementations=[f"{brought}:{attribute}"], cases=cases, allow_import=True)
    assert {(v.case, v.check): v.status for v in verdicts} == {
        ("article", "worked-example"): "ok",
        ("article", "order"): "ok",
        ("one", "forward"): "ok",
        ("one", "gradients"): "ok",
        ("two", "forward"): "skipped",
        ("two", "gradients"): "skipped",
    }
    assert verdicts[-1].message.startswith("spec_unsupported: ")


def test_an_implementation_is_used_as_it_is(brought: str) -> None:
    assert attention.get(f"{brought}:ready", allow_import=True).name == "per-head"


def test_a_module_without_loading_can_be_counted_but_not_timed(brought: str) -> None:
    implementation = attention.get(f"{brought}:Unloadable", allow_import=True)
    assert implementation.rejects(AttentionSpec(), device="meta", dtype="float32") is None
    rejection = implementation.rejects(AttentionSpec(), device="cpu", dtype="float32")
    assert rejection is not None
    assert rejection.code == "not_checkable"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("brought_by_user:missing", "has no attribute 'missing'"),
        ("brought_by_user:number", "is neither a function nor an nn.Module class"),
        ("not_a_module_here:x", "cannot be imported"),
        ("brought_by_user:", "not of the form"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(brought: str, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        attention.get(name, allow_import=True)


def test_a_factory_that_returns_no_module_is_refused(brought: str) -> None:
    implementation = attention.get(f"{brought}:broken", allow_import=True)
    with pytest.raises(UsageError, match="returned int, not an"), torch.device("meta"):
        implementation.build(AttentionSpec())


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise RuntimeError('boom')", "brought_wrong cannot be imported: RuntimeError: boom"),
        ("def (:", "brought_wrong cannot be imported: SyntaxError"),
        ("raise SystemExit(3)", "brought_wrong cannot be imported: SystemExit: 3"),
        ("x = 3", "'brought_wrong:x' is neither a function nor an nn.Module class"),
        ("def x(): pass", "'brought_wrong:x' cannot be built: TypeError: x() takes 0"),
        ("def x(spec): return 3", "'brought_wrong:x' returned int, not an nn.Module"),
        ("from torch.nn import Module as x", "'brought_wrong:x' cannot be built: TypeError"),
        ("import torch\ndef x(spec): return torch.nn.Module()", "'brought_wrong:x' has no forward"),
    ],
)
@pytest.mark.usefixtures("brought")
def test_what_is_no_implementation_is_exit_2_and_says_what_one_is(
    mhaprof: Any, monkeypatch: pytest.MonkeyPatch, source: str, said: str
) -> None:
    Path("brought_wrong.py").write_text(source)
    monkeypatch.delitem(sys.modules, "brought_wrong", raising=False)
    arguments = ("--impl", "eager,brought_wrong:x", "--allow-import", "--format", "json")
    ran = mhaprof("flops", "--dim", 8, "--heads", 2, *arguments)
    assert (ran.code, ran.rows) == (2, [])
    first, *protocol = ran.err.splitlines()
    assert said in first
    if "imported" not in said:
        assert len(protocol) == 3
        assert "takes an AttentionSpec" in protocol[0]
        assert "load_canonical(weights)" in protocol[2]


@pytest.mark.usefixtures("brought")
def test_the_example_of_the_guide_is_counted_checked_and_timed(mhaprof: Any) -> None:
    page = (Path(package.__file__).parent / "guide" / "extending.md").read_text()
    (program,) = re.findall(r"```python\n(.+?)```", page, re.DOTALL)
    assert sum(map(bool, program.splitlines())) <= 15
    Path("mine.py").write_text(program)
    ran = mhaprof(
        "latency", "--impl", "eager,mine:Mine", "--allow-import", "--device", "cpu", "--batch", 1,
        "--tokens", 16, "--dim", 32, "--heads", 2, "--samples", 3, "--min-time", 0.01,
        "--format", "json",
    )  # fmt: skip
    assert ran.code == 0
    assert [(row["implementation"], row["status"]) for row in ran.rows] == [
        ("eager", "ok"),
        ("mine:Mine", "ok"),
    ]
    refused = mhaprof("flops", "--impl", "mine:Mine", "--allow-import", "--causal", "top-left")
    assert "plain attention without a bias alone" in refused.err
