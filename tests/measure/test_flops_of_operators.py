"""Operators that strangers' modules use: what multiplies is counted, the rest does not block."""

from __future__ import annotations

import math
import sys

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (the name that everyone uses)
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from mhaprof.errors import UsageError
from mhaprof.measure.flops import count_module
from mhaprof.measure.fvcore_counter import HANDLES
from mhaprof.measure.torch_counter import FORMULAS


class Calls(nn.Module):
    """Call a function of tensors."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.line = nn.Linear(8, 8)

    def forward(self, *args):
        return self.function(self, *args)


def agreed(module, *inputs, backward=False):
    """The count, after checking that both counters say it and nothing is found."""
    count = count_module(module, inputs, backward=backward)
    assert count.findings == ()
    assert count.fvcore_macs == count.torch_macs == count.macs
    return count


grouped = pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="torch has no grouped_mm")


@grouped
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("left", "right", "macs"),
    [
        ((32, 16), (4, 16, 24), 32 * 16 * 24),
        ((4, 8, 16), (16, 32), 8 * 16 * 32),
        ((16, 32), (32, 24), 16 * 32 * 24),
        ((4, 8, 16), (4, 16, 24), 4 * 8 * 16 * 24),
    ],
    ids=["rows", "columns", "contracted", "batch"],
)
def test_a_grouped_product_counts_whatever_its_offsets(dtype, left, right, macs):
    offsets = None
    if 2 in (len(left), len(right)):
        offsets = torch.tensor([0, 8, 8, 16], dtype=torch.int32)
    module = Calls(lambda m, a, b: F.grouped_mm(a, b, offs=offsets))
    assert agreed(module, torch.randn(left, dtype=dtype), torch.randn(right, dtype=dtype)).macs == (
        macs
    )


@grouped
def test_the_backward_of_a_grouped_product_is_twice_the_forward():
    offsets = torch.tensor([8, 16, 24, 32], dtype=torch.int32)
    module = Calls(lambda m, a, b: F.grouped_mm(a, b, offs=offsets))
    count = agreed(module, torch.randn(32, 16), torch.randn(4, 16, 24), backward=True)
    assert count.backward_macs == 2 * count.macs == 2 * 32 * 16 * 24


@pytest.mark.usefixtures("torchvision_loads")
@pytest.mark.parametrize("implementation", ["grouped_mm", "batched_mm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_of_transformers_count_one_product_a_routed_row(implementation, dtype):
    transformers = pytest.importorskip("transformers", minversion="5")
    config = transformers.MixtralConfig(
        hidden_size=16,
        intermediate_size=24,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    config._experts_implementation = implementation
    experts = MixtralExperts(config).to(dtype)
    tokens, chosen = 6, 2
    inputs = (
        torch.randn(tokens, 16, dtype=dtype),
        torch.zeros(tokens, chosen, dtype=torch.int64),
        torch.ones(tokens, chosen, dtype=dtype),
    )
    count = count_module(experts, inputs)
    assert count.macs == count.torch_macs == tokens * chosen * 3 * 16 * 24
    assert not [finding for finding in count.findings if finding.blocking]


@pytest.mark.parametrize(("kind", "gates"), [(nn.RNN, 1), (nn.GRU, 3), (nn.LSTM, 4)])
@pytest.mark.parametrize("batch_first", [True, False])
def test_recurrent_layers_count_every_weight_once_a_token(kind, gates, batch_first):
    layer = kind(8, 6, num_layers=2, bidirectional=True, batch_first=batch_first)
    macs = 2 * 5 * 2 * gates * 6 * ((8 + 6) + (12 + 6))
    assert agreed(layer, torch.zeros(2, 5, 8) if batch_first else torch.zeros(5, 2, 8)).macs == macs


def test_the_projection_of_an_lstm_counts():
    layer = nn.LSTM(8, 6, proj_size=3)
    assert agreed(layer, torch.zeros(5, 2, 8)).macs == 10 * (4 * 6 * (8 + 3) + 6 * 3)


def test_transposes_in_place_do_not_block():
    def function(m, x):
        x = m.line(x)
        x.transpose_(0, 1)
        x.t_()
        x.unsqueeze_(0)
        return x.squeeze_(0).swapaxes_(0, 1)

    assert agreed(Calls(function), torch.zeros(2, 8)).macs == 128


def test_a_product_in_place_is_not_taken_for_a_transpose():
    def function(m, x):
        return x.clone().addmm_(x, x)

    assert agreed(Calls(function), torch.zeros(4, 4)).macs == 64


def test_profiler_marks_and_data_parallel_do_not_block():
    def marked(m, x):
        with torch.profiler.record_function("attention"):
            return m.line(x)

    assert agreed(Calls(marked), torch.zeros(2, 8)).macs == 128
    assert agreed(nn.DataParallel(nn.Linear(8, 8)), torch.zeros(2, 8)).macs == 128


@pytest.mark.parametrize(
    ("transform", "points", "operations"),
    [
        (lambda x: torch.fft.fftn(x, dim=(1, 2)), 4 * 8, 5 * 2 * 32 * 5),
        (torch.fft.fftn, 64, 5 * 64 * 6),
        (lambda x: torch.fft.fft2(x, s=(2, 16)), 32, 5 * 2 * 32 * 5),
        (lambda x: torch.fft.ifft(x, n=16), 16, 5 * 8 * 16 * 4),
        (torch.fft.rfft, 8, 2.5 * 8 * 8 * 3),
        (lambda x: torch.fft.rfft(x, n=16), 16, 2.5 * 8 * 16 * 4),
        (lambda x: torch.fft.irfft(x, n=8), 8, 2.5 * 8 * 8 * 3),
        (lambda x: torch.fft.rfftn(x, s=(4, 8)), 32, 2.5 * 2 * 32 * 5),
    ],
)
def test_fourier_transforms_are_stated_apart(transform, points, operations):
    module = Calls(lambda m, x: transform(m.line(x)).abs())
    count = agreed(module, torch.zeros(2, 4, 8))
    assert count.macs == 8 * 64
    assert count.elementwise == {"fft": operations}
    assert math.log2(points).is_integer()


def test_a_fourier_transform_of_a_made_length_takes_no_backward_count_away():
    module = Calls(lambda m, x: torch.fft.rfft(m.line(x)).abs())
    assert agreed(module, torch.zeros(2, 8), backward=True).backward_macs == 2 * 128


@pytest.mark.parametrize("groups", [1, 4, 12])
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_backward_of_a_convolution_is_twice_the_forward(kind, groups, stride):
    rank = int(kind.__name__[4])
    convolution = kind(12, 24, 3, padding=1, stride=stride, groups=groups)
    count = agreed(convolution, torch.zeros(2, 12, *[6] * rank), backward=True)
    assert count.macs == 2 * 24 * 12 // groups * 3**rank * (6 // stride) ** rank
    assert count.backward_macs == 2 * count.macs


@pytest.mark.parametrize("groups", [1, 4, 12])
@pytest.mark.parametrize("kind", [nn.ConvTranspose1d, nn.ConvTranspose2d])
def test_the_backward_of_a_transposed_convolution_is_twice_the_forward(kind, groups):
    rank = int(kind.__name__[13])
    convolution = kind(12, 24, 3, stride=2, groups=groups)
    count = agreed(convolution, torch.zeros(2, 12, *[6] * rank), backward=True)
    assert count.macs == 2 * 12 * 24 // groups * 3**rank * 6**rank
    assert count.backward_macs == 2 * count.macs


def test_a_convolution_with_frozen_weights_counts_one_gradient():
    convolution = nn.Conv2d(12, 12, 3, groups=12).requires_grad_(requires_grad=False)
    count = agreed(convolution, torch.zeros(2, 12, 6, 6), backward=True)
    assert count.backward_macs == count.macs


def test_complex_inputs_have_a_gradient():
    line = nn.Linear(8, 8, dtype=torch.complex64)
    frozen = line.requires_grad_(requires_grad=False)
    assert agreed(
        frozen, torch.zeros(2, 8, dtype=torch.complex64), backward=True
    ).backward_macs == (128)


def test_tied_weights_count_as_often_as_they_run():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    count = agreed(Tied(), torch.zeros(2, 8), backward=True)
    assert (count.macs, count.backward_macs) == (256, 512)


@pytest.mark.parametrize("counters", [("fvcore",), ("torch",)])
def test_containers_are_the_sum_of_their_children(counters):
    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.stages = nn.ModuleList(
                nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)}) for _ in range(2)
            )

        def forward(self, x):
            for stage in self.stages:
                x = stage["b"](stage["a"](x))
            return x

    count = count_module(Stack(), [torch.zeros(2, 8)], counters=counters)
    assert count.by_module[""] == count.by_module["stages"] == count.macs == 512
    assert count.by_module["stages.0"] == count.by_module["stages.1"] == 256
    assert count.by_module["stages.1.b"] == 128


@pytest.mark.parametrize("counters", [("fvcore",), ("torch",)])
def test_the_root_is_the_total_with_what_its_hooks_compute(counters):
    module = nn.utils.spectral_norm(nn.Linear(8, 8)).eval()
    count = count_module(module, [torch.zeros(2, 8)], counters=counters)
    assert count.by_module[""] == count.macs == 128 + 64 + 8


def test_without_fvcore_torch_counts_alone_and_says_so(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "fvcore"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fvcore", None)
    count = count_module(nn.Linear(8, 8), [torch.zeros(2, 8)])
    assert (count.macs, count.fvcore_macs, count.torch_macs) == (128, None, 128)
    (finding,) = count.findings
    assert finding.code == "fvcore_missing"
    assert not finding.blocking
    assert "pip install fvcore" in finding.message


def test_a_contracted_dimension_of_one_is_summed_before_the_product():
    module = Calls(lambda m, a, b: torch.tensordot(a, b, ([1], [0])))
    assert agreed(module, torch.zeros(3, 1), torch.zeros(5, 7)).macs == 3 * 7


@pytest.mark.parametrize(("affine", "each"), [(True, 2), (False, 1)])
def test_a_batch_norm_with_fixed_statistics_counts_its_weight_apart(affine, each):
    norm = nn.BatchNorm1d(8, affine=affine).eval()
    assert agreed(norm, torch.zeros(2, 8, 4)).elementwise == {"batch_norm": each * 64}


def test_attention_whose_tokens_come_before_the_heads_counts_pairs_of_tokens():
    sizes = (2, 3, 4, 8), (2, 5, 4, 8), (2, 5, 4, 16), (2, 3, 4, 16)
    graph = torch._C.Graph()
    values = [graph.addInput() for _ in sizes]
    for value, size in zip(values, sizes, strict=True):
        value.setType(torch._C.TensorType.create_from_tensor(torch.empty(size)))
    counts = HANDLES["aten::_efficient_attention_forward"](values[:3], values[3:])
    assert counts == {"sdpa": 2 * 4 * 3 * 5 * (8 + 16)}


def test_the_values_of_attention_may_be_wider_than_its_queries():
    name = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    macs = 2 * 3 * 5 * (8 + 16)
    assert FORMULAS[name]((1, 2, 3, 8), (1, 2, 5, 8), (1, 2, 5, 16)) == 2 * macs


@pytest.mark.parametrize(("kind", "gates"), [(nn.RNN, 1), (nn.GRU, 3), (nn.LSTM, 4)])
@pytest.mark.parametrize("given", ["as input", "packed inside", "padded again"])
def test_a_packed_sequence_counts_its_real_lengths(kind, gates, given):
    layer, x = kind(8, 6), torch.randn(5, 2, 8)
    macs = (5 + 3) * gates * 6 * (8 + 6)

    def inside(m, x):
        packed = pack_padded_sequence(x, torch.tensor([3, 5]), enforce_sorted=False)
        out = m.layer(packed)[0]
        return pad_packed_sequence(out)[0] if given == "padded again" else out.data

    if given == "as input":
        count = agreed(layer, pack_padded_sequence(x, torch.tensor([5, 3])), backward=True)
        assert count.backward_macs == 2 * macs - 2 * gates * 6 * 6  # none for the first state
    else:
        module = Calls(inside)
        module.layer = layer
        count = agreed(module, x)
    assert count.macs == macs


def test_lengths_that_are_an_input_are_read_and_the_row_says_so():
    module = Calls(lambda m, x, lengths: m.rnn(pack_padded_sequence(x, lengths))[0].data)
    module.rnn = nn.GRU(8, 6)
    count = count_module(module, [torch.randn(5, 2, 8), torch.tensor([5, 3])])
    assert count.fvcore_macs == count.torch_macs == 8 * 3 * 6 * (8 + 6)
    assert [(f.code, f.blocking) for f in count.findings] == [("input_values_read", False)]


def quantized(module, x, *, static=False, dtype=torch.qint8):
    quantization = torch.ao.quantization
    if not static:
        return quantization.quantize_dynamic(module, {nn.Linear}, dtype=dtype)
    wrapped = nn.Sequential(quantization.QuantStub(), module, quantization.DeQuantStub()).eval()
    wrapped.qconfig = quantization.get_default_qconfig("fbgemm")
    prepared = quantization.prepare(wrapped)
    prepared(x)
    return quantization.convert(prepared)


OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
REFUSED = pytest.mark.xfail(OLD, raises=UsageError, reason="refused on torch 2.10", strict=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="int8"),
        pytest.param({"dtype": torch.float16}, id="float16"),
        pytest.param({"static": True}, id="static", marks=REFUSED),
    ],
)
def test_quantized_linears_of_torch_count_as_the_products_that_they_are(options):
    x = torch.randn(2, 3, 8)
    module = quantized(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), x, **options)
    (finding,) = (count := count_module(module, [x])).findings
    assert count.macs == count.torch_macs == 6 * (8 * 16 + 16 * 4)
    assert (finding.code, finding.blocking) == ("fvcore_cannot_trace", False)
    assert "packed weights" in finding.message


@pytest.mark.parametrize("left", [True, False])
def test_a_triangular_system_counts_its_substitutions(left):
    def solve(m, a, b):
        return torch.linalg.solve_triangular(a, b, upper=False, left=left)

    right_side = (8, 5) if left else (5, 8)
    for batches in (((3,), (3,)), ((), (3,)), ((3,), ())):
        sizes = (*batches[0], 8, 8), (*batches[1], *right_side)
        count = agreed(Calls(solve), *map(torch.randn, sizes))
        assert count.macs == 3 * 5 * (8 * 7 // 2)
        assert count.by_operator == {"solve_triangular": count.macs}


@pytest.mark.parametrize(("dtype", "each"), [(torch.float32, 2.5), (torch.complex64, 5)])
def test_a_short_fourier_transform_is_stated_apart(dtype, each):
    def spectrum(m, x):
        return torch.stft(x, 16, window=torch.ones(16, dtype=x.dtype), return_complex=True).abs()

    count = agreed(Calls(spectrum), torch.randn(2, 64, dtype=dtype))
    assert (count.macs, count.elementwise) == (0, {"fft": each * 2 * 17 * 16 * 4})


@pytest.mark.parametrize("reentrant", [True, pytest.param(False, marks=REFUSED)])
def test_what_a_checkpointed_block_computes_again_is_counted_once_and_named(reentrant):
    def forward(m, x):
        return checkpoint(m.block, m.line(x), use_reentrant=reentrant)

    module = Calls(forward)
    module.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
    count = count_module(module, [torch.randn(2, 8)], backward=True)
    assert (count.macs, count.backward_macs) == (3 * 128, 3 * 256 + 2 * 128)
    (finding,) = (f for f in count.findings if f.code == "recomputed")
    assert not finding.blocking
    assert "256 of the forward" in finding.message


def test_inputs_without_a_gradient_take_their_part_of_the_backward_away():
    table = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8))
    ids = torch.zeros(2, dtype=torch.int64)
    assert agreed(table, ids, backward=True).backward_macs == 2 * 128
    table[0].requires_grad_(requires_grad=False)
    assert agreed(table, ids, backward=True).backward_macs == 128


def test_a_module_with_two_names_is_counted_under_the_first_and_the_row_says_so():
    line = nn.Linear(8, 8)
    count = count_module(nn.Sequential(line, nn.ReLU(), line), [torch.zeros(2, 8)])
    assert count.by_module == {"": 256, "0": 256, "1": 0}
    (finding,) = count.findings
    assert (finding.code, finding.blocking) == ("shared_modules", False)
    assert finding.message.endswith("2 under 0")


def test_an_activation_with_two_names_is_nothing_to_speak_of():
    relu = nn.ReLU()
    assert agreed(nn.Sequential(relu, nn.Linear(8, 8), relu), torch.zeros(2, 8)).macs == 128
