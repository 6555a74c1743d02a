"""A two-node Ray cluster on this machine, one node of which is killed half way."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mhaprof.errors import Unavailable
from mhaprof.runners.base import Done
from mhaprof.runners.ray import RayRunner
from mhaprof.runners.worker import WorkerRunner
from mhaprof.store import Store
from mhaprof.store.reading import Reader
from mhaprof.sweep import drive
from mhaprof.sweep.plan import PlanEntry

pytestmark = pytest.mark.slow

Planner = Callable[..., list[PlanEntry]]

OWN = ("environment", "lane", "finished")
"""The columns that say where and when a point was measured."""


@pytest.fixture
def cluster() -> Iterator[Any]:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    yield made
    made.shutdown()


@pytest.fixture
def on_ray(
    cluster: Any, fakes_importable: Callable[..., dict[str, str]]
) -> Callable[..., RayRunner]:
    """Make a runner on the cluster that uses a fake measurer."""

    def make(measurer: str, **environment: str) -> RayRunner:
        return RayRunner(
            address=cluster.address,
            timeout_s=30,
            measurer=f"fake_measurers:{measurer}",
            environment=fakes_importable(**environment),
        )

    return make


def test_a_node_that_dies_has_its_points_measured_elsewhere_and_all_end_as_on_one_machine(
    cluster: Any,
    on_ray: Callable[..., RayRunner],
    planned: Planner,
    workers: Callable[..., WorkerRunner],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    doomed = cluster.add_node(num_cpus=1)
    plan = planned(14, milliseconds=300, impossible=1)
    landed: list[Done] = []

    def kill_a_node_half_way(done: Done) -> None:
        landed.append(done)
        if len(landed) == 7:
            cluster.remove_node(doomed, allow_graceful=False)

    journal = tmp_path / "journal"
    capfd.readouterr()
    with Store(tmp_path / "ray.sqlite") as store:
        drive(
            plan,
            store,
            on_ray("segfaults", JOURNAL=str(journal)),
            listener=kill_a_node_half_way,
        )
    assert capfd.readouterr().out == ""
    with Store(tmp_path / "local.sqlite") as store:
        drive(plan, store, workers("segfaults"))
    assert len({done.lane for done in landed[:7]}) == 2
    assert rows(tmp_path / "ray.sqlite") == rows(tmp_path / "local.sqlite")
    measured = Counter(line.split()[0] for line in journal.read_text().splitlines())
    assert sum(count - 1 for count in measured.values()) <= 1


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows without where, when, and the addresses in tracebacks."""
    with Reader(path) as reader:
        found = [
            {name: value for name, value in row.items() if name not in OWN} for row in reader.rows()
        ]
    assert json.dumps(found)
    return found


def test_a_point_that_kills_every_actor_is_given_up_as_node_lost(
    on_ray: Callable[..., RayRunner], planned: Planner, tmp_path: Path
) -> None:
    with Store(tmp_path / "a.sqlite") as store:
        drive(planned(4), store, on_ray("kills_its_actor"))
    found = {row["name"]: row["reason"] or row["status"] for row in rows(tmp_path / "a.sqlite")}
    assert found == {"heads=1": "ok", "heads=2": "ok", "heads=3": "node_lost", "heads=4": "ok"}


def test_no_cluster_at_the_address_is_one_line(planned: Planner, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    nowhere = RayRunner(address="127.0.0.1:1", timeout_s=30)
    with Store(tmp_path / "a.sqlite") as store, pytest.raises(Unavailable) as caught:
        drive(planned(1), store, nowhere)
    assert caught.value.code == "no_ray"
    assert "\n" not in str(caught.value)
