"""Random damage to every kind of file and flag costs one clear line, little time and memory.

``MHAPROF_FUZZ=5000 pytest tests/cli/test_hostile_input.py -s`` tries more inputs of each kind.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mhaprof.report.tabular import to_csv
from mhaprof.store import Store

INPUTS = int(os.environ.get("MHAPROF_FUZZ", "25"))
"""Inputs of each kind."""

LONGEST_S = 20.0
"""Ten times the time that an input may take: the machine may be busy."""

MOST_GROWTH_BYTES = 400 * 2**20
"""What the peak of the process may grow by, over all inputs of a kind."""

Argv = list[object]
ODD: list[Any] = [
    *(None, True, False, -1, 0, 1, 10**400, 10**19, 2**63, 2**31, 1e308, -0.5, 1e-320),
    *(
        "",
        "x",
        "none",
        "\x00\x1b[31m",
        "é\ud800",
        "=1+1",
        "9" * 5000,
        "\r",
        "a\rb",
        "\u202e",
        "1e999",
    ),
    *([], [1], [None], {}, {"a": [1]}, [["x"]], [[]] * 50, {"": {"": {"": None}}}),
]
TEXTS = [
    "\x00",
    "\r",
    "\x1b[2J",
    "]",
    '"',
    "{",
    ":",
    "\t",
    "9" * 99,
    "&a",
    "*a",
    "!!x ",
    "- ",
    "\n",
]
ROW = {
    "name": "p",
    "role": "point",
    "implementation": "sdpa",
    "status": "ok",
    "reason": None,
    "batch": 1,
    "tokens": 16,
    "dim": 8,
    "heads": 2,
    "causal": "none",
    "device": "cpu",
    "dtype": "float32",
    "threads": 1,
    "timer": "wall",
    "cache": "hot",
    "mode": "forward",
    "device_name": "a",
    "macs": 1000,
    "macs_q_proj": 1000,
    "params": 9,
    "peak_bytes": 4096,
    "latency_median_s": 1e-3,
    "latency_ci_low_s": 9e-4,
    "latency_ci_high_s": 1.1e-3,
    "replicate_medians_s": [1e-3, 1.1e-3, 9e-4, 1e-3],
    "flags": ["contended"],
    "round": None,
    "kwargs": None,
    "inputs": None,
    "identity": None,
    "message": None,
    "torch": "2.9",
}
CONFIG = {
    "version": 1,
    "defaults": {"batch": 1, "dim": 64, "tokens": 128, "causal": True},
    "settings": {"device": "cpu", "dtype": ["float32"], "threads": [1, 2]},
    "sweep": {"heads": [1, 2, 4], "head_dim": {"pow2": [8, 16]}, "exclude": ["heads > 2"]},
    "points": [{"name": "a", "heads": 2, "kv_heads": 1}, {"heads": 1, "window": 4}],
    "zip": {"heads": [1, 2]},
    "measure": ["flops"],
}
POLICY = {
    "version": 1,
    "extends": "strict",
    "metrics": {"macs": {"change": "increase"}, "latency": {"threshold": {"default": 0.05}}},
    "points": [{"match": "p*", "metrics": {"peak_bytes": {"threshold": 0.1}}}],
}
MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "head_dim": 16,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "sliding_window": 16,
    "layer_types": ["full_attention", "sliding_attention"] * 2,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
    "use_sliding_window": True,
}


def damaged(chance: random.Random, value: Any) -> Any:
    """Return a value with odd values, missing and renamed keys somewhere inside."""
    if chance.random() < 0.15:
        return chance.choice(ODD)
    if isinstance(value, dict) and value:
        found = dict(value)
        for _ in range(chance.randint(1, 2)):
            key = chance.choice(list(value))
            found[key] = damaged(chance, value[key])
        if chance.random() < 0.15:
            name = chance.choice(["x\x1b[31m", "", "heads", "tokens", "version", "é\r"])
            found[name] = found.pop(chance.choice(list(found)))
        return found
    if isinstance(value, list) and value:
        place = chance.randrange(len(value))
        return [*value[:place], damaged(chance, value[place]), *value[place + 1 :]]
    return chance.choice(ODD)


def write(chance: random.Random, path: Path, text: str) -> Path:
    """Write a file; now and then with damage to its text or bytes."""
    for _ in range(chance.choice([0, 0, 0, 1, 2])):
        place = chance.randrange(len(text) + 1)
        text = text[:place] + chance.choice(TEXTS) + text[place + chance.randint(0, 3) :]
    content = text.encode("utf-8", "surrogatepass")
    if chance.random() < 0.05:
        content = content[: chance.randrange(len(content) + 1)] + b"\xff\xfe"
    path.write_bytes(content)
    return path


def as_yaml(chance: random.Random, value: Any) -> str:
    """Return JSON, which is YAML too, or a block of it for each key."""
    if isinstance(value, dict) and chance.random() < 0.8:
        return "".join(f"{key or 'x'}: {json.dumps(each)}\n" for key, each in value.items())
    return json.dumps(value)


def comparison(chance: random.Random, path: Path) -> Argv:
    """Use a run file in each command that reads one."""
    command = chance.choice(["compare", "gate", "results", "baseline", "merge"])
    return {
        "compare": [
            "compare",
            path,
            path,
            "--format",
            chance.choice(["table", "json", "markdown"]),
        ],
        "gate": ["gate", path, path, *chance.choice([[], ["--format", "junit"], ["--strict"]])],
        "results": ["results", path, "--format", chance.choice(["table", "json", "csv", "html"])],
        "baseline": ["baseline", "update", path, "--directory", path.parent / "b"],
        "merge": ["merge", path, "-o", path.parent / "merged.sqlite"],
    }[command]


def rows(chance: random.Random) -> list[Any]:
    """Return some rows, mostly damaged."""
    return [damaged(chance, ROW) if chance.random() < 0.7 else ROW for _ in range(2)]


def run_file(chance: random.Random, folder: Path) -> Argv:
    """Make JSON: a run, or rows alone."""
    document = {"schema_version": 1, "rows": rows(chance)}
    given = chance.choice([document, document, document["rows"], damaged(chance, document)])
    return comparison(chance, write(chance, folder / "a.json", json.dumps(given)))


def json_lines(chance: random.Random, folder: Path) -> Argv:
    """Make one row a line."""
    text = "\n".join(json.dumps(row) for row in rows(chance))
    return comparison(chance, write(chance, folder / "a.jsonl", text))


def csv_file(chance: random.Random, folder: Path) -> Argv:
    """Make CSV, of rows that are some."""
    given = [row for row in rows(chance) if isinstance(row, dict)]
    try:
        text = to_csv(given or [ROW])
    except (AttributeError, TypeError, ValueError, UnicodeError):
        text = to_csv([ROW])
    return comparison(chance, write(chance, folder / "a.csv", text))


def baseline(chance: random.Random, folder: Path) -> Argv:
    """Make a baseline, and judge a run by it."""
    columns = " ".join(ROW)
    document = {"schema_version": 1, "kind": "baseline", "columns": columns, "rows": rows(chance)}
    given = damaged(chance, document) if chance.random() < 0.4 else document
    path = write(chance, folder / "base.json", json.dumps(given))
    run = folder / "run.json"
    run.write_text(json.dumps({"rows": [ROW]}))
    return ["gate", path, run, *chance.choice([[], ["--format", "json"], ["--format", "junit"]])]


def sqlite_file(chance: random.Random, folder: Path) -> Argv:
    """Make a result file with odd values, or with damaged bytes."""
    path = folder / "a.sqlite"
    path.unlink(missing_ok=True)
    with Store(path):
        pass
    values: list[Any] = [
        None,
        -1,
        2**62,
        1e308,
        float("inf"),
        "x",
        "",
        b"\x00\xff",
        "[1",
        "{}",
        "\x1b",
    ]
    with sqlite3.connect(path) as db:
        for name in ("name", "status", "implementation", "macs", "latency_median_s", "flags"):
            db.execute(f"ALTER TABLE rows ADD COLUMN {name}")
        row = ["p", "ok", "sdpa", 7, 1e-3, '["contended"]']
        for place in range(len(row)):
            if chance.random() < 0.15:
                row[place] = chance.choice(values)
        db.execute(
            "INSERT INTO rows (identity, round, finished, name, status, implementation, "
            "macs, latency_median_s, flags) VALUES ('i', 0, 'n', ?, ?, ?, ?, ?, ?)",
            row,
        )
        if chance.random() < 0.2:
            db.execute("UPDATE rows SET name = CAST(x'fffe41' AS TEXT)")
    db.close()
    if chance.random() < 0.4:
        content = bytearray(path.read_bytes())
        for _ in range(chance.randint(1, 20)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content)
    return comparison(chance, path)


def policy(chance: random.Random, folder: Path) -> Argv:
    """Make a policy, and judge a run by it."""
    path = write(chance, folder / "p.yaml", as_yaml(chance, damaged(chance, POLICY)))
    run = folder / "run.json"
    run.write_text(json.dumps({"rows": [ROW]}))
    return ["gate", run, run, "--policy", path]


def config(chance: random.Random, folder: Path) -> Argv:
    """Make a YAML config, and plan or count it."""
    given = damaged(chance, {key: CONFIG[key] for key in CONFIG if chance.random() < 0.8})
    path = write(chance, folder / "c.yaml", as_yaml(chance, given))
    counted = ["flops", path, "--counter", "closed-form", "--format", "json"]
    return chance.choice([counted, ["sweep", path, "--plan", "-o", folder / "c.sqlite"]])


def model(chance: random.Random, folder: Path) -> Argv:
    """Make a model's config.json."""
    path = write(chance, folder / "config.json", json.dumps(damaged(chance, MODEL)))
    return ["model", path, "--tokens", "64", *chance.choice([[], ["--format", "json"]])]


