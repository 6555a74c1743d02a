"""``run.sh`` names every file that has tests for a GPU."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
MARK = "pytest.mark." + "gpu"


def test_every_test_for_a_gpu_is_run() -> None:
    script = (TESTS / "gpu" / "steps.py").read_text()
    named = [TESTS.parent / path for path in re.findall(r"\btests/[\w/.]+py", script)]
    marked = [file for file in TESTS.rglob("test_*.py") if MARK in file.read_text()]
    assert len(marked) >= 3
    assert [file for file in marked if file not in named] == []
