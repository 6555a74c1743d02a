"""What strangers' modules do in forward: counted as it runs, and put back afterwards."""

from __future__ import annotations

import contextlib
import functools
import random
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (the name that everyone uses)
from torch import nn

from mhaprof.errors import UsageError
from mhaprof.measure import findings, flops
from mhaprof.measure.flops import count_module
from mhaprof.measure.fvcore_counter import FvcoreCount
from mhaprof.measure.torch_counter import TorchCount

EACH = 2 * 8 * 8
"""MACs of one ``Linear(8, 8)`` on two rows."""


class Calls(nn.Module):
    """Call a function of this module and of tensors."""

    def __init__(self, function, **attributes):
        super().__init__()
        self.function = function
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.token = nn.Parameter(torch.zeros(1, 8))
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


def rows():
    return torch.randn(2, 8)


def agreed(function, *inputs, **attributes):
    """MACs, after checking that both counters say them and nothing is found."""
    count = count_module(Calls(function, **attributes), inputs or [rows()])
    assert count.findings == ()
    assert count.fvcore_macs == count.torch_macs == count.macs
    return count.macs


def stored(m, x):
    m.out = m.a(x)


def yielded(m, x):
    for layer in (m.a, m.b):
        x = layer(x)
        yield x


def inner_gradient(m, x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(m.a(x).sum(), x)
    return gradient


def autocast(m, x):
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return m.b(m.a(x))


def not_autocast(m, x):
    with torch.autocast(x.device.type, enabled=False):
        return m.a(x.float())


def on_device(m, x):
    if x.device.type == "cpu" and x.is_cpu and not x.is_meta and x.device == m.a.weight.device:
        return m.a(x)
    return m.a(m.a(x))


RUNS = {
    "a product that is not returned": (lambda m, x: (m.a(x), m.b(x))[1], 2),
    "a product in no module that is not returned": (lambda m, x: (x @ m.b.weight, m.b(x))[1], 2),
    "a method that is not returned": (lambda m, x: (x.matmul(m.b.weight), None)[1], 1),
    "None": (lambda m, x: (m.a(x), None)[1], 1),
    "stored on self": (stored, 1),
    "a generator": (yielded, 2),
    "data of a weight": (lambda m, x: x @ m.a.weight.data, 1),
    "data of an input": (lambda m, x: m.a(x.data), 1),
    "a learned token, expanded": (lambda m, x: m.a(m.token.expand(2, -1)) + x, 1),
    "autocast": (autocast, 2),
    "no autocast": (not_autocast, 1),
    "a branch on the device": (on_device, 1),
    "a constant on the input's device": (lambda m, x: m.a(x + torch.ones(8, device=x.device)), 1),
    "type() there and back": (lambda m, x: m.a(torch.zeros(2, 8).type(x.type())), 1),
    "to() the input's device": (lambda m, x: m.a(x.to(m.a.weight.device)), 1),
    "to the cpu": (lambda m, x: m.a(x.cpu()), 1),
    "a transform": (lambda m, x: torch.func.vmap(m.a)(x), 1),
    "a comparison by a method": (lambda m, x: m.a(x.masked_fill(x.__eq__(0), 1.0)), 1),
    "like, on the device": (lambda m, x: m.a(torch.zeros_like(x, device=x.device)), 1),
}


@pytest.mark.parametrize("kind", RUNS)
def test_what_runs_is_counted_by_both(kind):
    function, products = RUNS[kind]
    assert agreed(function) == products * EACH


SELECTS = {
    "a mask of its own": lambda m, x: m.a(x)[torch.tensor([True, False])],
    "a mask made of a range": lambda m, x: m.a(x[torch.arange(2) >= 0]),
    "a mask that is compared": lambda m, x: m.a(x) if torch.ones(2, 100).all() else m.b(m.a(x)),
    "truth values scattered": lambda m, x: m.a(x).masked_fill(
        torch.zeros(2, 8, dtype=torch.bool).scatter(-1, x.argmax(-1, keepdim=True), True), 0.0
    ),
    "a value of the cpu filled in": lambda m, x: m.a(x).masked_fill(x > 0, torch.tensor(-1.0)),
}


@pytest.mark.parametrize("kind", SELECTS)
def test_what_a_module_selects_by_its_own_masks_is_known(kind):
    assert agreed(SELECTS[kind]) == EACH


def test_a_functional_call_on_a_learned_token_is_counted_by_torch():
    def forward(m, x):
        held = dict(m.a.named_parameters())
        return m.a(m.token.expand(2, -1)) + torch.func.functional_call(m.a, held, (x,))

    count = count_module(Calls(forward), [rows()])
    assert (count.macs, [f.blocking for f in count.findings]) == (2 * EACH, [False])


def test_autograd_inside_forward_is_counted_where_torch_sees_it():
    count = count_module(Calls(inner_gradient), [rows()])
    assert count.torch_macs == count.macs == 2 * EACH
    assert not any(finding.blocking for finding in count.findings)


def test_a_small_constant_of_the_module_keeps_its_value():
    def forward(m, x):
        repeats = int(m.strides[0].item()) // 4
        for _ in range(repeats):
            x = m.a(x)
        return x + x.new_full((2, 1), m.strides[1])

    assert agreed(forward, strides=torch.tensor([8.0, 16.0])) == 2 * EACH


def test_a_small_state_of_the_module_meets_torchs_checks_of_devices():
    def forward(m, x):
        return m.rnn(x, m.state)[0]

    module = Calls(forward, rnn=nn.GRU(8, 8), state=torch.zeros(1, 2, 8))
    assert count_module(module, [torch.randn(5, 2, 8)]).macs == 5 * 3 * 2 * EACH


def grown(cache, q):
    cache.k = q if cache.k is None else torch.cat([cache.k, q], 2)
    return F.scaled_dot_product_attention(q, cache.k, cache.k)


class Cache:
    k = None


def test_state_that_forward_keeps_is_the_same_for_each_counter():
    q, cache = torch.randn(1, 4, 1, 8), Cache()
    cache.k = before = torch.randn(1, 4, 12, 8)

    def both(m, q, given):
        grown(m.cache, q)
        return grown(given, q)

    once, twice = 4 * 13 * 16, 4 * 14 * 16
    assert agreed(lambda _, q, cache: grown(cache, q), q, cache) == once
    assert agreed(lambda m, q: grown(m.cache, q), q, cache=cache) == once
    assert agreed(both, q, cache, cache=cache) == once + twice
    assert cache.k is before


def test_masks_are_compared_inside_nn_transformer_and_change_no_count():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x, mask = torch.randn(2, 5, 8), nn.Transformer.generate_square_subsequent_mask(5)
    count = count_module(model, [x], kwargs={"mask": mask})
    assert count.findings == ()
    assert count.macs == count_module(model, [x]).macs


@pytest.mark.parametrize("dtype", [torch.int64, torch.half, torch.float64])
def test_a_dtype_that_torch_refuses_is_refused(dtype):
    with pytest.raises(UsageError, match="must have one dtype"):
        count_module(nn.Linear(8, 8), [torch.zeros(2, 8, dtype=dtype)])


def test_when_both_counters_fail_both_reasons_are_told():
    def forward(m, x):
        raise ValueError("traced" if torch.jit.is_tracing() else "run")

    with pytest.raises(UsageError, match=r"torch: ValueError: run.*fvcore: ValueError: traced"):
        count_module(Calls(forward), [rows()])


def test_a_product_that_only_the_tracing_counter_reaches_is_not_lost():
    def forward(m, x, mask):
        if not torch.jit.is_tracing() and mask.all():
            mask = None
        m.a(x)
        return m.b(x)

    assert count_module(Calls(forward), [rows(), rows()]).macs == 2 * EACH


def test_a_branch_on_token_ids_is_counted_for_those_given_and_says_so():
    def forward(m, x, ids):
        return m.a(m.a(x)) if 0 in ids else m.a(x)

    for ids, products in (([1, 0], 2), ([1, 2], 1)):
        count = count_module(Calls(forward), [rows(), torch.tensor(ids)])
        assert count.fvcore_macs == count.torch_macs == products * EACH
        assert [(f.code, f.blocking) for f in count.findings] == [("input_values_read", False)]


# Hooks.


def test_a_hook_that_computes_is_part_of_the_count():
    module = nn.Sequential(nn.Linear(8, 8))
    extra = nn.Linear(8, 8)
    module[0].register_forward_hook(lambda m, inputs, output: output + extra(inputs[0]))
    count = count_module(module, [rows()])
    assert (count.macs, count.by_module) == (2 * EACH, {"": 2 * EACH, "0": EACH})
    assert not any(finding.blocking for finding in count.findings)


def test_a_hook_that_cannot_run_makes_the_row_say_what_is_missing():
    module = nn.Sequential(nn.Linear(8, 8))

    def log(m, inputs, output):
        print(output.mean().item())

    module[0].register_forward_hook(log)
    (finding,) = (count := count_module(module, [rows()])).findings
    assert (count.macs, finding.code, finding.blocking) == (EACH, "hooks_not_run", True)
    assert "without the forward hooks" in finding.message
    assert finding.message.endswith("log on 0")


# Everything comes back.

TABLE: dict[str, torch.Tensor] = {}
POSITIONS = None


@functools.lru_cache
def positions(n):
    return torch.arange(n, dtype=torch.float32)


class Caching(Calls):
    """Caches a constant in a class, a global, a table and an lru_cache."""

    cached = None

    @staticmethod
    @functools.lru_cache
    def scale(n):
        return torch.ones(n)

    def forward(self, x):
        global POSITIONS  # noqa: PLW0603  (what it is about)
        n = x.shape[-1]
        if Caching.cached is None:
            Caching.cached = torch.zeros(n)
        if POSITIONS is None:
            POSITIONS = torch.zeros(n)
        if n not in TABLE:
            TABLE[n] = torch.arange(n) * 1.0
        return self.a(x + positions(n) + self.scale(n) + Caching.cached + POSITIONS + TABLE[n])


def test_constants_cached_outside_the_module_do_not_stay_on_meta():
    module = Caching(None)
    assert count_module(module, [rows()], backward=True).macs == EACH
    assert (Caching.cached, POSITIONS, TABLE) == (None, None, {})
    assert module(rows()).device.type == "cpu"


def test_a_forward_patched_by_a_closure_leaves_the_original_alone():
    module = nn.Sequential(nn.Conv1d(8, 8, 1), nn.BatchNorm1d(8)).train()
    old, seen = module[1].forward, []
    module[1].forward = lambda x: (seen.append(x), old(x))[1]
    before = {name: (t.clone(), t._version) for name, t in module.state_dict().items()}
    assert count_module(module, [torch.zeros(2, 8, 4)]).macs == 2 * 8 * 8 * 4
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name][0])
        assert tensor._version == before[name][1]
    assert seen == []


