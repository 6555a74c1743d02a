"""What a model's attention costs, as rows and as tables: one row a kind, one for the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mhaprof.huggingface.cost import Cost, ModelCost
from mhaprof.huggingface.plan import LayersApart, ranges
from mhaprof.report.tabular import SPEC_COLUMNS, Row
from mhaprof.report.view import (
    KEPT,
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
    text,
)
from mhaprof.units import DTYPE_BYTES, format_bytes, format_percent, format_si

COST_COLUMNS = (
    "macs",
    "flops",
    "macs_exact",
    "core_macs",
    "core_macs_exact",
    "share_projections",
    "share_core",
    "tokens_core_overtakes",
    "tokens_core_overtakes_exact",
    "params",
    "norm_params",
    "sink_params",
    "kv_bytes_per_token",
    "kv_cache_bytes",
    "kv_cache_bytes_full",
    "state_bytes",
    "arithmetic_intensity",
)

COLUMNS = (
    "name",
    "role",
    "model",
    "model_type",
    "what_if",
    "layers",
    "layer_indices",
    "layers_missing",
    *SPEC_COLUMNS,
    "cache_dtype",
    "cache_scales",
    *COST_COLUMNS,
)
"""The columns of a model's rows; in a row of role ``layer`` all counts are of one layer."""


def model_rows(cost: ModelCost, *, what_if: str | None = None) -> list[Row]:
    """Return a row of role ``layer`` for each kind, and one of role ``total``.

    ``what_if`` names the change that the rows show; None is the model as it is.
    """
    plan = cost.plan
    shared = {
        "model": plan.source,
        "model_type": plan.model_type,
        "what_if": what_if,
        "cache_dtype": cost.cache_dtype,
        "cache_scales": cost.cache_scales,
    }
    rows: list[Row] = []
    for kind, each in zip(plan.kinds, cost.kinds, strict=True):
        row: Row = dict.fromkeys(COLUMNS) | shared
        row.update(kind.spec.model_dump())
        row.update(name=kind.name, role="layer", layer_indices=ranges(kind.indices))
        row.update(_costs(each))
        rows.append(row)
    rows += [dict.fromkeys(COLUMNS) | shared | _apart(each, cost) for each in plan.apart]
    total: Row = dict.fromkeys(COLUMNS) | shared
    total.update(name="model", role="total", layers_missing=plan.layers_missing)
    total.update(_costs(cost.total))
    shape = ("batch", "tokens", "kv_tokens", "phase")
    total.update({field: _common(rows, field) for field in shape})
    return [*rows, total]


def _costs(cost: Cost) -> Row:
    costs = {name: getattr(cost, name) for name in COST_COLUMNS if name != "state_bytes"}
    return {"layers": cost.layers} | costs


def _apart(layers: LayersApart, cost: ModelCost) -> Row:
    """Return what is stated of layers apart from softmax attention, for one of them."""
    # Who quantizes a cache leaves states as they are, of 16 bits or more.
    width, spec = max(2, DTYPE_BYTES.get(cost.cache_dtype, 0)), cost.plan.kinds[0].spec
    row: Row = {"name": layers.name, "role": "apart", "layers": len(layers.indices)}
    row |= {"layer_indices": ranges(layers.indices), "batch": spec.batch, "phase": spec.phase}
    if layers.state_elements is not None:
        row["state_bytes"] = spec.batch * layers.state_elements * width
    if layers.token_elements:
        row["kv_bytes_per_token"] = layers.token_elements * width
        row["kv_cache_bytes"] = spec.batch * spec.kv_tokens * layers.token_elements * width
    return row | ({"params": layers.params} if layers.params else {})


def _common(rows: Sequence[Row], field: str) -> object:
    """Return the value that all rows share, or None."""
    values = {row[field] for row in rows if row["role"] == "layer"}
    return values.pop() if len(values) == 1 else None


def model_views(rows: Sequence[Row], *, notes: Sequence[str]) -> list[View]:
    """Return the table of the model as it is and, with what-ifs, the changes beside it."""
    plain = [row for row in rows if row["what_if"] is None]
    total = plain[-1]
    views = [
        View(
            title=f"{total['model']}: attention of one forward pass ({_shape(plain)})",
            columns=_columns(plain),
            rows=plain,
            notes=[
                "A kind's row is of one layer, the last of all layers of the model. "
                "Core: scores and context; macs_exact: over the pairs that the mask lets through.",
                *notes,
            ],
        )
    ]
    if len(plain) < len(rows):
        views.append(_change_view(rows))
    return views


