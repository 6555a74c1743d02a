"""``mhaprof latency``: rows, refusals, interruption, comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mhaprof.cli.results import views
from mhaprof.measure import sampling
from mhaprof.measure.timers import WallTimer
from mhaprof.records import Settings
from mhaprof.report.times import comparison_notes, contention_advice, latency_view

SMALL = ("--batch", 1, "--tokens", 32, "--dim", 32, "--heads", 4, "--device", "cpu")
QUICK = ("--threads", 1, "--samples", 5, "--max-time", 1, "--min-time", 0.001)

CONTRACT = [
    "device",
    "dtype",
    "threads",
    "timer",
    "latency_median_s",
    "latency_ci_low_s",
    "latency_ci_high_s",
    "latency_min_s",
    "samples",
    "converged",
    "tflops_per_s",
    "resolved_backend",
    "cache",
    "predicted_peak_bytes",
    "peak_bytes",
    "flags",
    "first_call_s",
    "max_error",
    "tolerance",
    "bound",
    "attained_fraction",
]


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Measure eager and sdpa once for the tests that read rows."""
    from mhaprof.cli.app import run

    folder = tmp_path_factory.mktemp("timed")
    arguments = [*SMALL, *QUICK, "--peak-tflops", 1000, "--peak-gbps", 100000]
    code = run(
        ["latency", *map(str, arguments), "--format", "json", "-o", str(folder / "rows.json"),
         "--samples-out", str(folder / "samples.json")]
    )  # fmt: skip
    assert code == 0
    document: dict[str, Any] = json.loads((folder / "rows.json").read_text())
    document["samples"] = json.loads((folder / "samples.json").read_text())
    document["raw"] = document["samples"]["rows"]
    return document


def test_rows_have_the_columns_of_the_contract(timed: dict[str, Any]) -> None:
    assert [row["implementation"] for row in timed["rows"]] == ["eager", "sdpa"]
    for row in timed["rows"]:
        assert [key for key in CONTRACT if key not in row] == []
        assert (row["status"], row["device"], row["dtype"], row["threads"]) == (
            "ok", "cpu", "float32", 1,
        )  # fmt: skip
        assert (row["timer"], row["cache"], row["mode"]) == ("wall", "hot", "forward")
        assert (row["torch"], row["driver"]) == (torch.__version__, None)
        assert row["latency_min_s"] <= row["latency_median_s"] <= row["latency_p95_s"]
        assert row["samples"] == 5
        assert row["max_error"] <= row["tolerance"]
        assert row["tflops_per_s"] == pytest.approx(row["flops"] / row["latency_median_s"] / 1e12)


def test_the_backend_that_ran_is_named(timed: dict[str, Any]) -> None:
    assert [row["resolved_backend"] for row in timed["rows"]] == [None, "flash"]


def test_flex_says_what_ran(mhaprof: Any) -> None:
    ran = mhaprof("latency", *SMALL, *QUICK, "--impl", "flex", "--format", "json")
    (row,) = ran.rows
    assert (row["status"], row["resolved_backend"]) == ("ok", "flex")


def test_the_roofline_uses_the_peaks_that_were_given(timed: dict[str, Any]) -> None:
    for row in timed["rows"]:
        assert (row["peak_tflops"], row["peak_gbps"]) == (1000, 100000)
        least_s = max(row["flops"] / 1e15, row["flops"] / row["arithmetic_intensity"] / 1e14)
        assert row["attained_fraction"] == pytest.approx(least_s / row["latency_median_s"])
        assert row["bound"] in ("compute", "memory")


def test_the_environment_is_in_the_document(timed: dict[str, Any]) -> None:
    for key in ("environment", "environment_after"):
        assert timed[key]["software"]["torch"].startswith("2.")
        assert timed[key]["hardware"]["cpu_model"]
        assert timed["samples"][key] == timed[key]


def test_tf32_where_there_is_none_is_not_passed_over(mhaprof: Any) -> None:
    ran = mhaprof("latency", *SMALL, *QUICK, "--impl", "sdpa", "--tf32", "--format", "json")
    assert ran.code == 0
    assert "tf32 is a format of CUDA devices: it changes nothing here" in ran.err


