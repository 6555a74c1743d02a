"""The views of rows that commands show: counts, stages, the claim."""

from __future__ import annotations

from collections.abc import Sequence

from mhaprof import formulas
from mhaprof.report.tabular import Row
from mhaprof.report.view import (
    LESS,
    SHOWN,
    WIDE,
    Column,
    View,
    amount,
    count,
    number,
    ratio,
    size,
    status,
    text,
)
from mhaprof.units import format_ratio

FVCORE_TITLE = "FLOPs (fvcore, 1 MAC = 1)"
FLOPS_TITLE = "FLOPs (1 MAC = 2)"

_SIZES = ("batch", "tokens", "kv_tokens", "dim", "heads", "kv_heads", "head_dim", "v_head_dim")
_UNSET = {
    "out_proj": True, "causal": "none", "phase": "prefill", "qk_norm": "none",
    "output_gate": "none", "latent_form": "none", "window": None, "chunk": None,
    "sinks": False, "softcap": None,
}  # fmt: skip
"""What a spec says of itself where nothing was asked for."""


def names() -> list[Column]:
    """Return the columns that say whose row it is."""
    return [
        text(title, key, once=True) for title, key in (("name", "name"), ("impl", "implementation"))
    ]


def shape_columns(rows: Sequence[Row]) -> list[Column]:
    """Show the sizes that everyone asks for, and what is not as it is by default.

    What the names of the points say already (``heads=8``) is not said again.
    """
    if rows and all(row.get("batch") is None for row in rows):
        return []  # modules of the user alone
    points = [row for row in rows if row.get("role") != "reference"] or list(rows)
    columns = []
    for name, make in {**dict.fromkeys(_SIZES, count), **dict.fromkeys(_UNSET, text)}.items():
        told = all(f"{name}={row.get(name)}" in str(row.get("name")) for row in points)
        same = {"kv_tokens": "tokens", "kv_heads": "heads", "v_head_dim": "head_dim"}.get(name)
        plain = name == "head_dim" or all(
            row.get(name) in (None, _UNSET.get(name), row.get(same or "")) for row in points
        )
        columns.append(make(name, name, once=True, rank=WIDE if told or plain else LESS))
    return columns


def counts_view(rows: Sequence[Row], *, title: str, notes: Sequence[str] = ()) -> View:
    """Show exact counts, one row a point."""

    def has(key: str) -> int:
        return SHOWN if any(row.get(key) is not None for row in rows) else WIDE

    masked = any(row.get("macs_exact") not in (None, row.get("macs")) for row in rows)
    decodes = any(row.get("phase") == "decode" for row in rows)
    columns = [
        *names(),
        *shape_columns(rows),
        amount("MACs", "macs"),
        amount("FLOPs (2 per MAC)", "flops"),
        amount("macs_exact", "macs_exact", rank=SHOWN if masked else WIDE),
        amount("pairs_exact", "pairs_exact", rank=LESS if masked else WIDE),
        amount("FLOPs backward", "flops_backward", rank=has("flops_backward")),
        amount(
            "forward + backward", "flops_forward_backward", rank=has("flops_forward_backward")
        ),
        ratio("ratio", "ratio_to_reference", rank=has("ratio_to_reference")),
        size("KV cache", "kv_cache_bytes", rank=SHOWN if decodes else WIDE),
        number(
            "FLOPs per byte", "arithmetic_intensity", format_ratio,
            rank=SHOWN if decodes else WIDE,
        ),
        amount("parameters", "params", rank=LESS),
        amount("softmax operations", "softmax_ops", rank=LESS),
        size("KV cache per token", "kv_bytes_per_token", rank=WIDE),
        status(rows),
    ]  # fmt: skip
    if masked:
        notes = ["macs_exact: over the pairs_exact that the mask of a head lets through.", *notes]
    if has("ratio_to_reference") == SHOWN:
        macs = [row.get("macs") for row in rows]
        alone = len(rows) == 2 and rows[0].get("role") == "reference" and None not in macs
        compared = f"{macs[1]} MACs to the {macs[0]} of" if alone else "to"
        notes = [f"ratio: {compared} one full head without W_O on the same tokens.", *notes]
    return View(title=title, columns=columns, rows=rows, notes=notes)


def breakdown_view(rows: Sequence[Row], *, title: str) -> View:
    """Show the MACs of each stage and their sum, one row a point."""
    columns = [*names(), *shape_columns(rows)]
    for stage in (*formulas.STAGES, *formulas.EXTRA_STAGES):
        key = f"macs_{stage}"
        if stage in formulas.STAGES or any(row.get(key) is not None for row in rows):
            columns.append(amount(stage, key, rank=SHOWN))
    columns += [amount("MACs", "macs"), status(rows)]
    return View(title=title, columns=columns, rows=rows)


def findings_notes(rows: Sequence[Row]) -> list[str]:
    """Word what the rows' reasons say, once each, below the table."""
    notes = [
        f"{row['name']}, {row['implementation']}: {row['message']}"
        for row in rows
        if row.get("message")
    ]
    return list(dict.fromkeys(notes))


def reason_notes(rows: Sequence[Row]) -> list[str]:
    """Say once for each reason that occurs what it means here, and how often."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.get("reason"):
            groups.setdefault((str(row["status"]), str(row["reason"])), []).append(row)
    return [
        f"{status}, {reason} ({len(group)} row{'s' * (len(group) > 1)}): {group[0].get('message')}"
        for (status, reason), group in groups.items()
    ]


def claim_view(rows: Sequence[Row], *, title: str, notes: Sequence[str]) -> View:
    """Show the counts of the cases of the paper's claim, with all their digits."""
    columns = [
        text("case", "name"),
        count("heads", "heads", rank=SHOWN),
        text("W_O", "out_proj", rank=SHOWN),
        count(FVCORE_TITLE, "fvcore_flops"),
        count(FLOPS_TITLE, "flops", rank=SHOWN),
        ratio("ratio to one full head", "ratio_to_reference"),
        count("parameters", "params", rank=LESS),
        count("softmax operations", "softmax_ops", rank=LESS),
        status(rows),
    ]
    return View(title=title, columns=columns, rows=rows, notes=notes)