def _shape(rows: Sequence[Row]) -> str:
    self_rows = [row for row in rows if row["role"] == "layer"]
    first = self_rows[-1]
    tokens = first["kv_tokens"] if first["phase"] == "decode" else first["tokens"]
    held = "tokens of cache" if first["phase"] == "decode" else "tokens"
    return f"{first['phase']}, batch {first['batch']}, {tokens} {held}"


def _columns(rows: Sequence[Row]) -> list[Column]:
    windowed = any(_limit(row) for row in rows)
    return [
        text("kind", "name"),
        count("layers", "layers", rank=SHOWN),
        Column(
            title="window", key="window", cell=_limit, numeric=False,
            rank=SHOWN if windowed else WIDE,
        ),
        size("KV cache", "kv_cache_bytes"),
        size("KV cache per token", "kv_bytes_per_token", rank=SHOWN),
        size(
            "state", "state_bytes",
            rank=SHOWN if any(row.get("state_bytes") for row in rows) else WIDE,
        ),
        number("share of core", "share_core", format_percent),
        amount("MACs", "macs"),
        amount("macs_exact", "macs_exact", rank=SHOWN),
        amount("parameters", "params", rank=LESS),
        count("core overtakes at tokens", "tokens_core_overtakes", rank=WIDE),
        *(
            count(key, key, once=True, rank=WIDE)
            for key in ("tokens", "kv_tokens", "heads", "kv_heads", "head_dim")
        ),
        size("KV cache without window", "kv_cache_bytes_full", rank=WIDE),
        number("FLOPs per byte", "arithmetic_intensity", _digits, rank=WIDE),
    ]  # fmt: skip


def _digits(value: float) -> str:
    return f"{value:.1f}"


def _limit(row: Row) -> str:
    if row["chunk"] is not None:
        return f"chunk {row['chunk']}"
    return "" if row["window"] is None else str(row["window"])


_METRICS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("KV cache", "kv_cache_bytes", format_bytes),
    ("KV cache per token", "kv_bytes_per_token", format_bytes),
    ("MACs", "macs", format_si),
    ("macs_exact", "macs_exact", format_si),
    ("core overtakes at tokens", "tokens_core_overtakes", str),
    ("parameters", "params", format_si),
    ("FLOPs per byte", "arithmetic_intensity", _digits),
)


def _change_view(rows: Sequence[Row]) -> View:
    """Set each number of each what-if beside the number as it is, with their ratio."""
    rows = [row for row in rows if row["role"] != "apart"]  # what no change of sizes reaches
    changes = list(dict.fromkeys(row["what_if"] for row in rows))
    groups = [[row for row in rows if row["what_if"] == change] for change in changes]
    lines: list[Row] = []
    for same in zip(*groups, strict=True):
        for title, key, form in _METRICS:
            values = [row[key] for row in same]
            line: Row = {"name": same[0]["name"], "metric": title}
            for index, value in enumerate(values):
                line[f"value {index}"] = value
                line[f"worded {index}"] = "" if value is None else form(value)
                known = value is not None and values[0]
                line[f"ratio {index}"] = value / values[0] if known else None
            lines.append(line)
    columns = [text("kind", "name"), text("number", "metric")]
    for index, change in enumerate(changes):
        columns.append(_either(str(change or "as it is"), index))
        columns += [ratio("ratio", f"ratio {index}")] if index else []
    return View(title="What if", columns=columns, rows=lines)


def _either(title: str, index: int) -> Column:
    return Column(
        title=title,
        key=title,
        cell=lambda row: str(row[f"worded {index}"]),
        exact=lambda row: "" if row[f"value {index}"] is None else str(row[f"value {index}"]),
        rank=KEPT,
    )


def preset_view(rows: Sequence[Row]) -> View:
    """Return the table of presets."""
    return View(
        title="Presets",
        columns=[text("preset", "name"), text("model_type", "model_type"), text("facts", "note")],
        rows=rows,
        notes=["mhaprof model --preset NAME; also in flops, latency and sweep."],
    )
