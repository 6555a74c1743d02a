"""Counting changes nothing: not the module, not the process, not the next count."""

from __future__ import annotations

import copy
import gc
import logging
import subprocess
import sys
import textwrap
import warnings

import psutil
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (the name that everyone uses)
from torch import nn

from mhaprof.errors import UsageError
from mhaprof.measure.flops import count_module


class Model(nn.Module):
    """Parameters, tied weights, buffers, state that forward changes, and hooks."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 16)
        self.norm = nn.BatchNorm1d(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(16, 10, bias=False)
        self.head.weight = self.embed.weight
        self.head.weight.requires_grad_(False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.history = []

    def forward(self, tokens):
        self.seen += 1
        self.history.append(tokens.shape)
        x = self.norm(self.embed(tokens).mT).mT
        return self.head(self.attention(x, x, x, need_weights=False)[0])


TOKENS = torch.randint(0, 10, (2, 5))


def identity(module):
    """Everything about a module that a count might disturb."""
    state = module.state_dict(keep_vars=True)
    return {
        "tensors": {
            name: (id(t), t._version, t.device, t.requires_grad) for name, t in state.items()
        },
        "gradients": {name: t.grad for name, t in state.items()},
        "training": {name: m.training for name, m in module.named_modules()},
        "hooks": {
            name: [list(getattr(m, table).items()) for table in vars(m) if table.endswith("_hooks")]
            for name, m in module.named_modules()
        },
        "attributes": {name: sorted(vars(m)) for name, m in module.named_modules()},
        "modules": [id(m) for m in module.modules()],
    }


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("backward", [True, False])
def test_the_module_comes_back_as_it_went_in(training, backward):
    model = Model().train(training)
    model.norm.eval()
    model.attention.register_forward_hook(lambda *_: None)
    before, values = identity(model), copy.deepcopy(model.state_dict())
    first = count_module(model, [TOKENS], backward=backward)
    second = count_module(model, [TOKENS], backward=backward)
    assert identity(model) == before
    assert all(torch.equal(t, values[name]) for name, t in model.state_dict().items())
    assert model.history == []
    assert first == second


def test_hooks_of_the_user_run_on_the_copy_and_survive():
    ran = []

    def record(module, inputs, output):
        ran.append(module)

    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_forward_hook(record)
    assert count_module(model, [torch.randn(2, 4)]).findings == ()
    assert ran == []
    model(torch.randn(2, 4))
    assert ran == [model[0]]


def test_inputs_are_only_looked_at():
    x = torch.randn(2, 4, requires_grad=True)
    values = x.detach().clone()
    count_module(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4)), [x + 0], backward=True)
    assert x.grad is None
    assert torch.equal(x, values)


def switches():
    return {
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "grad": torch.is_grad_enabled(),
        "tracing": torch._C._get_tracing_state(),
        "tracer excluded": torch._C._dispatch_tls_local_exclude_set().raw_repr(),
        "tracer included": torch._C._dispatch_tls_local_include_set().raw_repr(),
        "modes": torch._C._len_torch_dispatch_stack(),
        "filters": list(warnings.filters),
        "fvcore log": (logger := logging.getLogger("fvcore.nn.jit_analysis")).level
        or logger.disabled,
        "torch log": logging.getLogger("torch").disabled,
        "random": torch.random.get_rng_state().tolist(),
        "device": torch.get_default_device(),
    }


@pytest.mark.parametrize("fails", [False, True])
def test_the_process_comes_back_as_it_was(fails):
    class Fails(nn.Module):
        def forward(self, x):
            return x.sum().item() + F.conv1d(x, x)

    x, conv, model = torch.randn(4, 8), nn.Conv1d(4, 4, 3), Model()
    before = switches()
    if fails:
        with pytest.raises(UsageError):
            count_module(Fails(), [x])
    else:
        count_module(conv, [x], backward=True)
        count_module(model, [TOKENS])
    assert switches() == before


def test_flex_attention_is_put_back():
    from torch.nn.attention import flex_attention as flex

    class Flex(nn.Module):
        def forward(self, q):
            return flex.flex_attention(q, q, q)

    def names():
        return {name: value for name, value in vars(flex).items() if not name.startswith("__")}

    before = names()
    count_module(Flex(), [torch.randn(1, 2, 16, 8)])
    assert names() == before


def test_a_real_call_after_counting_gives_the_same_numbers():
    model = Model().eval()
    before = model(TOKENS)
    model.history.clear()
    count_module(model, [TOKENS])
    assert torch.equal(model(TOKENS), before)


def test_a_user_inside_no_grad_and_on_another_default_device():
    with torch.no_grad(), torch.device("meta"):
        count = count_module(nn.Linear(4, 5), [torch.empty(2, 4)], backward=True)
    assert (count.macs, count.backward_macs) == (40, 80)


def test_many_counts_need_no_more_memory():
    module = nn.MultiheadAttention(64, 4, batch_first=True, device="meta")

    def count(rounds):
        for tokens in range(1, rounds + 1):
            x = torch.empty(1, tokens, 64, device="meta")
            count_module(module, [x, x, x])
        gc.collect()
        return psutil.Process().memory_info().rss

    before = count(40)
    assert count(100) - before < 2**20


QUIET = """
    import sys, warnings
    warnings.simplefilter("always")
    import torch
    from torch import nn
    from mhaprof.measure.flops import count_module

    x = torch.empty(1, 1024, 512, device="meta")
    with torch.device("meta"):
        module = nn.MultiheadAttention(512, 8, batch_first=True)
    print(count_module(module, [x, x, x]).macs)
    for name in ("torch._dynamo", "sympy"):
        assert name not in sys.modules, name + " makes the first count slow"
"""


def test_the_first_count_in_a_process_says_nothing_and_imports_little():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(QUIET)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "2147483648", "")
