"""``mhaprof sweep``, ``results``, ``merge`` and ``schema``, as users run them."""

from __future__ import annotations

import importlib
import json
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mhaprof.store import load

COUNTS = """
version: 1
name: counts
defaults: {batch: 2, tokens: 32, dim: 64}
sweep: {heads: [1, 2, 3, 4]}
"""

TIMES = """
version: 1
defaults: {batch: 1, tokens: 16, dim: 32}
points: [{name: small, heads: 2}]
measure: [flops, latency]
settings: {device: cpu, threads: 1, min_time: 0.01, max_time: 0.02}
reference: false
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("counts.yaml").write_text(COUNTS)
    Path("times.yaml").write_text(TIMES)


def test_a_sweep_counts_everything_and_is_shown_by_results(mhaprof: Any) -> None:
    ran = mhaprof("sweep", "counts.yaml", "--inline", "--format", "json")
    assert ran.code == 0
    assert ran.err == "mhaprof: results/counts.sqlite: 4 ok, 1 skipped, 0 failed\n"
    rows = {row["name"]: row for row in ran.rows}
    assert list(rows) == ["one full head, no W_O", "heads=1", "heads=2", "heads=3", "heads=4"]
    assert rows["heads=4"]["macs"] == 2 * 32 * (4 * 64 * 64 + 2 * 32 * 64)
    assert rows["heads=3"]["reason"] == "impossible_spec"
    shown = mhaprof("results", "results/counts.sqlite", "--format", "json")
    assert shown.code == 0
    assert shown.rows == ran.rows


def test_conditions_that_may_differ_are_a_list(
    mhaprof: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("mhaprof.cli.sweep")
    mhaprof("sweep", "counts.yaml", "--inline")
    asked: list[list[str]] = []
    driven = module.drive

    def drive(*args: Any, allow_env_mismatch: list[str], **more: Any) -> None:
        asked.append(allow_env_mismatch)
        driven(*args, allow_env_mismatch=allow_env_mismatch, **more)

    monkeypatch.setattr(module, "drive", drive)
    flags = ["--allow-env-mismatch", "torch,cpu_model", "--allow-env-mismatch", "mhaprof"]
    assert mhaprof("sweep", "counts.yaml", "--inline", *flags).code == 0
    assert asked == [["torch", "cpu_model", "mhaprof"]]


def test_what_only_the_closed_form_can_count_is_among_the_counts(mhaprof: Any) -> None:
    Path("flex.yaml").write_text(
        "defaults: {batch: 1, tokens: 16, dim: 32, heads: 2, implementations: [eager, flex]}\n"
        "points: [{name: small}]\nreference: false\nmeasure: [flops, latency]\nversion: 1\n"
        "settings: {device: cpu, threads: 1, samples: 3, min_time: 0.01, max_time: 0.02}\n"
    )
    ran = mhaprof("sweep", "flex.yaml", "--inline", "--format", "markdown")
    assert ran.code == 0
    assert "MACs | eager | flex |" in ran.out
    listed = mhaprof("results", "results/flex.sqlite", "--wide", "--format", "markdown").out
    counts = listed.partition("Operations of one forward pass")[2]
    assert "| small | eager |" in counts
    assert "| small | flex |" in counts


def test_a_timed_sweep_runs_in_a_worker_resumes_and_exports_its_samples(mhaprof: Any) -> None:
    first = mhaprof("sweep", "times.yaml", "--out", "t.sqlite", "--format", "json")
    assert first.code == 0
    assert [(row["name"], row["implementation"]) for row in first.rows] == [
        ("small", "eager"),
        ("small", "sdpa"),
    ]
    assert all(row["status"] == "ok" and row["samples"] > 0 for row in first.rows)
    assert all(row["fvcore_flops"] and row["predicted_peak_bytes"] for row in first.rows)
    assert first.json["environment"]["software"]["torch"]
    again = mhaprof("sweep", "times.yaml", "--out", "t.sqlite", "--format", "json")
    assert (again.code, again.rows) == (0, first.rows)
    rows = mhaprof("results", "t.sqlite", "--samples", "--format", "json").rows
    assert [row["samples"] for row in rows] == [len(row["samples_s"]) for row in rows]
    assert mhaprof("results", "t.sqlite", "--samples").code == 2


def test_rounds_are_rows_of_their_own_told_apart_in_the_table(mhaprof: Any) -> None:
    ran = mhaprof("sweep", "counts.yaml", "--inline", "--rounds", "2")
    assert ran.err == "mhaprof: results/counts.sqlite: 8 ok, 1 skipped, 0 failed\n"
    assert "heads=1, round 2" in ran.out
    assert load("results/counts.sqlite").groupby("name")["round"].max()["heads=4"] == 1


def test_what_is_measured_can_be_chosen_by_a_flag(mhaprof: Any) -> None:
    ran = mhaprof("sweep", "times.yaml", "--measure", "flops", "--inline", "--format", "json")
    assert ran.code == 0
    assert [row["implementation"] for row in ran.rows] == ["eager"]
    assert "latency_median_s" not in ran.rows[0]


def test_the_layers_of_a_model_are_a_sweep(mhaprof: Any) -> None:
    ran = mhaprof("sweep", "--preset", "llama-3-8b", "--tokens", "8,16", "--inline")
    assert ran.code == 0
    frame = load("results/llama-3-8b.sqlite")
    assert frame[frame.role == "point"].tokens.tolist() == [8, 16]
    assert set(frame[frame.role == "point"].kv_heads) == {8}
    both = mhaprof("sweep", "counts.yaml", "--preset", "llama-3-8b")
    assert (both.code, mhaprof("sweep").code) == (2, 2)
    assert "give one" in both.err


def test_a_dry_run_tells_what_will_happen_and_makes_no_file(mhaprof: Any) -> None:
    ran = mhaprof("sweep", "times.yaml", "--dry-run", "--format", "json")
    assert ran.code == 0
    assert not Path("results").exists()
    assert [(row["name"], row["status"]) for row in ran.rows] == [
        ("small", "planned"),
        ("small", "planned"),
    ]
    assert all(row["predicted_time_s"] > 0 for row in ran.rows)
    assert all(row["predicted_peak_bytes"] > 0 for row in ran.rows)
    table = mhaprof("sweep", "counts.yaml", "--dry-run").out
    assert "5 points: 4 to measure, 0 stored, 1 to skip." in table
    assert "Skipped: dim 64 is not divisible by heads 3; give head_dim." in table


def test_a_dry_run_after_a_sweep_has_nothing_left_to_do(mhaprof: Any) -> None:
    mhaprof("sweep", "counts.yaml", "--inline")
    ran = mhaprof("sweep", "counts.yaml", "--dry-run", "--format", "json")
    assert {row["status"] for row in ran.rows} == {"stored", "skipped"}


def test_shards_in_files_of_their_own_merge_to_the_whole(mhaprof: Any) -> None:
    for index in (1, 2):
        assert mhaprof("sweep", "counts.yaml", "--inline", "--shard", f"{index}/2").code == 0
    parts = sorted(str(path) for path in Path("results").iterdir())
    assert parts == ["results/counts.shard-1-of-2.sqlite", "results/counts.shard-2-of-2.sqlite"]
    merged = mhaprof("merge", *parts, "--out", "all.sqlite")
    assert merged.code == 0
    assert merged.err == "mhaprof: all.sqlite: 5 results added, 0 were there already\n"
    mhaprof("sweep", "counts.yaml", "--inline", "--out", "whole.sqlite")
    own = ["finished", "environment"]
    pd.testing.assert_frame_equal(
        load("all.sqlite").drop(columns=own), load("whole.sqlite").drop(columns=own)
    )


def test_the_driver_of_a_sweep_on_a_cpu_never_imports_torch() -> None:
    code = (
        "import sys; from mhaprof.cli.app import run\n"
        "from mhaprof.runners import worker\n"
        "worker.WorkerPool.step = lambda self: (_ for _ in ()).throw(KeyboardInterrupt)\n"
        "code = run(['sweep', 'times.yaml', '--out', 't.sqlite'])\n"
        "print(code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "130 False", done.stderr


def test_ctrl_c_keeps_what_was_measured_and_exits_130() -> None:
    many = "sweep: {heads: [1, 2], batch: {range: [1, 200]}}"
    text = TIMES.replace("points: [{name: small, heads: 2}]", many).replace("batch: 1, ", "")
    Path("long.yaml").write_text(text)
    command = [sys.executable, "-m", "mhaprof", "sweep", "long.yaml", "--out", "l.sqlite"]
    # A shell's background job ignores SIGINT, and so would all that it starts.
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as process:
        try:
            while process.poll() is None and stored("l.sqlite") < 1:
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "to go: the same command resumes" in err.decode()
    assert 1 <= stored("l.sqlite") < 1000
    assert not Path("l.sqlite.lock").exists()


FILLS = """
mount -t tmpfs -o size=2m tmpfs small || exit 99
head -c 1900k /dev/zero >small/filler
"$@" >first.json; echo $? >first
cp small/c.sqlite first.sqlite
rm small/filler
"$@" >second.json
"""
"""Runs a command on a disk that gets full, then again with room on it.

