"""The Python API is the code of the command line, as functions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mhaprof
from mhaprof import AttentionSpec, count_flops, measure_latency
from mhaprof.errors import MhaprofError, Unavailable, UsageError
from mhaprof.point import MeasureOptions

QUICK = MeasureOptions(samples=3, min_time_s=0.001, max_time_s=1.0)
SMALL = {"batch": 1, "tokens": 16, "dim": 32, "heads": 4}


def test_a_spec_is_counted_by_all_counters() -> None:
    counts = count_flops(AttentionSpec())
    assert counts.macs == counts.fvcore_flops == counts.torch_macs == 68719476736
    assert counts.flops == 137438953472
    assert sum(counts.by_stage.values()) == counts.macs
    assert counts.uncounted_ops == {}


def test_a_module_is_counted_by_operator_and_submodule_and_left_alone() -> None:
    layer = nn.MultiheadAttention(64, 4, batch_first=True)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    x = torch.randn(2, 128, 64)
    counted = count_flops(layer, [x, x, x])
    assert counted.macs == 4 * 2 * 128 * 64**2 + 2 * 2 * 128**2 * 64
    assert counted.flops == 2 * counted.macs
    assert sum(counted.by_operator.values()) == counted.by_module[""] == counted.macs
    assert counted.params == 4 * 64 * 64 + 4 * 64
    assert layer.training
    assert all(torch.equal(layer.state_dict()[name], value) for name, value in before.items())


def test_a_single_tensor_may_be_given_bare() -> None:
    assert count_flops(nn.Linear(3, 8, bias=False), torch.empty(5, 10, 3)).macs == 1200


def test_latency_of_a_spec_comes_with_its_samples_and_its_check() -> None:
    timed = measure_latency(AttentionSpec(**SMALL), device="cpu", threads=1, options=QUICK)
    assert timed.cache == "hot"  # as mhaprof latency times on a CPU
    assert len(timed.samples_s) == 3
    assert timed.summary.median == sorted(timed.samples_s)[1]
    assert timed.max_error <= timed.tolerance
    assert (timed.device, timed.dtype, timed.resolved_backend) == ("cpu", "float32", "flash")


def test_what_an_implementation_cannot_express_is_raised_with_its_code() -> None:
    with pytest.raises(Unavailable) as caught:
        count_flops(AttentionSpec(softcap=30.0), implementation="sdpa")
    assert caught.value.code == "softcap_unsupported"


def test_an_unknown_implementation_or_subject_is_a_usage_error() -> None:
    with pytest.raises(MhaprofError, match="did you mean eager"):
        count_flops(AttentionSpec(), implementation="eagr")
    with pytest.raises(UsageError, match=r"takes an AttentionSpec or an nn\.Module, not dict"):
        count_flops({"dim": 3}, [])  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="makes its own inputs"):
        count_flops(AttentionSpec(), [torch.empty(1)])  # type: ignore[call-overload]


def test_a_wrong_result_is_raised_and_never_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    from mhaprof.measure import numerics

    monkeypatch.setattr(numerics, "tolerance", lambda *_, **__: 1e-30)
    with pytest.raises(MhaprofError, match="wrong_result"):
        measure_latency(AttentionSpec(**SMALL), device="cpu", options=QUICK)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        mhaprof.nothing  # noqa: B018


def test_counters_that_there_are_not_are_refused_and_never_left_out_silently() -> None:
    with pytest.raises(UsageError, match="counter 'fvcor' is not one of fvcore, torch"):
        count_flops(AttentionSpec(**SMALL), counters=["fvcor"])
    with pytest.raises(UsageError, match="counters are empty"):
        count_flops(AttentionSpec(**SMALL), counters=[])
    with pytest.raises(UsageError, match="a module has no closed form"):
        count_flops(nn.Linear(2, 2), torch.empty(1, 2), counters=["closed-form"])
    counts = count_flops(AttentionSpec(**SMALL), counters="torch")
    assert (counts.fvcore_flops, counts.torch_macs) == (None, counts.macs)


def test_arguments_that_do_not_fit_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="cache_dtype 'int3' is not one of float64"):
        count_flops(AttentionSpec(**SMALL), cache_dtype="int3")
    with pytest.raises(UsageError, match="are of a spec"):
        count_flops(nn.Linear(2, 2), torch.empty(1, 2), implementation="sdpa")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="settings that do not fit: colour"):
        measure_latency(AttentionSpec(**SMALL), device="cpu", colour="red")
    with pytest.raises(UsageError, match="settings that do not fit: dtype"):
        measure_latency(AttentionSpec(**SMALL), device="cpu", dtype="float8")  # type: ignore[arg-type]
