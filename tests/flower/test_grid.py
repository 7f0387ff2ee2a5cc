"""Server app and client app with real messages in one process: equal bits, refused requests."""

import fcntl
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedgh.core.records import Problem
from fedgh.core.types import Job, Reply
from fedgh.errors import ConfigError, RunError
from fedgh.flower import (
    messages,
)
from fedgh.flower.engine import Flower
from fedgh.flower.server import shared_settings
from fedgh.flower.session import Session
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from tests.flower.absent import with_absent
from tests.flower.local import FIRST_NODE, NETWORKS, LocalFederation
from tests.support.families import FAMILIES
from tests.support.runs import EVERYTHING, interrupted
from tests.support.states import states
from tests.support.tiny import numbers, quick, tiny_shared

pytestmark = pytest.mark.usefixtures("impatient")


def assert_same(federation: LocalFederation, run: RunFolder, straight: RunFolder) -> None:
    """Check that records and the states of the server and all clients are equal to the bit."""
    assert numbers(run) == numbers(straight)
    server = states(run)["server.safetensors"]
    assert {**federation.states(), "server.safetensors": server} == states(straight)


MEASURING = "fedgh.studies.convergence:Probed"  # a method with its own metrics


NO_SETTINGS: list[str] = []
WITH_REAL_NETWORKS = {
    **dict.fromkeys(("fedgh", "fedproto", "fd", "hfd", "lg_fedavg", MEASURING), NO_SETTINGS),
    **{name: tiny_shared(name) for name in ("fml", "fedkd")},
    "fedgkt": ["method.hidden=16", "method.server_epochs=2"],
}
"""Methods, and settings that make them fast."""


@pytest.mark.parametrize("method", WITH_REAL_NETWORKS)
def test_the_grid_gives_the_same_bits_as_serial(method: str, tmp_path: Path) -> None:
    experiment = quick(*EVERYTHING, f"method.name={method}", *WITH_REAL_NETWORKS[method])
    straight = loop.run(experiment, tmp_path / "serial")
    federation = LocalFederation(
        tmp_path / "federation", experiment, settings={"allow": f"{NETWORKS},{MEASURING}"}
    )
    assert_same(federation, federation.run(), straight)


ONE_NETWORK = ["model.extractors=tests.support.tiny:mlp"]
ONE_OF_EACH = {
    "fedavg": ONE_NETWORK,
    "fedrep": [*ONE_NETWORK, "method.header_epochs=1"],
    "standalone": ONE_NETWORK,
    "fedgen": ["method.server_steps=2"],
    "fedzkt": ["method.shared=mlp", "method.server_steps=2", "method.server_batch=4"],
    **{name: FAMILIES[name] for name in ("fedmd", "feddf", "heterofl")},
}
"""A method of each family, with settings that make it fast."""


