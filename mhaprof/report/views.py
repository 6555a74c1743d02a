"""The views of rows that commands show: counts, stages, the claim, times."""

from __future__ import annotations

from collections.abc import Sequence

from mhaprof import formulas
from mhaprof.report.tabular import Row
from mhaprof.report.view import Column, View, count, interval, number, ratio, status, text
from mhaprof.units import format_bytes, format_ratio, format_seconds

FVCORE_TITLE = "FLOPs (fvcore, 1 MAC = 1)"
FLOPS_TITLE = "FLOPs (1 MAC = 2)"


def _shape_columns(rows: Sequence[Row]) -> list[Column]:
    """Show what tells the rows apart, and the sizes that everyone asks for."""
    if rows and all(row.get("batch") is None for row in rows):
        return []  # modules of the user alone
    always = ["batch", "tokens", "dim", "heads", "kv_heads", "head_dim"]
    columns = [count(name, name) for name in always]
    if any(row.get("kv_tokens") != row.get("tokens") for row in rows):
        columns.insert(2, count("kv_tokens", "kv_tokens"))
    if any(row.get("v_head_dim") != row.get("head_dim") for row in rows):
        columns.append(count("v_head_dim", "v_head_dim"))
    columns.append(text("out_proj", "out_proj"))
    varying = ("causal", "phase", "qk_norm", "output_gate", "latent_form")
    unset = {"causal": "none", "phase": "prefill"}
    for name in varying:
        plain = unset.get(name, "none")
        if any(row.get(name) not in (None, plain) for row in rows):
            columns.append(text(name, name))
    columns += [
        text(name, name)
        for name in ("window", "sinks", "softcap")
        if any(row.get(name) not in (None, False) for row in rows)
    ]
    return columns


def counts_view(rows: Sequence[Row], *, title: str, notes: Sequence[str] = ()) -> View:
    """Show exact counts, one row a point."""
    columns = [text("name", "name"), text("implementation", "implementation")]
    columns += _shape_columns(rows)
    columns += [count(FVCORE_TITLE, "macs"), count(FLOPS_TITLE, "flops")]
    if any(row.get("macs_exact") not in (None, row.get("macs")) for row in rows):
        columns += [
            count("macs_exact (masked pairs left out)", "macs_exact"),
            count("pairs_exact (one head)", "pairs_exact"),
        ]
    if any(row.get("flops_backward") is not None for row in rows):
        columns += [
            count("FLOPs backward (1 MAC = 2)", "flops_backward"),
            count("FLOPs forward + backward (1 MAC = 2)", "flops_forward_backward"),
        ]
    if any(row.get("ratio_to_reference") is not None for row in rows):
        columns.append(ratio("ratio", "ratio_to_reference"))
    columns += [count("parameters", "params"), count("softmax operations", "softmax_ops")]
    if any(row.get("phase") == "decode" for row in rows):
        columns += [
            number("KV cache per token", "kv_bytes_per_token", format_bytes),
            number("KV cache", "kv_cache_bytes", format_bytes),
            number("FLOPs per byte", "arithmetic_intensity", format_ratio),
        ]
    columns.append(status())
    return View(title=title, columns=columns, rows=rows, notes=notes)


def breakdown_view(rows: Sequence[Row], *, title: str) -> View:
    """Show the MACs of each stage and their sum, one row a point."""
    stages = [*formulas.STAGES, *formulas.EXTRA_STAGES]
    shown = [
        stage
        for stage in stages
        if stage in formulas.STAGES or any(row.get(f"macs_{stage}") is not None for row in rows)
    ]
    columns = [text("name", "name"), text("implementation", "implementation")]
    columns += [count(stage, f"macs_{stage}") for stage in shown]
    columns += [count("MACs", "macs"), status()]
    return View(title=title, columns=columns, rows=rows)


def findings_notes(rows: Sequence[Row]) -> list[str]:
    """Word what the rows' reasons say, once each, below the table."""
    notes = [
        f"{row['name']}, {row['implementation']}: {row['message']}"
        for row in rows
        if row.get("message")
    ]
    return list(dict.fromkeys(notes))


def claim_view(rows: Sequence[Row], *, title: str, notes: Sequence[str]) -> View:
    """Show the counts of the cases of the paper's claim."""
    columns = [
        text("case", "name"),
        count("heads", "heads"),
        text("W_O", "out_proj"),
        count(FVCORE_TITLE, "fvcore_flops"),
        count(FLOPS_TITLE, "flops"),
        ratio("ratio to one full head", "ratio_to_reference"),
        count("parameters", "params"),
        count("softmax operations", "softmax_ops"),
    ]
    if any(row.get("status") != "ok" for row in rows):
        columns.append(status())
    return View(title=title, columns=columns, rows=rows, notes=notes)


def claim_times_view(rows: Sequence[Row], *, title: str, notes: Sequence[str]) -> View:
    """Show the times of the claim's cases, with the counts of the shape that was timed."""
    columns = [
        text("case", "name"),
        text("implementation", "implementation"),
        count("batch", "batch"),
        count(FVCORE_TITLE, "macs"),
        number("median", "latency_median_s", format_seconds),
        interval("95 % interval", "latency_ci_low_s"),
        ratio("ratio to one full head", "latency_ratio"),
        status(),
    ]
    return View(title=title, columns=columns, rows=rows, notes=notes)