def test_the_environment_names_the_threads_that_were_asked_for(
    mhaprof: Any, timed: dict[str, Any]
) -> None:
    assert timed["environment"]["settings"]["threads"] == 1
    several = ("--threads", "2,1", "--samples", 3, "--max-time", 1, "--min-time", 0.001)
    ran = mhaprof("latency", *SMALL, *several, "--impl", "sdpa", "--format", "json")
    assert "threads" not in ran.json["environment"]["settings"]
    assert "threads" not in ran.json["environment_after"]["settings"]


def test_raw_samples_are_kept(timed: dict[str, Any]) -> None:
    for raw, row in zip(timed["raw"], timed["rows"], strict=True):
        assert len(raw["samples_s"]) == 5
        assert sorted(raw["samples_s"])[2] == row["latency_median_s"]
        assert raw["gpu_before"] is raw["gpu_after"] is None
        assert "gpu_before" not in row


def test_an_unknown_device_gets_no_roofline(mhaprof: Any, monkeypatch: pytest.MonkeyPatch,
                                            tmp_path: Path) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ran = mhaprof("latency", *SMALL, *QUICK, "--impl", "sdpa", "--format", "json")
    (row,) = ran.rows
    assert row["bound"] is row["attained_fraction"] is row["peak_tflops"] is None
    assert (
        f"no roofline for {row['device_name']} at --threads 1: give --peak-tflops and "
        "--peak-gbps, or run mhaprof env --calibrate --threads 1"
    ) in ran.err


def test_cuda_where_there_is_none_is_one_line_and_exit_4(mhaprof: Any) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    ran = mhaprof("latency", "--device", "cuda", "--format", "json")
    assert ran.code == 4
    assert len(ran.err.splitlines()) == 1
    assert "device cuda is not there" in ran.err
    assert "--device cpu" in ran.err
    assert ran.json["error"]["exit_code"] == 4


def test_what_cannot_fit_is_refused_before_it_is_tried(mhaprof: Any) -> None:
    ran = mhaprof(
        "latency", "--tokens", 131072, "--batch", 32, "--impl", "eager", "--device", "cpu",
        "--format", "json",
    )  # fmt: skip
    (row,) = ran.rows
    assert ran.code == 4
    assert (row["status"], row["reason"]) == ("skipped", "predicted_oom")
    assert row["latency_median_s"] is None
    assert "scores 32 TiB" in ran.err
    assert row["predicted_peak_bytes"] > 2**45 > row["available_bytes"] > 0
    assert row["peak_bytes"] is None


