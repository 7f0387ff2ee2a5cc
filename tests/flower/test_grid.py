"""Both apps with real messages, in one process: the same bits as everywhere, and refusals."""

import fcntl
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedgh.core.records import Problem
from fedgh.core.types import Job, Reply
from fedgh.errors import RunError
from fedgh.flower import (
    messages,
)
from fedgh.flower.engine import Flower
from fedgh.flower.server import shared_settings
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from tests.flower.absent import with_absent
from tests.flower.local import FIRST_NODE, NETWORKS, House
from tests.support.families import FAMILIES
from tests.support.runs import EVERYTHING, interrupted
from tests.support.tiny import numbers, quick, states

pytestmark = pytest.mark.usefixtures("impatient")


def assert_same(house: House, run: RunFolder, straight: RunFolder) -> None:
    """Numbers, the server's state and every client's: to the bit."""
    assert numbers(run) == numbers(straight)
    server = states(run)["server.safetensors"]
    assert {**house.states(), "server.safetensors": server} == states(straight)


MEASURING = "fedgh.studies.convergence:Probed"  # a method with numbers of its own


@pytest.mark.parametrize(
    "method", ["fedgh", "fedproto", "fd", "fml", "fedkd", "lg_fedavg", MEASURING]
)
def test_the_grid_gives_the_same_bits_as_serial(method: str, tmp_path: Path) -> None:
    experiment = quick(*EVERYTHING, f"method.name={method}")
    straight = loop.run(experiment, tmp_path / "serial")
    house = House(tmp_path / "house", experiment, settings={"allow": f"{NETWORKS},{MEASURING}"})
    assert_same(house, house.run(), straight)


@pytest.mark.parametrize("method", ["fedavg", "standalone", "fedgen", "fedtgp", *FAMILIES])
def test_the_grid_gives_the_same_bits_for_other_families(method: str, tmp_path: Path) -> None:
    needed = FAMILIES.get(method, ["model.extractors=tests.support.tiny:mlp"])
    experiment = quick(f"method.name={method}", *needed)
    straight = loop.run(experiment, tmp_path / "serial")
    house = House(tmp_path / "house", experiment)
    assert_same(house, house.run(), straight)


@pytest.mark.parametrize(("after", "every"), [(1, 1), (5, 1), (4, 3), (7, 3)])
def test_a_server_that_is_started_again_repeats_and_loses_nothing(
    every: int, after: int, tmp_path: Path
) -> None:
    straight = loop.run(quick(*EVERYTHING), tmp_path / "serial")
    house = House(tmp_path / "house", quick(*EVERYTHING, f"run.checkpoint_every={every}"))
    house.grid.break_after = after
    with pytest.raises(KeyboardInterrupt):
        house.run()
    house.grid.break_after = 2**62
    house.grid.waiting.clear()  # a new SuperLink knows nothing of old messages
    assert_same(house, house.run(), straight)


def test_who_is_late_sits_a_round_out_and_goes_on_from_its_own_state(tmp_path: Path) -> None:
    """The late client has trained and kept a state, which nobody counts: it must not be used."""
    absent = {(1, 2), (3, 2), (1, 3)}
    experiment = quick("federation.rounds=4", "run.deadline=5")
    straight = loop.run(
        experiment,
        tmp_path / "serial",
        make_engine=with_absent(absent, "no answer within 5 s"),
    )
    assert [f.client for f in straight.records()[1].failed] == [1, 3]
    house = House(tmp_path / "house", experiment)
    house.grid.lost = absent
    assert_same(house, house.run(), straight)


def test_who_is_not_connected_is_not_waited_for(tmp_path: Path) -> None:
    experiment = quick("run.deadline=5", "federation.rounds=3")
    house = House(tmp_path / "house", experiment)
    away = house.grid.nodes.pop(FIRST_NODE + 2)
    house.grid.nodes[1] = replace(away, public_key=b"a stranger's")
    run = house.run()
    assert [record.failed for record in run.records()] == [
        [Problem(client=2, reason="not connected")]
    ] * 3
    assert run.records()[-1].accuracies[2] is None
    assert sum(record.seconds["total"] for record in run.records()[1:]) < 60


def test_all_clients_failing_ends_the_run_with_a_reason(tmp_path: Path) -> None:
    house = House(tmp_path / "house", quick("run.deadline=1"))
    house.grid.nodes.clear()
    with pytest.raises(RunError, match="all 5 participants failed; client 0: not connected"):
        house.run()
    said = json.loads((house.path / "run" / "flower.json").read_text())
    assert "not connected" in said["error"]


def test_too_few_answers_end_the_run_before_the_round_counts(tmp_path: Path) -> None:
    house = House(tmp_path / "house", quick("run.quorum=0.8", "run.deadline=5"))
    house.grid.lost = {(0, 2), (1, 2)}
    with pytest.raises(RunError, match=r"round 2: 3 of 5 participants answered, run.quorum = 0.8"):
        house.run()
    house.grid.lost = set()
    straight = loop.run(quick(), tmp_path / "serial")
    assert_same(house, house.run(), straight)


def ask(house: House, **changes: Any) -> Reply:
    """Put a question to client 0, as the server of its last start would but for `changes`."""
    (named,) = (house.path / "states" / "experiments").glob("*/client-0/name.txt")
    experiment = named.read_text().strip()
    prepared = quick()
    server = Flower(
        house.grid,
        {},
        experiment=experiment,
        start=1,
        settings=shared_settings(prepared),
        fingerprint=prepared.fingerprint(),
        deadline=60.0,
        trained={0: 3},
        settled=3,
    )
    job = Job(0, 4, None, evaluate=True, trained=3)
    message = server.message(job, FIRST_NODE, 60.0)
    assert message.metadata.ttl == 60.0, "it is not delivered after its deadline"
    request, _ = messages.read_request(message.content)
    request = replace(request, **changes)
    message.content = messages.request(request, None)
    (name,) = house.grid.push_messages([message])
    (answer,) = house.grid.pull_messages([name])
    asked = replace(job, client_id=request.client, round=request.round)
    return messages.read_answer(answer.content, asked)