The disk is there for this shell alone, whatever ends it.
"""


def test_a_full_disk_keeps_what_was_committed_and_the_same_command_resumes() -> None:
    Path("small").mkdir()
    text = COUNTS.replace("[1, 2, 3, 4]", "{range: [1, 64]}").replace("dim: 64", "head_dim: 8")
    Path("counts.yaml").write_text(text)
    alone = ["unshare", "--mount", "sh", "-c", FILLS, "sh", sys.executable, "-m", "mhaprof"]
    sweep = ["sweep", "counts.yaml", "--out", "small/c.sqlite", "--inline", "--format", "json"]
    try:
        done = subprocess.run([*alone, *sweep], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare(1) here")
    if done.returncode in (1, 99) and not Path("first").exists():
        pytest.skip("nothing can be mounted here")
    assert Path("first").read_text() == "4\n"
    assert json.loads(Path("first.json").read_text())["error"]["exit_code"] == 4
    assert 0 < stored("first.sqlite") < 65
    first, second = done.stderr.splitlines()
    assert first.startswith("mhaprof: the disk of small/c.sqlite is full; what was committed is")
    assert second == "mhaprof: small/c.sqlite: 65 ok, 0 skipped, 0 failed"
    assert done.returncode == 0
    assert len(json.loads(Path("second.json").read_text())["rows"]) == 65


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(
    mhaprof: Any,
) -> None:
    ran = mhaprof("sweep", "counts.yaml", "--inline", "--out", "/proc/mhaprof/c.sqlite")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("mhaprof: /proc/mhaprof/c.sqlite cannot be written: ")


def test_a_read_only_file_is_refused_before_anything_is_measured(
    mhaprof: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mhaprof("sweep", "counts.yaml", "--inline", "--out", "c.sqlite").code == 0
    connect = sqlite3.connect

    def read_only(path: object, **options: Any) -> sqlite3.Connection:
        return connect(f"file:{path}?mode=ro", uri=True, **options)

    monkeypatch.setattr("mhaprof.store.connection.sqlite3.connect", read_only)
    ran = mhaprof("sweep", "counts.yaml", "--inline", "--out", "c.sqlite")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "mhaprof: c.sqlite cannot be opened or written; check its folder's permissions\n"
    )


def stored(path: str) -> int:
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as plain:
            return int(plain.execute("SELECT count(*) FROM results").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def test_a_device_that_is_not_there_is_a_row_and_exit_4(mhaprof: Any) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    ran = mhaprof("sweep", "times.yaml", "--device", "cuda", "--impl", "eager", "--format", "json")
    assert ran.code == 4
    assert [(row["device"], row["status"], row["reason"]) for row in ran.rows] == [
        ("cuda", "skipped", "no_cuda")
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.yaml"], "nowhere.yaml"),
        (["counts.yaml", "--timeout", "inf"], "--timeout inf is no number of seconds; 0 means"),
        (["counts.yaml", "--shard", "3/2"], "--shard '3/2' is not of the form I/N"),
        (["counts.yaml", "--devices", "cpu"], "--devices 'cpu' is not all"),
        (["counts.yaml", "--inline", "--ray", "local"], "exclude each other"),
        (["counts.yaml", "--rounds", "0"], "rounds"),
        (["counts.yaml", "--out", "counts.yaml/x.sqlite"], "cannot be written"),
        (["counts.yaml", "--impl", "none-such"], "none-such"),
        (["counts.yaml", "--measure", "speed"], "--measure 'speed' is not one of flops, latency"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_2(
    mhaprof: Any, arguments: list[str], said: str
) -> None:
    ran = mhaprof("sweep", *arguments)
    assert ran.code == 2
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1
    assert ran.out == ""


def test_without_ray_its_flag_names_the_extra(
    mhaprof: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    ran = mhaprof("sweep", "counts.yaml", "--ray", "local")
    assert (ran.code, ran.err) == (2, "mhaprof: --ray needs ray: pip install 'mhaprof[ray]'\n")


def test_results_are_exported_in_every_format(mhaprof: Any) -> None:
    mhaprof("sweep", "counts.yaml", "--inline")
    file = "results/counts.sqlite"
    rows = mhaprof("results", file, "--format", "json").rows
    lines = mhaprof("results", file, "--format", "jsonl").out.splitlines()
    assert [json.loads(line) for line in lines] == rows
    mhaprof("results", file, "--format", "csv", "-o", "c.csv")
    frame = pd.read_csv("c.csv")
    assert list(frame.columns) == list(rows[0])
    assert frame.macs.dropna().astype(int).tolist() == [row["macs"] for row in rows if row["macs"]]
    markdown = mhaprof("results", file, "--format", "markdown").out
    assert markdown.startswith("### Operations of one forward pass, dense\n")
    assert markdown.count("\n|") == 2 + len(rows)


def test_parquet_goes_to_a_file_or_names_its_extra(
    mhaprof: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mhaprof("sweep", "counts.yaml", "--inline")
    file = "results/counts.sqlite"
    assert "give --output FILE" in mhaprof("results", file, "--format", "parquet").err
    with monkeypatch.context() as without:
        without.setattr("mhaprof.cli.results.find_spec", lambda name: None)
        refused = mhaprof("results", file, "--format", "parquet", "-o", "c.parquet")
    assert refused.err == (
        "mhaprof: --format parquet needs pyarrow: pip install 'mhaprof[parquet]'\n"
    )
    pytest.importorskip("pyarrow")
    assert mhaprof("results", file, "--format", "parquet", "-o", "c.parquet").code == 0
    assert pd.read_parquet("c.parquet").name.tolist() == load(file).name.tolist()


def test_a_long_table_is_cut_and_says_so(mhaprof: Any) -> None:
    mhaprof("sweep", "counts.yaml", "--inline")
    shown = mhaprof("results", "results/counts.sqlite", "--limit", "2").out
    whole = mhaprof("results", "results/counts.sqlite", "--all").out
    names = [f"heads={heads}" for heads in (1, 2, 4)]
    assert [name in whole for name in names] == [True] * 3
    assert "one full head" in shown
    assert [name in shown for name in names] == [False, False, True]
    more = "3 more rows between the first 1 and the last 1: --all shows them"
    assert more in shown
    assert more not in whole
    assert mhaprof("results", "results/counts.sqlite", "--limit", "0").out == whole


def test_a_damaged_file_is_one_line_and_exit_2(mhaprof: Any) -> None:
    mhaprof("sweep", "counts.yaml", "--inline")
    file = Path("results/counts.sqlite")
    file.write_bytes(file.read_bytes()[:6000])
    for command in (["results", file], ["sweep", "counts.yaml"], ["merge", file, "--out", "x"]):
        ran = mhaprof(*command)
        assert ran.code == 2
        assert len(ran.err.splitlines()) == 1
        assert "damaged" in ran.err


def test_the_schema_is_json_schema_that_the_editors_know(mhaprof: Any) -> None:
    printed = mhaprof("schema")
    assert printed.code == 0
    assert printed.json["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert mhaprof("schema", "-o", "schema.json").code == 0
    assert Path("schema.json").read_text() == printed.out


def test_a_sweep_of_flags_alone_is_named_by_out_and_resumes(mhaprof: Any) -> None:
    flags = ("sweep", "--batch", 1, "--tokens", 16, "--dim", 32, "--heads", "1,2,3", "--inline",
             "--impl", "eager,sdpa")  # fmt: skip
    ran = mhaprof(*flags)
    assert (ran.code, ran.out) == (2, "")
    assert "give --out results/NAME.sqlite" in ran.err
    assert mhaprof(*flags, "--dry-run").code == 0
    for _ in range(2):
        ran = mhaprof(*flags, "--out", "mine.sqlite", "--format", "json")
        assert ran.code == 0
    assert [(row["name"], row["implementation"], row["status"]) for row in ran.rows[1:]] == [
        ("heads=1", "eager", "ok"),
        ("heads=1", "sdpa", "ok"),
        ("heads=2", "eager", "ok"),
        ("heads=2", "sdpa", "ok"),
        ("heads=3", "eager", "skipped"),
        ("heads=3", "sdpa", "skipped"),
    ]


def test_a_preset_varied_by_flags_is_timed(mhaprof: Any) -> None:
    ran = mhaprof(
        "sweep", "--preset", "llama-3-8b", "--tokens", 4, "--dim", 64, "--heads", 4, "--head-dim",
        16, "--kv-heads", "1,2", "--dtype", "fp32,bf16", "--measure", "latency", "--inline",
        "--device", "cpu", "--threads", 1, "--samples", 3, "--min-time", 0.01, "--impl", "sdpa",
        "--format", "json",
    )  # fmt: skip
    assert ran.code == 0
    assert [(row["kv_heads"], row["dtype"], row["status"]) for row in ran.rows] == [
        (1, "float32", "ok"),
        (1, "bfloat16", "ok"),
        (2, "float32", "ok"),
        (2, "bfloat16", "ok"),
    ]
    assert all(row["latency_median_s"] > 0 for row in ran.rows)