def enters_modes(m, x):
    torch.enable_grad().__enter__()
    torch.device("meta").__enter__()
    torch.autocast("cpu").__enter__()
    torch.set_default_dtype(torch.float64)
    torch.rand(3), random.random(), np.random.rand()
    return m.a(x)


def fails(m, x):
    enters_modes(m, x)
    raise ValueError("in the middle")


def interrupted(m, x):
    enters_modes(m, x)
    raise KeyboardInterrupt


def paused(m, x):
    with torch.enable_grad(), torch.device("meta"):
        yield m.a(x)
        raise ValueError


def state():
    return {
        "grad": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "tracing": torch._C._get_tracing_state(),
        "excluded": torch._C._dispatch_tls_local_exclude_set().raw_repr(),
        "included": torch._C._dispatch_tls_local_include_set().raw_repr(),
        "modes": (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
        "random": (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[2]),
        "sdp": torch.backends.cuda.math_sdp_enabled(),
    }


FAULTS = {
    "modes left": enters_modes,
    "a failure": fails,
    "Ctrl-C": interrupted,
    "a paused generator": paused,
    "data": lambda m, x: x.data.sum().item(),
    "data that does not fit": lambda m, x: x.data @ x.data,
    "autograd": inner_gradient,
    "a failing transform": lambda m, x: torch.func.vmap(lambda row: row @ row.item())(x),
    "a transform": lambda m, x: torch.func.vmap(m.a)(x),
    "a gradient transform": lambda m, x: torch.func.grad(lambda y: m.a(y).sum())(x),
    "numpy": lambda m, x: x.numpy(),
    "a list": lambda m, x: x.tolist(),
    "a mask": lambda m, x: x[x > 0],
    "inference mode": lambda m, x: torch.inference_mode()(m.a)(x),
    "jit inside": lambda m, x: torch.jit.trace(m.a, torch.zeros(2, 8))(x),
    "sizes": lambda m, x: m.a(x.mT),
    "recursion": lambda m, x: m(x),
    "checkpoint": lambda m, x: torch.utils.checkpoint.checkpoint(m.a, x, use_reentrant=False),
    "nothing": lambda m, x: None,
    "a stream of exits": lambda m, x: sys.exit(3),
}


@pytest.mark.parametrize("counters", [["fvcore"], ["torch"], ["torch", "fvcore"]])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_torch_comes_back_whatever_forward_does(fault, backward, counters):
    module, x = Calls(FAULTS[fault]), rows()
    before, values = state(), {name: t.clone() for name, t in module.state_dict().items()}
    with contextlib.suppress(UsageError, KeyboardInterrupt, SystemExit):
        count_module(module, [x], backward=backward, counters=counters)
    assert state() == before
    assert all(torch.equal(t, values[name]) for name, t in module.state_dict().items())
    loss = module.b(x).square().sum()
    loss.backward()
    assert module.b.weight.grad.abs().sum() > 0


TRAINING = """
    import runpy, torch
    from torch import nn
    tests = runpy.run_path({path!r})
    for _ in range(2):
        for fault, function in tests["FAULTS"].items():
            for counters in (["fvcore"], ["torch"], ["torch", "fvcore"]):
                try:
                    tests["count_module"](
                        tests["Calls"](function), [tests["rows"]()], counters=counters
                    )
                except (tests["UsageError"], KeyboardInterrupt, SystemExit):
                    pass
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    x = torch.randn(64, 4)
    y = x.sum(1, keepdim=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(50):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 4, losses
    print("trained")
"""


def test_after_a_hundred_faults_a_small_model_trains_and_the_process_ends_well():
    script = textwrap.dedent(TRAINING.format(path=__file__))
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "trained"), done.stderr[-2000:]


