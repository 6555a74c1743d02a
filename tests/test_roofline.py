"""Roofline: peaks by exact words, bounds, and nothing for an unknown device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mhaprof import roofline
from mhaprof.roofline import Peaks, find_peaks, known_peaks, least_seconds, place


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "fp32", "bf16", "gbps"),
    [
        ("Tesla V100-SXM2-16GB", 15.7, None, 900),
        ("Tesla V100-PCIE-32GB", 14.0, None, 900),
        ("Tesla T4", 8.1, None, 320),
        ("NVIDIA A10", 31.2, 125.0, 600),
        ("NVIDIA A100-SXM4-40GB", 19.5, 312.0, 1555),
        ("NVIDIA A100-PCIE-40GB", 19.5, 312.0, 1555),
        ("NVIDIA A100 80GB PCIe", 19.5, 312.0, 1935),
        ("NVIDIA A100-SXM4-80GB", 19.5, 312.0, 2039),
        ("NVIDIA L4", 30.3, 121.0, 300),
        ("NVIDIA L40S", 91.6, 362.0, 864),
        ("NVIDIA H100 80GB HBM3", 67.0, 989.4, 3350),
        ("NVIDIA H100 PCIe", 51.0, 756.0, 2000),
        ("NVIDIA H200", 67.0, 989.4, 4800),
        ("NVIDIA B200", 75.0, 2250.0, 7700),
        ("AMD Instinct MI300X", 163.4, 1307.4, 5300),
        ("NVIDIA GeForce RTX 4090", 82.6, 165.2, 1008),
    ],
)
def test_a_device_has_its_own_dense_peaks(
    name: str, fp32: float, bf16: float | None, gbps: float
) -> None:
    peaks = known_peaks(name)
    assert peaks is not None
    assert (peaks.rate("float32"), peaks.rate("bfloat16"), peaks.gbps) == (fp32, bf16, gbps)
    assert peaks.source


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GH200 480GB",
        "NVIDIA GB200",
        "NVIDIA H100 NVL",
        "NVIDIA H200 NVL",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA H200 MIG 1g.18gb",
        "NVIDIA A10G",
        "NVIDIA L40",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "Intel(R) Xeon(R) Processor",
        "",
    ],
)
def test_an_unknown_device_or_a_slice_has_no_peaks(name: str) -> None:
    assert known_peaks(name) is None
    assert find_peaks(name, dtype="float32") is None


def test_of_two_rows_the_one_with_the_longest_words_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    general = roofline._row("x100", (1.0, 1.0, 1.0, 1.0, 1.0), 1, "a datasheet")
    special = roofline._row("x100 pcie", (2.0, 2.0, 2.0, 2.0, 2.0), 2, "a datasheet")
    for rows in ((general, special), (special, general)):
        monkeypatch.setattr(roofline, "KNOWN_DEVICES", rows)
        assert known_peaks("X100 PCIe") == special.peaks
        assert known_peaks("X100") == general.peaks


def test_no_two_rows_claim_the_same_device_with_different_numbers() -> None:
    for row in roofline.KNOWN_DEVICES:
        assert known_peaks(" ".join(sorted(row.tokens))) == row.peaks


def test_tf32_is_a_rate_of_float32_alone() -> None:
    peaks = known_peaks("NVIDIA H200")
    assert peaks is not None
    assert peaks.rate("float32", tf32=True) == 494.7
    assert peaks.rate("bfloat16", tf32=True) == 989.4
    assert peaks.rate("float64") is None


PEAKS = Peaks(tflops={"float32": 10.0}, gbps=1000.0, source="test")


def test_many_flops_a_byte_are_bound_by_compute() -> None:
    placed = place(flops=10**12, moved_bytes=10**9, seconds=0.2, peaks=PEAKS, dtype="float32")
    assert (placed.bound, placed.above_peak, placed.source) == ("compute", False, "test")
    assert placed.attained_fraction == pytest.approx(0.5)
    assert placed.tflops_per_s == pytest.approx(5.0)
    assert placed.arithmetic_intensity == pytest.approx(1000.0)


def test_few_flops_a_byte_are_bound_by_memory() -> None:
    placed = place(flops=10**9, moved_bytes=10**9, seconds=4e-3, peaks=PEAKS, dtype="float32")
    assert placed.bound == "memory"
    assert placed.attained_fraction == pytest.approx(0.25)


def test_a_launch_bound_call_is_bound_by_the_launch() -> None:
    placed = place(
        flops=10**6,
        moved_bytes=10**6,
        seconds=1e-5,
        peaks=PEAKS,
        dtype="float32",
        launch_bound=True,
    )
    assert placed.bound == "launch"


def test_a_rate_above_the_peak_is_marked() -> None:
    def at(seconds: float) -> bool:
        return place(
            flops=10**12, moved_bytes=1, seconds=seconds, peaks=PEAKS, dtype="float32"
        ).above_peak

    assert not at(0.1001)
    assert at(0.0999)


def test_a_calibrated_peak_may_be_beaten_a_little() -> None:
    measured = Peaks(tflops={"float32": 10.0}, gbps=1.0, source="here", measured=True)
    assert least_seconds(10**13, PEAKS, dtype="float32") == pytest.approx(1.0)
    assert least_seconds(10**13, measured, dtype="float32") == pytest.approx(1 / 1.1)
    assert least_seconds(10**13, measured, dtype="float16") is None
    assert least_seconds(10**13, None, dtype="float32") is None


def test_without_peaks_there_is_no_bound_and_no_fraction() -> None:
    placed = place(flops=10, moved_bytes=5, seconds=1.0, peaks=None, dtype="float32")
    assert (placed.bound, placed.attained_fraction, placed.above_peak) == (None, None, False)
    assert placed.arithmetic_intensity == 2.0


def test_given_peaks_replace_their_part_alone() -> None:
    given = find_peaks("NVIDIA H200", dtype="bfloat16", peak_tflops=800.0)
    assert given is not None
    assert (given.rate("bfloat16"), given.rate("float16"), given.gbps) == (800.0, 989.4, 4800)
    alone = find_peaks("unknown", dtype="float32", tf32=True, peak_tflops=1.0, peak_gbps=2.0)
    assert alone is not None
    assert (alone.rate("float32", tf32=True), alone.rate("float32"), alone.gbps) == (1.0, None, 2.0)


def test_calibrated_peaks_are_kept_by_device_and_threads(own_cache: Path) -> None:
    measured = Peaks(tflops={"float32": 0.1}, gbps=12.0, source="calibrated", measured=True)
    other = Peaks(tflops={"float32": 0.2}, gbps=13.0, source="calibrated", measured=True)
    file = roofline.save_calibrated("Some CPU", measured, threads=1)
    roofline.save_calibrated("Some CPU", other, threads=2)
    assert file == own_cache / "mhaprof" / "peaks.json"
    assert roofline.load_calibrated("Some CPU", threads=1) == measured
    assert find_peaks("Some CPU", dtype="float32", threads=2) == other
    assert roofline.load_calibrated("Some CPU", threads=4) is None
    assert [entry.name for entry in file.parent.iterdir()] == ["peaks.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema_version": 99, "devices": {"Some CPU": {}}}',
        '{"schema_version": 1, "devices": {"Some CPU": {"bogus": 1}}}',
        '{"schema_version": 1, "devices": 3}',
    ],
)
def test_a_broken_or_newer_calibration_counts_as_none(own_cache: Path, text: str) -> None:
    (own_cache / "mhaprof").mkdir()
    (own_cache / "mhaprof" / "peaks.json").write_text(text)
    assert roofline.load_calibrated("Some CPU") is None


@pytest.mark.parametrize(
    ("platform", "variable", "value", "expected"),
    [
        ("linux", "XDG_CACHE_HOME", "", ".cache"),
        ("linux", "XDG_CACHE_HOME", "relative", ".cache"),
        ("darwin", "XDG_CACHE_HOME", "/x", "Library/Caches"),
        ("win32", "LOCALAPPDATA", "", "AppData/Local"),
    ],
)
def test_the_cache_lies_where_the_platform_keeps_caches(
    monkeypatch: pytest.MonkeyPatch, platform: str, variable: str, value: str, expected: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv(variable, value)
    assert roofline.calibration_file() == Path.home() / expected / "mhaprof" / "peaks.json"


def test_the_roofline_imports_nothing_heavy() -> None:
    code = (
        "import sys, mhaprof.roofline;"
        "print([n for n in ('torch', 'numpy', 'pandas') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
