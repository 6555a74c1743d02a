"""One model of every architecture of transformers and timm against torch's own counter.

``zoo.yaml`` holds the verdict on each, so that a change is seen: ``both`` counters exact and
nothing blocks, ``one`` of them, ``blocked`` or ``refused`` (with what was said), ``wrong``,
of which there may be none, or ``not run``: what could not be built small or run on a CPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent
TABLE: dict[str, dict[str, Any]] = yaml.safe_load((HERE / "zoo.yaml").read_text())
PARTS = 2


def asked(library: str) -> dict[str, tuple[str, str]]:
    """Return name -> (verdict, variant) of the models that can run."""
    return {
        name: (verdict, variant)
        for verdict, variants in TABLE[library]["verdicts"].items()
        for variant, names in variants.items()
        for name in names
    }


def judged(library: str) -> dict[str, dict[str, str]]:
    """Return what the zoo says of each model, run in two processes."""
    lines = [f"{library}\t{name}\t{variant}\n" for name, (_, variant) in asked(library).items()]
    parts = [
        subprocess.Popen(
            [sys.executable, HERE / "zoo.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(PARTS)
    ]
    for index, part in enumerate(parts):
        assert part.stdin is not None
        part.stdin.write("".join(lines[index::PARTS]))
        part.stdin.close()
    said = [line for part in parts for line in part.stdout or ()]
    assert [part.wait() for part in parts] == [0] * PARTS
    return {found["name"]: found for found in map(json.loads, said)}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("library", TABLE)
def test_every_architecture_counts_as_the_table_says_and_none_is_wrong(
    library: str, timm: Any, transformers: Any
) -> None:
    package = {"timm": timm, "transformers": transformers}[library]
    if package.__version__ != TABLE[library]["version"]:
        pytest.skip(f"the table is of {library} {TABLE[library]['version']}")
    found = judged(library)
    changed = {
        name: f"{verdict} -> {found[name]['verdict']}: {found[name]['said']}"
        for name, (verdict, _) in asked(library).items()
        if found[name]["verdict"] != verdict
    }
    assert changed == {}


def test_nothing_in_the_table_is_wrong_and_most_is_exact() -> None:
    for library in TABLE:
        verdicts = Counter(verdict for verdict, _ in asked(library).values())
        assert verdicts["wrong"] == verdicts["blocked"] == 0
        assert verdicts["both"] >= 0.95 * verdicts.total()