@pytest.mark.parametrize("method", ONE_OF_EACH)
def test_the_grid_gives_the_same_bits_for_other_families(method: str, tmp_path: Path) -> None:
    needed = ONE_OF_EACH[method]
    experiment = quick(f"method.name={method}", *needed)
    straight = loop.run(experiment, tmp_path / "serial")
    federation = LocalFederation(tmp_path / "federation", experiment)
    assert_same(federation, federation.run(), straight)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run on the serial engine, which all other runs must equal."""
    return loop.run(quick(*EVERYTHING), tmp_path_factory.mktemp("serial") / "run")


@pytest.mark.parametrize(("after", "every"), [(1, 1), (5, 1), (4, 3), (7, 3)])
def test_a_restarted_server_gives_the_same_bits_as_an_uninterrupted_one(
    straight: RunFolder, every: int, after: int, tmp_path: Path
) -> None:
    federation = LocalFederation(
        tmp_path / "federation", quick(*EVERYTHING, f"run.checkpoint_every={every}")
    )
    federation.grid.break_after = after
    with pytest.raises(KeyboardInterrupt):
        federation.run()
    federation.grid.break_after = 2**62
    federation.grid.waiting.clear()  # a new SuperLink has no messages of the old one
    assert_same(federation, federation.run(), straight)


def test_a_late_client_fails_in_the_round_and_continues_from_its_counted_state(
    tmp_path: Path,
) -> None:
    """The late client has stored a state that the server does not count: it must not be used."""
    absent = {(1, 2), (3, 2), (1, 3)}
    experiment = quick("federation.rounds=4", "run.deadline=5")
    straight = loop.run(
        experiment,
        tmp_path / "serial",
        make_engine=with_absent(absent, "no answer within 5 s"),
    )
    assert [f.client for f in straight.records()[1].failed] == [1, 3]
    federation = LocalFederation(tmp_path / "federation", experiment)
    federation.grid.lost = absent
    assert_same(federation, federation.run(), straight)


def test_the_server_does_not_wait_for_a_client_that_is_not_connected(tmp_path: Path) -> None:
    experiment = quick("run.deadline=5", "federation.rounds=3")
    federation = LocalFederation(tmp_path / "federation", experiment)
    absent_node = federation.grid.nodes.pop(FIRST_NODE + 2)
    federation.grid.nodes[1] = replace(absent_node, public_key=b"an unknown key")
    run = federation.run()
    assert [record.failed for record in run.records()] == [
        [Problem(client=2, reason="not connected")]
    ] * 3
    assert run.records()[-1].accuracies[2] is None
    assert sum(record.seconds["total"] for record in run.records()[1:]) < 60


def test_a_run_without_connected_clients_ends_with_the_reason(tmp_path: Path) -> None:
    federation = LocalFederation(tmp_path / "federation", quick("run.deadline=1"))
    federation.grid.nodes.clear()
    with pytest.raises(RunError, match=r"0 of 5 participants .* in a row; client 0: not connected"):
        federation.run()
    session = json.loads((federation.path / "run" / "flower.json").read_text())
    assert "not connected" in session["error"]


def test_a_round_below_the_quorum_ends_the_run_and_is_not_counted(tmp_path: Path) -> None:
    federation = LocalFederation(tmp_path / "federation", quick("run.quorum=0.8", "run.deadline=5"))
    federation.grid.lost = {(0, 2), (1, 2)}
    with pytest.raises(RunError, match="round 2: 3 of 5 participants have sent an upload"):
        federation.run()
    federation.grid.lost = set()
    straight = loop.run(quick(), tmp_path / "serial")
    assert_same(federation, federation.run(), straight)


def ask(federation: LocalFederation, later: int = 0, **changes: Any) -> Reply:
    """Send a request of the server's last start, or a later one, to client 0, with `changes`."""
    session = Session.read(federation.path / "run")
    assert session is not None
    prepared = quick()
    server = Flower(
        federation.grid,
        {},
        experiment=session.experiment,
        start=session.starts + later,
        settings=shared_settings(prepared),
        fingerprint=prepared.fingerprint(),
        deadline=60.0,
        trained={0: 3},
        settled=3,
    )
    job = Job(0, 4, None, evaluate=True, trained=3)
    message = server.message(job, FIRST_NODE, 60.0)
    assert message.metadata.ttl == 60.0, "a message is not delivered after its deadline"
    request, _ = messages.read_request(message.content)
    request = replace(request, **changes)
    message.content = messages.pack_request(request, None)
    (name,) = federation.grid.push_messages([message])
    (answer,) = federation.grid.pull_messages([name])
    asked = replace(job, client_id=request.client, round=request.round)
    return messages.read_answer(answer.content, asked)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a federation after three rounds."""
    federation = LocalFederation(tmp_path_factory.mktemp("trained") / "federation", quick())
    federation.run()
    return federation.path


@pytest.fixture
def federation(trained: Path, tmp_path: Path) -> LocalFederation:
    """A copy of the federation after three rounds."""
    federation = LocalFederation(tmp_path / "federation", quick())
    for folder in ("states", "run"):
        shutil.copytree(trained / folder, federation.path / folder)
    return federation


def test_a_client_answers_a_valid_request(federation: LocalFederation) -> None:
    reply = ask(federation)
    assert reply.error is None
    assert 0 <= reply.metrics["accuracy"] <= 1
    assert reply.up is None


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"round": 2, "trained": 1}, "round 2 is over; this message is late"),
        ({"later": -1}, "round 4 is over; this message is late"),
        ({"trained": 2, "later": 1}, None),  # a restarted server that continues after round 2
        ({"trained": 1, "later": 1}, r"the state of client 0 after round 1 is not in its folder"),
        ({"version": "9.9"}, "the server has fedgh 9.9, this client has"),
        ({"client": 1}, "takes this node for client 1, its node.conf says client=0"),
        ({"fingerprint": "other"}, "this client's data or versions are not those of the server"),
        ({"settings": {"data": {"name": "nowhere"}}}, "no data set 'nowhere'"),
    ],
)
def test_a_client_refuses_a_wrong_request_and_keeps_its_states(
    federation: LocalFederation, changes: dict[str, Any], refusal: str | None
) -> None:
    before = federation.states()
    reply = ask(federation, **changes)
    assert (reply.error is None) == (refusal is None)
    assert re.search(refusal or "", reply.error or "")
    assert federation.states() == before


def test_an_experiment_name_that_leads_to_another_folder_is_refused(
    federation: LocalFederation,
) -> None:
    error = ask(federation, experiment="..").error
    assert error is not None
    assert "experiment: String should match pattern" in error


def test_a_client_refuses_a_message_while_another_process_has_its_lock(
    federation: LocalFederation,
) -> None:
    with (federation.client_folder(0) / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ask(federation).error == "still busy with an earlier message"


def test_a_client_ignores_paths_in_the_servers_settings(federation: LocalFederation) -> None:
    settings = shared_settings(quick())
    settings["data"]["path"] = "/etc/passwd"
    settings["data"]["dir"] = "/etc"
    assert ask(federation, settings=settings).error is None


def test_a_client_stores_only_states_that_may_be_requested_again(
    federation: LocalFederation,
) -> None:
    assert [path.name for path in sorted(federation.client_folder(0).glob("clients-*"))] == [
        "clients-000002.round-000002.states",
        "clients-000003.round-000003.states",
    ]


def test_a_content_that_is_not_a_message_is_answered_with_an_error(
    federation: LocalFederation,
) -> None:
    contents: list[RecordDict] = [
        RecordDict(),
        RecordDict({"fedgh": ConfigRecord({"json": b"{"})}),
        RecordDict({"fedgh": ConfigRecord({"json": b'{"version": 3}'})}),
        RecordDict({"fedgh": ConfigRecord({"json": "text"})}),
        RecordDict({"fedgh": ArrayRecord({"json": Array("u1", (1,), "x", b"a")})}),
    ]
    for content in contents:
        message = Message(content, FIRST_NODE, "train", group_id="1")
        (name,) = federation.grid.push_messages([message])
        (answer,) = federation.grid.pull_messages([name])
        assert b"not a" in bytes(answer.content["fedgh"]["json"])  # type: ignore[arg-type]


@pytest.mark.parametrize("hangs", ["app", "import"])
def test_a_process_that_hangs_ends_itself_at_the_deadline(hangs: str, tmp_path: Path) -> None:
    """The app runs in a process of its own, as Flower starts it."""
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
    assert "hanging" in done.stderr, "the client's log shows where it hangs"


def test_wire_bytes_exceed_the_bytes_of_the_tensors(federation: LocalFederation) -> None:
    for record in RunFolder(federation.path / "run").records():
        assert record.wire_bytes > record.bytes_up + record.bytes_down


def test_networks_that_pass_from_client_to_client_are_refused(tmp_path: Path) -> None:
    """Each client would refuse, with a reason that stays in its own log."""
    experiment = quick("published.first_weights=true")
    federation = LocalFederation(tmp_path, experiment)
    with pytest.raises(ConfigError, match=r"published\.first_weights passes networks"):
        federation.run()
    assert federation.grid.delivered == 0


def test_a_run_started_without_flower_is_refused(tmp_path: Path) -> None:
    federation = LocalFederation(tmp_path / "federation", quick())
    interrupted(quick(), federation.path / "run", 1)
    with pytest.raises(RunError, match="was started without Flower"):
        federation.run()


def test_a_run_on_flower_cannot_be_resumed_on_one_machine(tmp_path: Path) -> None:
    federation = LocalFederation(tmp_path / "federation", quick())
    federation.grid.break_after = 7
    with pytest.raises(KeyboardInterrupt):
        federation.run()
    with pytest.raises(RunError, match="lacks the state of client 0"):
        loop.resume(federation.path / "run")