@pytest.fixture
def house(tmp_path: Path) -> House:
    """After three rounds."""
    house = House(tmp_path / "house", quick("federation.rounds=3"))
    house.run()
    return house


def test_a_participant_answers_what_is_right(house: House) -> None:
    reply = ask(house)
    assert reply.error is None
    assert 0 <= reply.metrics["accuracy"] <= 1
    assert reply.up is None


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"round": 2, "trained": 1}, "round 2 is over; this message is late"),
        ({"start": 0}, "round 4 is over; this message is late"),
        ({"trained": 2, "start": 2}, None),  # a server that had to go back to round 2
        ({"trained": 1, "start": 2}, r"the state of client 0 after round 1 is not in its folder"),
        ({"version": "9.9"}, "the server has fedgh 9.9, here is"),
        ({"client": 1}, "takes this node for client 1, its own settings say client=0"),
        ({"fingerprint": "other"}, "the data or the versions here are not those of the server"),
        ({"settings": {"data": {"name": "nowhere"}}}, "no data set 'nowhere'"),
    ],
)
def test_a_participant_refuses_what_is_wrong(
    house: House, changes: dict[str, Any], refusal: str | None
) -> None:
    before = house.states()
    reply = ask(house, **changes)
    assert (reply.error is None) == (refusal is None)
    assert re.search(refusal or "", reply.error or "")
    assert house.states() == before


def test_a_folder_outside_its_own_is_refused(house: House) -> None:
    error = ask(house, experiment="..").error
    assert error is not None
    assert "experiment: String should match pattern" in error


def test_two_processes_never_work_for_one_client(house: House) -> None:
    with (house.home(0) / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ask(house).error == "still busy with an earlier message"


def test_paths_of_the_server_mean_nothing_to_a_participant(house: House) -> None:
    settings = shared_settings(quick())
    settings["data"]["path"] = "/etc/passwd"
    settings["data"]["dir"] = "/etc"
    assert ask(house, settings=settings).error is None


def test_a_participant_keeps_what_may_be_asked_for_and_no_more(house: House) -> None:
    assert [path.name for path in sorted(house.home(0).glob("*.safetensors"))] == [
        "client-000000.round-000002.safetensors",
        "client-000000.round-000003.safetensors",
    ]


def test_what_is_no_message_is_refused_in_words(house: House) -> None:
    hostile: list[RecordDict] = [
        RecordDict(),
        RecordDict({"fedgh": ConfigRecord({"json": b"{"})}),
        RecordDict({"fedgh": ConfigRecord({"json": b'{"version": 3}'})}),
        RecordDict({"fedgh": ConfigRecord({"json": "text"})}),
        RecordDict({"fedgh": ArrayRecord({"json": Array("u1", (1,), "x", b"a")})}),
    ]
    for content in hostile:
        message = Message(content, FIRST_NODE, "train", group_id="1")
        (name,) = house.grid.push_messages([message])
        (answer,) = house.grid.pull_messages([name])
        assert b"not a" in bytes(answer.content["fedgh"]["json"])  # type: ignore[arg-type]


# What a hostile or broken participant may send instead of its honest answer.


@pytest.mark.parametrize("hangs", ["app", "import"])
def test_a_client_that_hangs_is_ended(hangs: str, house: House, tmp_path: Path) -> None:
    """Through the app, in a process of its own, as Flower would start it."""
    hanging = "import time\ntime.sleep(100)\n"
    if hangs == "app":
        hanging = (
            "import time\nfrom fedgh.flower import client_app\n"
            "app = client_app(lambda task, node: time.sleep(100))\n"
        )
    (tmp_path / "hanging.py").write_text(hanging)
    script = """
from fedgh.flower import client
from fedgh.flower.engine import Flower
from fedgh.flower.grid import LocalGrid, Node
from fedgh.core.types import Job
grid = LocalGrid({7: Node(client.app, {"client": 0, "app": "hanging:app"}, b"")})
settings = {"data": {"name": "private", "classes": ["a", "b"]}}
server = Flower(grid, {}, experiment="e", start=1, settings=settings, fingerprint=None,
                deadline=2.0, trained={}, settled=0)
(name,) = grid.push_messages([server.message(Job(0, 1, None, True), 7, 2.0)])
grid.pull_messages([name])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "hanging" in done.stderr, "the participant sees where"


def test_wire_bytes_are_measured_beside_tensor_bytes(house: House) -> None:
    for record in RunFolder(house.path / "run").records():
        assert record.wire_bytes > record.bytes_up + record.bytes_down


def test_a_run_from_elsewhere_is_refused(tmp_path: Path) -> None:
    house = House(tmp_path / "house", quick())
    interrupted(quick(), house.path / "run", 1)
    with pytest.raises(RunError, match="was begun without Flower"):
        house.run()


def test_a_run_on_flower_cannot_be_resumed_without_it(tmp_path: Path) -> None:
    house = House(tmp_path / "house", quick())
    house.grid.break_after = 7
    with pytest.raises(KeyboardInterrupt):
        house.run()
    with pytest.raises(RunError, match="lacks the state of client 0"):
        loop.resume(house.path / "run")