def test_a_wrong_result_has_no_time(mhaprof: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from mhaprof.measure import numerics

    monkeypatch.setattr(numerics, "tolerance", lambda *_, **__: 1e-30)
    ran = mhaprof("latency", *SMALL, *QUICK, "--impl", "eager", "--format", "json")
    (row,) = ran.rows
    assert ran.code == 4
    assert (row["status"], row["reason"]) == ("failed", "wrong_result")
    assert row["latency_median_s"] is None


def test_an_implementation_that_cannot_run_says_why(mhaprof: Any) -> None:
    ran = mhaprof(
        "latency", *SMALL, *QUICK, "--impl", "sdpa-cudnn", "--impl", "eager", "--format", "json"
    )
    cudnn, eager = ran.rows
    assert (cudnn["status"], cudnn["reason"]) == ("skipped", "backend_unavailable")
    assert eager["status"] == "ok"
    assert ran.code == 0
    settings = ("device", "dtype", "threads", "cache", "mode", "compiled", "tf32")
    assert [cudnn[name] for name in settings] == [eager[name] for name in settings]
    assert cudnn["timer"] is None


def test_threads_and_dtypes_are_axes(mhaprof: Any) -> None:
    ran = mhaprof(
        "latency", *SMALL, "--impl", "sdpa", "--samples", 3, "--max-time", 1, "--min-time",
        0.001, "--threads", "1,2", "--dtype", "float32,bfloat16", "--format", "json",
    )  # fmt: skip
    assert [(row["dtype"], row["threads"]) for row in ran.rows] == [
        ("float32", 1), ("float32", 2), ("bfloat16", 1), ("bfloat16", 2),
    ]  # fmt: skip


def test_backward_is_timed_with_its_own_operations(mhaprof: Any) -> None:
    ran = mhaprof(
        "latency", *SMALL, *QUICK, "--impl", "eager", "--mode", "backward", "--format", "json"
    )
    (row,) = ran.rows
    assert (row["status"], row["mode"]) == ("ok", "backward")
    assert row["flops_backward"] == 2 * row["flops"]
    assert row["tflops_per_s"] == pytest.approx(
        row["flops_backward"] / row["latency_median_s"] / 1e12
    )


def test_replicates_show_the_spread_between_processes(mhaprof: Any) -> None:
    ran = mhaprof(
        "latency", *SMALL, *QUICK, "--impl", "sdpa", "--replicates", 2, "--format", "json"
    )
    (row,) = ran.rows
    medians = row["replicate_medians_s"]
    assert (row["replicates"], len(medians)) == (2, 2)
    assert row["latency_median_s"] in medians
    assert row["replicate_spread"] >= 0


def test_without_memory_the_peak_is_predicted_alone(mhaprof: Any) -> None:
    ran = mhaprof("latency", *SMALL, *QUICK, "--impl", "sdpa", "--no-memory", "--format", "json")
    assert ran.rows[0]["peak_bytes"] is None
    assert ran.rows[0]["predicted_peak_bytes"] > 0


def test_a_turn_is_asked_for_before_each_point_and_between_batches(
    mhaprof: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mhaprof.measure.turns import Turns

    asked: list[str] = []

    class Recorded(Turns):
        def point(self) -> None:
            asked.append("point")

        def batch(self) -> float:
            asked.append("batch")
            return 0.0

    monkeypatch.setattr(Turns, "from_environment", lambda: Recorded(0, 0))
    mhaprof("latency", *SMALL, *QUICK, "--no-memory", "--format", "json")
    assert asked[0] == "point"
    assert asked.count("point") == 2
    second = asked.index("point", 1)
    assert "batch" in asked[1:second]
    assert "batch" in asked[second:]


def test_the_parent_of_replicates_stays_off_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from mhaprof.cli.latency import _environment
    from mhaprof.measure import environment

    asked: list[str] = []

    def describe(where: str) -> Any:
        return lambda device, **_: asked.append(f"{device} {where}")

    monkeypatch.setattr(environment, "collect", describe("here"))
    monkeypatch.setattr(environment, "collect_elsewhere", describe("elsewhere"))
    for device in ("cuda:1", "cpu"):
        _environment([Settings(device=device)], elsewhere=True)
    _environment([Settings(device="cuda:1")], elsewhere=False)
    assert asked == ["cuda:1 elsewhere", "cpu here", "cuda:1 here"]


def test_interruption_keeps_what_was_measured(
    mhaprof: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = sampling.warm_up
    calls: list[None] = []

    def second_is_interrupted(*arguments: Any, **options: Any) -> int:
        calls.append(None)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return honest(*arguments, **options)

    monkeypatch.setattr("mhaprof.measure.latency.warm_up", second_is_interrupted)
    ran = mhaprof("latency", *SMALL, *QUICK, "--format", "json")
    assert ran.code == 130
    eager, sdpa = ran.rows
    assert (eager["implementation"], eager["status"]) == ("eager", "ok")
    assert (sdpa["status"], sdpa["reason"]) == ("skipped", "interrupted")
    assert ran.rows[0]["latency_median_s"] > 0


def test_every_point_has_a_row_when_one_is_interrupted_while_it_is_sampled(
    mhaprof: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = WallTimer.batch
    calls: list[None] = []

    def interrupted(timer: WallTimer, call: Any, count: int) -> Any:
        calls.append(None)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return honest(timer, call, count)

    monkeypatch.setattr(WallTimer, "batch", interrupted)
    monkeypatch.setattr("mhaprof.measure.latency.warm_up", lambda *_, **__: 3)
    ran = mhaprof(
        "latency", *SMALL, "--threads", 1, "--samples", 10**6, "--max-time", 60, "--format", "json"
    )
    assert ran.code == 130
    eager, sdpa = ran.rows
    assert (eager["status"], eager["reason"]) == ("ok", "interrupted")
    assert eager["samples"] > 0
    assert (sdpa["implementation"], sdpa["reason"]) == ("sdpa", "interrupted")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--device", "tpu"],
            "--device 'tpu' is not one of auto, cpu, gpu, cuda, cuda:N, mps, xpu",
        ),
        (["--dtype", "float31"], "--dtype 'float31' is not one of float64, float32"),
        (["--threads", "0"], "--threads 0 is not a number of at least 1"),
        (
            ["--precision", "2"],
            "--precision 2 is not a fraction between 0 and 1, such as 0.01 or 1%",
        ),
        (["--min-time", "5", "--max-time", "1"], "min_time 5 is more than max_time 1"),
        (["--max-time", "-1"], "--max-time -1 is not a number above 0"),
        (["--cache", "warm"], "--cache 'warm' is not one of cold, hot"),
        (["--mode", "sideways"], "--mode 'sideways' is not one of forward"),
        (["--timer", "sundial"], "--timer 'sundial' is not one of auto, events, graph, wall"),
        (["--peak-tflops", "0"], "--peak-tflops 0 is not a number above 0"),
        (["--samples", "x"], "--samples 'x' is not a whole number"),
        (["--samples", "2000000000"], "--samples 2000000000 is not a number of at most 1000000000"),
        (["--seed", "9" * 20], f"--seed {'9' * 20} is not a number below 9223372036854775808"),
        (["--threads", "99999999999"], "--threads 99999999999 is not a number of at most 4096"),
        (["--min-time", "inf"], "--min-time 'inf' is not a number"),
        (["--peak-gbps", "1e999"], "--peak-gbps Infinity is not a finite number"),
        (["--device", "cuda:99999"], "--device 'cuda:99999' is not one of auto, cpu, gpu, cuda"),
        (["--device", "xpu:0"], "--device 'xpu:0' is not one of auto, cpu, gpu, cuda"),
        (["--replicates", "99999999999"], "--replicates '99999999999': input should be less than"),
        (["--samples-out", "/nowhere/at/all.json"], "--samples-out /nowhere/at/all.json"),
        (["--impl", "eagr"], "did you mean eager?"),
    ],
)
def test_a_bad_flag_costs_one_line_and_exit_2(
    mhaprof: Any, arguments: list[str], said: str
) -> None:
    ran = mhaprof("latency", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_timer_that_the_device_lacks_is_one_line(mhaprof: Any) -> None:
    for timer in ("graph", "events"):
        ran = mhaprof("latency", *SMALL, *QUICK, "--timer", timer, "--format", "json")
        assert (ran.code, ran.rows) == (2, [])
        assert f"timer {timer}" in ran.err
        assert len(ran.err.splitlines()) == 1


def row(name: str, low: float, median: float, high: float, **more: Any) -> dict[str, Any]:
    return {
        "name": "p", "implementation": name, "device": "cpu", "dtype": "float32", "threads": 1,
        "latency_median_s": median, "latency_ci_low_s": low, "latency_ci_high_s": high, **more,
    }  # fmt: skip


def test_medians_of_too_few_samples_for_an_interval_are_not_told_apart() -> None:
    few = row("eager", 0, 160.0, 0) | {"latency_ci_low_s": None, "latency_ci_high_s": None}
    (note,) = comparison_notes([few, row("sdpa", 0.9, 1.0, 1.1)])
    assert note.endswith(
        "eager is not distinguishable, 160.00 times (too few samples for an interval)."
    )


def test_the_fastest_is_marked_and_the_ratio_has_an_interval() -> None:
    (note,) = comparison_notes([row("slow", 1.9, 2.0, 2.2), row("fast", 0.9, 1.0, 1.1)])
    assert note == (
        "p (cpu, float32, 1 thread): fastest is fast, 1 s; slow takes 2.00 times (1.73 .. 2.44)."
    )


def test_intervals_that_overlap_are_not_distinguishable() -> None:
    (note,) = comparison_notes([row("a", 0.9, 1.0, 1.1), row("b", 1.0, 1.05, 1.2)])
    assert "b is not distinguishable, 1.05 times (0.91 .. 1.33)" in note


def test_one_implementation_is_not_compared() -> None:
    assert comparison_notes([row("a", 0.9, 1.0, 1.1)]) == []


@pytest.mark.parametrize(
    ("field", "one", "other"),
    [
        ("device", "cpu", "cuda"),
        ("dtype", "float32", "bfloat16"),
        ("threads", 1, 2),
        ("mode", "forward", "backward"),
        ("cache", "cold", "hot"),
        ("compiled", False, True),
        ("batch", 1, 2),
        ("tokens", 64, 128),
    ],
)
def test_settings_and_shapes_are_not_compared_as_if_they_were_implementations(
    field: str, one: object, other: object
) -> None:
    apart = [row("sdpa", 1, 1, 1, **{field: one}), row("sdpa", 2, 2, 2, **{field: other})]
    assert comparison_notes(apart) == []
    apart += [row("eager", 3, 3, 3, **{field: one}), row("eager", 8, 8, 8, **{field: other})]
    first, second = comparison_notes(apart)
    assert "fastest is sdpa, 1 s; eager takes 3.00 times (3.00 .. 3.00)." in first
    assert "fastest is sdpa, 2 s; eager takes 4.00 times (4.00 .. 4.00)." in second
    assert first.partition(":")[0] != second.partition(":")[0]


def test_passes_of_one_point_are_told_apart_and_each_has_its_fastest() -> None:
    timed = [
        row(name, time, time, time, mode=mode, timer="wall", macs=8, fvcore_flops=fvcore)
        for mode, factor in (("forward", 1), ("backward", 3))
        for name, time, fvcore in (("eager", 2 * factor, 8), ("sdpa", factor, 8), ("flex", 9, None))
    ]
    times, counts = views(timed, total=len(timed))
    times, counts = (view.chosen(wide=False, exact=False) for view in (times, counts))
    assert [column.title for column in times.columns].count("mode") == 1
    assert [note.partition(";")[0] for note in times.notes] == [
        "p (cpu, float32, 1 thread, mode=forward): fastest is sdpa, 1 s",
        "p (cpu, float32, 1 thread, mode=backward): fastest is sdpa, 3 s",
    ]
    assert [each["implementation"] for each in counts.rows] == ["eager", "sdpa", "flex"] * 2
    times = views(timed[:3], total=3)[0].chosen(wide=False, exact=False)
    assert "mode" not in [column.title for column in times.columns]


def test_rounds_of_one_point_are_joined_before_they_are_compared() -> None:
    rounds = [
        row(name, time - 0.1, time, time + 0.1, round=number) | {"name": f"p, round {number + 1}"}
        for name, times in (("sdpa", (1.0, 1.2, 1.1)), ("eager", (2.0, 2.2, 2.4)))
        for number, time in enumerate(times)
    ]
    assert comparison_notes(rounds[:3]) == []
    assert comparison_notes(rounds) == [
        "p (cpu, float32, 1 thread): fastest is sdpa, 1.1 s; eager takes 2.00 times (1.46 .. 2.78)."
    ]


def test_contended_rows_come_with_advice() -> None:
    rows = [row("a", 1, 1, 1, status="ok", flags="contended", threads=4), row("b", 1, 1, 1)]
    (note,) = [note for note in latency_view(rows, title="").notes if "are contended" in note]
    assert note.startswith("1 of 2 rows are contended: --threads 1 ")
    assert "--replicates 5" in note
    assert contention_advice([{**rows[0], "threads": 1}])[0].count("--threads") == 0
    assert contention_advice(rows[1:]) == []
