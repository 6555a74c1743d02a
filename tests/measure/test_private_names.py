"""Private names of torch and fvcore: all in one file, and none that a right count needs."""

from __future__ import annotations

import ast
import importlib
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

import mhaprof
from mhaprof.measure import torch_private
from mhaprof.measure.flops import count_module

PRODUCT = Path(mhaprof.__file__).parent
HOME = PRODUCT / "measure" / "torch_private.py"
FOREIGN = {"torch", "fvcore"}
OPERATORS = {"_aten", "ops"}
"""Operators have names with underscores that are public: users see them in messages of torch."""


def parsed():
    return [(path, ast.parse(path.read_text())) for path in sorted(PRODUCT.rglob("*.py"))]


def is_private(name):
    return name.startswith("_") and not name.endswith("__")


def own_names():
    """Return the names with an underscore that the product itself gives."""
    found = set()
    for path, tree in parsed():
        if path == HOME:
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
    return found


def chain(node):
    """Return the names that lead to an attribute, the outermost last."""
    names = []
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
        node = node.func if isinstance(node, ast.Call) else node.value
    return [*names, node.id] if isinstance(node, ast.Name) else names


def borrowed(tree, own):
    """Yield the private names of torch or fvcore that a file uses, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = getattr(node, "module", None) or ""
            for alias in node.names:
                parts = f"{module}.{alias.name}".strip(".").split(".")
                if parts[0] in FOREIGN and any(map(is_private, parts)):
                    yield node.lineno, ".".join(parts)
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            names = chain(node)
            if not OPERATORS & set(names) and names[-1] != "os" and node.attr not in own:
                yield node.lineno, node.attr


def test_one_file_alone_uses_private_names_of_torch_and_fvcore():
    own = own_names()
    found = {
        f"{path.relative_to(PRODUCT)}:{line}: {name}"
        for path, tree in parsed()
        if path != HOME
        for line, name in borrowed(tree, own)
    }
    assert found == set()


PRIVATE_OF_C = (
    "_PreserveDispatchKeyGuard",
    "_autograd",
    "_create_graph_by_tracing",
    "_dispatch_tls_is_dispatch_key_excluded",
    "_dispatch_tls_is_dispatch_key_included",
    "_dispatch_tls_set_dispatch_key_excluded",
    "_dispatch_tls_set_dispatch_key_included",
    "_get_tracing_state",
    "_jit_pass_inline",
    "_len_torch_dispatch_stack",
    "_len_torch_function_stack",
    "_pop_torch_dispatch_stack",
    "_pop_torch_function_stack",
    "_set_tracing_state",
)
ELSEWHERE = (
    ("fvcore.nn.jit_analysis", "_get_scoped_trace_graph"),
    ("torch.nn.modules.transformer", "_detect_is_causal_mask"),
    ("torch.nn.attention.flex_attention", "flex_attention_hop"),
    ("torch.nn.attention.flex_attention", "_validate_device"),
    ("torch.nn.attention.flex_attention", "_create_empty_block_mask"),
    ("torch.nn.attention.flex_attention", "_LARGE_SPARSE_BLOCK_SIZE"),
    ("torch.nn.attention.flex_attention", "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"),
)


class Without:
    """A module of torch or fvcore without one of its names."""

    def __init__(self, module, name):
        self.__dict__.update(_module=module, _name=name)

    def __setattr__(self, name, value):
        setattr(self._module, name, value)

    def __getattr__(self, name):
        if name == self._name:
            raise AttributeError(name)
        return getattr(self._module, name)


@pytest.fixture(params=[*PRIVATE_OF_C, *ELSEWHERE], ids=lambda x: x if isinstance(x, str) else x[1])
def without(request, monkeypatch):
    """Take one private name away from the product; torch itself keeps it."""
    if isinstance(request.param, str):
        name = request.param
        monkeypatch.setattr(torch_private, "_C", Without(torch._C, name))
        return name
    home, name = request.param
    known = importlib.import_module(home)
    lacking = Without(known, name)
    monkeypatch.setattr(torch_private, "importlib", Lookup({home: lacking}))
    monkeypatch.setattr(torch_private, "sys", Lookup({home: lacking}))
    return name


class Lookup:
    """What finds modules by name, one of them lacking something."""

    def __init__(self, changed):
        self.modules = {**sys.modules, **changed}

    def import_module(self, name):
        return self.modules.get(name) or importlib.import_module(name)


class Attention(nn.Module):
    """Products of several kinds, a convolution, a constant that is written into, a branch."""

    def __init__(self):
        super().__init__()
        self.heads = nn.MultiheadAttention(16, 2, batch_first=True)
        self.convolution = nn.Conv1d(8, 8, 3, padding=1, groups=2)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x):
        scale = torch.zeros(())
        scale += 0.5
        mask = torch.full((8, 8), float("-inf")).triu(1)
        x = self.convolution(self.heads(x, x, x, need_weights=False)[0] * scale)
        return self.layer(x, src_mask=mask, is_causal=True)


MHA = 4 * 2 * 8 * 16 * 16 + 2 * 2 * 8 * 8 * 16
MACS = 2 * MHA + 2 * 8 * 4 * 3 * 16 + 2 * 2 * 8 * 16 * 32


def test_a_count_is_right_or_refused_without_any_private_name(without):
    count = count_module(Attention(), [torch.randn(2, 8, 16)])
    assert count.macs == count.torch_macs == MACS
    blocked = [finding for finding in count.findings if finding.blocking]
    assert blocked == []
    if count.fvcore_macs is None:
        assert [finding.code for finding in count.findings] == ["fvcore_cannot_trace"]
        assert without in count.findings[0].message
    else:
        assert count.fvcore_macs == MACS


def test_without_names_of_flex_attention_its_count_is_dense_or_refused(without):
    from torch.nn.attention.flex_attention import flex_attention

    class Flex(nn.Module):
        def forward(self, q):
            return flex_attention(q, q, q)

    try:
        count = count_module(Flex(), [torch.randn(1, 2, 16, 8)])
    except mhaprof.errors.UsageError:
        assert "flex" in without or "block" in without.lower() or "device" in without
        return
    assert count.macs == 2 * 2 * 16 * 16 * 8
    assert "closed_form_only" in [finding.code for finding in count.findings]


def test_without_names_of_the_compiler_times_go_on(monkeypatch):
    def lacking(name):
        raise ImportError(name)

    monkeypatch.setattr(torch_private.importlib, "import_module", lacking)
    assert isinstance(torch_private.keeping_buffers(), nullcontext)
