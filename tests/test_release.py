"""What a release says of itself."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from importlib.resources import files
from pathlib import Path

import pytest

import mhaprof

CHANGELOG = Path(__file__).parents[1] / ".github" / "CHANGELOG.md"


def test_the_installed_version_is_that_of_the_package_and_has_its_changelog() -> None:
    assert metadata.version("mhaprof") == mhaprof.__version__
    versions = re.findall(r"^## \[(\d[^]]*)\] - \d{4}-\d\d-\d\d$", CHANGELOG.read_text(), re.M)
    assert versions[0] == mhaprof.__version__


@pytest.mark.slow
def test_type_checkers_of_users_see_the_types(tmp_path: Path) -> None:
    script = tmp_path / "user.py"
    script.write_text("from mhaprof import AttentionSpec\nreveal_type(AttentionSpec().heads)\n")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "--no-incremental", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert re.search(r'Revealed type is "(builtins\.)?int"', checked.stdout), checked.stdout


def test_types_guide_and_presets_travel_with_the_package() -> None:
    from mhaprof.huggingface.sources import preset_names

    assert "llama-3-8b" in preset_names()
    assert (files("mhaprof") / "py.typed").is_file()
    assert (files("mhaprof") / "guide" / "exit-codes.md").is_file()
