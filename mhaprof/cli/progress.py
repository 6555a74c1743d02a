"""A progress bar on standard error: on a terminal only, nothing in a pipe."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mhaprof.measure.sampling import Progress


class Bar:
    """Show which point is measured, how many samples it has and how precise it is."""

    def __init__(self, *, total: int) -> None:
        self._total = total
        self._bar: Any = None
        self._task: Any = None
        self._label = ""

    def __enter__(self) -> Bar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as RichProgress

            self._bar = RichProgress(
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=self._total)
            try:
                self._bar.start()
            except BaseException:
                self._bar.stop()  # the cursor comes back
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, label: str) -> None:
        """Begin the next point; the one before it is done."""
        if self._bar is None:
            return
        if self._label:
            self._bar.advance(self._task)
        self._label = label
        self._bar.update(self._task, description=label)

    def update(self, progress: Progress) -> None:
        """Show the samples so far and the median's relative half interval."""
        if self._bar is None:
            return
        precision = "" if progress.precision is None else f", +-{100 * progress.precision:.1f} %"
        self.note(f"{progress.stage}, {progress.samples} samples{precision}")

    def note(self, text: str) -> None:
        """Show a few words beside the point's name."""
        if self._bar is not None:
            self._bar.update(self._task, description=f"{self._label}: {text}")
