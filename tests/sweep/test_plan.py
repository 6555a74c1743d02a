"""Planning: what is measured, on which lanes, in which shard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mhaprof.cli.sweep_plan import parse_shard
from mhaprof.config import parse_config
from mhaprof.errors import Unavailable, UsageError
from mhaprof.point import MeasureOptions
from mhaprof.point.measuring import Metric
from mhaprof.records import ModulePoint, Point, Settings
from mhaprof.runners.ray import slots_for
from mhaprof.sweep import expand, lanes_for
from mhaprof.sweep.devices import may_have_accelerator, named_device, pool_of
from mhaprof.sweep.plan import PlanEntry, Shard
from mhaprof.sweep.predict import predict

Planner = Callable[..., list[PlanEntry]]

CPU = Settings(device="cpu", dtype="float32", threads=1)
GPU = Settings(device="cuda", dtype="bfloat16")

GRID = """
version: 1
defaults: {batch: 1, tokens: 16, dim: 64}
sweep: {heads: [1, 2, 3, 4], exclude: "heads == 2"}
"""


def plan(
    text: str = GRID,
    *,
    what: tuple[str, ...] = ("latency",),
    settings: tuple[Settings, ...] = (CPU, GPU),
    options: MeasureOptions | None = None,
    references: tuple[Point, ...] = (),
) -> list[PlanEntry]:
    return expand(
        parse_config(text, file="grid.yaml").entries,
        implementations=("eager", "sdpa"),
        versions={"eager": 1, "sdpa": 3},
        settings=settings,
        what=frozenset(what),  # type: ignore[arg-type]
        options=options or MeasureOptions(),
        references=references,
    )


def test_every_point_meets_every_implementation_and_setting_and_skips_stay_listed() -> None:
    entries = plan()
    measured = [entry for entry in entries if entry.skip is None]
    assert [
        (entry.point.name, entry.point.implementation, entry.point.settings.device)
        for entry in measured[:4]
        if isinstance(entry.point, Point)
    ] == [
        ("heads=1", "eager", "cpu"),
        ("heads=1", "eager", "cuda"),
        ("heads=1", "sdpa", "cpu"),
        ("heads=1", "sdpa", "cuda"),
    ]
    assert len(measured) == 2 * 2 * 2
    skips = [(entry.point.name, entry.skip.code) for entry in entries if entry.skip]
    assert skips == [
        ("heads=2", "excluded"),
        ("heads=2", "excluded"),
        ("heads=3", "impossible_spec"),
        ("heads=3", "impossible_spec"),
    ]
    assert [entry.ordinal for entry in entries] == list(range(12))


def test_counting_alone_has_no_settings() -> None:
    entries = [entry for entry in plan(what=("flops",)) if entry.skip is None]
    assert len(entries) == 2 * 2
    points = [entry.point for entry in entries if isinstance(entry.point, Point)]
    assert {point.settings for point in points} == {Settings()}
    assert entries[0].task(0).device == "none"


def test_equal_points_are_measured_once() -> None:
    twice = """
version: 1
points:
  - {name: a, batch: 1, tokens: 16, dim: 64, heads: 4}
  - {name: b, batch: 1, tokens: 16, dim: 64, heads: 4, kv_heads: 4}
