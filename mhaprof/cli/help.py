"""``mhaprof help`` and ``mhaprof version``, and how the help of every command is written."""

from __future__ import annotations

import difflib
import inspect
import platform
import re
import sys
import textwrap
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from mhaprof import __version__
from mhaprof.cli.commands import COMMANDS, ROOT, Entry
from mhaprof.cli.output import Output, reader_may_leave
from mhaprof.errors import EXIT_OK, UsageError

GUIDE = Path(__file__).parents[1] / "guide"

NAME_WIDTH = 24

HELP = ("-h, --help, --help-all", "this help, or that of all options")


class _Help:
    """Open with examples; show the options that matter, and with ``--help-all`` all of them."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the first sentence, the examples, and then the rest."""
        first, _, rest = inspect.cleandoc(ctx.command.help or "").partition("\n\n")
        _write_paragraphs(formatter, first)
        with formatter.section("Examples"):
            for example in _entry(ctx).examples.split("; "):
                formatter.write(f"  mhaprof {example}\n")
        _write_paragraphs(formatter, rest)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands of a group and pages of the guide; then arguments and options."""
        subcommands = getattr(ctx.command, "commands", {})
        if subcommands:
            lines = [(name, each.help.split("\n\n")[0]) for name, each in subcommands.items()]
            _write_rows(formatter, "Commands", lines)
        if ctx.parent is None:
            _write_rows(formatter, "Pages of the guide (mhaprof help PAGE)", [*pages().items()])
        _write_options(ctx, formatter)


class HelpCommand(_Help, TyperCommand):
    """A command with this help."""


class HelpGroup(_Help, TyperGroup):
    """A group of commands with this help."""


def _entry(ctx: Any) -> Entry:
    words = ctx.command_path.split()
    return COMMANDS[words[1]] if len(words) > 1 else ROOT


def _write_options(ctx: Any, formatter: Any) -> None:
    """Write arguments and options; those that ``--help-all`` would add are counted."""
    everything, matter = ctx.find_root().obj["everything"], _entry(ctx).options.split()
    sections: dict[str, list[tuple[str, str]]] = {}
    left_out = 0
    for param in ctx.command.get_params(ctx):
        title = getattr(param, "rich_help_panel", None) if everything else None
        if param.param_type_name == "argument":
            title = "Arguments"
        elif "--help" in param.opts:
            sections.setdefault("Options", []).append(HELP)
            continue
        elif matter and not everything and param.name not in matter:
            left_out += 1
            continue
        if record := param.get_help_record(ctx):
            sections.setdefault(title or "Options", []).append((record[0], _plain(record[1])))
    for title, rows in sections.items():
        _write_rows(formatter, title, rows)
    if left_out:
        _write_paragraphs(formatter, f"{left_out} more options: {ctx.command_path} --help-all")
    if f"{ctx.info_name}.md" in pages():
        _write_paragraphs(formatter, f"A page of the guide: mhaprof help {ctx.info_name}.md")


def _plain(text: str) -> str:
    """Drop the marks of typer around a default that is told in words, and for rich."""
    return re.sub(r"\[default: \((.*)\)([;\]])", r"[default: \1\2", text.replace("\\[", "["))


def _write_rows(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    """Write a section of names and what they are; a long name has a line of its own."""
    indent = min(max(len(name) for name, _ in rows), NAME_WIDTH) + 4
    with formatter.section(title):
        for name, text in rows:
            head = f"  {name}"
            if len(name) > NAME_WIDTH:
                formatter.write(f"{head}\n")
                head = ""
            formatter.write(_filled(formatter, text, head.ljust(indent), " " * indent))


def _write_paragraphs(formatter: Any, text: str) -> None:
    for paragraph in filter(None, text.split("\n\n")):
        formatter.write_paragraph()
        formatter.write(_filled(formatter, paragraph, "  ", "  "))


def _filled(formatter: Any, text: str, first: str, others: str) -> str:
    """Wrap text at spaces alone, for flags and choices have hyphens."""
    wrapper = textwrap.TextWrapper(
        formatter.width,
        initial_indent=first,
        subsequent_indent=others,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return (wrapper.fill(text) or first) + "\n"


def pages() -> dict[str, str]:
    """Return the title of each page of the guide; one named as a command has its ending."""
    return {
        page.name if page.stem in COMMANDS else page.stem: page.read_text("utf-8").splitlines()[0][
            2:
        ]
        for page in sorted(GUIDE.glob("*.md"))
    }


def show(
    topic: Annotated[str, typer.Argument(help="a command, or a page", metavar="TOPIC")],
) -> int:
    """Show the help of a command, or a page of the guide."""
    page = GUIDE / f"{topic.lower().removesuffix('.md')}.md"
    if page not in GUIDE.glob("*.md"):
        known = [*COMMANDS, *pages()]
        near = difflib.get_close_matches(topic.lower(), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the pages are {', '.join(pages())}"
        raise UsageError(f"help {topic!r}: there is no such command or page; {hint}")
    text = page.read_text(encoding="utf-8")
    if not sys.stdout.isatty():
        Output(format="markdown", path=None).write(text)
        return EXIT_OK
    from rich.console import Console
    from rich.markdown import Markdown

    with reader_may_leave():
        Console().print(Markdown(text))
    return EXIT_OK


def version() -> int:
    """Show the versions of mhaprof, torch, fvcore and Python."""
    found = {"mhaprof": __version__}
    for package in ("torch", "fvcore"):
        try:
            found[package] = version_of(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    found["Python"] = platform.python_version()
    print("\n".join(" ".join(item) for item in found.items()))
    return EXIT_OK
