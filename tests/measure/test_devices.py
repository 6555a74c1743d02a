"""Devices: resolution without fallback, threads by quota, contexts that restore."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mhaprof.errors import Unavailable, UsageError
from mhaprof.measure import devices
from mhaprof.measure.latency import choose_timer
from mhaprof.records import Settings


def test_an_absent_device_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Unavailable, match=r"cuda is not there: .*--device cpu") as caught:
        devices.resolve_device("cuda")
    assert caught.value.code == "no_cuda"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("device", "code"), [("mps", "no_mps"), ("xpu", "no_xpu")])
def test_each_accelerator_has_its_code(
    device: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(Unavailable) as caught:
        devices.resolve_device(device)
    assert caught.value.code == code


def test_a_cuda_index_beyond_the_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices.resolve_device("cuda:1") == "cuda:1"
    with pytest.raises(Unavailable, match="the last is cuda:1"):
        devices.resolve_device("cuda:2")


def test_auto_takes_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (torch.cuda, torch.xpu, torch.backends.mps):
        monkeypatch.setattr(kind, "is_available", lambda: False)
    assert devices.resolve_device("auto") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices.resolve_device("auto") == "cuda"


BUILDS = {
    "cpu": "cuda: Optional[str] = None\nhip: Optional[str] = None\nxpu: Optional[str] = None\n",
    "cuda": "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\nxpu: Optional[str] = None\n",
    "rocm": "cuda: Optional[str] = None\nhip: Optional[str] = '7.0'\nxpu: Optional[str] = None\n",
    "xpu": "cuda: Optional[str] = None\nhip: Optional[str] = None\nxpu: Optional[str] = '2025'\n",
    "foreign": "debug = False\n",
}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch is asked at once")
@pytest.mark.parametrize(
    ("build", "driver", "asked"),
    [
        ("cpu", True, False),
        ("cuda", False, False),
        ("cuda", True, True),
        ("rocm", False, True),
        ("xpu", False, True),
        ("foreign", False, True),
    ],
)
def test_auto_imports_torch_only_where_it_could_find_an_accelerator(
    build: str, driver: bool, asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = "def is_available(): return True\nclass cuda: is_available = is_available\n"
    written(tmp_path, {"torch/__init__.py": fake, "torch/version.py": BUILDS[build]})
    monkeypatch.setattr(devices, "_can_load", lambda library: driver)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch")
    assert devices.resolve_device("auto") == ("cuda" if asked else "cpu")
    assert ("torch" in sys.modules) == asked
    sys.modules.pop("torch", None)


@pytest.mark.parametrize("name", ["tpu", "cuda:99999", "xpu:0", "cuda:x", "", "cpu:0"])
def test_a_word_that_is_no_device_is_a_usage_error(name: str) -> None:
    with pytest.raises(UsageError, match="is not one of auto, cpu"):
        devices.resolve_device(name)


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "max 100000"}, 8),
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "250000 100000"}, 3),
        (
            {
                "proc/self/cgroup": "0::/top/job\n",
                "sys/fs/cgroup/top/job/cpu.max": "max 100000",
                "sys/fs/cgroup/top/cpu.max": "200000 100000",
            },
            2,
        ),
        ({"proc/self/cgroup": "0::/host/only\n", "sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/job\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "400000",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
            },
            4,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            8,
        ),
    ],
)
def test_default_threads_are_the_least_of_affinity_and_quotas(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    assert devices.default_threads(root=written(tmp_path, files)) == expected


def test_threads_and_tf32_are_restored_even_after_an_error() -> None:
    def broken() -> None:
        with devices.threads(1), devices.tf32(True):
            assert torch.get_num_threads() == 1
            assert torch.get_float32_matmul_precision() == "high"
            raise RuntimeError("broken")

    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    with pytest.raises(RuntimeError, match="broken"):
        broken()
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before


def test_the_largest_cache_counts_as_the_last_level(tmp_path: Path) -> None:
    cache = "sys/devices/system/cpu/cpu0/cache"
    files = {f"{cache}/index0/size": "48K\n", f"{cache}/index3/size": "30720K\n"}
    assert devices.last_level_cache_bytes(root=written(tmp_path, files)) == 30 * 2**20
    assert devices.last_level_cache_bytes(root=tmp_path / "none") == 0


def test_a_cpu_is_hot_and_an_accelerator_cold_by_default() -> None:
    assert Settings(device="cpu").cache == "hot"
    assert Settings(device="cuda:1").cache == "cold"
    assert Settings(device="cpu", cache="cold").cache == "cold"


@pytest.mark.parametrize(("timer", "word"), [("graph", "CUDA graphs"), ("events", "--timer wall")])
def test_a_timer_that_the_cpu_lacks_is_refused_not_replaced(timer: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        choose_timer("cpu", Settings(device="cpu", timer=timer))  # type: ignore[arg-type]


@pytest.mark.parametrize("cache", ["hot", "cold"])
def test_the_cpu_timer_has_the_cache_state_that_was_asked_for(cache: str) -> None:
    timer = choose_timer("cpu", Settings(device="cpu", cache=cache))  # type: ignore[arg-type]
    assert (timer.name, timer.cache) == ("wall", cache)


class FakeCuda:
    """Devices and streams of torch.cuda as far as being current goes; logs what waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.device_now, self.stream_now = "cuda:0", "default"
        monkeypatch.setattr(torch.cuda, "device", self.device)
        monkeypatch.setattr(torch.cuda, "stream", self.stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: FakeStream(self, "default"))
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(self, f"side {device}"))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: int(self.device_now[-1]))

    @contextlib.contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.device_now = self.device_now, str(device)
        try:
            yield
        finally:
            self.device_now = before

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.stream_now = self.stream_now, stream.name
        try:
            yield
        finally:
            self.stream_now = before


class FakeStream:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def wait_stream(self, other: FakeStream) -> None:
        self.cuda.log.append(f"{self.name} waits for {other.name} on {self.cuda.device_now}")


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    devices._stream_of.cache_clear()
    yield FakeCuda(monkeypatch)
    devices._stream_of.cache_clear()


def test_a_side_stream_of_the_device_is_current_between_two_waits(fake_cuda: FakeCuda) -> None:
    for _ in range(2):
        with devices.side_stream("cuda:1"):
            assert (fake_cuda.device_now, fake_cuda.stream_now) == ("cuda:1", "side cuda:1")
        assert (fake_cuda.device_now, fake_cuda.stream_now) == ("cuda:0", "default")
    assert (
        fake_cuda.log
        == [
            "side cuda:1 waits for default on cuda:1",
            "default waits for side cuda:1 on cuda:1",
        ]
        * 2
    )


def test_each_device_has_one_side_stream(fake_cuda: FakeCuda) -> None:
    assert devices._stream_of(1) is devices._stream_of(1)
    assert devices._stream_of(1) is not devices._stream_of(0)


def test_stream_and_device_are_restored_after_an_error_and_wait(fake_cuda: FakeCuda) -> None:
    with pytest.raises(RuntimeError, match="broken"), devices.side_stream("cuda:1"):
        raise RuntimeError("broken")
    assert (fake_cuda.device_now, fake_cuda.stream_now) == ("cuda:0", "default")
    assert fake_cuda.log[-1] == "default waits for side cuda:1 on cuda:1"


def test_only_a_cuda_device_is_made_the_current_one(fake_cuda: FakeCuda) -> None:
    for device, expected in (("cuda:1", "cuda:1"), ("cpu", "cuda:0"), ("mps", "cuda:0")):
        with devices.current(device):
            assert fake_cuda.device_now == expected
