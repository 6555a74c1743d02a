"""What the help of commands, pages of the guide and errors of flags say, and how it looks."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from mhaprof.cli.app import build
from mhaprof.cli.commands import COMMANDS, ROOT, Entry
from mhaprof.cli.help import GUIDE

LINES = [*COMMANDS, "baseline update"]


def examples_of(entry: Entry) -> list[str]:
    """Return the command lines that the help of a command shows."""
    return [f"mhaprof {example}" for example in entry.examples.split("; ")]


EXAMPLES = [line for entry in (ROOT, *COMMANDS.values()) for line in examples_of(entry)]
LONG = ("--latency", "mhaprof ab", "mhaprof verify", "mhaprof env", "mhaprof latency")
NEED_FILES = ("mhaprof merge", "mhaprof compare", "mhaprof gate", "update new.sqlite")
TO_RUN = [line for line in EXAMPLES if not any(word in line for word in (*LONG, *NEED_FILES))]


def params_of(line: str) -> list[Any]:
    """Return the options and arguments of a command."""
    command = typer.main.get_command(build(line.split()))
    for word in line.split():
        command = command.commands[word]  # type: ignore[attr-defined]
    return list(command.params)


def test_every_command_has_two_or_three_examples_of_itself() -> None:
    for name, entry in COMMANDS.items():
        examples = examples_of(entry)
        assert len(examples) in ((1,) if name == "version" else (2, 3))
        assert all(example.startswith(f"mhaprof {name}") for example in examples)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_parser_takes_every_example(example: str) -> None:
    arguments = shlex.split(example)[1:]
    command = typer.main.get_command(build(arguments))
    while arguments and hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    command.make_context(example, list(arguments))


def test_what_examples_show_runs(
    mhaprof: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(Path(__file__).parents[2] / "configs")
    (tmp_path / "results").mkdir()
    assert len(TO_RUN) > 15
    for line in TO_RUN:
        ran = mhaprof(*shlex.split(line)[1:])
        assert ran.code == 0, f"{line}: {ran.err}"


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("line", ["", *LINES])
def test_help_breaks_no_word_and_fits(
    line: str, width: int, mhaprof: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    ran = mhaprof(*line.split(), "--help-all")
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= width
    assert not re.search(r"\\\[|default:\s+\(", ran.out)
    shown = set(ran.out.split())
    for param in params_of(line):
        flags = [flag for flag in (*param.opts, *param.secondary_opts) if flag.startswith("-")]
        assert {*flags} <= {word.rstrip(",") for word in shown}
        assert {*(param.metavar or "").split(), *(param.help or "").split()} <= shown


@pytest.mark.parametrize("line", LINES)
def test_help_opens_with_examples_and_the_options_that_matter(line: str, mhaprof: Any) -> None:
    ran = mhaprof(*line.split(), "--help")
    examples = examples_of(COMMANDS[line.split(maxsplit=1)[0]])
    before, _, after = ran.out.partition("\nExamples:\n")
    assert len(before.splitlines()) <= 5
    assert [text.strip() for text in after.splitlines()[: len(examples)]] == examples
    options = [each for each in ran.out.splitlines() if re.match(r"  -", each)]
    assert len(options) <= 15
    everything = mhaprof(*line.split(), "--help-all").out
    assert {text.split()[0] for text in options} <= set(everything.split())
    all_options = [each for each in everything.splitlines() if re.match(r"  -", each)]
    more = [f"  {len(all_options) - len(options)} more options: mhaprof {line} --help-all"]
    found = [each for each in ran.out.splitlines() if "more options" in each]
    assert found == (more if len(all_options) > len(options) else [])
    assert mhaprof("help", *line.split()).out == ran.out


def test_every_option_that_matters_is_one_of_the_command() -> None:
    for name, entry in COMMANDS.items():
        if entry.options:
            assert set(entry.options.split()) <= {param.name for param in params_of(name)}


@pytest.mark.parametrize("page", sorted(GUIDE.glob("*.md")), ids=lambda page: page.stem)
def test_every_page_of_the_guide_is_listed_and_shown_as_it_is(page: Path, mhaprof: Any) -> None:
    text = page.read_text()
    listed = mhaprof("help").out
    (name,) = re.findall(rf"^  ({page.stem}(?:\.md)?) +{re.escape(text.splitlines()[0][2:])}$",
                         listed, re.MULTILINE)  # fmt: skip
    for word in (name, f"{page.stem}.md"):
        ran = mhaprof("help", word)
        assert (ran.code, ran.out) == (0, text)
    if page.stem in COMMANDS:
        assert f"mhaprof help {name}" in mhaprof("help", page.stem).out


def test_a_terminal_gets_a_page_rendered(mhaprof: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    shown = mhaprof("help", "exit-codes").out
    assert "Exit codes" in shown
    assert "# Exit codes" not in shown
    assert "| ---: |" not in shown


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("timming", "did you mean timing?"),
        ("latancy", "did you mean latency?"),
        ("../cli/app", "the pages are configuration, counting,"),
        ("zzz", "the pages are configuration, counting,"),
    ],
)
def test_an_unknown_topic_costs_one_line_with_what_is_meant(
    word: str, hint: str, mhaprof: Any
) -> None:
    ran = mhaprof("help", word)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"mhaprof: help {word!r}: there is no such command or page; {hint}")
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "helping"),
    [
        ("latency --foo", "mhaprof latency --help"),
        ("latency --format x", "mhaprof latency --help"),
        ("claim --dim 0", "mhaprof claim --help"),
        ("baseline", "mhaprof baseline --help"),
        ("baseline update", "mhaprof baseline update --help"),
        ("gate one", "mhaprof gate --help"),
        ("flosp", "mhaprof --help"),
        ("--foo", "mhaprof --help"),
    ],
)
def test_an_error_of_flags_names_the_help(line: str, helping: str, mhaprof: Any) -> None:
    ran = mhaprof(*line.split())
    assert ran.code == 2
    assert ran.err.endswith(f" ({helping})\n")
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("command", ["flops", "latency", "sweep", "verify"])
def test_the_help_of_impl_says_how_ones_own_is_named(command: str, mhaprof: Any) -> None:
    text = " ".join(mhaprof(command, "--help").out.split())
    assert "or package.module:attribute of yours" in text
    assert "(with --allow-import; mhaprof help extending)" in text
