"""Is the result right: an implementation against the float64 eager reference.

A time is only taken of a result that passed.  The whole result must have its shape and
be finite.  The reference must not multiply the memory that the point itself needs, so
it is computed for a part of the problem: as many sequences of the batch as fit a
budget, the first and the last among them, or else the last one alone and as many of its
last queries as fit.  Every query sees the same code; the last one sees all the keys
that a causal mask allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mhaprof.spec import AttentionSpec

if TYPE_CHECKING:
    import torch

UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "tf32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}
"""Half the distance between 1 and the next number (IEEE 754; TF32 keeps 10 bits)."""

ROUNDINGS = 8
"""Roundings on the way to a result: q, k, v, scores, weights, context, output, inputs."""

DEVIATIONS = 12.0
"""Standard deviations of the error that pass.

Of 1e9 independent errors the largest is about 6; kernels that hold more intermediate
results in the narrow type than counted have twice that room.
"""

HALF_SMALLEST_FLOAT16 = 2.0**-25
"""Half the spacing of float16's subnormals, which weights of many keys fall among."""

REFERENCE_SCORE_BYTES = 256 * 2**20
"""Budget of the reference's float64 scores, all their copies together."""

REFERENCE_BATCH_BYTES = 64 * 2**20
"""Budget of all that the reference holds for more than one sequence: it takes time too."""

REFERENCE_SCORE_COPIES = 4
"""Copies of the scores that the eager reference holds at once, at most."""

SMALLEST_ROW = 1e-3
"""Rows whose values lie under this share of the whole result's are judged by that."""

ENOUGH_VALUES = 16
"""Values of N(0, 1) whose RMS is near 1, within a factor of 3 in a million rows."""


def tolerance(spec: AttentionSpec, *, dtype: str, tf32: bool = False) -> float:
    """Return the largest error of a right result, relative to its row's RMS.

    A rounding to ``dtype`` is an independent relative error of standard deviation
    u/sqrt(3), u the unit roundoff; there are 8 on the way, more with norms, gates, a
    softcap or a latent.  A sum of n products in the
    accumulator (float32 for 16-bit types) adds u_acc * sqrt(n) (Higham and Mary 2019,
    the probabilistic bound); the sums run over dim, head_dim, kv_tokens and the
    concatenated heads.  float16 weights near 1/kv_tokens are subnormal and lose bits.
    The sum of variances, as 12 standard deviations.  Holds for inputs from N(0, 1)
    and canonical weights, whose scores have a variance near 1.
    """
    stored = UNIT_ROUNDOFF["tf32" if tf32 and dtype == "float32" else dtype]
    accumulated = max(UNIT_ROUNDOFF["float64"], min(UNIT_ROUNDOFF["float32"], stored))
    if dtype == "float64":
        accumulated = UNIT_ROUNDOFF["float64"]
    variance = _roundings(spec) * stored**2 / 3
    if dtype == "float16":
        variance += (HALF_SMALLEST_FLOAT16 * spec.kv_tokens) ** 2 / 3
    terms = spec.dim + spec.head_dim + spec.kv_tokens + spec.heads * spec.v_head_dim
    variance += accumulated**2 * terms
    # An error of a score is as long as its query: up to 4 times the mean at head_dim 1.
    longest = max(1.0, 16 / min(spec.dim, spec.head_dim))
    return DEVIATIONS * math.sqrt(variance * longest)


def row_values(spec: AttentionSpec) -> int:
    """Return the independent values of a row of the result: W_O adds none."""
    return min(spec.dim, spec.heads * spec.v_head_dim)


def _roundings(spec: AttentionSpec) -> int:
    """Count the roundings on the way to a result of ``spec``."""
    extras = [spec.qk_norm != "none", spec.output_gate != "none", spec.softcap is not None]
    return ROUNDINGS + 2 * sum(extras) + 4 * spec.is_latent


@dataclass(frozen=True, kw_only=True)
class Check:
    """The verdict on a result.

    ``max_error`` is the largest difference divided by the RMS of its row; infinite
    where the result is not finite or has the wrong shape.
    """

    max_error: float
    tolerance: float
    ok: bool
    message: str


def check_whole(
    result: object,
    reference: torch.Tensor,
    *,
    shape: Sequence[int],
    part: Callable[[torch.Tensor], torch.Tensor],
    tolerance: float,
    values: int | None = None,
) -> Check:
    """Check a whole result: its type, its shape, that it is finite, and its ``part``.

    ``reference`` is the float64 result of the part; ``part`` cuts it from the whole.
    """
    import torch

    if not isinstance(result, torch.Tensor):
        return _refused(f"the result is a {type(result).__name__}, expected a tensor", tolerance)
    result = result.detach()
    if tuple(result.shape) != tuple(shape):
        given, wanted = list(result.shape), list(shape)
        return _refused(f"the result has shape {given}, expected {wanted}", tolerance)
    bad = int((~result.isfinite()).sum())
    if bad:
        return _refused(f"{bad} of {result.numel()} values are NaN or infinite", tolerance)
    return check(part(result), reference, tolerance=tolerance, values=values)


