"""One SQLite file per run: commit a point, resume, merge shards, migrate.

The driver of a sweep is the only writer; anybody may read meanwhile.  Tables:

    meta          what was asked for: config, settings, version
    environments  where it was measured, by fingerprint
    points        what was planned, in order, and how many rounds the last plan asks for
                  (0: a point of an earlier plan, kept for its results)
    results       one row per point and round: the whole record as JSON
    rows          the same, flattened: what pandas, DuckDB and Datasette want
"""

from __future__ import annotations

from mhaprof.store.database import Entry, PlannedRow, Store
from mhaprof.store.frame import load
from mhaprof.store.merge import merge

__all__ = ["Entry", "PlannedRow", "Store", "load", "merge"]
