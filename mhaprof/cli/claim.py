"""``mhaprof claim``: reproduce the paper's claim about the cost of heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from mhaprof import paper
from mhaprof.cli.claim_times import time_cases
from mhaprof.cli.options import takes
from mhaprof.cli.output import Output, OutputFlags, say
from mhaprof.errors import EXIT_FINDING, EXIT_OK, UsageError
from mhaprof.point import count_point
from mhaprof.records import DEVICES, Measured
from mhaprof.report.tabular import Row, row_of
from mhaprof.report.view import View
from mhaprof.report.views import claim_view, findings_notes
from mhaprof.spec import DEFAULT_BATCH, DEFAULT_DIM, DEFAULT_TOKENS

_COUNTERS = (
    ("fvcore", "fvcore_flops"),
    ("torch", "torch_macs"),
    ("closed form", "closed_form_macs"),
)


@takes(out=OutputFlags)
def claim(
    dim: Annotated[int, typer.Option(min=1, help="model width")] = DEFAULT_DIM,
    tokens: Annotated[int, typer.Option(min=1, help="tokens of a sequence")] = DEFAULT_TOKENS,
    batch: Annotated[int, typer.Option(min=1, help="sequences in the batch")] = DEFAULT_BATCH,
    latency: Annotated[
        bool,
        typer.Option(
            "--latency",
            help="also time eager and sdpa, on a CPU at a batch that takes about a minute",
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="where --latency runs", metavar=DEVICES)] = "auto",
    *,
    out: Output,
) -> int:
    """Reproduce the paper's claim: the heads cost about the same as one full head.

    Exits 1 when the claim does not hold or the counters disagree.
    """
    if device != "auto" and not latency:
        raise UsageError("--device says where --latency runs; give --latency too")
    points = paper.claim_points(dim=dim, tokens=tokens, batch=batch)
    results = [count_point(point) for point in points]
    rows = [row_of(result) for result in results]
    counted = {
        result.point.name: result.outcome.counts
        for result in results
        if isinstance(result.outcome, Measured) and result.outcome.counts is not None
    }
    verdict = paper.judge(points, counted)
    disagree = any(row["status"] != "ok" for row in rows)
    spoke = [name for name, column in _COUNTERS if rows[-1].get(column) is not None]
    said = f"Counted by {', '.join(spoke)}{'' if disagree else ': they agree'}."
    views = [_view(rows, [*verdict.sentences, said])]
    if latency:
        timed, table = time_cases(points, device=device)
        rows, views = [*rows, *timed], [*views, table]
    for note in findings_notes(rows):
        say(note)
    out.emit(rows, views, claim={"holds": verdict.holds and not disagree, "counters": spoke})
    return EXIT_OK if verdict.holds and not disagree else EXIT_FINDING


def _view(rows: Sequence[Row], notes: Sequence[str]) -> View:
    first = rows[0]
    return claim_view(
        rows,
        title=f"The paper's claim: batch {first['batch']} x {first['tokens']} tokens "
        f"x dim {first['dim']}",
        notes=notes,
    )