def flags(chance: random.Random, folder: Path) -> Argv:
    """Give odd values to flags."""
    names = ["--tokens", "--heads", "--dim", "--window", "--causal", "--impl", "--head-dim"]
    names += ["--batch", "--kv-heads", "--softcap", "--format", "--counter", "--phase"]
    given = [f"{chance.choice(names)}={chance.choice(ODD)}" for _ in range(chance.randint(1, 3))]
    words = [word.replace("\x00", "").replace("\ud800", "") for word in given]
    return ["flops", "--counter", "closed-form", *words]


KINDS = [run_file, json_lines, csv_file, baseline, sqlite_file, policy, config, model, flags]


def faults(ran: Any, summary: Path, took_s: float) -> list[str]:
    """Return what a finished command did that no input may make it do."""
    found = []
    if ran.code not in (0, 1, 2, 3, 4, 5):
        found.append(f"exit code {ran.code}")
    if ran.code in (2, 3) and not ran.err.startswith("mhaprof: ") and not ran.out:
        found.append("no line says why")
    written = summary.read_text() if summary.exists() else ""
    for where, text in (("stdout", ran.out), ("stderr", ran.err), ("the summary", written)):
        raw = {c for c in text if not c.isprintable() and c not in "\n\t"}
        if raw:
            found.append(f"{raw} on {where}")
    if took_s > LONGEST_S:
        found.append(f"{took_s:.1f} s")
    return found


