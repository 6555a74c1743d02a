"""The table in results/timing.md is what the rehearsal finds."""

from __future__ import annotations

import re

import pytest
import table


@pytest.mark.slow
def test_the_table_of_the_simulation_is_that_of_this_timer() -> None:
    _, heading, rest = table.FILE.read_text().partition(table.HEADING)
    assert heading + rest == table.section()
    ratios = [float(cells.split("|")[7]) for cells in re.findall(r"^\| \w.*us.*$", rest, re.M)]
    assert len(ratios) >= 15
    assert all(ratio == pytest.approx(1, abs=0.011) for ratio in ratios[:-2])
