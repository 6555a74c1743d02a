"""verify finds what is wrong with an implementation, and says which check found it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from mhaprof import attention
from mhaprof.attention.base import Implementation, Rejection
from mhaprof.spec import AttentionSpec
from mhaprof.verification import CASES, Verdict, verify

SPEC = AttentionSpec(batch=2, tokens=4, dim=8, heads=2)
DECODE = AttentionSpec(batch=2, phase="decode", kv_tokens=4, dim=8, heads=2)
Spoil = Callable[[Tensor, tuple[Tensor, ...]], Tensor]


class Spoilt(nn.Module):
    def __init__(self, inner: nn.Module, spoil: Spoil) -> None:
        super().__init__()
        self.inner, self.spoil = inner, spoil

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.spoil(self.inner(*inputs), inputs)


@dataclass(frozen=True, kw_only=True)
class Fake:
    """eager, with its result spoilt."""

    spoil: Spoil
    name: str = "fake"
    version: int = 1
    fused: bool = False
    backend: str | None = None
    counter_note: str | None = None
    description: str = ""
    rejection: Rejection | None = None

    def rejects(self, spec: AttentionSpec, **_: object) -> Rejection | None:
        return self.rejection

    def holds_scores(self, *, device: str) -> bool:
        return True

    def build(self, spec: AttentionSpec) -> nn.Module:
        return Spoilt(attention.get("eager").build(spec), self.spoil)

    def load(self, module: nn.Module, spec: AttentionSpec, weights: dict[str, Tensor]) -> None:
        attention.get("eager").load(module.inner, spec, weights)  # type: ignore[arg-type]


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Verdict]]:
    real = attention.get

    def run(fake: Fake, spec: AttentionSpec = SPEC) -> dict[str, Verdict]:
        def get(name: str, *, allow_import: bool = False) -> Implementation:
            return fake if name == "fake" else real(name, allow_import=allow_import)  # type: ignore[return-value]

        monkeypatch.setattr(attention, "get", get)
        found = verify(implementations=["fake"], cases={"case": spec})
        return {verdict.check: verdict for verdict in found}

    return run


Judge = Callable[..., dict[str, Verdict]]


def statuses(found: dict[str, Verdict]) -> dict[str, str]:
    return {check: verdict.status for check, verdict in found.items()}


def test_a_right_implementation_passes_every_check(judge: Judge) -> None:
    assert set(statuses(judge(Fake(spoil=lambda y, _: y))).values()) == {"ok"}


def test_a_result_off_by_a_millionth_fails(judge: Judge) -> None:
    found = judge(Fake(spoil=lambda y, _: y * (1 + 1e-6)))
    assert statuses(found) == {
        "worked-example": "failed",
        "order": "ok",
        "forward": "failed",
        "gradients": "failed",
    }
    assert found["forward"].max_error == pytest.approx(1e-6, rel=5)


def test_nan_fails(judge: Judge) -> None:
    found = judge(Fake(spoil=lambda y, _: y * float("nan")))
    assert set(statuses(found).values()) == {"failed"}


def test_a_wrong_gradient_fails_where_the_result_is_right(judge: Judge) -> None:
    found = judge(Fake(spoil=lambda y, _: y + (y - y.detach()) * 1e-6))
    assert statuses(found)["forward"] == "ok"
    assert statuses(found)["gradients"] == "failed"


def test_a_lost_gradient_fails(judge: Judge) -> None:
    found = judge(Fake(spoil=lambda y, inputs: y.detach() + 0 * inputs[0].sum()))
    assert statuses(found)["gradients"] == "failed"


def test_writing_to_an_input_fails(judge: Judge) -> None:
    def spoil(y: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        with torch.no_grad():
            inputs[-1].reshape(-1)[0] += 1
        return y

    for spec in (SPEC, DECODE):
        found = judge(Fake(spoil=spoil), spec)
        assert found["forward"].status == "failed"
        assert found["forward"].message == "changed its inputs"


def test_knowing_positions_fails_the_order_experiment(judge: Judge) -> None:
    found = judge(Fake(spoil=lambda y, _: y + torch.arange(y.shape[1], dtype=y.dtype)[:, None]))
    assert statuses(found)["order"] == "failed"


def test_an_exception_is_a_failure_with_its_first_line(judge: Judge) -> None:
    def spoil(y: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        raise RuntimeError("the kernel broke\nand more")

    found = judge(Fake(spoil=spoil))
    assert found["forward"].message == "RuntimeError: the kernel broke"
    assert set(statuses(found).values()) == {"failed"}


def test_a_rejection_is_a_skip_with_its_code(judge: Judge) -> None:
    fake = Fake(spoil=lambda y, _: y)
    rejected = replace(fake, rejection=Rejection(code="gqa_unsupported", message="fake cannot"))
    found = judge(rejected)
    assert set(statuses(found).values()) == {"skipped"}
    assert found["forward"].message == "gqa_unsupported: fake cannot"


def test_a_disagreement_of_counters_is_a_failure() -> None:
    asked: list[tuple[str, int]] = []

    def counters(name: str, spec: AttentionSpec) -> str | None:
        asked.append((name, spec.kv_heads))
        return None if spec.kv_heads == 2 else "fvcore 1, torch 2"

    cases = {"right": SPEC, "wrong": SPEC.replace(kv_heads=1), "latent": CASES["latent"]}
    found = verify(implementations=["eager-separate"], cases=cases, counters=counters)
    counted = [verdict for verdict in found if verdict.check == "counters"]
    assert [(v.case, v.status) for v in counted] == [
        ("right", "ok"),
        ("wrong", "failed"),
        ("latent", "skipped"),
    ]
    assert counted[1].message == "fvcore 1, torch 2"
    assert asked == [("eager-separate", 2), ("eager-separate", 1)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_narrow_dtypes_pass_within_their_own_tolerance(dtype: str) -> None:
    cases = {name: CASES[name] for name in ("self", "grouped", "causal", "sinks", "latent")}
    found = verify(implementations=["eager", "sdpa"], cases=cases, dtype=dtype)
    assert {verdict.status for verdict in found} <= {"ok", "skipped"}
    assert max(v.max_error for v in found if v.max_error is not None) > 1e-9
