"""Where a command's data goes: a table, JSON, CSV or Markdown; stdout or a file.

Data goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import difflib
import errno
import inspect
import io
import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mhaprof import signals
from mhaprof.cli.options import listed, option
from mhaprof.errors import UsageError, printable
from mhaprof.report import markdown, table, tabular
from mhaprof.report.tabular import Row
from mhaprof.report.view import View

FORMATS = ("table", "json", "csv", "markdown")

ENDINGS = {f".{form}": form for form in ("json", "csv", "markdown", "jsonl", "parquet")}
ENDINGS |= {".txt": "table", ".md": "markdown"}
"""The format that the name of a file says."""

IN_MEMORY = 16 * 2**20
"""Characters of output that are made in memory; what is longer is made in a file."""


def say(message: str) -> None:
    """Print one line for the user to stderr; nowhere when it is closed or gone."""
    with suppress(OSError):
        if sys.stderr is not None:
            print(f"mhaprof: {printable(message)}", file=sys.stderr)


class ClosedOutput(io.TextIOBase):
    """Stand for a standard output that the user closed (``>&-``): writing to it fails."""

    def write(self, text: str) -> int:
        """Refuse to write."""
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


@dataclass(frozen=True, kw_only=True)
class Output:
    """How and where the data of one command is written."""

    format: str
    path: Path | None
    columns: tuple[str, ...] = ()
    wide: bool = False
    exact: bool = False

    @property
    def all_rows(self) -> bool:
        """Say whether columns of the rows were asked for, which a summary has not."""
        return self.wide or bool(self.columns)

    @property
    def has_views(self) -> bool:
        """Say whether the format shows views: JSON and CSV hold the rows alone."""
        return self.format in ("table", "markdown")

    def emit(
        self,
        rows: Collection[Row],
        views: Sequence[View],
        *,
        texts: Sequence[str] = (),
        whole: bool = False,
        **extra: Any,
    ) -> None:
        """Write the rows (json, csv) or the views (table, markdown).

        Of a long view the first and last rows are written, unless ``whole``.
        ``texts`` are fixed-width texts below the tables; ``extra`` goes into the JSON
        document beside the rows.  Rows that are made as they are written go to stdout at once
        (csv).
        """
        if isinstance(rows, Sequence):
            signals.enter("writing")
        if not whole:
            views = [view.shortened(table.LONG) for view in views]
        known = dict.fromkeys(name for view in views for name in view.knows())
        unknown = [name for name in self.columns if name not in known] if views else []
        views = [view.chosen(self.columns, wide=self.wide, exact=self.exact) for view in views]
        self._write(rows, views, texts, extra)
        if unknown:
            near = difflib.get_close_matches(unknown[0], known, n=3)
            hint = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(known)}"
            raise UsageError(f"--columns {unknown[0]!r} is no column here; {hint}")

    def _write(
        self, rows: Collection[Row], views: Sequence[View], texts: Sequence[str], extra: Row
    ) -> None:
        """Write in the format that was asked for."""
        if self.format == "json":
            self.stream(lambda: tabular.json_chunks(rows, **extra))
        elif self.format == "csv":
            at_once = not isinstance(rows, Sequence)
            self.stream(lambda: tabular.csv_chunks(rows), at_once=at_once)
        elif self.format == "markdown":
            blocks = [markdown.render(view) for view in views]
            self.write("\n".join([*blocks, *(f"```text\n{text}```\n" for text in texts)]))
        elif self.path is None:
            with reader_may_leave():
                console = table.plain_console()
                for view in views:
                    table.render(view, console)
                for text in texts:
                    lines = (table.wrapped(line, console.width) for line in text.splitlines())
                    sys.stdout.write("\n" + "".join(f"{one}\n" for line in lines for one in line))
                sys.stdout.flush()
        else:
            self.write("\n".join([_drawn(views), *texts]))

    def write(self, text: str) -> None:
        """Write text as ``stream`` does."""
        self.stream(lambda: [text])

    def stream(self, chunks: Callable[[], Iterable[str]], *, at_once: bool = False) -> None:
        """Write chunks of text to the file, atomically, or to stdout once all are made.

        A file that cannot be written loses nothing: the text, made again, goes to stdout.
        ``at_once`` writes each chunk to stdout when it is made.
        """
        if self.path is None:
            (_each_to_stdout if at_once else _to_stdout)(chunks())
            return
        try:
            write_atomically(self.path, chunks())
            signals.wrote()
        except OSError as error:
            _to_stdout(chunks())
            raise UsageError(
                f"--output {self.path}: {error.strerror or error}; wrote to standard output instead"
            ) from error


def _to_stdout(chunks: Iterable[str]) -> None:
    """Write all chunks, or none where making one fails: an error's document stands alone."""
    with tempfile.SpooledTemporaryFile(IN_MEMORY, "w+", encoding="utf-8", newline="") as made:
        for chunk in chunks:  # ``writelines`` moves to the disk when all are made
            made.write(chunk)
        made.seek(0)
        signals.wrote()
        with reader_may_leave():
            shutil.copyfileobj(made, sys.stdout)
            sys.stdout.flush()


