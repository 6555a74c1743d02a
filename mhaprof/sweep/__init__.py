"""Expand, skip what is stored, drive a runner, store each point as it lands."""

from __future__ import annotations

from mhaprof.sweep.drive import drive
from mhaprof.sweep.lanes import lanes_for
from mhaprof.sweep.plan import PlanEntry, Shard, expand

__all__ = ["PlanEntry", "Shard", "drive", "expand", "lanes_for"]
