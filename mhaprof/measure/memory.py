"""Memory of one call: predicted before it runs, and what there is.

A CPU does not refuse memory that it lacks: it overcommits, and the kernel kills the
process that touches it.  So the peak is predicted, from closed forms, and compared
with what is really available.  No torch is needed to predict.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mhaprof import formulas
from mhaprof.measure.devices import ROOT, cgroup_folders
from mhaprof.measure.numerics import CheckedPart, checked_part
from mhaprof.records import Mode, Skipped
from mhaprof.spec import AttentionSpec
from mhaprof.units import format_bytes

NO_LIMIT = 2**60
"""cgroup v1 writes a number near 2**63 for no limit."""

REFERENCE_DTYPE_BYTES = 8
"""Bytes of one element of the float64 reference."""


@dataclass(frozen=True, kw_only=True)
class Demand:
    """Bytes that a point needs, by what they hold.

    ``resident`` lives all the time (parameters, inputs, gradients); ``activations`` and
    ``scores`` at the call's peak; ``reference`` while the float64 reference of the
    checked part is computed, before the call.
    """

    resident: int
    activations: int
    scores: int
    reference: int

    @property
    def call_bytes(self) -> int:
        """Return the peak of a call alone, as ``peak.measured_peak`` takes it."""
        return self.resident + self.activations + self.scores

    @property
    def peak_bytes(self) -> int:
        """Return the largest sum that exists at once, the check before the call included."""
        return max(self.call_bytes, self.resident + self.reference)


def predict(
    spec: AttentionSpec,
    *,
    fused: bool,
    dtype_bytes: int,
    mode: Mode = "forward",
    check_reference: bool = True,
) -> Demand:
    """Predict what one call of ``mode`` needs, in bytes; exact ints at any size.

    ``fused`` says that no score matrix is held (``Implementation.holds_scores`` on the
    device, negated).  Otherwise the scores exist twice at the softmax (scores and
    weights), once more behind a mask or a softcap and once more with sinks; with
    gradients three times at least (weights, their gradient, the scores' gradient).
    ``check_reference`` counts the float64 reference of ``numerics.checked_part``.
    """
    backward = mode != "forward"
    counted = formulas.params(spec)
    learned = counted.projections + counted.norms + counted.sinks
    inputs = _input_elements(spec)
    resident = (learned + inputs) * (2 if backward else 1) * dtype_bytes
    activations = _activation_elements(spec) * (2 if backward else 1) * dtype_bytes
    scores = 0 if fused else _score_bytes(spec, dtype_bytes=dtype_bytes, backward=backward)
    reference = 0
    if check_reference:
        reference = _reference_bytes(checked_part(spec), learned)
    return Demand(resident=resident, activations=activations, scores=scores, reference=reference)


def _input_elements(spec: AttentionSpec) -> int:
    """Count the elements of all inputs, as attention/base lists them."""
    elements = spec.batch * spec.tokens * spec.dim
    if spec.phase == "decode":
        return elements + formulas.kv_cache_bytes(spec, dtype_bytes=1, windowed=False)
    if not spec.kv_proj:
        width = spec.kv_heads * (spec.head_dim + spec.v_head_dim)
        return elements + spec.batch * spec.kv_tokens * width
    return elements + (spec.batch * spec.kv_tokens * spec.dim if spec.is_cross else 0)


def _activation_elements(spec: AttentionSpec) -> int:
    """Count what a call makes besides scores: q twice (scaled), k, v, heads, result."""
    queries = spec.batch * spec.tokens
    heads = spec.heads * spec.v_head_dim
    elements = queries * (2 * spec.heads * spec.head_dim + 2 * heads)
    if spec.out_proj:
        elements += queries * spec.dim
    if spec.is_latent:
        rank, rope = spec.kv_lora_rank or 0, spec.qk_rope_head_dim or 0
        elements += spec.batch * spec.new_kv_tokens * (rank + rope)
        if spec.latent_form == "expanded":
            keys = spec.heads * (spec.head_dim + (spec.qk_nope_head_dim or 0) + spec.v_head_dim)
            elements += spec.batch * spec.kv_tokens * keys
        else:
            elements += queries * spec.heads * 2 * (rank + rope)
    else:
        per_token = spec.kv_heads * (spec.head_dim + spec.v_head_dim)
        elements += spec.batch * spec.new_kv_tokens * per_token
    return elements


def _score_bytes(spec: AttentionSpec, *, dtype_bytes: int, backward: bool) -> int:
    """Return the bytes of all score-shaped tensors alive at the peak, mask included."""
    masked = spec.is_masked and formulas.exact_pairs(spec) != formulas.dense_pairs(spec)
    copies = 2 + int(masked or spec.softcap is not None) + int(spec.sinks)
    if backward:
        copies = max(copies, 3)
    pairs = formulas.dense_pairs(spec)
    mask = pairs if masked else 0
    return copies * spec.batch * spec.heads * pairs * dtype_bytes + mask


def _reference_bytes(part: CheckedPart, learned: int) -> int:
    """Return what the float64 eager reference of a part needs at its peak."""
    spec = part.spec
    elements = learned + _input_elements(spec) + _activation_elements(spec)
    scores = _score_bytes(spec, dtype_bytes=REFERENCE_DTYPE_BYTES, backward=False)
    return elements * REFERENCE_DTYPE_BYTES + scores


def available_bytes(device: str, *, root: Path = ROOT) -> int | None:
    """Return the bytes that a new allocation could really get on ``device``.

    A CPU: the least of MemAvailable and, for each memory cgroup (v1, v2) that this
    process is in, its limit minus its use (files that can be dropped not counted as
    used).  A CUDA or XPU device: free memory plus what torch has cached.  None where
    the system does not say.
    """
    if device.startswith("cuda"):
        import torch

        free, _ = torch.cuda.mem_get_info(torch.device(device))
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + cached)
    if device == "xpu":
        import torch

        free, _ = torch.xpu.mem_get_info()
        return int(free)
    if device == "mps":
        import torch

        used = torch.mps.driver_allocated_memory()
        return int(torch.mps.recommended_max_memory() - used)
    rooms = [_memory_available(root), *_cgroup_rooms(root)]
    known = [room for room in rooms if room is not None]
    return max(0, min(known)) if known else None


def _memory_available(root: Path) -> int | None:
    """Return MemAvailable of /proc/meminfo, or what psutil says elsewhere."""
    try:
        text = (root / "proc/meminfo").read_text()
    except OSError:
        import psutil

        return int(psutil.virtual_memory().available)
    match = re.search(r"^MemAvailable:\s*(\d+) kB", text, re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None


def _cgroup_rooms(root: Path) -> list[int]:
    """Return limit minus use of every memory cgroup above this process."""
    rooms = []
    files = {
        "": ("memory.max", "memory.current", "inactive_file"),
        "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    }
    for controller, (limit_file, usage_file, droppable) in files.items():
        for folder in cgroup_folders(root, controller=controller):
            limit = _number(folder / limit_file)
            usage = _number(folder / usage_file)
            if limit is None or usage is None or limit >= NO_LIMIT:
                continue
            rooms.append(limit - max(0, usage - _statistic(folder / "memory.stat", droppable)))
    return rooms


def _number(file: Path) -> int | None:
    """Return the number in a file; None when there is no file or it says ``max``."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _statistic(file: Path, name: str) -> int:
    try:
        match = re.search(rf"^{name} (\d+)$", file.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match.group(1)) if match else 0


def refusal(demand: Demand, *, device: str, available: int | None) -> Skipped | None:
    """Return the row of a point that does not fit, or None when it does.

    The code is ``predicted_oom``.  Nothing is refused where ``available`` is unknown.
    """
    needed = demand.peak_bytes
    if available is None or needed <= available:
        return None
    parts = (
        f"scores {format_bytes(demand.scores)}, "
        f"activations {format_bytes(demand.activations)}, "
        f"weights and inputs {format_bytes(demand.resident)}"
    )
    if demand.call_bytes < needed:
        parts = (
            f"the float64 reference of the check {format_bytes(demand.reference)}, "
            f"weights and inputs {format_bytes(demand.resident)}"
        )
    return Skipped(
        code="predicted_oom",
        message=f"needs {format_bytes(needed)} ({parts}) on {device}, where "
        f"{format_bytes(available)} are available; give fewer --tokens or --batch, or an "
        "implementation that holds no scores",
    )