"""
    assert [entry.point.name for entry in plan(twice, settings=(CPU,))] == ["a", "a"]


def test_references_are_counted_first() -> None:
    reference = Point(
        name="one full head",
        role="reference",
        spec=plan()[0].point.spec,  # type: ignore[union-attr]
        implementation="eager",
    )
    first = plan(what=("flops", "latency"), references=(reference,))[0]
    assert (first.point.name, first.what) == ("one full head", {"flops"})


def test_the_identity_follows_the_content() -> None:
    def identities(**changes: object) -> set[str]:
        return {entry.identity for entry in plan(settings=(CPU,), **changes)}  # type: ignore[arg-type]

    base = identities()
    assert identities() == base
    assert not base & identities(what=("flops", "latency"))
    assert identities(options=MeasureOptions(min_time_s=3)) == base
    counted = identities(what=("flops",))
    assert not counted & identities(what=("flops",), options=MeasureOptions(cache_dtype="int8"))
    renamed = GRID.replace("sweep: {", "sweep: {batch: [1], ")
    assert identities(text=renamed) >= {e.identity for e in plan(settings=(CPU,)) if not e.skip}


MODULE = """
version: 1
points: [{name: mine, module: "package.mod:Class", kwargs: {dim: 8}, inputs: 2x16x8}]
"""


def module_entry(
    text: str = MODULE, *, what: tuple[Metric, ...] = ("flops",), code: str = "a"
) -> PlanEntry:
    (entry,) = expand(
        parse_config(text, file="m.yaml", allow_import=True).entries,
        implementations=("eager", "sdpa"),
        versions={"eager": 1, "sdpa": 1},
        settings=(CPU,),
        what=frozenset(what),
        options=MeasureOptions(),
        codes={"package.mod:Class": code},
    )
    return entry


def test_a_module_is_planned_once_and_counted_alone_whatever_is_timed() -> None:
    asked: tuple[tuple[Metric, ...], ...] = (("flops",), ("flops", "latency"))
    for what in asked:
        entry = module_entry(what=what)
        assert (entry.skip, entry.what) == (None, {"flops"})
        assert entry.task(0).device == "none"
        assert entry.point == ModulePoint(
            name="mine",
            implementation="package.mod:Class",
            kwargs={"dim": 8},
            inputs=("2x16x8",),
            code="a",
        )


def test_a_module_of_which_only_times_are_asked_is_skipped_with_the_reason() -> None:
    skip = module_entry(what=("latency",)).skip
    assert skip is not None
    assert skip.code == "module_not_timed"


def test_the_identity_of_a_module_is_target_kwargs_inputs_and_code() -> None:
    base = module_entry().identity
    assert module_entry(MODULE.replace("mine", "yours")).identity == base
    others = [
        module_entry(code="b"),
        module_entry(MODULE.replace("Class", "Other")),
        module_entry(MODULE.replace("dim: 8", "dim: 9")),
        module_entry(MODULE.replace("2x16x8", "2x16x8:float16")),
    ]
    assert len({base, *(entry.identity for entry in others)}) == 5


def test_shards_are_disjoint_complete_and_independent_of_the_order(planned: Planner) -> None:
    entries = planned(60)
    shards = [Shard(index=index, count=5) for index in range(1, 6)]
    parts = [{e.identity for e in entries if shard.has(e.identity)} for shard in shards]
    assert sum(map(len, parts)) == 60
    assert set.union(*parts) == {entry.identity for entry in entries}
    assert all(4 <= len(part) <= 24 for part in parts)


@pytest.mark.parametrize("text", ["0/5", "6/5", "2", "a/b", "1/0", "-1/2", ""])
def test_a_shard_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not of the form I/N"):
        parse_shard(text)
    assert parse_shard("2/5") == Shard(index=2, count=5)


def test_counting_takes_as_many_cores_as_it_has_points_for() -> None:
    def names(points: int) -> list[str]:
        return [lane.name for lane in lanes_for(["none"] * points, points=points, cores=4)]

    assert names(3) == ["core 0"]
    assert names(1000) == ["core 0", "core 1", "core 2", "core 3"]


def test_a_timed_device_has_one_lane_which_counts_too() -> None:
    (lane,) = lanes_for(["none", "cpu", "cpu"], points=3, cores=8)
    assert lane.serves == ("cpu", "none")


def test_cuda_points_are_spread_over_the_pool_each_worker_seeing_one_device() -> None:
    lanes = lanes_for(["cuda"], pool=["cuda:0", "cuda:2"], environment={})
    assert [(lane.name, lane.serves, lane.local_device) for lane in lanes] == [
        ("cuda:0", ("cuda:0", "cuda"), "cuda"),
        ("cuda:2", ("cuda:2", "cuda"), "cuda"),
    ]
    assert [lane.environment["CUDA_VISIBLE_DEVICES"] for lane in lanes] == ["0", "2"]


def test_devices_are_taken_from_those_that_are_visible() -> None:
    lanes = lanes_for(
        ["cuda:0", "cuda:1", "cuda:2"], environment={"CUDA_VISIBLE_DEVICES": "5,GPU-x"}
    )
    assert [lane.environment["CUDA_VISIBLE_DEVICES"] for lane in lanes] == ["5", "GPU-x", "-1"]


def test_no_device_ever_has_two_lanes() -> None:
    lanes = lanes_for(["cuda", "cuda:1", "cpu", "cuda:0"], environment={})
    assert [(lane.name, lane.serves) for lane in lanes] == [
        ("cuda:0", ("cuda:0", "cuda")),
        ("cuda:1", ("cuda:1",)),
        ("cpu", ("cpu",)),
    ]
    assert [lane.name for lane in lanes_for(["cuda"], environment={})] == ["cuda"]


def test_devices_given_are_planned_for_as_they_are() -> None:
    assert [named_device(name) for name in ("cpu", "cuda:7", "mps")] == ["cpu", "cuda:7", "mps"]
    assert pool_of("cuda:0, cuda:1,cuda:0") == ["cuda:0", "cuda:1"]
    with pytest.raises(UsageError, match="--devices 'cpu' is not"):
        pool_of("cpu")


def test_a_machine_without_device_files_has_a_cpu_alone(tmp_path: Path) -> None:
    assert not may_have_accelerator(dev=tmp_path, platform="linux")
    assert may_have_accelerator(dev=tmp_path, platform="darwin")
    (tmp_path / "kfd").touch()
    assert may_have_accelerator(dev=tmp_path, platform="linux")


def node(name: str, *, alive: bool = True, **resources: float) -> dict[str, object]:
    return {"NodeID": name, "Alive": alive, "Resources": resources}


def test_ray_slots_are_gpus_whole_cpu_nodes_or_cores() -> None:
    nodes = [node("a", CPU=8, GPU=2), node("b", CPU=4), node("c", alive=False, CPU=64, GPU=8)]
    (gpu, *cpus) = slots_for({"cuda": 40, "cpu": 9, "none": 2}, nodes)
    assert (gpu.count, gpu.resources) == (2, {"num_gpus": 1, "num_cpus": 1})
    assert [(slot.node, slot.resources) for slot in cpus] == [
        ("a", {"num_cpus": 8}),
        ("b", {"num_cpus": 4}),
    ]
    (counting,) = slots_for({"none": 1000}, nodes)
    assert (counting.count, counting.resources) == (12, {"num_cpus": 1})


def test_ray_slots_that_cannot_be_are_refused() -> None:
    with pytest.raises(Unavailable, match="no GPU"):
        slots_for({"cuda": 1}, [node("a", CPU=8)])
    with pytest.raises(UsageError, match="'cuda:1' is not cuda or cpu"):
        slots_for({"cuda:1": 1}, [node("a", GPU=8)])


def test_predictions_follow_the_sampling_time_the_size_and_the_memory() -> None:
    small = plan(settings=(CPU,), options=MeasureOptions(min_time_s=2.0))[0]
    assert 2.0 < predict(small).time_s < 3.0
    large = GRID.replace("tokens: 16", "tokens: 16384").replace("dim: 64", "dim: 4096")
    big = predict(plan(large, settings=(CPU,))[-1])
    assert big.time_s > 15
    huge = GRID.replace("tokens: 16", "tokens: 1048576").replace("batch: 1", "batch: 64")
    refused = predict(plan(huge, settings=(CPU,))[0])
    assert refused.skip is not None
    assert refused.skip.code == "predicted_oom"


def test_what_an_implementation_cannot_express_is_predicted_as_a_skip() -> None:
    text = "{version: 1, defaults: {batch: 1, tokens: 4}, points: [{sinks: true, causal: true}]}"
    found = [predict(entry).skip for entry in plan(text, settings=(CPU,))]
    assert [skip and skip.code for skip in found] == [None, "sinks_unsupported"]