def _each_to_stdout(chunks: Iterable[str]) -> None:
    """Write each chunk when it is made; go on making them when the reader is gone."""
    left = iter(chunks)
    with reader_may_leave():
        for place, chunk in enumerate(left):
            signals.wrote()
            sys.stdout.write(chunk)
            if place <= 1:  # the header and the first row are not kept waiting
                sys.stdout.flush()
        sys.stdout.flush()
    deque(left, maxlen=0)


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Go on when the reader of standard output is gone (``| head``): the exit code counts."""
    try:
        yield
    except (BrokenPipeError, SystemExit) as stop:  # rich makes the second of the first
        if not is_broken_pipe(stop):
            raise
        abandon_stdout()


def is_broken_pipe(stop: BaseException) -> bool:
    """Say whether nobody reads standard output any more."""
    return isinstance(stop if isinstance(stop, OSError) else stop.__context__, BrokenPipeError)


def abandon_stdout() -> None:
    """Let the interpreter exit quietly when the reader of a pipe is gone, or a disk full."""
    if not isinstance(sys.stdout, ClosedOutput):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _drawn(views: Sequence[View]) -> str:
    from rich.console import Console

    buffer = io.StringIO()
    console = Console(file=buffer, width=table.PIPE_WIDTH, no_color=True, highlight=False)
    for view in views:
        table.render(view, console)
    return buffer.getvalue()


def write_atomically(path: Path, text: str | Iterable[str]) -> None:
    """Replace ``path`` by text or its chunks: a reader sees the old file or the new one.

    A link goes on naming its file, which is replaced.  What is no regular file (a device,
    a pipe) is written to: replacing it would destroy it.
    """
    chunks = [text] if isinstance(text, str) else text
    if _is_special(path):
        with path.open("w", encoding="utf-8", newline="") as sink:
            sink.writelines(chunks)
        return
    path = path.resolve()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_file(path: Path, text: str, *, flag: str) -> None:
    """Write a file that goes with the data, atomically; raises UsageError that names it."""
    try:
        write_atomically(path, text)
    except OSError as error:
        raise UsageError(f"{flag} {path} is not written: {error.strerror or error}") from error


def _is_special(path: Path) -> bool:
    """Say whether a path is there and neither a file nor a directory: ``/dev/null``."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


class OutputGroup:
    """``--format`` and ``-o/--output``; refuses a hopeless target before any work."""

    def __init__(self, *formats: str) -> None:
        self.formats = formats or FORMATS
        self.endings = {ending: form for ending, form in ENDINGS.items() if form in self.formats}

    def parameters(self) -> list[inspect.Parameter]:
        """Return the two options, and where tables are shown those of their columns."""
        panel = {"rich_help_panel": "Output"}
        words = {
            "wide": "show every column of the table",
            "exact": "show sizes and counts with all their digits",
        }
        shown = [
            option(
                "columns",
                list[str] | None,
                help="columns of the table (a list): any that --format csv writes",
                metavar="NAME",
                **panel,
            ),
            *(
                option(name, bool, default=False, help=text, **panel)
                for name, text in words.items()
            ),
        ]
        return [
            *(shown if "table" in self.formats else ()),
            option(
                "format",
                str | None,
                help="how to write the data",
                metavar="|".join(self.formats),
                show_default=f"by the name of --output, else {self.formats[0]}",
                **panel,
            ),
            option(
                "output",
                Path | None,
                "--output",
                "-o",
                help=f"write to this file, whose ending says the format: {', '.join(self.endings)}",
                metavar="FILE",
                **panel,
            ),
        ]

    def collect(self, values: Mapping[str, Any]) -> Output:
        """Check the format and that the file can be created."""
        path, form = values["output"], values["format"]
        if form is not None and (form := {"md": "markdown"}.get(form, form)) not in self.formats:
            raise UsageError(f"--format {form!r} is not one of {', '.join(self.formats)}")
        chosen = self._chosen(form, path)
        if path is not None:
            check_writable(path)
        return Output(
            format=chosen,
            path=path,
            columns=tuple(listed(values.get("columns") or ())),
            wide=values.get("wide", False),
            exact=values.get("exact", False),
        )

    def _chosen(self, form: str | None, path: Path | None) -> str:
        """Return the format of the flag, or of the file's name; both say the same."""
        ending = "" if path is None else path.suffix.lower()
        named = ENDINGS.get(ending)
        if form is None and ending and named not in self.formats:
            raise UsageError(
                f"--output {path}: the ending {ending} says no format; known are "
                f"{', '.join(self.endings)} (no HTML yet); give one of them, or --format"
            )
        if form is not None and named not in (form, None):
            raise UsageError(f"--format {form} and the name of --output {path} differ; drop one")
        return form or named or self.formats[0]


OutputFlags = OutputGroup()


def check_result_file(path: Path | None) -> None:
    """Raise UsageError for ``--out rows.csv``: a result file is SQLite, rows are ``--output``."""
    if path is not None and path.suffix.lower() in ENDINGS:
        raise UsageError(f"--out {path} is a result file (SQLite); for rows give --output {path}")


def check_writable(path: Path, *, flag: str = "--output") -> None:
    """Raise UsageError when a file cannot be created there, before anything is measured."""
    if path.is_dir():
        raise UsageError(f"{flag} {path} is a directory; give a file name in it")
    if _is_special(path):
        if not os.access(path, os.W_OK):
            raise UsageError(f"{flag} {path} is not writable")
        return
    folder = path.resolve().parent if path.is_symlink() else path.parent
    if not folder.is_dir():
        raise UsageError(f"{flag} {path}: the directory {folder} does not exist; create it")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{flag} {path}: the directory {folder} is not writable")
