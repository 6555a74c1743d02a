"""Files of strangers cost one clear line, write nothing and run nothing."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import random
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mhaprof.errors import UsageError
from mhaprof.report import markdown
from mhaprof.report.runfile import load_run
from mhaprof.report.tabular import to_csv
from mhaprof.report.view import View, text
from mhaprof.store import Store, connection
from mhaprof.store.reading import Reader

LONG = int(os.environ.get("MHAPROF_FUZZ", "0"))
"""Inputs of each kind to try; the default run tries a few."""

ODD: list[Any] = [
    *(None, True, -1, 0, 10**400, 1e308, -0.5, "", "x", "\x00\x1b[31m", "é\ud800", "=1+1"),
    *([], [1], [None], {}, {"a": [1]}, [["x"]], "9" * 5000, "\r", 2**63),
]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "run.sqlite"
    with Store(path):
        pass
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE rows ADD COLUMN name TEXT")
        db.execute("ALTER TABLE rows ADD COLUMN status TEXT")
        db.execute("ALTER TABLE rows ADD COLUMN implementation TEXT")
        db.execute("ALTER TABLE rows ADD COLUMN macs INTEGER")
        db.execute(
            "INSERT INTO rows (identity, round, finished, name, status, implementation, macs) "
            "VALUES ('i', 0, 'now', 'p', 'ok', 'eager', 7)"
        )
    db.close()
    return path


def changed(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()


STRANGE = {
    "a trigger": ("CREATE TRIGGER t AFTER INSERT ON rows BEGIN DELETE FROM rows; END",),
    "a view": ("CREATE VIEW v AS SELECT 1",),
    "a view without an end in the place of a table": (
        "DROP TABLE big_integers",
        "CREATE VIEW big_integers AS WITH RECURSIVE c(identity, round, column_name, value) AS "
        "(SELECT 'i', 0, 'macs', '1' UNION ALL SELECT * FROM c) SELECT * FROM c",
    ),
    "a generated column": (
        "ALTER TABLE rows ADD COLUMN tokens INTEGER AS (length(printf('%.*c', 1000000000, 'x')))",
    ),
    "a table of another program": ("CREATE TABLE other (x)",),
    "an index over an expression": ("CREATE INDEX i ON rows (abs(macs))",),
    "text in a column of numbers": ("UPDATE rows SET macs = 'many'",),
    "bytes in a column of numbers": ("UPDATE rows SET macs = x'00'",),
    "infinity": ("UPDATE rows SET macs = 9e999",),
    "text that is no UTF-8": ("UPDATE rows SET name = CAST(x'fffe' AS TEXT)",),
    "an environment that is none": (
        "INSERT INTO environments VALUES ('f', 'cpu', 'now', '{\"software\": 3}')",
    ),
    "bytes in a column of text": ("UPDATE rows SET implementation = x'ff'",),
    "a big integer that is none": ("INSERT INTO big_integers VALUES ('i', 0, 'macs', 'x')",),
    "a missing table": ("DROP TABLE big_integers",),
    "write-ahead logging": ("PRAGMA journal_mode = WAL",),
    "a row without a name": ("UPDATE rows SET name = NULL",),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_a_result_file_that_was_tampered_with_is_refused_in_one_line(
    mhaprof: Any, store: Path, kind: str
) -> None:
    assert [row["macs"] for row in load_run(store).rows] == [7]
    changed(store, *STRANGE[kind])
    ran = mhaprof("compare", store, store)
    assert ran.code == 2
    assert ran.err.startswith("mhaprof: ")
    assert ran.err.count("\n") == 1


def test_pages_that_are_linked_twice_are_refused(store: Path) -> None:
    changed(
        store,
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 5000) "
        "INSERT INTO rows (identity, round, finished) SELECT n, 0, 'now' FROM c",
    )
    content = bytearray(store.read_bytes())
    pages = [place for place in range(4096, len(content), 4096) if content[place] == 5]
    root = pages[0]  # an inner page of a table: make all its cells point to one child
    cells = int.from_bytes(content[root + 3 : root + 5])
    places = [
        root + int.from_bytes(content[root + 12 + 2 * cell : root + 14 + 2 * cell])
        for cell in range(cells)
    ]
    for place in places:
        content[place : place + 4] = content[places[0] : places[0] + 4]
    store.write_bytes(content)
    with pytest.raises(UsageError, match=r"sqlite is damaged \("):
        load_run(store)


def test_reading_leaves_the_file_and_its_folder_as_they_are(store: Path) -> None:
    before = store.read_bytes()
    store.chmod(0o444)
    store.parent.chmod(0o555)
    try:
        with Reader(store) as reader:
            assert len(list(reader.rows())) == 1
            assert os.listdir(store.parent) == [store.name]
    finally:
        store.parent.chmod(0o755)
    assert store.read_bytes() == before


@pytest.mark.parametrize("value", [3, True, {"a": 1}, [1], [["contended"]]])
def test_flags_that_are_no_words_are_refused(
    mhaprof: Any, write_run: Any, make_rows: Any, value: Any
) -> None:
    rows = make_rows(seed=1, points=1, flags=value)
    ran = mhaprof("compare", write_run("a.json", rows), write_run("b.json", rows))
    assert ran.code == 2
    assert "row 1: flags " in ran.err


@pytest.mark.parametrize("column", ["identity", "reason", "message", "plan", "tokens", "device"])
def test_a_list_or_an_object_in_the_place_of_a_scalar_is_refused(
    mhaprof: Any, write_run: Any, make_rows: Any, column: str
) -> None:
    rows = [row | {"round": 0, column: {"a": [1]}} for row in make_rows(seed=1, points=2)]
    ran = mhaprof("compare", write_run("a.json", rows), write_run("b.json", rows))
    assert ran.code == 2
    assert f"row 1: {column} is a list or an object" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("number", ["Infinity", "NaN", "1e999", "-1", "1" + "0" * 400])
@pytest.mark.parametrize("column", ["macs", "latency_median_s", "tokens", "kv_cache_bytes"])
def test_a_number_that_none_can_compute_with_is_refused(
    mhaprof: Any, tmp_path: Path, number: str, column: str
) -> None:
    if len(number) > 99 and column != "latency_median_s":
        pytest.skip("counts are whole numbers of any size")
    path = tmp_path / "b.json"
    path.write_text(
        '{"kind": "baseline", "rows": [{"name": "p", "implementation": "sdpa", "status": "ok", '
        f'"{column}": {number}}}]}}'
    )
    ran = mhaprof("gate", path, path)
    assert ran.code == 2
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("value", ["1e999", "[1, -1e999]", '{"a": [1e999]}'])
@pytest.mark.parametrize("column", ["kwargs", "outliers", "of_my_own", "arithmetic_intensity"])
def test_infinity_in_any_column_is_refused(
    mhaprof: Any, tmp_path: Path, column: str, value: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text(
        f'[{{"name": "p", "implementation": "sdpa", "status": "ok", "{column}": {value}}}]'
    )
    for command in ("compare", "gate"):
        ran = mhaprof(command, path, path)
        assert ran.code == 2
        assert f"row 1: {column} " in ran.err
        assert "is not a finite number or text" in ran.err


def test_bare_carriage_returns_and_nul_in_csv_are_no_traceback(
    mhaprof: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    for content in ("name,implementation,status\rp,sdpa,ok\r", "name\rx,a\n1\r2,3\n", "a\x00,b\n"):
        path.write_text(content, newline="")
        assert mhaprof("compare", path, path).code in (0, 2)


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_text_that_a_spreadsheet_would_run_is_quoted_and_read_back(
    tmp_path: Path, start: str
) -> None:
    name = f"{start}cmd|' /C calc'!A0"
    row = {"name": name, "implementation": "sdpa", "status": "ok", "macs": 7, "x": -1.5}
    text = to_csv([row])
    (_, cells) = csv.reader(io.StringIO(text, newline=""))
    assert cells == ["'" + name, "sdpa", "ok", "7", "-1.5"]
    path = tmp_path / "a.csv"
    path.write_text(text, newline="")
    assert load_run(path).rows[0]["name"] == name


def test_names_reach_no_terminal_markdown_or_html_unescaped() -> None:
    name = "a\x1b[31m|<img src=x>[l](u)\r\n\x00"
    view = View(title=name, columns=[text("name", "name")], rows=[{"name": name}], notes=[name])
    shown = markdown.render(view)
    assert shown.replace("\n", "").isprintable()
    assert "<img" not in shown
    assert "](" not in shown


@pytest.mark.parametrize("flags", [2, 3])
def test_flags_that_make_too_many_points_are_refused_with_the_count(
    mhaprof: Any, flags: int
) -> None:
    many = ",".join(map(str, range(1, 1002)))
    given = [("--heads", many), ("--dim", many), ("--tokens", many)][:flags]
    ran = mhaprof("flops", *(word for pair in given for word in pair))
    assert ran.code == 2
    assert f"{1001**flags} points; at most 1000000" in ran.err


@pytest.mark.parametrize("command", [("sweep", "--dry-run", "--measure", "latency"), ("latency",)])
def test_settings_multiply_the_points_that_are_counted(
    mhaprof: Any, tmp_path: Path, command: tuple[str, ...]
) -> None:
    tokens, threads = list(range(1, 1001)), list(range(1, 601))
    path = tmp_path / "c.yaml"
    settings = f"{{device: [cpu], dtype: [float32, float16], threads: {threads}}}"
    path.write_text(f"version: 1\nsettings: {settings}\nsweep: {{tokens: {tokens}}}\n")
    ran = mhaprof(*command, path, "--impl", "sdpa")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "mhaprof: points x implementations x devices x dtypes x threads: "
        "1200000 points; at most 1000000 are planned\n"
    )


@pytest.mark.parametrize("column", ["tokens", "batch", "window"])
def test_a_size_beyond_64_bits_is_refused(mhaprof: Any, tmp_path: Path, column: str) -> None:
    many, path = "9" * 20, tmp_path / "c.yaml"
    path.write_text(f"version: 1\npoints: [{{name: a, {column}: {many}}}]\n")
    expected = "64 bits"
    for given in ([f"--{column}", many], [path]):
        ran = mhaprof("flops", *given)
        assert (ran.code, ran.out) == (2, "")
        assert many in ran.err
        assert expected in ran.err
        assert ran.err.count("\n") == 1


def test_a_file_that_makes_a_billion_points_needs_no_memory(tmp_path: Path) -> None:
    values = str(list(range(1, 1001)))
    path = tmp_path / "big.yaml"
    path.write_text(f"version: 1\nsweep: {{heads: {values}, dim: {values}, tokens: {values}}}\n")
    code = (
        "import sys; from pathlib import Path; from mhaprof.config import load_config; "
        "load_config(Path(sys.argv[1]))"
    )
    limits = {resource.RLIMIT_AS: 2**30, resource.RLIMIT_CPU: 20}
    ran = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        preexec_fn=lambda: [resource.setrlimit(k, (v, v)) for k, v in limits.items()] and None,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1000000000 points" in ran.stderr


LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}


@pytest.mark.parametrize(
    ("layers", "types", "said"),
    [
        (5_000_000, None, "num_hidden_layers: 5000000 is above 2000"),
        (2_000, 3_000, "layer_types: holds 3000 layers"),
        (2_000, 300_000, "is longer than 4194304 characters"),
    ],
)
def test_a_model_of_millions_of_layers_is_refused(
    mhaprof: Any, tmp_path: Path, layers: int, types: int | None, said: str
) -> None:
    path = tmp_path / "config.json"
    given = {"layer_types": ["full_attention"] * types} if types else {}
    path.write_text(json.dumps({**LLAMA, "num_hidden_layers": layers, **given}))
    ran = mhaprof("model", path)
    assert ran.code == 2
    assert said in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("seed", range(LONG or 150))
def test_rows_of_odd_values_end_with_a_known_code(
    mhaprof: Any, tmp_path: Path, make_rows: Any, seed: int
) -> None:
    chance = random.Random(seed)
    rows = make_rows(seed=1, points=2)
    for _ in range(chance.randint(1, 3)):
        row = chance.choice(rows)
        row[chance.choice([*row, "samples_s", "round", "identity"])] = chance.choice(ODD)
    text = json.dumps({"rows": rows})
    if chance.random() < 0.3:
        place = chance.randrange(len(text))
        text = text[:place] + chance.choice(["\x00", "\r", "]", '"', "9" * 99]) + text[place + 1 :]
    path = tmp_path / "a.json"
    path.write_text(text)
    command = chance.choice([("compare",), ("gate",), ("baseline", "update")])
    files = [path] if command[0] == "baseline" else [path, path]
    ran = mhaprof(*command, *files, *(["--directory", tmp_path / "b"] if len(files) == 1 else []))
    assert ran.code in (0, 1, 2, 3), ran.err
    assert ran.err.replace("\n", "").isprintable()


@pytest.mark.parametrize("seed", range(LONG or 100))
def test_a_damaged_result_file_is_read_or_refused(store: Path, seed: int) -> None:
    chance = random.Random(seed)
    content = bytearray(store.read_bytes())
    for _ in range(chance.randint(1, 20)):
        content[chance.randrange(len(content))] = chance.randrange(256)
    store.write_bytes(content[: chance.choice([len(content), chance.randrange(len(content))])])
    with contextlib.suppress(UsageError):
        assert isinstance(load_run(store).rows, list)


def test_a_result_file_that_takes_for_ever_to_check_is_refused(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sqlite3.connect(store) as db:
        db.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<3000) "
            "INSERT INTO points (identity, ordinal, name, role, implementation) "
            "SELECT i, i, i, 'point', 'eager' FROM n"
        )
    db.close()
    monkeypatch.setattr(connection, "CHECK_MOST_S", -1.0)
    monkeypatch.setattr(connection, "CHECK_STEPS", 100)
    with pytest.raises(UsageError, match="could not be seen in"):
        load_run(store)
    monkeypatch.undo()
    assert len(load_run(store).rows) > 0


@pytest.mark.parametrize("content", [b'[{"name": "', b"name,implementation,status\n"])
@pytest.mark.parametrize("command", ["compare", "gate", "baseline"])
def test_text_beyond_what_is_read_is_refused_before_it_is_read(
    content: bytes, command: str, tmp_path: Path, mhaprof: Callable[..., Any]
) -> None:
    """The file is sparse: 1 TiB that nobody can read."""
    path = tmp_path / "large"
    path.write_bytes(content)
    os.truncate(path, 2**40)
    arguments = ["update", path] if command == "baseline" else [path, path]
    ran = mhaprof(command, *arguments)
    assert ran.code == 2
    assert f"{path} holds more than 256 MiB of text" in ran.err


def test_a_column_that_hides_the_places_of_rows_is_refused(store: Path) -> None:
    changed(store, "ALTER TABLE rows ADD COLUMN rowid INTEGER")
    with pytest.raises(UsageError, match="the table 'rows' that mhaprof did not make"):
        load_run(store)
