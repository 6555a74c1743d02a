"""``mhaprof flops``: the mission's numbers, the output contract, bad flags."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

CONTRACT = [
    "name",
    "role",
    "implementation",
    "status",
    "reason",
    "batch",
    "tokens",
    "kv_tokens",
    "dim",
    "heads",
    "kv_heads",
    "head_dim",
    "out_proj",
    "qkv_bias",
    "out_bias",
    "fvcore_flops",
    "torch_macs",
    "closed_form_macs",
    "macs",
    "flops",
    "params",
    "softmax_ops",
    "ratio_to_reference",
    "macs_q_proj",
    "macs_k_proj",
    "macs_v_proj",
    "macs_scores",
    "macs_context",
    "macs_out_proj",
]

STAGES = [f"macs_{s}" for s in ("q_proj", "k_proj", "v_proj", "scores", "context", "out_proj")]

IMPLEMENTATIONS = ("eager", "eager-separate", "per-head", "sdpa", "torch-mha")


def test_the_table_of_one_point_says_both_counts_exactly(mhaprof: Any) -> None:
    ran = mhaprof("flops", "--dim", 512, "--heads", 8)
    said = "ratio: 68719476736 MACs to the 60129542144 of one full head without W_O"
    assert said in " ".join(ran.out.split())
    assert (
        "ratio: to one full" in mhaprof("flops", "--heads", "1,2", "--counter", "closed-form").out
    )


def test_three_counters_agree_on_the_missions_numbers(mhaprof: Any) -> None:
    ran = mhaprof("flops", "--dim", 512, "--heads", 8, "--format", "json")
    assert ran.code == 0
    reference, point = ran.rows
    assert reference["role"] == "reference"
    assert (reference["heads"], reference["out_proj"], reference["macs"]) == (1, False, 60129542144)
    assert point["role"] == "point"
    assert point["fvcore_flops"] == point["torch_macs"] == point["closed_form_macs"] == 68719476736
    assert point["macs"] == 68719476736
    assert point["flops"] == 137438953472
    assert point["ratio_to_reference"] == pytest.approx(68719476736 / 60129542144)
    assert (reference["status"], point["status"]) == ("ok", "ok")


def test_every_row_has_the_columns_of_the_contract_and_integer_counts(mhaprof: Any) -> None:
    document = mhaprof("flops", "--format", "json").json
    assert document["schema_version"] == 1
    for row in document["rows"]:
        assert [key for key in CONTRACT if key not in row] == []
        counts = [k for k in row if k.startswith("macs") or k in ("flops", "params")]
        assert all(row[key] is None or type(row[key]) is int for key in counts)
        assert sum(row[stage] for stage in STAGES) == row["macs"]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_every_implementation_costs_the_same(mhaprof: Any, implementation: str) -> None:
    ran = mhaprof("flops", "--impl", implementation, "--format", "json", "--no-reference")
    (row,) = ran.rows
    assert (row["implementation"], row["status"], row["macs"]) == (
        implementation, "ok", 68719476736,
    )  # fmt: skip
    assert row["fvcore_flops"] == row["torch_macs"] == 68719476736
    assert row["ratio_to_reference"] is None


def test_an_implementation_that_cannot_express_a_spec_is_skipped_with_a_code(mhaprof: Any) -> None:
    ran = mhaprof(
        "flops", "--impl", "torch-mha", "--impl", "eager", "--no-out-proj", "--format", "json"
    )
    by_name = {row["implementation"]: row for row in ran.rows if row["role"] == "point"}
    assert ran.code == 0
    assert by_name["torch-mha"]["status"] == "skipped"
    assert by_name["torch-mha"]["reason"]
    assert by_name["torch-mha"]["macs"] is None
    assert by_name["eager"]["macs"] == 60129542144


def test_a_list_in_a_flag_is_a_grid_and_impossible_points_keep_a_row(mhaprof: Any) -> None:
    ran = mhaprof("flops", "--heads", "1,3,8", "--batch", "1,2", "--format", "json")
    points = [row for row in ran.rows if row["role"] == "point"]
    assert [(row["heads"], row["batch"], row["status"]) for row in points] == [
        (1, 1, "ok"), (3, 1, "skipped"), (8, 1, "ok"), (1, 2, "ok"), (3, 2, "skipped"),
        (8, 2, "ok"),
    ]  # fmt: skip
    assert points[1]["reason"] == "impossible_spec"
    assert ran.code == 0


def test_breakdown_shows_the_stages(mhaprof: Any) -> None:
    ran = mhaprof("flops", "--breakdown", "--format", "markdown", "--exact")
    lines = ran.out.splitlines()
    header = next(line for line in lines if line.startswith("| name"))
    assert header == (
        "| name | impl | batch | tokens | dim | heads | q_proj | k_proj | v_proj | scores "
        "| context | out_proj | MACs |"
    )
    assert "| 17179869184 | 17179869184 | 8589934592 | 68719476736 |" in ran.out


def test_the_table_keeps_whole_numbers_in_a_pipe(fresh_mhaprof: Any) -> None:
    ran = fresh_mhaprof("flops", "--dim", 512, "--heads", 8, "--exact")
    assert ran.code == 0
    assert "60129542144" in ran.out
    assert "68719476736" in ran.out
    assert ran.err == ""


def test_counts_are_exact_beyond_floating_point(mhaprof: Any) -> None:
    ran = mhaprof("flops", "--tokens", 1048576, "--batch", 32, "--format", "json")
    assert ran.rows[1]["fvcore_flops"] == 36063981391052800
    assert ran.rows[1]["torch_macs"] == 36063981391052800


def test_csv_has_the_columns_of_json_and_pandas_reads_it_back(mhaprof: Any) -> None:
    rows = mhaprof("flops", "--heads", "2,8", "--format", "json").rows
    text = mhaprof("flops", "--heads", "2,8", "--format", "csv").out
    assert next(csv.reader(io.StringIO(text))) == list(rows[0])
    frame = pd.read_csv(io.StringIO(text))
    assert frame["macs"].tolist() == [row["macs"] for row in rows]
    assert frame["macs"].dtype == "int64"


def test_output_is_written_to_a_file_and_stdout_stays_empty(mhaprof: Any, tmp_path: Path) -> None:
    target = tmp_path / "counts.csv"
    ran = mhaprof("flops", "--format", "csv", "-o", target)
    assert (ran.code, ran.out) == (0, "")
    assert pd.read_csv(target)["macs"].tolist() == [60129542144, 68719476736]
    assert [path.name for path in tmp_path.iterdir()] == ["counts.csv"]


def test_closed_form_alone_imports_no_torch() -> None:
    code = (
        "import sys; from mhaprof.cli.app import run; "
        "code = run(['flops', '--counter', 'closed-form', '--format', 'json']); "
        "sys.exit(code or ('torch' in sys.modules) * 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"closed_form_macs": 68719476736' in done.stdout


def test_masks_show_exact_pairs_beside_the_dense_number(mhaprof: Any) -> None:
    ran = mhaprof("flops", "--causal", "top-left", "--batch", 1, "--format", "json")
    row = ran.rows[1]
    assert (row["macs"], row["pairs_exact"]) == (2147483648, 524800)
    assert row["macs_exact"] == 1073741824 + 2 * 8 * 524800 * 64
    table = mhaprof("flops", "--causal", "top-left", "--batch", 1).out
    assert "macs_exact" in table
    assert "pairs_exact" in table


def test_backward_is_counted_and_agrees_with_the_closed_form(mhaprof: Any) -> None:
    ran = mhaprof(
        "flops", "--backward", "--impl", "eager", "--impl", "sdpa", "--format", "json",
        "--no-reference",
    )  # fmt: skip
    eager, sdpa = ran.rows
    assert (eager["status"], sdpa["status"]) == ("ok", "ok")
    assert eager["flops_backward"] == 2 * eager["flops"]
    assert sdpa["flops_backward"] == 2 * sdpa["flops"] + 2 * sdpa["macs_scores"]
    assert eager["flops_forward_backward"] == 3 * eager["flops"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--heads", "7"], "dim 512 is not divisible by heads 7; give --head-dim"),
        (["--dim", "x"], "dim 'x' is not a whole number of at least 1"),
        (["--batch", "0"], "batch 0 is not a whole number of at least 1"),
        (["--dim", "512,"], "dim '' is not a whole number of at least 1"),
        (["--heads", "8,x"], "heads 'x' is not a whole number of at least 1"),
        (["--dim", "1_000"], "dim '1_000' is not a whole number of at least 1"),
        (["--heads", "\u0663"], "is not a whole number of at least 1"),
        (["--kv-heads", "3"], "heads 8 is not a multiple of kv_heads 3; kv_heads must divide"),
        (["--causal", "up"], "causal 'up' is not one of none, top-left, bottom-right"),
        (["--kv-head", "3"], "--kv-heads"),
        (["--impl", "eagre"], "did you mean eager?"),
        (["--counter", "thop"], "--counter 'thop' is not one of fvcore, torch, closed-form"),
        (["--format", "xml"], "--format 'xml' is not one of"),
        (["--output", "/nowhere/at/all.json"], "does not exist"),
        (["nowhere.yaml"], "nowhere.yaml"),
        (["--cache-dtype", "int3"], "--cache-dtype 'int3' is not one of"),
        (["--module", "nonsense"], "is not of the form package.module:Class"),
        (["--module", "torch.nn:Linear"], "needs its inputs"),
        (["--module", "torch.nn:Nope", "--input", "1x2"], "has no attribute"),
        (["--module", "no.such:Thing", "--input", "1x2"], "cannot be imported"),
        (["--module", "torch.nn:Linear", "--input", "1xx2"], "is not of the form"),
        (["--module", "torch.nn:Linear", "--input", "2x3"], "cannot be built"),
        (["--module", "torch.nn:Linear", "--kwargs", "{", "--input", "2x3"], "is not JSON"),
        (["--module", "torch.nn:Identity", "--input", "2", "--explain"], "has no formula"),
        (["--kwargs", '{"bias": false}'], "name it by --module"),
        (["--input", "2x3"], "name it by --module"),
    ],
)
def test_a_bad_flag_costs_one_line_and_exit_2(
    mhaprof: Any, arguments: list[str], said: str
) -> None:
    ran = mhaprof("flops", *arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1
    assert ran.err.startswith("mhaprof: ")


def test_sizes_beyond_torch_point_to_the_closed_form(mhaprof: Any) -> None:
    arguments = ("flops", "--dim", 80000000000, "--no-reference", "--format", "json")
    ran = mhaprof(*arguments)
    assert ran.code == 4
    assert "give --counter closed-form" in ran.err
    (row,) = mhaprof(*arguments, "--counter", "closed-form").rows
    assert row["macs"] == 4 * 32 * 1024 * 80000000000**2 + 2 * 32 * 1024**2 * 80000000000


def test_backward_of_an_implementation_without_gradients_is_a_skip(mhaprof: Any) -> None:
    ran = mhaprof(
        "flops", "--backward", "--impl", "torch-mha-fastpath", "--qkv-bias", "--out-bias",
        "--no-reference", "--format", "json",
    )  # fmt: skip
    (row,) = ran.rows
    assert (row["status"], row["reason"]) == ("skipped", "backward_unsupported")


def test_none_in_a_list_is_the_field_left_out(mhaprof: Any) -> None:
    ran = mhaprof(
        "flops", "--causal", "top-left", "--window", "none,256", "--no-reference", "--format",
        "json", "--counter", "closed-form",
    )  # fmt: skip
    assert [row["window"] for row in ran.rows] == [None, 256]
    assert [row["pairs_exact"] for row in ran.rows] == [524800, 256 * 1024 - 256 * 255 // 2]


@pytest.mark.parametrize(
    ("word", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16"), ("fp64", "float64")]
)
def test_a_dtype_of_an_input_is_the_same_in_short(
    word: str, dtype: str, mhaprof: Any, tmp_path: Path
) -> None:
    module = ["flops", "--module", "torch.nn:Softmax", "--format", "json"]
    short, long = (mhaprof(*module, "--input", f"2x8:{name}").rows for name in (word, dtype))
    assert short == long
    assert short[0]["inputs"] == [f"2x8:{dtype}"]
    file = tmp_path / "a.yaml"
    file.write_text(f"version: 1\npoints: [{{module: 'a:B', inputs: ['2x8:{word}', '4']}}]\n")
    refused = mhaprof("flops", file, "--allow-import")
    assert "a cannot be imported" in refused.err


def test_json_stays_json_when_the_request_is_wrong(mhaprof: Any) -> None:
    ran = mhaprof("flops", "--heads", 7, "--format", "json")
    assert ran.code == 2
    assert ran.json["rows"] == []
    assert ran.json["error"] == {
        "message": "dim 512 is not divisible by heads 7; give --head-dim",
        "exit_code": 2,
    }


def test_explain_writes_the_formula_with_its_numbers(mhaprof: Any) -> None:
    ran = mhaprof("flops", "--explain")
    assert "batch x heads x tokens x kv_tokens x head_dim = 32 x 8 x 1024 x 1024 x 64" in ran.out
    assert "overtake the projections beyond 1024 tokens (2 x dim)" in ran.out


def test_a_module_of_ones_own_is_counted_by_operator_and_submodule(mhaprof: Any) -> None:
    ran = mhaprof(
        "flops", "--module", "torch.nn:MultiheadAttention",
        "--kwargs", '{"embed_dim": 64, "num_heads": 4, "batch_first": true}',
        "--input", "2x128x64", "--input", "2x128x64", "--input", "2x128x64", "--format", "json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    (row,) = ran.rows
    macs = 4 * 2 * 128 * 64 * 64 + 2 * 2 * 128 * 128 * 64
    assert row["macs"] == row["fvcore_flops"] == row["torch_macs"] == macs
    assert sum(row["by_operator"].values()) == macs
    assert row["params"] == 4 * 64 * 64 + 4 * 64


@pytest.fixture
def noisy_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make modules importable that print and that end the program."""
    code = """
import sys
from torch import nn

class Talks(nn.Module):
    def forward(self, x):
        print("data of mine")
        return x @ x

class Quits(nn.Module):
    def forward(self, x):
        sys.exit(0)
"""
    (tmp_path / "noisy.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("noisy_modules")
def test_what_a_module_prints_does_not_mix_with_the_data(mhaprof: Any) -> None:
    ran = mhaprof("flops", "--module", "noisy:Talks", "--input", "3x3", "--format", "json")
    assert ran.code == 0
    assert ran.rows[0]["macs"] == 27
    assert "data of mine" in ran.err


@pytest.mark.usefixtures("noisy_modules")
def test_a_module_that_ends_the_program_is_an_error(mhaprof: Any) -> None:
    ran = mhaprof("flops", "--module", "noisy:Quits", "--input", "3x3")
    assert ran.code == 2
    assert ran.err == "mhaprof: module noisy:Quits ended the program by sys.exit(0)\n"


def test_modules_of_a_file_that_cannot_be_counted_are_told_at_once_with_their_place(
    mhaprof: Any, tmp_path: Path
) -> None:
    file = tmp_path / "modules.yaml"
    file.write_text(
        "version: 1\n"
        "points:\n"
        "  - {name: unbuilt, module: 'torch.nn:Linear', inputs: [2x3]}\n"
        "  - {name: unfit, module: 'torch.nn:Linear', inputs: [2x4],\n"
        "     kwargs: {in_features: 3, out_features: 5}}\n"
        "  - {name: spec, heads: 8}\n"
    )
    ran = mhaprof("flops", file, "--allow-import", "--counter", "torch")
    first, second = ran.err.splitlines()
    assert (ran.code, ran.out) == (2, "")
    assert first.startswith(f"mhaprof: {file}:3:5: unbuilt: module torch.nn:Linear cannot be built")
    assert second.startswith(f"mhaprof: {file}:4:5: unfit: Linear.forward cannot be run")


SOLVES = """
import torch
from torch import nn

class Solves(nn.Linear):
    def forward(self, x):
        return torch.linalg.svd(super().forward(x))[0]
"""


@pytest.fixture
def solves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a module importable of which one operator has no count, and a file that names it."""
    (tmp_path / "solves.py").write_text(SOLVES)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "points.yaml"
    file.write_text(
        "version: 1\n"
        "settings: {allow_uncounted: aten::linalg_svd}\n"
        "module: solves:Solves\n"
        "kwargs: {in_features: 8, out_features: 8}\n"
        "inputs: 2x8\n"
    )
    return file


@pytest.mark.usefixtures("solves")
def test_an_operator_without_a_count_fails_the_row_and_says_how_to_go_on(mhaprof: Any) -> None:
    module = ["--module", "solves:Solves", "--kwargs", '{"in_features": 8, "out_features": 8}']
    ran = mhaprof("flops", *module, "--input", "2x8", "--format", "json")
    assert ran.code == 1
    assert (ran.rows[0]["status"], ran.rows[0]["reason"]) == ("failed", "uncounted_ops")
    flag = ran.err.strip().rpartition(": ")[2].split()
    assert flag == ["--allow-uncounted", "aten::linalg_svd"]
    ran = mhaprof("flops", *module, "--input", "2x8", "--format", "json", *flag)
    assert ran.code == 0
    (row,) = ran.rows
    assert (row["status"], row["reason"], row["macs"]) == ("ok", "uncounted_allowed", 128)
    assert row["uncounted_ops"] == "aten::linalg_svd x1"
    assert "the MACs are without aten::linalg_svd (x1)" in ran.err


def test_a_file_may_allow_an_operator_without_a_count(mhaprof: Any, solves: Path) -> None:
    ran = mhaprof("flops", solves, "--allow-import", "--format", "json")
    assert (ran.code, ran.rows[0]["reason"]) == (0, "uncounted_allowed")
    ran = mhaprof("flops", solves, "--allow-import", "--allow-uncounted", "mine::other")
    assert ran.code == 1
