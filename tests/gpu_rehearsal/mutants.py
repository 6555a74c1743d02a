"""Changes of one line that break a promise of the timer, each with the test that has to fail."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "mhaprof"

COLD, TRAFFIC = "cold_events_recover", "cold_and_hot_differ"
FIRST, SECOND, STATE = "first_call_is_all", "second_device", "state_of_a_gpu"
BOUND, WALL, GRAPH = "launch_bound_is", "wall_timer_holds", "graph_recovers"
CAPTURE, ESCAPED = "failed_capture", "another_stream"

MUTATIONS: dict[str, tuple[str, str, str, str]] = {
    "no flush though cold was asked": (
        "measure/devices.py",
        '    flush = _device_flush(device) if cache == "cold" else None',
        "    flush = (lambda: None) if cache == 'cold' else None",
        TRAFFIC,
    ),
    "half the L2": (
        "measure/devices.py",
        "2 * l2_bytes(device)",
        "l2_bytes(device)",
        "flush_reads",
    ),
    "the flush buffer on the CPU": (
        "measure/devices.py",
        "buffer = torch.zeros(size // 4, dtype=torch.int32, device=device)",
        "buffer = torch.zeros(size // 4096, dtype=torch.int32)",
        "flush_reads",
    ),
    "no wait inside the first call": (
        "measure/latency.py",
        "        result = setup.run(*setup.inputs)\n        devices.synchronize(setup.device)\n",
        "        result = setup.run(*setup.inputs)\n",
        FIRST,
    ),
    "no wait before the first call": (
        "measure/latency.py",
        "    devices.synchronize(setup.device)\n    started = time.perf_counter()\n    result",
        "    started = time.perf_counter()\n    result",
        FIRST,
    ),
    "no wait before the gradient's clock starts": (
        "measure/latency.py",
        "        devices.synchronize(setup.device)\n        started",
        "        started",
        FIRST,
    ),
    "no wait before the gradient's clock stops": (
        "measure/latency.py",
        "        gradients = call()\n        devices.synchronize(setup.device)\n",
        "        gradients = call()\n",
        FIRST,
    ),
    "TF32 always on": (
        "measure/latency.py",
        "devices.tf32(settings.tf32)",
        "devices.tf32(True)",
        "tf32_is",
    ),
    "the older float32 setting alone": (
        "measure/devices.py",
        "    except RuntimeError:\n        put",
        "    except ValueError:\n        put",
        "tf32_is",
    ),
    "a wall timer's flush without its wait": (
        "measure/latency.py",
        "lambda: (flush(), wait())",
        "lambda: flush()",
        WALL,
    ),
    "a wall timer without its wait": (
        "measure/latency.py",
        "        result = call()\n        devices.synchronize(device)\n",
        "        result = call()\n",
        WALL,
    ),
    "states before and after swapped": (
        "measure/latency.py",
        "gpu_before=states[0] if states else None,\n        gpu_after=states[-1]",
        "gpu_before=states[-1] if states else None,\n        gpu_after=states[0]",
        STATE,
    ),
    "the state read after the wait": (
        "measure/load.py",
        "            number = next(numbers)\n",
        "            wait()\n            number = next(numbers)\n",
        STATE,
    ),
    "a power cap counts as throttling": (
        "measure/load.py",
        "    if reasons.pop(nvidia.POWER_CAP, True) is None:",
        "    if False:",
        STATE,
    ),
    "the device's index dropped": (
        "measure/devices.py",
        "return torch.cuda.device(torch.device(device))",
        'return torch.cuda.device(torch.device("cuda"))',
        SECOND,
    ),
    "the wait's device dropped": (
        "measure/devices.py",
        "torch.cuda.synchronize(torch.device(device))",
        "torch.cuda.synchronize(0)",
        SECOND,
    ),
    "another GPU's state": (
        "measure/nvidia.py",
        "torch.cuda.get_device_properties(torch.device(device)).uuid",
        "torch.cuda.get_device_properties(0).uuid",
        SECOND,
    ),
    "one side stream for all devices": (
        "measure/devices.py",
        "_stream_of(torch.cuda.current_device())",
        "_stream_of(0)",
        "current_device_is_followed",
    ),
    "no side stream": (
        "measure/devices.py",
        "            with torch.cuda.stream(side):\n",
        "            with contextlib.nullcontext():\n",
        GRAPH,
    ),
    "no wait on leaving by an error": (
        "measure/devices.py",
        "        finally:\n            # A device that is lost has said so before.\n",
        "        except ValueError:\n",
        "error_in_the_middle",
    ),
    "the flush covers nothing": (
        "measure/timers.py",
        "        late = enqueue - ahead_s\n",
        "        late = enqueue\n",
        BOUND,
    ),
    "no trial where the times leave it open": (
        "measure/timers.py",
        "if late <= FREE_SHARE * middle or not count:",
        "if True:",
        BOUND,
    ),
    "no backlog ahead of a hot call": (
        "measure/devices.py",
        "backlog=None if flush else functools.partial(spin, SPIN_CYCLES),",
        "backlog=None,",
        BOUND,
    ),
    "a graph's time not divided by its calls": (
        "measure/timers.py",
        "[sample / self.calls for",
        "[sample for",
        GRAPH,
    ),
    "many calls in a cold graph": (
        "measure/latency.py",
        'graphs.HOT_CALLS if timer.cache == "hot" else 1',
        "graphs.HOT_CALLS",
        TRAFFIC,
    ),
    "the clock of the first event after the call": (
        "measure/timers.py",
        "            start.record()\n            host_start = host_ns()\n            call()",
        "            host_start = host_ns()\n            call()\n            start.record()",
        COLD,
    ),
    "no wait before events are read": (
        "measure/timers.py",
        "        self.synchronize()\n        samples",
        "        samples",
        COLD,
    ),
    "captures that other threads break": (
        "measure/graphs.py",
        'capture_error_mode="thread_local"',
        'capture_error_mode="global"',
        CAPTURE,
    ),
    "a failed capture left under way": (
        "measure/graphs.py",
        "        end_failed_capture(pool)\n",
        "",
        CAPTURE,
    ),
    "work that follows the current stream is not looked for": (
        "measure/streams.py",
        "    after = time.perf_counter() - waited\n",
        "    after = 0.0\n",
        ESCAPED,
    ),
    "work on the default stream is not looked for": (
        "measure/streams.py",
        "return max(after, start.elapsed_time(end) * 1e-3) if enqueued_in_time else after",
        "return after",
        ESCAPED,
    ),
    "a call that waits taken for one that escapes": (
        "measure/streams.py",
        "if enqueued_in_time else after",
        "if True else after",
        CAPTURE,
    ),
    "launches go on after Ctrl-C": (
        "measure/latency.py",
        "isinstance(timer, EventTimer) and not interrupted",
        "isinstance(timer, EventTimer)",
        "ctrl_c_launches",
    ),
    "a peak's error discards the time": (
        "point/measuring.py",
        "except (RuntimeError, MemoryError) as error",
        "except ValueError as error",
        "peak_that_runs_out",
    ),
    "a lost device's environment raises": (
        "measure/environment.py",
        "with contextlib.suppress(RuntimeError):  # of",
        "with contextlib.suppress(ValueError):  # of",
        "lost_device",
    ),
    "a lost device is an error like others": (
        "point/boundary.py",
        '    if is_lost(device or "cpu"):',
        "    if False:",
        "lost_device",
    ),
}


def outcome_of(name: str) -> tuple[int, str]:
    """Run the test of a mutation on a mutated copy of the package; for a process of its own."""
    import pytest

    file, before, after, test = MUTATIONS[name]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        copy = Path(folder) / "mhaprof"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        text = (copy / file).read_text()
        assert text.count(before) == 1, f"{name}: the line is not there, or not alone"
        (copy / file).write_text(text.replace(before, after))
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = folder
        given = ["-q", "-x", "-p", "no:cacheprovider", "-k", test, "--tb=line"]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            code = pytest.main(["-c", str(HERE.parents[1] / "pyproject.toml"), *given, str(HERE)])
        import mhaprof

        assert str(mhaprof.__file__).startswith(folder), "the copy was not tested"
    return int(code), said.getvalue()
