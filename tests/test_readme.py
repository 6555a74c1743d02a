"""Every command, file and program that the README and the guide show is run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = {page.stem: page.read_text() for page in sorted((ROOT / "mhaprof" / "guide").glob("*.md"))}
TEXTS = [README, *PAGES.values()]

INSTALL = "python3 -m venv .venv && .venv/bin/pip install -q torch==2.13.0 -e "


def blocks(language: str) -> list[str]:
    pattern = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [block for text in TEXTS for block in pattern.findall(text)]


def commands(block: str) -> list[str]:
    """Return the commands of a block, without what starts with a shell word of its own."""
    lines = [line.partition(" #")[0].strip() for line in block.splitlines()]
    return [line for line in lines if line.startswith("mhaprof ")]


BLOCKS = [block for block in blocks("bash") if commands(block)]


def install_lines() -> list[str]:
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [line for line in lines if line.startswith("python3 -m venv")]


def test_two_lines_make_their_own_environment_and_run_the_main_job_and_the_tests() -> None:
    assert install_lines() == [
        f"{INSTALL}. && .venv/bin/mhaprof claim",
        f"{INSTALL}'.[test]' && .venv/bin/pytest",
    ]


@pytest.mark.parametrize("block", BLOCKS, ids=[commands(block)[0] for block in BLOCKS])
def test_the_commands_of_a_block_run_one_after_another(
    block: str, mhaprof: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "results").mkdir()
    for language in ("text", "yaml"):
        for text in blocks(language):
            if name := re.match(r"# (\w+\.(?:py|yaml))$", text.partition("\n")[0]):
                (tmp_path / name[1]).write_text(text)
    for line in commands(block):
        ran = mhaprof(*shlex.split(line)[1:])
        assert ran.code == 0, f"{line}: {ran.err}"


def test_readme_has_commands_to_run() -> None:
    assert sum(len(commands(block)) for block in BLOCKS) >= 20


@pytest.mark.parametrize("program", [each for each in blocks("python") if "print(" in each])
def test_a_program_of_the_readme_runs(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(program, "README.md", "exec"), {})
    assert "68719476736 137438953472" in capsys.readouterr().out


@pytest.mark.parametrize("text", blocks("yaml"))
def test_a_file_of_the_readme_loads(text: str) -> None:
    from mhaprof.config import parse_config

    if text.lstrip().startswith("#") or "version: 1" in text:
        assert parse_config(text, file="README.md", allow_import=True).entries


KERNELS = """
from mhaprof import attention

mine = attention.get("eager")
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_job_that_compares_times_runs(
    mhaprof: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = re.findall(r"^ *- run: (mhaprof ab .*)$", PAGES["gate"], re.MULTILINE)
    for name in ("base", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernels.py").write_text(KERNELS)
    points = "version: 1\ndefaults: {batch: 1, dim: 64}\npoints: [{name: a, tokens: 64}]\n"
    (tmp_path / "new" / "points.yaml").write_text(points)
    monkeypatch.chdir(tmp_path)
    ran = mhaprof(*shlex.split(line)[1:], "--min-time", 0.1, "--max-time", 0.3)
    assert ran.code in (0, 1), ran.err
    assert len(list(Path("results/ab").glob("points-*.jsonl"))) == 1


def test_the_table_of_the_readme_is_the_stored_result() -> None:
    stored = (ROOT / "results" / "claim.md").read_text().splitlines()
    shown = [line for line in README.splitlines() if line.startswith("| ") and "head" in line]
    assert shown[0] == next(line for line in stored if line.startswith("| case"))
    cases = [line for line in shown[1:] if re.match(r"\| (one full head|8 heads)", line)]
    assert len(cases) == 3
    assert set(cases) <= set(stored)


def test_readme_stays_a_product_page() -> None:
    assert len(README.splitlines()) <= 200


def test_readme_links_every_page_that_it_names_and_every_page_is_named() -> None:
    linked = set(re.findall(r"\(mhaprof/guide/(\S+)\.md\)", README))
    assert linked == set(PAGES)


@pytest.mark.parametrize("text", [README, PAGES["exit-codes"]], ids=["README", "guide"])
def test_every_exit_code_is_listed(text: str) -> None:
    from mhaprof import errors
    from mhaprof.cli.app import EXIT_INTERNAL

    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    known = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert listed == known | {EXIT_INTERNAL}
