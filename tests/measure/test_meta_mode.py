"""MetaMode answers as torch's own meta kernels do, only sooner."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (the name that everyone uses)
from hypothesis import given, settings
from hypothesis import strategies as st

from mhaprof.measure.meta_mode import DataDependent, MetaMode

DTYPES = (torch.float32, torch.float16, torch.float64, torch.int64, torch.bool)


def described(result):
    """Size, dtype and the strides that matter (of dimensions longer than one)."""
    if isinstance(result, (tuple, list)):
        return [described(item) for item in result]
    strides = [s for s, n in zip(result.stride(), result.shape, strict=True) if n > 1]
    return tuple(result.shape), result.dtype, strides, result.device.type


def outcome(call, *args):
    """The described result, or the kind of refusal."""
    try:
        return described(call(*args))
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        return "refused", type(error).__name__


def same_as_torch(call, *args, one_dtype=False):
    theirs = outcome(call, *args)
    if one_dtype and len({arg.dtype for arg in args}) > 1:
        theirs = ("refused",)  # as the real kernel does; torch's meta kernel takes any
    with MetaMode():
        ours = outcome(call, *args)
    if theirs[0] == "refused":
        assert ours[0] == "refused"
    elif ours != theirs:  # torch's meta kernel is not always what torch's real one is
        real = outcome(
            call, *(torch.empty_strided(a.shape, a.stride(), dtype=a.dtype) for a in args)
        )
        assert str(ours).replace("'meta'", "'cpu'") == str(real)


@st.composite
def laid_out(draw, shape, dtype=None):
    """A meta tensor of this shape: contiguous, permuted, sliced or expanded."""
    chosen = draw(st.sampled_from(DTYPES)) if dtype is None else dtype
    how = draw(st.sampled_from(["plain", "permuted", "sliced", "expanded"]))
    if how == "permuted":
        order = draw(st.permutations(range(len(shape))))
        stored = torch.empty([shape[i] for i in order], dtype=chosen, device="meta")
        return stored.permute([order.index(i) for i in range(len(shape))])
    if how == "sliced" and shape:
        stored = torch.empty([*shape[:-1], shape[-1] + 2], dtype=chosen, device="meta")
        return stored[..., 1 : 1 + shape[-1]]
    if how == "expanded" and shape:
        return torch.empty([1, *shape[1:]], dtype=chosen, device="meta").expand(shape)
    return torch.empty(shape, dtype=chosen, device="meta")


shapes = st.lists(st.integers(1, 4), min_size=0, max_size=4)

UNARY = {
    "exp": torch.exp,
    "neg": lambda x: -x,
    "scaled": lambda x: x * 0.5,
    "halved": lambda x: x / 2,
    "shifted": lambda x: x + 1,
    "compared": lambda x: x < 1,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "silu": F.silu,
    "square": lambda x: x**2,
    "clone": torch.clone,
    "half": lambda x: x.half(),
    "int": lambda x: x.to(torch.int32),
    "softmax": lambda x: x.softmax(-1),
    "softmax first": lambda x: x.softmax(0),
    "softmax in float32": lambda x: x.softmax(-1, dtype=torch.float32),
    "log_softmax": lambda x: x.log_softmax(-1),
    "sum": torch.sum,
    "mean last": lambda x: x.mean(-1, keepdim=True),
    "sum first": lambda x: x.sum(0),
    "amax": lambda x: x.amax(-1),
    "argmax": lambda x: x.argmax(-1),
    "any": lambda x: x.any(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "flip": lambda x: x.flip(0),
    "tril": torch.tril,
    "triu": lambda x: x.triu(1),
    "zeros_like": torch.zeros_like,
    "new_zeros": lambda x: x.new_zeros((2, 3)),
    "dropout": lambda x: F.dropout(x, 0.5, training=True),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0),
    "masked_fill_": lambda x: x.clone().masked_fill_(x > 0, 0),
    "repeat": lambda x: x.repeat(2, *([1] * x.dim())),
    "contiguous": torch.Tensor.contiguous,
    "pad": lambda x: F.pad(x, (1, 2)),
    "stack": lambda x: torch.stack([x, x], -1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "glu": lambda x: F.glu(torch.cat([x, x], -1)),
}


@pytest.mark.parametrize("name", UNARY)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_an_operator_on_one_tensor_gives_what_torch_gives(name, data):
    x = data.draw(shapes.flatmap(laid_out))
    same_as_torch(UNARY[name], x)


@pytest.mark.parametrize("name", ["cat", "glu"])
@pytest.mark.parametrize("shape", [(1, 2, 1, 1), (1, 2, 1, 2), (2, 1, 3, 1), (1, 2, 1, 1, 2)])
def test_the_strides_of_dimensions_of_size_one_count_as_they_do_in_torch(name, shape):
    call = UNARY["glu"] if name == "glu" else lambda x: torch.cat([x, x], -1)
    for order in itertools.permutations(range(len(shape))):
        stored = torch.empty([shape[i] for i in order], device="meta")
        same_as_torch(call, stored.permute([order.index(i) for i in range(len(shape))]))


BINARY = {
    "add": torch.add,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "less": torch.lt,
    "and": torch.logical_and,
    "where": lambda a, b: torch.where(a > 0, a, b),
    "add_": lambda a, b: a.clone().add_(b),
    "copy_": lambda a, b: a.clone().copy_(b),
    "cat": lambda a, b: torch.cat([a, b], -1),
}


@pytest.mark.parametrize("name", BINARY)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_an_operator_on_two_tensors_broadcasts_and_promotes_as_torch_does(name, data):
    shape = data.draw(shapes)
    other = [data.draw(st.sampled_from([n, n, 1])) for n in shape]
    other = other[data.draw(st.integers(0, min(len(shape), 1))) :]
    same_as_torch(BINARY[name], data.draw(laid_out(shape)), data.draw(laid_out(other)))


PRODUCTS = {
    "mm": (torch.mm, "mk,kn"),
    "bmm": (torch.bmm, "bmk,bkn"),
    "addmm": (torch.addmm, "n,mk,kn"),
    "baddbmm": (torch.baddbmm, "bmn,bmk,bkn"),
    "mv": (torch.mv, "mk,k"),
    "dot": (torch.dot, "k,k"),
    "linear": (F.linear, "bmk,nk,n"),
    "matmul": (torch.matmul, "bmk,kn"),
    "attention": (F.scaled_dot_product_attention, "bhmk,bhnk,bhnv"),
    "embedding": (
        lambda w: F.embedding(torch.zeros(2, 3, dtype=torch.long, device="meta"), w),
        "mk",
    ),
}


GROUPED = [((24, 16), (3, 16, 32)), ((3, 8, 16), (3, 16, 32)), ((16, 24), (24, 32))]


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this torch has no grouped_mm")
@pytest.mark.parametrize("sizes", GROUPED)
def test_products_of_groups_are_as_large_as_real_ones_in_every_dtype(sizes):
    for dtype in (torch.float32, torch.bfloat16):
        offsets = None if len(sizes[0]) == 3 else torch.tensor([8, 16, 24], dtype=torch.int32)
        real = F.grouped_mm(*[torch.ones(size, dtype=dtype) for size in sizes], offs=offsets)
        with MetaMode():
            operands = [torch.empty(size, dtype=dtype, device="meta") for size in sizes]
            found = F.grouped_mm(*operands, offs=offsets)
        assert (found.shape, found.dtype) == (real.shape, real.dtype)


ONE_DTYPE = ("mm", "bmm", "addmm", "baddbmm", "mv", "dot")


@pytest.mark.parametrize("name", PRODUCTS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_product_gives_what_torch_gives_or_refuses_what_torch_refuses(name, data):
    call, labels = PRODUCTS[name]
    lengths = {label: data.draw(st.integers(1, 4)) for label in "bhmknv"}
    operands = []
    for subscript in labels.split(","):
        shape = [lengths[label] for label in subscript]
        if data.draw(st.integers(0, 5)) == 0:
            shape[-1] += 1  # operands that do not fit
        others = [torch.float16] if name in ONE_DTYPE else []
        dtype = data.draw(st.sampled_from([torch.float32] * 5 + others))
        operands.append(data.draw(laid_out(shape, dtype)))
    same_as_torch(call, *operands, one_dtype=name in ONE_DTYPE)


@pytest.mark.parametrize("transposed", [False, True])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_convolution_gives_what_torch_gives(transposed, data):
    rank = data.draw(st.integers(1, 2))
    groups = data.draw(st.integers(1, 2))
    few = st.integers(1, 3)
    x = torch.empty(2, 4, *[data.draw(st.integers(4, 9)) for _ in range(rank)], device="meta")
    weight = torch.empty(4, 4 // groups, *[data.draw(few) for _ in range(rank)], device="meta")
    kinds = {
        (1, False): F.conv1d,
        (2, False): F.conv2d,
        (1, True): F.conv_transpose1d,
        (2, True): F.conv_transpose2d,
    }
    settings_ = {
        "stride": data.draw(few),
        "padding": data.draw(st.integers(0, 2)),
        "dilation": data.draw(few),
        "groups": groups,
    }
    same_as_torch(lambda: kinds[rank, transposed](x, weight, **settings_))


def test_constants_are_real_when_small_and_meta_otherwise():
    with MetaMode():
        assert torch.arange(5).tolist() == [0, 1, 2, 3, 4]
        assert torch.ones(3, 3, dtype=torch.bool).sum().item() == 9
        assert torch.ones(1 << 20, 1 << 20, dtype=torch.bool).is_meta
        assert torch.arange(1 << 40).is_meta
        assert torch.linspace(0, 1, 3).tolist() == [0, 0.5, 1]
        assert torch.ones(2, 65).all()  # a mask of the model's own
        assert torch.ones(2, 65, 65).is_meta
        rows = torch.arange(4000)
        assert (rows[:, None] < rows[None]).is_meta


@pytest.mark.parametrize("steps", [(7,), (2, 9), (2, 9, 3), (9, 2, -2), (0.0, 1.0, 0.25), (3, 3)])
def test_a_range_on_meta_is_as_long_as_a_real_one(steps):
    with MetaMode():
        found = torch.arange(*steps, device="meta")
    real = torch.arange(*steps)
    assert (found.shape, found.dtype) == (real.shape, real.dtype)


def test_a_real_constant_meets_meta_tensors():
    scores = torch.empty(2, 3, 8, 8, device="meta")
    mask = torch.ones(8, 8, dtype=torch.bool)
    with MetaMode():
        assert scores.masked_fill(mask, float("-inf")).shape == scores.shape
        assert (scores + torch.randn(8, 8)).shape == scores.shape
        target = torch.zeros(8, dtype=torch.int64)
        target[2:4] = torch.empty(2, dtype=torch.int64, device="meta")
        assert target.shape == (8,)


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("item", lambda x: x.sum().item()),
        ("bool", lambda x: bool(x.sum())),
        ("nonzero", torch.nonzero),
        ("mask", lambda x: x[x > 0]),
        ("equal", lambda x: torch.equal(x, x)),
    ],
)
def test_asking_for_a_value_is_said_to_depend_on_data(name, ask):
    with MetaMode(), pytest.raises(DataDependent):
        ask(torch.empty(3, device="meta"))


def test_a_constant_that_meta_values_were_written_into_has_none():
    x = torch.empty(2, device="meta")
    with MetaMode():
        total, table = torch.zeros(()), torch.zeros(4)
        total += x.sum()
        table[1:3] = x
        later = table + 1
        for known in (total, table[0], later[0]):
            with pytest.raises(DataDependent):
                known.item()


def test_random_numbers_are_not_drawn():
    before = torch.random.get_rng_state()
    with MetaMode():
        torch.rand(3)
        torch.randint(0, 5, (3,))
        F.dropout(torch.empty(3, device="meta"), 0.5, training=True)
        torch.bernoulli(torch.empty(3, device="meta"))
        torch.empty(3, device="meta").normal_()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_attention_needs_neither_dynamo_nor_sympy():
    code = """
import sys, torch, torch.nn.functional as F
from mhaprof.measure.meta_mode import MetaMode
x = torch.empty(2, 4, 8, 16, device="meta")
w, b = torch.empty(16, 16, device="meta"), torch.empty(16, device="meta")
with MetaMode(), torch.no_grad():
    q = F.linear(x, w, b)
    scores = q @ q.mT * 0.25 + torch.full((8, 8), float("-inf")).triu(1)
    F.layer_norm(scores.softmax(-1) @ q, (16,), b, b)
    F.scaled_dot_product_attention(q, q, q, is_causal=True)
    torch.einsum("bhnd,bhmd->bhnm", q, q)
assert not {"torch._dynamo", "sympy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
