"""The format of an output: by its flag, or by the name of its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from mhaprof.cli.app import build
from mhaprof.cli.commands import COMMANDS

COUNT = ("flops", "--counter", "closed-form")
ARGUMENTS = {
    **dict.fromkeys(("results", "baseline update"), "rows.sqlite"),
    **dict.fromkeys(("compare", "gate"), "base.json new.sqlite"),
    **dict.fromkeys(("ab", "sweep"), "points.yaml"),
}


def commands_with_output() -> list[str]:
    """Return the command lines that take ``--output``."""
    found = []
    for name in COMMANDS:
        command = typer.main.get_command(build([name])).commands[name]  # type: ignore[attr-defined]
        below = getattr(command, "commands", {})
        for each, line in [(command, name), *((below[sub], f"{name} {sub}") for sub in below)]:
            if any(param.name == "output" for param in each.params):
                found.append(line)
    return found


OUTPUTS = commands_with_output()


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.txt", "table"),
        ("a", "table"),
        ("a.json", "json"),
        ("a.JSON", "json"),
        ("a.csv", "csv"),
        ("a.md", "markdown"),
        ("a.b.markdown", "markdown"),
    ],
)
def test_the_name_of_the_file_says_the_format(
    name: str, form: str, mhaprof: Any, tmp_path: Path
) -> None:
    named, told = tmp_path / name, tmp_path / "told"
    assert mhaprof(*COUNT, "-o", named).code == 0
    assert mhaprof(*COUNT, "--format", form, "-o", told).code == 0
    assert named.read_text() == told.read_text()


def test_a_result_file_is_exported_by_name(mhaprof: Any, tmp_path: Path) -> None:
    run = tmp_path / "run.sqlite"
    flags = ["--tokens", 8, "--dim", 8, "--heads", 2, "--measure", "flops", "--inline"]
    assert mhaprof("sweep", *flags, "--out", run, "-o", tmp_path / "shown.csv").code == 0
    assert mhaprof("results", run, "-o", tmp_path / "rows.jsonl").code == 0
    (row, *_) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert row["tokens"] == 8
    assert (tmp_path / "shown.csv").read_text().startswith("name,")


def test_md_is_a_word_for_markdown(mhaprof: Any, tmp_path: Path) -> None:
    assert mhaprof(*COUNT, "--format", "md").out == mhaprof(*COUNT, "--format", "markdown").out
    assert mhaprof(*COUNT, "--format", "md", "-o", tmp_path / "a.md").code == 0


def test_a_flag_says_what_a_strange_name_does_not(mhaprof: Any, tmp_path: Path) -> None:
    assert mhaprof(*COUNT, "--format", "csv", "-o", tmp_path / "a.dat").code == 0
    assert (tmp_path / "a.dat").read_text().startswith("name,")


def test_every_kind_of_command_has_an_output() -> None:
    assert len(OUTPUTS) >= 15
    assert {"schema", "results", "gate", "baseline update"} <= set(OUTPUTS)


@pytest.mark.parametrize("line", OUTPUTS)
def test_every_output_refuses_a_name_against_its_format_before_any_work(
    line: str, mhaprof: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = [*line.split(), *ARGUMENTS.get(line, "").split()]
    helping = f"(mhaprof {line.split(maxsplit=1)[0]} --help)\n"
    ran = mhaprof(*command, "--format", "json", "-o", "a.csv")
    differ = "--format json and the name of --output a.csv differ; drop one"
    assert (ran.code, ran.err) == (2, f"mhaprof: {differ} {helping}")
    assert ran.json["error"]["exit_code"] == 2
    for name in ("a.html", "a.xlsx"):
        ran = mhaprof(*command, "-o", name)
        assert (ran.code, ran.out) == (2, "")
        (text,) = ran.err.splitlines()
        assert f"--output {name}: the ending .{name[2:]} says no format; known are ." in text
        assert "(no HTML yet); give one of them, or --format" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", ["sweep --dim 8 --out rows.csv", "merge a.sqlite --out rows.csv"])
def test_a_result_file_is_not_named_as_rows_are(
    line: str, mhaprof: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = mhaprof(*line.split())
    assert ran.code == 2
    told = "--out rows.csv is a result file (SQLite); for rows give --output rows.csv"
    assert ran.err == f"mhaprof: {told} (mhaprof {line.split(maxsplit=1)[0]} --help)\n"
    assert list(tmp_path.iterdir()) == []
