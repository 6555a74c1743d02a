"""The environment: versions without torch, hardware, the state now, git."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mhaprof.measure import allocator, devices, memory, nvidia
from mhaprof.measure.environment import collect, collect_elsewhere, git_state
from mhaprof.records import Environment


def test_a_cpus_environment_names_versions_hardware_and_state() -> None:
    found = collect("cpu", threads=1)
    assert found.software["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found.software["torch"] == torch.__version__
    assert "mhaprof" in found.software
    assert found.hardware["cpu_model"] == devices.cpu_model()
    assert found.hardware["memory_bytes"]
    assert found.settings["threads"] == 1
    assert found.settings["freed_memory_kept"] is (allocator.glibc() is not None)
    assert {"load_1min", "governor", "available_bytes", "steal_s"} <= set(found.state)


def test_an_environment_survives_json() -> None:
    found = collect()
    assert Environment.model_validate_json(found.model_dump_json()) == found


def test_collecting_for_a_cpu_imports_no_torch() -> None:
    code = (
        "import sys\nfrom mhaprof.measure.environment import collect\n"
        "assert 'torch' in collect().software\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_fresh_process_finds_the_same_machine() -> None:
    here, elsewhere = collect("cpu"), collect_elsewhere("cpu")
    assert elsewhere.hardware == here.hardware
    assert elsewhere.software == here.software


def test_variables_that_change_the_numbers_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    settings = collect().settings
    assert (settings["OMP_NUM_THREADS"], settings["NVIDIA_TF32_OVERRIDE"]) == ("3", "0")
    assert "MKL_NUM_THREADS" not in settings


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"]
    subprocess.run(
        ["git", *identity, "-C", str(folder), *arguments],
        check=True,
        text=True,
        capture_output=True,
    )


def test_git_state_tells_commit_branch_and_uncommitted_changes(tmp_path: Path) -> None:
    git(tmp_path, "init")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "one")
    clean = git_state(tmp_path)
    assert clean is not None
    assert (len(str(clean["commit"])), clean["branch"], clean["dirty"]) == (40, "main", False)
    (tmp_path / "a").write_text("2")
    dirty = git_state(tmp_path)
    assert dirty == {**clean, "dirty": True}


def test_outside_of_git_there_is_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) is None


def test_without_a_git_program_there_is_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None


def test_a_gpus_environment_has_driver_clocks_and_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    properties = SimpleNamespace(
        total_memory=7, major=9, minor=0, multi_processor_count=132, L2_cache_size=50 * 2**20
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(memory, "available_bytes", lambda device: 5)
    monkeypatch.setattr(
        nvidia,
        "gpu_state",
        lambda device: nvidia.GpuState(
            driver="570.1",
            sm_clock_mhz=1755,
            sm_clock_max_mhz=1980,
            memory_clock_mhz=3201,
            power_w=300.0,
            power_limit_w=700.0,
            temperature_c=50,
            throttle_reasons=("power cap",),
            other_processes=1,
        ),
    )
    found = collect("cuda:1")
    assert found.hardware["device_name"] == "NVIDIA H200"
    assert (found.hardware["driver"], found.hardware["compute_capability"]) == ("570.1", "9.0")
    assert found.hardware["l2_bytes"] == 50 * 2**20
    assert found.state["throttle_reasons"] == "power cap"
    assert (found.state["sm_clock_mhz"], found.state["other_gpu_processes"]) == (1755, 1)
    assert found.state["device_available_bytes"] == 5
