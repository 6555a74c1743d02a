"""Synthetic runs: rows as the command line writes them, with noise that is known."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

Row = dict[str, Any]
MakeRows = Callable[..., list[Row]]
WriteRun = Callable[..., Path]


def count_row(number: int) -> Row:
    """Return a row of exact counts."""
    return {
        "name": f"p{number:02}",
        "role": "point",
        "implementation": "sdpa",
        "status": "ok",
        "reason": None,
        "message": None,
        "batch": 1,
        "tokens": 128,
        "kv_tokens": 128,
        "dim": 64 * (number + 1),
        "heads": 8,
        "macs": 4000 + number,
        "macs_exact": 4000 + number,
        "pairs_exact": 128,
        "params": 64,
        "norm_params": 0,
        "sink_params": 0,
        "softmax_ops": 12,
        "macs_q_proj": 1000,
        "macs_k_proj": 1000,
        "macs_v_proj": 500,
        "macs_scores": 500 + number,
        "macs_context": 500,
        "macs_out_proj": 500,
        "kv_cache_bytes": 256,
    }


@pytest.fixture
def make_rows() -> MakeRows:
    """Make timed rows: ``rounds`` fresh processes, or one process of 25 samples (None)."""

    def make(
        *,
        seed: int,
        points: int = 10,
        rounds: int | None = 5,
        noise: float = 0.01,
        slower: dict[int, float] | None = None,
        **settings: Any,
    ) -> list[Row]:
        chance = random.Random(seed)
        rows = []
        for number in range(points):
            factor = (slower or {}).get(number, 1.0)
            time = 1e-3 * (1 + number / 10) * factor
            samples = [time * chance.gauss(1, noise) for _ in range(rounds or 25)]
            ordered = sorted(samples)
            edge = 7 if rounds is None else 0
            rows.append(
                count_row(number)
                | {
                    "device": "cuda",
                    "device_name": "NVIDIA H200",
                    "dtype": "float16",
                    "threads": None,
                    "timer": "cuda-events",
                    "cache": "cold",
                    "mode": "forward",
                    "compiled": False,
                    "tf32": False,
                    "resolved_backend": "flash",
                    "torch": "2.13.0",
                    "driver": "570.1",
                    "latency_median_s": statistics.median(samples),
                    "latency_ci_low_s": ordered[edge],
                    "latency_ci_high_s": ordered[-1 - edge],
                    "replicate_medians_s": samples if rounds else None,
                    "flags": None,
                }
                | settings
            )
        return rows

    return make


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Write rows as ``--format json`` does."""

    def write(name: str, rows: Sequence[Row], **extra: Any) -> Path:
        path = tmp_path / name
        path.write_text(json.dumps({"schema_version": 1, **extra, "rows": list(rows)}))
        return path

    return write
