"""Counting a module: the right number in every form in which attention is written."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (the name that everyone uses)
from torch import nn

from mhaprof.errors import UsageError
from mhaprof.measure.flops import count_module


class Calls(nn.Module):
    """Call a function of tensors, with modules it may use."""

    def __init__(self, function, *modules):
        super().__init__()
        self.function = function
        self.used = nn.ModuleList(modules)

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


class Attention(nn.Module):
    """Multi-head attention as people write it; ``core`` is how scores and context are made."""

    def __init__(
        self, dim=512, heads=8, *, kv_heads=None, head_dim=None, out=True, core="matmul", bias=False
    ):
        super().__init__()
        self.heads, self.core = heads, core
        self.kv_heads = kv_heads or heads
        self.head_dim = head_dim or dim // heads
        self.q_proj = nn.Linear(dim, heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(dim, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(dim, self.kv_heads * self.head_dim, bias=bias)
        self.out_proj = nn.Linear(heads * self.head_dim, dim, bias=bias) if out else nn.Identity()

    def forward(self, x, context=None):
        context = x if context is None else context
        q = self.split(self.q_proj(x), self.heads)
        k = self.split(self.k_proj(context), self.kv_heads)
        v = self.split(self.v_proj(context), self.kv_heads)
        mixed = CORES[self.core](q, k, v)
        return self.out_proj(mixed.transpose(1, 2).reshape(*x.shape[:2], -1))

    def split(self, x, heads):
        return x.view(*x.shape[:2], heads, self.head_dim).transpose(1, 2)


def by_broadcast(q, k, v):
    """Grouped-query attention with key and value on the left, broadcast over the group."""
    groups = q.shape[1] // k.shape[1]
    grouped = q.unflatten(1, (k.shape[1], groups))
    scores = k.unsqueeze(2) @ grouped.transpose(-1, -2)
    mixed = v.transpose(-1, -2).unsqueeze(2) @ scores.softmax(-2)
    return mixed.transpose(-1, -2).flatten(1, 2)


def by_baddbmm(q, k, v):
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    bias = q.new_zeros(q.shape[0], q.shape[1], k.shape[1])
    return torch.bmm(torch.baddbmm(bias, q, k.mT).softmax(-1), v).unflatten(0, (-1, CORE_HEADS))


CORE_HEADS = 8
CORES = {
    "matmul": lambda q, k, v: torch.matmul((torch.matmul(q, k.mT) * 0.125).softmax(-1), v),
    "@": lambda q, k, v: ((q @ k.mT) / 8).softmax(-1) @ v,
    "einsum": lambda q, k, v: torch.einsum(
        "bhnm,bhmd->bhnd", torch.einsum("bhnd,bhmd->bhnm", q, k).softmax(-1), v
    ),
    "sdpa": F.scaled_dot_product_attention,
    "sdpa by keyword": lambda q, k, v: F.scaled_dot_product_attention(query=q, key=k, value=v),
    "sdpa causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "sdpa masked": lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    ),
    "sdpa gqa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
    "broadcast": by_broadcast,
    "repeated": lambda q, k, v: F.scaled_dot_product_attention(
        q,
        k.repeat_interleave(q.shape[1] // k.shape[1], 1),
        v.repeat_interleave(q.shape[1] // v.shape[1], 1),
    ),
    "baddbmm": by_baddbmm,
}


def meta(*size, **options):
    return torch.empty(size, device="meta", **options)


def attention(**options):
    with torch.device("meta"):
        return Attention(**options)


def agreed(count):
    """The MACs, after checking that every part of the count says the same."""
    assert count.fvcore_macs == count.torch_macs == count.macs
    assert sum(count.by_operator.values()) == count.by_module[""] == count.macs
    assert count.flops == 2 * count.macs
    assert count.uncounted_ops == {}
    assert [f.code for f in count.findings] in ([], ["closed_form_only"])
    return count.macs


def macs_of(module, *inputs, **kwargs):
    return agreed(count_module(module, inputs, kwargs=kwargs))


# The numbers of tests/flops.yaml: the mission's, and those that other counters got wrong.


def test_one_full_head_without_output_projection():
    assert macs_of(attention(heads=1, out=False), meta(32, 1024, 512)) == 60129542144


@pytest.mark.parametrize("core", ["matmul", "@", "einsum", "sdpa", "sdpa causal", "baddbmm"])
def test_eight_heads_cost_the_same_in_every_form(core):
    assert macs_of(attention(core=core), meta(32, 1024, 512)) == 68719476736
    assert macs_of(attention(core=core, out=False), meta(32, 1024, 512)) == 60129542144


@pytest.mark.parametrize("core", ["matmul", "sdpa", "einsum", "sdpa causal", "sdpa masked"])
def test_a_million_tokens_are_counted_exactly_and_without_memory(core):
    assert macs_of(attention(core=core), meta(32, 1048576, 512)) == 36063981391052800


@pytest.mark.parametrize("core", ["sdpa gqa", "broadcast", "repeated"])
def test_grouped_query_attention_counts_query_heads(core):
    count = count_module(attention(kv_heads=2, core=core), [meta(1, 1024, 512)])
    assert agreed(count) == 1744830464
    core_macs = sum(n for name, n in count.by_operator.items() if name != "linear")
    assert core_macs == 1073741824


def test_heads_wider_than_the_model():
    wide = attention(dim=2560, heads=32, kv_heads=8, head_dim=128, core="sdpa gqa")
    assert macs_of(wide, meta(1, 1024, 2560)) == 35433480192


def test_cross_attention():
    module = attention(dim=16, heads=2)
    assert macs_of(module, meta(2, 10, 16), meta(2, 20, 16)) == 43520


def test_twice_the_tokens_cost_four_times_the_scores_and_twice_the_projections():
    short, long = (
        count_module(attention(), [meta(1, tokens, 512)]).by_operator for tokens in (300, 600)
    )
    assert long["matmul"] == 4 * short["matmul"]
    assert long["linear"] == 2 * short["linear"]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_attention_core_alone(device):
    q = torch.empty(1, 12, 64, 64, device=device)
    assert macs_of(Calls(F.scaled_dot_product_attention), q, q, q) == 6291456
    q = torch.empty(2, 5, 9, 4, device=device)
    assert macs_of(Calls(F.scaled_dot_product_attention), q, q, q) == 6480


def test_a_linear_without_bias():
    assert macs_of(nn.Linear(3, 8, bias=False), torch.randn(5, 10, 3)) == 1200


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("heads", [4, 8])
def test_multihead_attention_in_every_mode(heads, training, need_weights):
    module = nn.MultiheadAttention(448, heads, batch_first=True).train(training)
    x = torch.randn(1, 300, 448)
    with torch.no_grad():  # where the fast path would hide everything
        count = count_module(module, [x, x, x], kwargs={"need_weights": need_weights})
    assert agreed(count) == 321484800
    assert count.params == 804608


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"batch_first": False},
        {"dropout": 0.1},
        {"kdim": 512, "vdim": 512},
    ],
)
def test_multihead_attention_however_it_is_built(options):
    options = {"batch_first": True, **options}
    x = meta(1, 580, 512) if options["batch_first"] else meta(580, 1, 512)
    with torch.device("meta"):
        module = nn.MultiheadAttention(512, 4, **options)
    assert macs_of(module, x, x, x) == 952647680


def test_multihead_attention_with_masks_and_extra_keys():
    module = nn.MultiheadAttention(16, 2, batch_first=True, add_zero_attn=True)
    x = torch.randn(2, 10, 16)
    masked = macs_of(
        module,
        x,
        x,
        x,
        key_padding_mask=torch.zeros(2, 10, dtype=torch.bool),
        attn_mask=torch.ones(10, 10, dtype=torch.bool).triu(1),
    )
    assert masked == 2 * 10 * 16 * 16 * 4 + 2 * 2 * 10 * 11 * (8 + 8)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_an_encoder_layer_is_seen_inside(training, masked):
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).train(training)
    encoder = nn.TransformerEncoder(layer, 2).train(training)
    each = 4 * 2 * 10 * 64 * 64 + 2 * 2 * 10 * 10 * 64 + 2 * 2 * 10 * 64 * 128
    mask = {"src_key_padding_mask": torch.zeros(2, 10, dtype=torch.bool)} if masked else {}
    with torch.no_grad():
        assert macs_of(layer, torch.randn(2, 10, 64)) == each
        assert macs_of(encoder, torch.randn(2, 10, 64), **mask) == 2 * each


def test_a_norm_is_counted_apart():
    with_norm = nn.Sequential(nn.LayerNorm(512), attention().to_empty(device="cpu"))
    count = count_module(with_norm, [torch.empty(1, 128, 512)])
    assert agreed(count) == macs_of(attention(), meta(1, 128, 512))
    assert count.elementwise == {"layer_norm": 5 * 128 * 512}
    assert count.by_module["0"] == 0


def test_a_norm_of_any_rank_does_not_break_the_count():
    count = count_module(nn.LayerNorm(16, elementwise_affine=False), [torch.randn(16)])
    assert (count.macs, count.elementwise) == (0, {"layer_norm": 4 * 16})


# Every product that torch has.

PRODUCTS = [
    ("mm", torch.mm, [(3, 4), (4, 5)], 60),
    ("bmm", torch.bmm, [(2, 3, 4), (2, 4, 5)], 120),
    ("addmm", torch.addmm, [(5,), (3, 4), (4, 5)], 60),
    ("addmm_", lambda c, a, b: (c + 1).addmm_(a, b), [(3, 5), (3, 4), (4, 5)], 60),
    ("baddbmm", torch.baddbmm, [(2, 3, 5), (2, 3, 4), (2, 4, 5)], 120),
    ("baddbmm_", lambda c, a, b: (c + 1).baddbmm_(a, b), [(2, 3, 5), (2, 3, 4), (2, 4, 5)], 120),
    ("addbmm", torch.addbmm, [(3, 5), (2, 3, 4), (2, 4, 5)], 120),
    ("mv", torch.mv, [(3, 4), (4,)], 12),
    ("addmv", torch.addmv, [(3,), (3, 4), (4,)], 12),
    ("dot", torch.dot, [(4,), (4,)], 4),
    ("vdot", torch.vdot, [(4,), (4,)], 4),
    ("inner", torch.inner, [(3, 4), (5, 4)], 60),
    ("inner of a number", torch.inner, [(), (5,)], 0),
    ("outer", torch.outer, [(3,), (4,)], 0),
    ("kron", torch.kron, [(2, 3), (2, 3)], 0),
    ("tensordot", lambda a, b: torch.tensordot(a, b, 2), [(3, 4, 5), (4, 5, 6)], 360),
    ("linear of a vector", F.linear, [(4,), (3, 4), (3,)], 12),
    ("linear to a number", F.linear, [(2, 4), (4,)], 8),
    ("linear of a view", lambda x, w: F.linear(x.mT, w), [(2, 4, 3), (5, 4)], 120),
    ("conv1d", F.conv1d, [(2, 4, 9), (8, 4, 3)], 2 * 8 * 4 * 3 * 7),
    ("conv1d without batch", F.conv1d, [(4, 9), (8, 4, 3)], 8 * 4 * 3 * 7),
    ("conv2d padded", lambda x, w: F.conv2d(x, w, padding="same"), [(2, 4, 5, 6), (8, 4, 3, 3)],
     2 * 8 * 4 * 9 * 30),
    ("conv2d grouped", lambda x, w: F.conv2d(x, w, groups=2), [(2, 4, 5, 6), (8, 2, 3, 3)],
     2 * 8 * 2 * 9 * 12),
    ("conv transposed", lambda x, w: F.conv_transpose1d(x, w, stride=2), [(2, 4, 9), (4, 8, 3)],
     2 * 9 * 4 * 8 * 3),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "sizes", "macs"), [row[1:] for row in PRODUCTS], ids=[row[0] for row in PRODUCTS]
)
def test_every_product_is_counted_by_both(call, sizes, macs):
    assert macs_of(Calls(call), *[torch.randn(size) for size in sizes]) == macs


# Operators nobody counts, and those one counter alone knows.


def test_elementwise_operators_are_silent():
    def forward(x):
        x = F.dropout(F.gelu(x * 2 + 1).masked_fill(x > 0, -1.0).softmax(-1), 0.1)
        x = torch.cat([x.sin(), x.cos()], -1).cumsum(-1).roll(1, -1)
        return F.layer_norm(x.sort(-1).values, x.shape[-1:]).topk(2).values.mean()

    count = count_module(Calls(forward), [torch.randn(2, 8)])
    assert (agreed(count), count.findings) == (0, ())


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda x: torch.cdist(x, x), "aten::cdist"),
        (lambda x: F.bilinear(x, x, torch.randn(3, 8, 8)), "aten::bilinear"),
    ],
)
def test_an_operator_without_a_count_is_named_and_blocks(call, named):
    count = count_module(Calls(call), [torch.randn(6, 8)])
    assert count.uncounted_ops == {named: 1}
    (finding,) = count.findings
    assert (finding.code, finding.blocking) == ("uncounted_ops", True)
    assert named in finding.message


@torch.library.custom_op("mhaprof_tests::mix", mutates_args=())
def mix(x: torch.Tensor) -> torch.Tensor:
    """Multiply where no counter can look."""
    return x @ x


@mix.register_fake
def _(x):
    return torch.empty_like(x)


class Mixes(nn.Module):
    def forward(self, x):
        return mix(x) + x @ x


@pytest.mark.parametrize("counters", [("fvcore",), ("torch",), ("fvcore", "torch")])
def test_a_custom_operator_is_named_whoever_counts(counters):
    count = count_module(Mixes(), [torch.randn(3, 3)], counters=counters)
    assert count.uncounted_ops == {"mhaprof_tests::mix": 1}
    assert count.macs == 27
    assert [f.code for f in count.findings] == ["uncounted_ops"]


def test_what_only_torch_can_count_is_taken_from_torch_and_said():
    chain = Calls(lambda a, b: torch.linalg.multi_dot([a, b, b]))
    count = count_module(chain, [torch.randn(4, 8), torch.randn(8, 8)])
    assert count.macs == count.torch_macs == 2 * 4 * 8 * 8
    assert count.fvcore_macs == 0
    assert count.uncounted_ops == {}
    (finding,) = count.findings
    assert (finding.code, finding.blocking) == ("fvcore_incomplete", False)
    assert "aten::linalg_multi_dot" in finding.message


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        return a @ b

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient


def test_a_python_function_of_autograd_is_counted_inside():
    x = torch.randn(3, 3)
    count = count_module(Calls(Product.apply), [x, x])
    assert (count.fvcore_macs, count.torch_macs) == (27, 27)
    assert count.findings == ()


def test_counters_that_disagree_without_an_excuse_block(monkeypatch):
    from mhaprof.measure import torch_counter

    monkeypatch.setitem(torch_counter.FORMULAS, torch.ops.aten.mv, lambda *_, **__: 1000)
    count = count_module(Calls(torch.mv), [torch.randn(3, 4), torch.randn(4)])
    assert (count.fvcore_macs, count.torch_macs) == (12, 500)
    assert [(f.code, f.blocking) for f in count.findings] == [("counters_disagree", True)]


@pytest.mark.parametrize("counter", ["fvcore", "torch"])
def test_one_counter_alone(counter):
    count = count_module(attention(), [meta(1, 64, 512)], counters=[counter])
    other = {"fvcore": count.torch_macs, "torch": count.fvcore_macs}[counter]
    assert other is None
    assert count.macs == count.by_module[""] == 4 * 64 * 512 * 512 + 2 * 64 * 64 * 512
    assert sum(count.by_operator.values()) == count.macs
    assert count.findings == ()


@pytest.mark.parametrize("counters", [(), ("thop",)])
def test_an_unknown_counter_is_refused(counters):
    with pytest.raises(UsageError, match="choose from fvcore, torch"):
        count_module(attention(), [meta(1, 64, 512)], counters=counters)


# Structure.


@pytest.mark.parametrize("counters", [("fvcore",), ("torch",)])
def test_the_tree_of_modules_sums_up(counters):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention(64, 4)
            self.mlp = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
            self.unused = nn.Linear(64, 64)

        def forward(self, x):
            x = x + self.attention(x)
            return x + self.mlp(x)

    model = nn.Sequential(Block(), Block())
    count = count_module(model, [torch.randn(2, 10, 64)], counters=counters)
    tree = count.by_module
    assert list(tree) == [name for name, _ in model.named_modules()]
    projection, core, mlp = 2 * 10 * 64 * 64, 2 * 2 * 10 * 10 * 64, 2 * 10 * 64 * 128
    assert tree[""] == tree["0"] + tree["1"]
    assert tree["1.attention"] == 4 * projection + core
    assert tree["1.attention.q_proj"] == projection
    assert tree["1.mlp"] == tree["1.mlp.0"] + tree["1.mlp.2"] == 2 * mlp
    assert tree["0.unused"] == tree["1.mlp.1"] == 0


def test_tied_weights_count_once_as_parameters_and_each_time_as_work():
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    count = count_module(nn.Sequential(first, second), [torch.randn(2, 8)])
    assert (agreed(count), count.params) == (2 * 2 * 8 * 8, 8 * 8 + 8 + 8)


def test_arguments_and_results_of_any_kind():
    def forward(pair, *, scale, table):
        left, right = pair
        return {"first": [(left @ right) * scale], "rest": (table["w"] @ right, None)}

    x = torch.randn(3, 3)
    assert macs_of(Calls(forward), (x, x), scale=2, table={"w": x}) == 54


def test_a_module_without_tensor_arguments():
    assert macs_of(Calls(lambda n: torch.ones(n, n) @ torch.ones(n, n)), 5) == 125


# Modules out of the ordinary.


def test_a_compiled_module_is_counted_as_written():
    expected = macs_of(Attention(64, 4), torch.randn(2, 10, 64))
    compiled = torch.compile(Attention(64, 4))
    assert macs_of(compiled, torch.randn(2, 10, 64)) == expected
    partly = Attention(64, 4)
    partly.q_proj = torch.compile(partly.q_proj)
    partly.compile()
    count = count_module(partly, [torch.randn(2, 10, 64)])
    assert agreed(count) == expected
    assert count.by_module["q_proj"] == 2 * 10 * 64 * 64


def test_a_compiled_function_is_counted_by_torch_and_compiles_nothing():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    function = torch.compile(lambda a: a @ a, backend=backend)
    count = count_module(Calls(function), [torch.randn(3, 3)])
    assert compiled == []
    function(torch.randn(3, 3))
    assert len(compiled) == 1
    assert (count.macs, count.fvcore_macs) == (27, None)
    assert [(f.code, f.blocking) for f in count.findings] == [("fvcore_cannot_trace", False)]


def test_flex_attention_counts_as_dense_attention_and_says_so():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    class Flex(nn.Module):
        def __init__(self, mask):
            super().__init__()
            self.mask = mask

        def forward(self, q, k, v):
            return flex_attention(
                q, k, v, block_mask=self.mask, score_mod=lambda s, b, h, i, j: s, enable_gqa=True
            )

    q, k = torch.randn(2, 4, 128, 16), torch.randn(2, 2, 128, 16)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cpu")
    for given in (None, mask):
        count = count_module(Flex(given), [q, k, k])
        assert agreed(count) == 2 * 4 * 128 * 128 * 32
        (finding,) = count.findings
        assert finding.code == "closed_form_only"
        assert "dense attention" in finding.message


def test_lazy_modules_learn_their_sizes_on_the_copy():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.LazyLinear(7)
            self.conv = nn.LazyConv1d(3, 1)

        def forward(self, x):
            return self.linear(x), self.conv(x)

    lazy = Lazy()
    count = count_module(lazy, [torch.randn(2, 3, 4)])
    assert agreed(count) == 2 * 3 * 4 * 7 + 2 * 3 * 3 * 4
    assert count.params == 7 * 4 + 7 + 3 * 3 + 3
    assert nn.parameter.is_lazy(lazy.linear.weight)


@pytest.mark.parametrize(
    "reparametrized",
    [
        nn.utils.parametrizations.weight_norm,
        pytest.param(
            nn.utils.weight_norm, marks=pytest.mark.filterwarnings("ignore::FutureWarning")
        ),
    ],
)
def test_reparametrized_weights(reparametrized):
    module = reparametrized(nn.Linear(4, 5))
    assert macs_of(module, torch.randn(2, 4)) == 40
    assert macs_of(module, torch.randn(2, 4)) == 40


def test_a_tensor_that_is_no_parameter_and_a_list_of_them():
    class Held(nn.Module):
        def __init__(self):
            super().__init__()
            self.plain = torch.randn(4, 4)
            self.several = [torch.randn(4, 4), {"deep": torch.randn(4, 4)}]

        def forward(self, x):
            return x @ self.plain @ self.several[0] @ self.several[1]["deep"]

    assert macs_of(Held(), torch.randn(2, 4)) == 3 * 2 * 4 * 4


# What cannot be counted costs one line.


@pytest.mark.parametrize(
    ("forward", "named"),
    [
        (lambda x: x * 2 if x.sum().item() > 0 else x, r"item\(\)"),
        (lambda x: x if x.any() else -x, r"item\(\)"),
        (lambda x: x[x > 0], "indexing by a mask"),
        (lambda x: x.tolist(), "reads values"),
    ],
)
def test_control_flow_that_depends_on_data_is_refused_in_one_line(forward, named):
    with pytest.raises(UsageError, match=named) as caught:
        count_module(Calls(forward), [torch.randn(2)])
    message = str(caught.value)
    assert "test_flops.py:" in message
    assert "\n" not in message


def test_inputs_that_do_not_fit_are_refused_with_their_sizes():
    with pytest.raises(UsageError, match=r"Linear.forward .* sizes \(2, 3\)") as caught:
        count_module(nn.Linear(4, 5), [torch.randn(2, 3)])
    assert "\n" not in str(caught.value)


def test_a_module_that_cannot_be_copied_is_refused():
    import threading

    module = nn.Linear(3, 3)
    module.lock = threading.Lock()
    with pytest.raises(UsageError, match="Linear cannot be copied"):
        count_module(module, [torch.randn(3, 3)])


# Backward.


@pytest.mark.parametrize(
    ("core", "scores_again"), [("matmul", 0), ("einsum", 0), ("sdpa", 1), ("sdpa causal", 1)]
)
def test_backward_is_twice_the_forward_and_fused_attention_makes_its_scores_again(
    core, scores_again
):
    count = count_module(attention(core=core), [meta(2, 128, 512)], backward=True)
    scores = 2 * 128 * 128 * 512
    assert count.backward_macs == 2 * agreed(count) + scores_again * scores


def test_backward_of_grouped_and_masked_attention_of_any_rank():
    def backward(*inputs, **kwargs):
        module = Calls(F.scaled_dot_product_attention)
        return count_module(module, inputs, kwargs=kwargs, backward=True).backward_macs

    q, k, v = torch.randn(2, 4, 8, 16), torch.randn(2, 2, 8, 16), torch.randn(2, 2, 8, 20)
    scores, context = 2 * 4 * 8 * 8 * 16, 2 * 4 * 8 * 8 * 20
    assert backward(q, k, v, enable_gqa=True) == 3 * scores + 2 * context
    assert backward(q, q, q, attn_mask=torch.zeros(8, 8), dropout_p=0.1) == 5 * scores
    assert backward(q[0], q[0], q[0]) == 5 * scores // 2


def test_backward_of_multihead_attention_reaches_the_fused_kernel_too():
    x = torch.randn(2, 8, 16)
    module = nn.MultiheadAttention(16, 2, batch_first=True)
    scores = 2 * 8 * 8 * 16
    for need_weights, again in ((True, 0), (False, 1)):
        options = {"need_weights": need_weights}
        count = count_module(module, [x, x, x], kwargs=options, backward=True)
        assert count.backward_macs == 2 * count.macs + again * scores


def test_backward_where_only_the_math_kernel_is_allowed():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.randn(2, 4, 8, 16)
    with sdpa_kernel(SDPBackend.MATH):
        count = count_module(Calls(F.scaled_dot_product_attention), [q, q, q], backward=True)
    assert count.backward_macs == 2 * count.macs


def test_backward_leaves_frozen_weights_alone():
    module = nn.Linear(4, 5)
    assert count_module(module, [torch.randn(2, 4)], backward=True).backward_macs == 80
    module.requires_grad_(False)
    assert count_module(module, [torch.randn(2, 4)], backward=True).backward_macs == 40