@pytest.mark.timeout(0 if INPUTS > 100 else 300)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_hostile_input_costs_one_clear_line(
    mhaprof: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Callable[[random.Random, Path], Argv],
) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.chdir(tmp_path)
    mhaprof(*kind(random.Random(-1), tmp_path))  # imports are no part of what is bounded
    wrong: list[str] = []
    codes: Counter[int] = Counter()
    longest_s, before = 0.0, peak_bytes()
    for seed in range(INPUTS):
        summary.unlink(missing_ok=True)
        argv = kind(random.Random(seed), tmp_path)
        started = time.perf_counter()
        ran = mhaprof(*argv)
        took_s = time.perf_counter() - started
        longest_s = max(longest_s, took_s)
        codes[ran.code] += 1
        if found := faults(ran, summary, took_s):
            wrong.append(f"seed {seed}: {argv}: {', '.join(found)}: {ran.err[-300:]!r}")
    grown = peak_bytes() - before
    print(f"{kind.__name__}: {INPUTS} inputs, {longest_s:.2f} s, +{grown >> 20} MiB, {dict(codes)}")
    assert not wrong, "\n".join([f"{len(wrong)} of {INPUTS}", *wrong[:40]])
    assert grown < MOST_GROWTH_BYTES


ODD_VALUES = [b"\xff\x00", "", None, -5, 2.5, float("inf"), '["x"]', '{"a": Infinity}', "t\x1b[31m"]


@pytest.mark.slow
@pytest.mark.parametrize("value", ODD_VALUES, ids=repr)
def test_a_column_of_a_store_with_what_does_not_belong_there_costs_one_line(
    mhaprof: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: object
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text("version: 1\npoints: [{name: a, dim: 64, heads: 4}]\n")
    assert mhaprof("sweep", "c.yaml", "--inline", "--out", "c.sqlite").code == 0
    wrong = []
    for table, column in columns_of("c.sqlite"):
        Path("x.sqlite").write_bytes(Path("c.sqlite").read_bytes())
        try:
            with closing(sqlite3.connect("x.sqlite")) as plain, plain:
                plain.execute(f'UPDATE "{table}" SET "{column}" = ?', [value])
        except sqlite3.IntegrityError:
            continue
        for argv in (["results", "x.sqlite", "--format", "json"], ["gate", "x.sqlite", "c.sqlite"]):
            ran = mhaprof(*argv)
            if found := faults(ran, tmp_path / "none", 0):
                wrong.append(f"{table}.{column}: {argv}: {', '.join(found)}: {ran.err[-300:]!r}")
            elif "json" in argv:
                json.loads(ran.out, parse_constant=pytest.fail)
    assert wrong == []


def columns_of(path: str) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as plain:
        tables = [row[0] for row in plain.execute("SELECT name FROM sqlite_master WHERE sql > ''")]
        return [
            (table, row[1])
            for table in tables
            for row in plain.execute(f"PRAGMA table_info({table})")
        ]


def peak_bytes() -> int:
    """Return the peak of this process; macOS counts bytes, Linux KiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
