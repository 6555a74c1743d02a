"""A module that cannot be counted is refused in words of its owner, not of torch's inside."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from mhaprof.errors import UsageError
from mhaprof.measure.flops import count_module
from mhaprof.measure.refusals import NESTED, reason

LIBRARY = torch.library.Library("mhaprof_tests", "FRAGMENT")
LIBRARY.define("shapeless(Tensor x) -> Tensor")
LIBRARY.impl("shapeless", torch.clone, "CPU")
LIBRARY.define("costly(Tensor x) -> Tensor")
LIBRARY.impl("costly", torch.clone, "CompositeExplicitAutograd")

INSIDE = re.compile(
    r"fake impl|sym_|gradient function|[Mm]eta|functorch|vmap|INTERNAL|dispatch|unordered_map"
    r"|PythonOp|NotImplemented|caffe2|traced functions"
)
"""What torch says of its own inside."""


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.line = nn.Linear(8, 8)

    def forward(self, *args):
        return self.function(self, *args)


def jagged(*tensors):
    return torch.nested.nested_tensor(list(tensors), layout=torch.jagged)


def rows():
    return torch.randn(2, 8)


REFUSED = {
    "a value": (lambda m, x: m.line(x) * x.sum().item(), "count the modules in it that read none"),
    "a list": (lambda m, x: m.line(x)[x.argmax(-1).tolist()], "reads values of a tensor"),
    "a mask": (lambda m, x: m.line(x[x[:, 0] > 0]), "indexing by a mask"),
    "a value in a transform": (
        lambda m, x: torch.func.vmap(lambda row: row * row.sum().item())(x),
        "reads values of a tensor",
    ),
    "numpy": (lambda m, x: torch.from_numpy(x.numpy()), "leaves torch for numpy"),
    "an operator without shapes": (
        lambda m, x: torch.ops.mhaprof_tests.shapeless(m.line(x)),
        "operator mhaprof_tests::shapeless has no shape rule: register one by "
        "torch.library.register_fake",
    ),
    "nested inside": (lambda m, x: m.line(jagged(x, x[:1])).values(), NESTED),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_counted_is_told_in_words_of_the_owner(kind):
    function, told = REFUSED[kind]
    with pytest.raises(UsageError) as refused:
        count_module(Calls(function), [rows()])
    assert told in str(refused.value)
    assert not INSIDE.search(str(refused.value))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_inputs_are_refused_with_what_to_give(layout):
    x = torch.nested.nested_tensor([torch.randn(5, 8), torch.randn(9, 8)], layout=layout)
    with pytest.raises(UsageError) as refused:
        count_module(nn.Linear(8, 8), [x])
    assert str(refused.value) == f"an input of Linear is nested: {NESTED}"


def test_sparse_inputs_are_refused_with_what_to_give():
    module = Calls(lambda m, a, x: torch.sparse.mm(a, x))
    with pytest.raises(UsageError, match="give dense ones"):
        count_module(module, [torch.eye(2).to_sparse(), rows()])


def checkpointed(m, x):
    return torch.utils.checkpoint.checkpoint(m.line, x, use_reentrant=True)


HIDDEN = [nn.Linear(8, 8)]

ONE_COUNTER = {
    "a module in a list": (Calls(lambda m, x: HIDDEN[0](x)), "not registered in it"),
    "TorchScript": (torch.jit.script(nn.Linear(8, 8)), "it is TorchScript"),
    "a reentrant checkpoint": (Calls(checkpointed), "give use_reentrant=False"),
}


@pytest.mark.parametrize("kind", ONE_COUNTER)
def test_where_fvcore_cannot_trace_torch_counts_and_the_row_says_why(kind):
    module, told = ONE_COUNTER[kind]
    (finding,) = (count := count_module(module, [rows()])).findings
    assert (count.macs, finding.code, finding.blocking) == (128, "fvcore_cannot_trace", False)
    assert told in finding.message
    assert not INSIDE.search(finding.message)


def test_what_torch_says_of_the_module_itself_is_passed_on():
    with pytest.raises(UsageError, match=r"must have same reduction dim, but got \[2, 7\]"):
        count_module(nn.Linear(8, 8), [torch.randn(2, 7)])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Expected gradient function to be set", "torch's tracer has a fault"),
        ("0 INTERNAL ASSERT FAILED at alias_analysis.cpp", "torch's tracer has a fault"),
        ("Torch not compiled with CUDA enabled", "it asks for a GPU that is not here"),
        ("operator aten::sym_size does not exist", "nested tensors"),
        ("heads must divide dim", "RuntimeError: heads must divide dim"),
        ("x" * 300, f"RuntimeError: {'x' * 226}..."),
    ],
)
def test_a_reason_is_one_line(said, told):
    assert reason(RuntimeError(said)).startswith(told)


# Operators without a count.


def left_out(m, x):
    return torch.ops.mhaprof_tests.costly(m.line(x))


NAME = "mhaprof_tests::costly"


def test_an_operator_without_a_count_blocks_and_is_named_once_with_how_to_go_on():
    (finding,) = (count := count_module(Calls(left_out), [rows()])).findings
    assert (count.macs, count.uncounted_ops) == (128, {NAME: 1})
    assert (finding.code, finding.blocking) == ("uncounted_ops", True)
    assert finding.message.endswith(f"--allow-uncounted {NAME}")


@pytest.mark.parametrize("allowed", [[NAME], ["costly"], ["other", NAME]])
def test_an_operator_that_is_allowed_does_not_block_and_stays_named(allowed):
    (finding,) = (
        count := count_module(Calls(left_out), [rows()], allow_uncounted=allowed)
    ).findings
    assert (count.macs, count.uncounted_ops) == (128, {NAME: 1})
    assert (finding.code, finding.blocking) == ("uncounted_allowed", False)
    assert NAME in finding.message


def test_of_two_operators_the_one_that_is_not_allowed_blocks():
    def both(m, x):
        return torch.linalg.svdvals(left_out(m, x))

    count = count_module(Calls(both), [rows()], allow_uncounted=[NAME])
    assert [(f.code, f.blocking) for f in count.findings] == [
        ("uncounted_ops", True),
        ("uncounted_allowed", False),
    ]
    assert NAME not in count.findings[0].message


class CostlyBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return torch.ops.mhaprof_tests.costly(gradient)


@pytest.mark.parametrize("allowed", [(), (NAME,)])
def test_an_operator_of_the_backward_pass_without_a_count_is_named_too(allowed):
    module = Calls(lambda m, x: CostlyBackward.apply(m.line(x)))
    count = count_module(
        module, [rows()], counters=["torch"], backward=True, allow_uncounted=allowed
    )
    assert (count.macs, count.backward_macs, count.uncounted_ops) == (128, 256, {NAME: 1})
    assert [f.blocking for f in count.findings] == [not allowed]
    assert count.findings[0].message.startswith(f"the backward MACs are without {NAME}")