# Which counter's number is taken.


def counted_by(cls, macs, **uncounted_ops):
    fields = {"macs": macs, "by_operator": {}, "by_module": {"": macs}}
    return cls(**fields, uncounted_ops=uncounted_ops, **ELEMENTWISE.get(cls, {}))


ELEMENTWISE = {FvcoreCount: {"elementwise": {}}}


@pytest.mark.parametrize(
    ("fvcore", "traced", "taken", "code"),
    [
        ((8, {}), (8, {}), "fvcore", None),
        ((8, {}), (9, {}), "fvcore", "counters_disagree"),
        ((8, {"a": 1}), (9, {}), "torch", "fvcore_incomplete"),
        ((9, {"a": 1}), (8, {}), "torch", "fvcore_incomplete"),
        ((8, {}), (9, {"a": 1}), "fvcore", "torch_incomplete"),
        ((8, {"a": 1}), (9, {"a": 1}), "torch", "counters_disagree"),
        ((9, {"a": 1}), (8, {"a": 1}), "fvcore", "counters_disagree"),
    ],
)
def test_the_more_complete_count_is_taken_and_a_difference_is_said(fvcore, traced, taken, code):
    ours = counted_by(FvcoreCount, fvcore[0], **fvcore[1])
    theirs = counted_by(TorchCount, traced[0], **traced[1])
    chosen, complete = flops._choose(ours, theirs)
    assert chosen is {"fvcore": ours, "torch": theirs}[taken]
    assert complete is (not chosen.uncounted_ops)
    found = [(f.code, f.blocking) for f in findings.disagreement(ours, theirs)]
    assert found == ([] if code is None else [(code, code == "counters_disagree")])
