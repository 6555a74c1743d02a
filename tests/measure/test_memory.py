"""Memory: predictions that hold, limits that bind, refusals before anything runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mhaprof import attention
from mhaprof.measure.memory import available_bytes, predict, refusal
from mhaprof.point.timing import predict_memory
from mhaprof.records import Memory, Point, Settings
from mhaprof.spec import AttentionSpec

GIB = 2**30


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 33554432 kB\nMemAvailable:   16777216 kB\n"}
V2 = "sys/fs/cgroup/job"
V1 = "sys/fs/cgroup/memory/job"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 16 * GIB),
        (
            {
                "proc/self/cgroup": "0::/job\n",
                f"{V2}/memory.max": str(4 * GIB),
                f"{V2}/memory.current": str(3 * GIB),
                f"{V2}/memory.stat": f"anon 1\ninactive_file {GIB}\n",
            },
            2 * GIB,
        ),
        (
            {
                "proc/self/cgroup": "0::/job\n",
                f"{V2}/memory.max": "max",
                f"{V2}/memory.current": str(3 * GIB),
            },
            16 * GIB,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/job\n0::/\n",
                f"{V1}/memory.limit_in_bytes": str(8 * GIB),
                f"{V1}/memory.usage_in_bytes": str(3 * GIB),
                f"{V1}/memory.stat": "inactive_file 5\ntotal_inactive_file 0\n",
            },
            5 * GIB,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/job\n",
                f"{V1}/memory.limit_in_bytes": "9223372036854771712",
                f"{V1}/memory.usage_in_bytes": str(3 * GIB),
            },
            16 * GIB,
        ),
    ],
)
def test_available_is_the_least_of_the_system_and_the_cgroups(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    root = written(tmp_path, {**MEMINFO, **files})
    assert available_bytes("cpu", root=root) == expected


SPEC = AttentionSpec(batch=4, tokens=512, dim=256, heads=8)
SCORES = 4 * 8 * 512 * 512 * 4


def scores(spec: AttentionSpec, **options: object) -> float:
    demand = predict(spec, fused=False, dtype_bytes=4, **options)  # type: ignore[arg-type]
    return demand.scores / (spec.batch * spec.heads * spec.tokens * spec.kv_tokens * 4)


def test_eager_holds_scores_and_weights_and_fused_none() -> None:
    assert predict(SPEC, fused=False, dtype_bytes=4).scores == 2 * SCORES
    assert predict(SPEC, fused=True, dtype_bytes=4).scores == 0


def test_masks_softcaps_sinks_and_gradients_hold_the_scores_once_more() -> None:
    mask_share = 1 / (4 * 4 * 8)
    assert scores(SPEC.replace(causal="top-left")) == 3 + mask_share
    assert scores(SPEC.replace(softcap=5.0)) == 3
    assert scores(SPEC.replace(sinks=True)) == 3
    assert scores(SPEC, mode="forward-backward") == 3


def test_gradients_double_what_is_resident() -> None:
    forward = predict(SPEC, fused=True, dtype_bytes=4)
    backward = predict(SPEC, fused=True, dtype_bytes=4, mode="backward")
    assert backward.resident == 2 * forward.resident


def test_parameters_and_inputs_are_counted_to_the_byte() -> None:
    demand = predict(SPEC, fused=True, dtype_bytes=2)
    assert demand.resident == 2 * (4 * 256 * 256 + 4 * 512 * 256)
    decode = AttentionSpec(batch=2, phase="decode", kv_tokens=100, dim=64, heads=4, kv_heads=2)
    cache = 2 * 2 * 100 * 2 * 16
    weights = 64 * 64 * 2 + 2 * 64 * 32
    assert predict(decode, fused=True, dtype_bytes=1).resident == weights + 2 * 64 + cache


def test_the_peak_is_the_call_or_the_reference_never_both() -> None:
    tiny = AttentionSpec(batch=1, tokens=64, dim=64, heads=1)
    demand = predict(tiny, fused=True, dtype_bytes=2)
    assert demand.reference > demand.activations
    assert demand.peak_bytes == demand.resident + demand.reference
    unchecked = predict(tiny, fused=True, dtype_bytes=2, check_reference=False).peak_bytes
    assert unchecked == demand.resident + demand.activations


def test_a_row_predicts_its_call_without_the_check_so_that_eager_and_fused_differ() -> None:
    spec = AttentionSpec(batch=1, tokens=256, dim=512, heads=8)
    settings = Settings(device="cpu", dtype="float32")
    found = {}
    for name in ("eager", "sdpa"):
        point = Point(name="small", spec=spec, implementation=name, settings=settings)
        memory = predict_memory(point, attention.get(name))
        assert isinstance(memory, Memory)
        found[name] = memory.predicted_peak_bytes
    one = 256 * 512 * 4  # x, q twice, k, v, the heads twice, the result; W four times
    weights = 4 * 512 * 512 * 4
    assert found == {"sdpa": weights + 8 * one, "eager": weights + 8 * one + 2 * 8 * 256 * 256 * 4}


def test_what_cannot_be_checked_is_refused_by_the_size_of_the_reference() -> None:
    tiny = AttentionSpec(batch=1, tokens=64, dim=64, heads=1)
    demand = predict(tiny, fused=True, dtype_bytes=2)
    row = refusal(demand, device="cpu", available=demand.call_bytes)
    assert row is not None
    assert "the float64 reference of the check" in row.message


def test_the_reference_of_a_huge_problem_does_not_multiply_its_peak() -> None:
    huge = AttentionSpec(batch=32, tokens=131072)
    fused = predict(huge, fused=True, dtype_bytes=4)
    assert fused.reference < fused.activations


def test_a_huge_prediction_is_an_exact_integer() -> None:
    huge = AttentionSpec(batch=32, tokens=2**20)
    assert predict(huge, fused=False, dtype_bytes=4).scores == 2 * 32 * 8 * 2**40 * 4


def test_what_does_not_fit_is_refused_with_its_parts_and_what_to_do() -> None:
    demand = predict(AttentionSpec(tokens=131072), fused=False, dtype_bytes=4)
    row = refusal(demand, device="cpu", available=16 * GIB)
    assert row is not None
    assert row.code == "predicted_oom"
    assert "scores 32 TiB" in row.message
    assert "16 GiB are available" in row.message
    assert refusal(demand, device="cpu", available=2**60) is None
    assert refusal(demand, device="cpu", available=None) is None


def test_predicting_imports_no_torch() -> None:
    code = (
        "import sys\nfrom mhaprof.spec import AttentionSpec\nfrom mhaprof.measure import memory\n"
        "memory.predict(AttentionSpec(), fused=False, dtype_bytes=4)\n"
        "memory.available_bytes('cpu')\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
