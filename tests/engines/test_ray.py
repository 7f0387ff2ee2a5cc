"""The Ray engine: the same bits as serial, even if actors or machines fail."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedgh.core.types import Reply
from fedgh.errors import ConfigError
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from fedgh.training.callbacks import Callback
from tests.support.public import CHORUS
from tests.support.runs import EVERYTHING, interrupted
from tests.support.states import states
from tests.support.tiny import numbers, quick

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

ON_RAY = [*EVERYTHING, "run.engine=ray", "run.workers=2"]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run on the serial engine, which all other runs must equal."""
    return loop.run(quick(*EVERYTHING), tmp_path_factory.mktemp("serial") / "run")


@pytest.fixture
def two_machines() -> Iterator[Any]:
    """A cluster of two simulated machines with one core each."""
    cluster = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    cluster.second = cluster.add_node(num_cpus=1)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


class OnFirstReply(Callback):
    """A callback that calls `action` at the first reply of round 2."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.action: Callable[[], object] | None = action

    def replied(self, reply: Reply) -> None:
        if reply.round == 2 and self.action is not None:
            action, self.action = self.action, None
            action()


@pytest.mark.parametrize("memory", ["4.0", pytest.param("0.000001", marks=pytest.mark.faults)])
def test_ray_gives_the_same_bits_as_serial(
    straight: RunFolder, memory: str, tmp_path: Path
) -> None:
    run = loop.run(quick(*ON_RAY, f"run.memory={memory}"), tmp_path / "run")
    assert numbers(run) == numbers(straight)
    assert states(run) == states(straight)
    assert not ray.is_initialized()


def test_public_data_are_packed_without_copying() -> None:
    from fedgh.engines.ray import _pack, _unpack

    held_out = ["public.name=held-out", "public.samples=30", f"method.name={CHORUS}"]
    blueprint = quick(*held_out).blueprint()
    light, arrays = _pack(blueprint)
    assert light.public is not None
    assert light.public.x.numel() == light.public.y.numel() == 0
    public, again = blueprint.public, _unpack(light, arrays).public
    assert public is not None
    assert again is not None
    assert again.x.equal(public.x)
    assert again.x.stride() == public.x.stride()
    assert again.y.equal(public.y)
    assert again.x.data_ptr() == public.x.data_ptr()


@pytest.mark.faults  # another cluster is started
def test_a_run_is_resumed_on_a_cluster(straight: RunFolder, tmp_path: Path) -> None:
    interrupted(quick(*EVERYTHING, "run.checkpoint_every=2"), tmp_path / "run", 3)
    run = loop.resume(tmp_path / "run", engine="ray", workers=2)
    assert numbers(run) == numbers(straight)


@pytest.mark.faults
def test_a_dead_actor_is_replaced_and_its_client_runs_again(
    straight: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedgh.engines.ray import Ray, Slot

    engines: list[Ray] = []
    started: list[Slot] = []
    start = Ray.start

    def recorded_start(self: Ray) -> Slot:
        engines.append(self)
        started.append(start(self))
        return started[-1]

    def kill_a_busy_actor() -> None:
        busy = next(slot for slot in engines[0]._slots if slot.jobs)
        ray.kill(busy.actor)

    monkeypatch.setattr(Ray, "start", recorded_start)
    run = loop.run(quick(*ON_RAY), tmp_path / "run", [OnFirstReply(kill_a_busy_actor)])
    assert len(started) == 3
    assert numbers(run) == numbers(straight)
    assert states(run) == states(straight)


@pytest.mark.faults
def test_a_lost_machine_does_not_change_the_result(
    straight: RunFolder, two_machines: Any, tmp_path: Path
) -> None:
    def remove_a_machine() -> None:
        two_machines.remove_node(two_machines.second, allow_graceful=False)

    prepared = quick(*ON_RAY, f"run.address={two_machines.address}")
    run = loop.run(prepared, tmp_path / "run", [OnFirstReply(remove_a_machine)])
    assert numbers(run) == numbers(straight)
    assert states(run) == states(straight)


def test_an_unreachable_cluster_is_named_in_the_error(tmp_path: Path) -> None:
    prepared = quick(*ON_RAY, "run.address=127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"run\.address = '127.0.0.1:1': .*refused"):
        loop.run(prepared, tmp_path / "run")


def test_ray_client_is_refused(tmp_path: Path) -> None:
    prepared = quick(*ON_RAY, "run.address=ray://127.0.0.1:10001")
    with pytest.raises(ConfigError, match="start fedgh on a machine of the cluster"):
        loop.run(prepared, tmp_path / "run")


def test_the_error_without_ray_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "fedgh.engines.ray", raising=False)
    with pytest.raises(ConfigError, match=r"pip install '.\[ray\]'"):
        loop.run(quick(*ON_RAY), tmp_path / "run")
