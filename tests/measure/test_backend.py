"""The backend that ran, read from the dispatched operators."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

from mhaprof.measure.backend import (
    backend_of,
    math_finding,
    pinned,
    refusal_of,
    resolved_backend,
)

Q = torch.randn(1, 4, 16, 8, generator=torch.Generator().manual_seed(1))


def test_a_fused_cpu_kernel_is_flash() -> None:
    assert resolved_backend(lambda: sdpa(Q, Q, Q)) == "flash"


def test_pinned_math_is_seen_although_it_decomposes() -> None:
    with sdpa_kernel(SDPBackend.MATH):
        assert resolved_backend(lambda: sdpa(Q, Q, Q)) == "math"


def test_a_silent_fall_back_to_math_is_seen_and_warned_about() -> None:
    mask = torch.zeros(16, 16, requires_grad=True)
    resolved = resolved_backend(lambda: sdpa(Q, Q, Q, attn_mask=mask))
    assert resolved == "math"
    finding = math_finding(resolved)
    assert finding is not None
    assert finding.code == "auto_became_math"
    assert not finding.blocking
    assert math_finding("flash") is None


def test_plain_operators_have_no_backend() -> None:
    assert resolved_backend(lambda: (Q @ Q.transpose(-1, -2)).softmax(-1) @ Q) is None


def test_the_fast_path_of_multi_head_attention_is_named() -> None:
    module = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(1, 4, 16)
    with torch.no_grad():
        assert resolved_backend(lambda: module(x, x, x, need_weights=False)) == "native-mha"


@pytest.mark.parametrize(
    ("operators", "backend"),
    [
        ({"_scaled_dot_product_flash_attention"}, "flash"),
        ({"_scaled_dot_product_efficient_attention", "mm"}, "efficient"),
        ({"_scaled_dot_product_cudnn_attention"}, "cudnn"),
        ({"flex_attention"}, "flex"),
        ({"_efficient_attention_forward", "transpose"}, "efficient"),
        ({"_flash_attention_forward"}, "flash"),
        ({"_native_multi_head_attention", "_flash_attention_forward"}, "native-mha"),
        ({"_scaled_dot_product_attention_math", "_safe_softmax"}, "math"),
        ({"mm", "_softmax"}, None),
    ],
)
def test_backends_by_their_operators(operators: set[str], backend: str | None) -> None:
    assert backend_of(operators) == backend


def test_flex_attention_of_a_users_module_is_seen() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention, backend="eager", dynamic=False, fullgraph=True)
    with torch.no_grad():
        compiled(Q, Q, Q)
        assert resolved_backend(lambda: compiled(Q, Q, Q)) == "flex"
    torch._dynamo.reset()


def test_a_backend_is_pinned_by_its_name_alone() -> None:
    with pinned("math"):
        assert resolved_backend(lambda: sdpa(Q, Q, Q)) == "math"
    for name in ("auto", "flex", None):
        with pinned(name):
            assert resolved_backend(lambda: sdpa(Q, Q, Q)) == "flash"


def test_a_compiled_module_is_seen_without_leaving_its_graph(
    capfd: pytest.CaptureFixture[str],
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda q: sdpa(q, q, q) + 1, backend="aot_eager", dynamic=False)
    with torch.no_grad():
        compiled(Q)
        before = dict(torch._dynamo.utils.counters["stats"])
        assert resolved_backend(lambda: compiled(Q), compiled=True) == "flash"
        assert dict(torch._dynamo.utils.counters["stats"]) == before
    assert capfd.readouterr() == ("", "")
    torch._dynamo.reset()


def test_torchs_reasons_are_returned_when_no_kernel_takes_the_problem() -> None:
    def call() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return sdpa(Q, Q, Q)

    result, reason = refusal_of(call)
    assert result is None
    assert reason


def test_warnings_become_the_reason_once_each() -> None:
    def call() -> None:
        for _ in range(2):
            warnings.warn("head_dim 300 is too wide. (Triggered internally at x.cpp)", stacklevel=1)
        raise RuntimeError("No available kernel. Aborting execution.")

    assert refusal_of(call) == (None, "head_dim 300 is too wide.")


def test_another_error_is_not_taken_for_a_refusal() -> None:
    def call() -> None:
        raise RuntimeError("illegal memory access")

    with pytest.raises(RuntimeError, match="illegal"):
        refusal_of(call)