def check(
    result: torch.Tensor, reference: torch.Tensor, *, tolerance: float, values: int | None = None
) -> Check:
    """Compare a result with its float64 reference of the same shape, row by row.

    A row is one token's vector (the last dimension), of so many independent ``values``
    (None: of enough).  NaN and infinity never pass, not
    even where the reference has them too.
    """
    if result.shape != reference.shape:
        given, wanted = list(result.shape), list(reference.shape)
        return _refused(f"the result has shape {given}, expected {wanted}", tolerance)
    bad = int((~result.isfinite()).sum())
    if bad:
        return _refused(f"{bad} of {result.numel()} values are NaN or infinite", tolerance)
    if not bool(reference.isfinite().all()):
        return _refused("the float64 reference itself is not finite", tolerance)
    exact = reference.double()
    difference = (result.to(exact.device).double() - exact).abs().amax(dim=-1)
    rows = _widened(exact.square().mean(dim=-1), values or ENOUGH_VALUES)
    scale = rows.clamp(min=SMALLEST_ROW**2 * float(rows.mean())).sqrt()
    # A reference of zeros alone has no scale: only zeros equal it.
    relative = (difference / scale).nan_to_num(nan=0.0, posinf=math.inf)
    max_error = float(relative.max()) if relative.numel() else 0.0
    ok = max_error <= tolerance
    verdict = "within" if ok else "above"
    return Check(
        max_error=max_error,
        tolerance=tolerance,
        ok=ok,
        message=f"largest error {max_error:.3g} of a row's RMS is {verdict} {tolerance:.3g}",
    )


def _widened(squares: torch.Tensor, values: int) -> torch.Tensor:
    """Return the mean square of each row, or of its neighbourhood where that is larger.

    A row of few ``values`` lies near 0 by chance, its error does not: as many neighbours
    count as make 16 values.
    """
    import torch

    reach = ENOUGH_VALUES // (2 * values)
    if reach == 0:
        return squares
    flat = squares.reshape(1, 1, -1)
    near = torch.nn.functional.avg_pool1d(
        flat, 2 * reach + 1, stride=1, padding=reach, count_include_pad=False
    )
    return torch.maximum(flat, near).reshape(squares.shape)


def _refused(message: str, tolerance: float) -> Check:
    return Check(max_error=math.inf, tolerance=tolerance, ok=False, message=message)


@dataclass(frozen=True, kw_only=True)
class CheckedPart:
    """The part of a problem that the reference computes.

    ``spec`` is that part as a problem of its own: some sequences, or the last one with
    ``spec.tokens`` queries against ``spec.kv_tokens`` keys.
    """

    whole: AttentionSpec
    spec: AttentionSpec

    @property
    def sequences(self) -> list[int]:
        """Return which sequences of the batch: the last, or spread from first to last."""
        last, count = self.whole.batch - 1, self.spec.batch
        return [last] if count == 1 else [last * place // (count - 1) for place in range(count)]

    def inputs(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the part's inputs, cut from those of the whole (as in attention/base).

        Copies: a decode step writes into its cache.
        """
        cut = [tensor[self.sequences] for tensor in inputs]
        if self.spec.tokens < self.whole.tokens:
            context = cut[1:] if len(cut) > 1 else cut[:1]
            dimension = -2
            context = [keys.narrow(dimension, 0, self.spec.kv_tokens) for keys in context]
            cut = [cut[0][:, -self.spec.tokens :], *context]
        return tuple(tensor.clone() for tensor in cut)

    def output(self, result: torch.Tensor) -> torch.Tensor:
        """Return the part's rows of a whole result (batch x tokens x width)."""
        return result[self.sequences, -self.spec.tokens :]


def checked_part(spec: AttentionSpec, *, score_bytes: int = REFERENCE_SCORE_BYTES) -> CheckedPart:
    """Return the part of ``spec`` whose float64 reference fits the budget.

    As many whole sequences as fit, else of the last sequence the last queries, which as
    a problem of their own are causal bottom-right.  All queries stay where the part
    cannot be written as a spec: a window without causal mask, or top-left with more
    queries than keys.
    """
    alone = spec.replace(batch=1)
    per_row = REFERENCE_SCORE_COPIES * 8 * spec.heads * spec.kv_tokens
    rows = max(1, score_bytes // per_row)
    if rows >= spec.tokens:
        fitting = min(score_bytes, REFERENCE_BATCH_BYTES) // _sequence_bytes(spec)
        return CheckedPart(whole=spec, spec=spec.replace(batch=max(1, min(spec.batch, fitting))))
    kv_tokens = spec.tokens if spec.causal == "top-left" else spec.kv_tokens
    # With as many queries as keys it would be self-attention, on the wrong tokens.
    if rows == kv_tokens:
        rows -= 1
    symmetric = spec.causal == "none" and spec.window is not None
    if rows < 1 or symmetric or kv_tokens > spec.kv_tokens:
        return CheckedPart(whole=spec, spec=alone)
    causal = "none" if spec.causal == "none" else "bottom-right"
    part = alone.replace(tokens=rows, kv_tokens=kv_tokens, causal=causal)
    return CheckedPart(whole=spec, spec=part)


def _sequence_bytes(spec: AttentionSpec) -> int:
    """Return a bound of what the reference holds for each sequence: scores and the rest."""
    width = spec.dim + spec.heads * (spec.head_dim + spec.v_head_dim)
    scores = REFERENCE_SCORE_COPIES * spec.heads * spec.tokens * spec.kv_tokens
    return 8 * (scores + 4 * (spec.tokens + spec.kv_tokens) * width)
