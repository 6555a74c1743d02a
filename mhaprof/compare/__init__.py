"""Baseline and candidate -> verdict and reason code per point; a policy -> pass or fail.

Nothing in here reaches torch, fvcore or ray: a gate runs where they are not.
"""

from mhaprof.compare.judge import compare, require_conditions
from mhaprof.compare.policy import PRESETS, Policy, preset
from mhaprof.compare.policy_file import load_policy, parse_policy
from mhaprof.compare.rows import CONDITIONS, RunRows
from mhaprof.compare.verdicts import (
    REASONS,
    VERDICTS,
    Comparison,
    Difference,
    Judgement,
    PointVerdict,
)

__all__ = [
    "CONDITIONS",
    "PRESETS",
    "REASONS",
    "VERDICTS",
    "Comparison",
    "Difference",
    "Judgement",
    "PointVerdict",
    "Policy",
    "RunRows",
    "compare",
    "load_policy",
    "parse_policy",
    "preset",
    "require_conditions",
]
