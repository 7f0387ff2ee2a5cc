"""Both apps with real messages, in one process: the same bits as everywhere, and every refusal."""

import fcntl
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fedgh import training
from fedgh.core import wire
from fedgh.core.rounds import Engine
from fedgh.core.runs import RunFolder
from fedgh.core.types import Job, Payload, Reply, Task
from fedgh.errors import ConfigError, RunError
from fedgh.experiment import Experiment
from fedgh.flower import NodeConfig, Participant, client, client_app, engine, messages
from fedgh.flower.engine import Flower
from fedgh.flower.server import _shared
from tests.engines.test_engines import EVERYTHING, interrupted
from tests.flower.local import FIRST_NODE, House
from tests.tiny import numbers, quick, states


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process nobody is far away."""
    monkeypatch.setattr(engine, "POLL", 0.0)
    monkeypatch.setattr(engine, "GATHERING", 0.0)


def assert_same(house: House, run: RunFolder, straight: RunFolder) -> None:
    """Numbers, the server's state and every client's: to the bit."""
    assert numbers(run) == numbers(straight)
    server = states(run)["server.safetensors"]
    assert {**house.states(), "server.safetensors": server} == states(straight)


@pytest.mark.parametrize("method", ["fedgh", "fedproto", "fd", "fml", "fedkd", "lg_fedavg"])
def test_the_grid_gives_the_same_bits_as_serial(method: str, tmp_path: Path) -> None:
    experiment = quick(*EVERYTHING, f"method.name={method}")
    straight = training.run(experiment, tmp_path / "serial")
    house = House(tmp_path / "house", experiment)
    assert_same(house, house.run(), straight)


@pytest.mark.parametrize("method", ["fedavg", "standalone"])
def test_so_do_the_methods_for_equal_networks(method: str, tmp_path: Path) -> None:
    experiment = quick("model.zoo=tests.tiny:mlp", f"method.name={method}")
    straight = training.run(experiment, tmp_path / "serial")
    house = House(tmp_path / "house", experiment)
    assert_same(house, house.run(), straight)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("after", [1, 4, 5, 7])
def test_a_server_that_is_started_again_repeats_and_loses_nothing(
    every: int, after: int, tmp_path: Path
) -> None:
    straight = training.run(quick(*EVERYTHING), tmp_path / "serial")
    house = House(tmp_path / "house", quick(*EVERYTHING, f"run.checkpoint_every={every}"))
    house.grid.break_after = after
    with pytest.raises(KeyboardInterrupt):
        house.run()
    house.grid.break_after = 2**62
    house.grid._waiting.clear()  # a new SuperLink knows nothing of old messages
    assert_same(house, house.run(), straight)


class Absent:
    """An engine in which some clients fail in some rounds, as if they had never been asked."""

    def __init__(self, engine: Engine, absent: set[tuple[int, int]], reason: str) -> None:
        self.engine, self.absent, self.reason = engine, absent, reason

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        for job in jobs:
            if (job.client_id, job.round) in self.absent:
                yield Reply(job.client_id, job.round, error=self.reason)
        yield from self.engine.run(
            [job for job in jobs if (job.client_id, job.round) not in self.absent]
        )

    def save(self, round: int) -> None:
        self.engine.save(round)

    def close(self) -> None:
        self.engine.close()


def with_absent(absent: set[tuple[int, int]], reason: str) -> training.MakeEngine:
    def make(experiment: Experiment, folder: RunFolder, done: int, state: Payload) -> Engine:
        return Absent(training.local_engine(experiment, folder, done, state), absent, reason)

    return make


def test_who_is_late_sits_a_round_out_and_goes_on_from_its_own_state(tmp_path: Path) -> None:
    """The late client has trained and kept a state, which nobody counts: it must not be used."""
    absent = {(1, 2), (3, 2), (1, 3)}
    experiment = quick("federation.rounds=4", "run.deadline=5")
    straight = training.run(
        experiment,
        tmp_path / "serial",
        make_engine=with_absent(absent, "no answer within 5 s"),
    )
    assert [f["client"] for f in straight.records()[1]["failed"]] == [1, 3]
    house = House(tmp_path / "house", experiment)
    house.grid.lost = absent
    assert_same(house, house.run(), straight)


def test_who_is_not_connected_is_not_waited_for(tmp_path: Path) -> None:
    experiment = quick("run.deadline=5", "federation.rounds=3")
    house = House(tmp_path / "house", experiment)
    away = house.grid.nodes.pop(FIRST_NODE + 2)
    house.grid.nodes[1] = replace(away, public_key=b"a stranger's")
    run = house.run()
    assert [record["failed"] for record in run.records()] == [
        [{"client": 2, "reason": "not connected"}]
    ] * 3
    assert run.records()[-1]["accuracy_per_client"][2] is None
    assert sum(record["seconds"]["total"] for record in run.records()[1:]) < 60


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
    straight = training.run(quick(), tmp_path / "serial")
    assert_same(house, house.run(), straight)


def ask(house: House, **changes: Any) -> Reply:
    """Put a question to client 0, as the server of its last start would but for `changes`."""
    (experiment,) = [path.name for path in (house.path / "states").iterdir()]
    prepared = quick()
    server = Flower(
        house.grid,
        {},
        experiment=experiment,
        start=1,
        settings=_shared(prepared),
        fingerprint=prepared.fingerprint(),
        deadline=60.0,
        trained={0: 3},
    )
    job = Job(0, 4, None, evaluate=True, trained=3)
    message = server._message(job, FIRST_NODE, 60.0)
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


def test_two_processes_never_work_for_one_client(house: House) -> None:
    with (house.home(0) / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ask(house).error == "still busy with an earlier message"


def test_paths_of_the_server_mean_nothing_to_a_participant(house: House) -> None:
    settings = _shared(quick())
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


# What a hostile or broken participant may send instead of an answer.


def _says(head: bytes, body: bytes | None = None) -> Callable[[Message, Context], RecordDict]:
    return lambda message, context: messages._pack(head, body)


def _answer(**changes: Any) -> Callable[[Message, Context], RecordDict]:
    def make(message: Message, context: Context) -> RecordDict:
        request, _ = messages.read_request(message.content)
        fields = {
            "client_id": request.client,
            "round": request.round,
            "num_examples": 1,
            "metrics": {},
            "seconds": {},
            "error": None,
        }
        return messages._pack(json.dumps({**fields, **changes}).encode(), changes.pop("up", b"x"))

    return make


def _raises(message: Message, context: Context) -> RecordDict:
    raise ValueError("secret of patient 17")


HOSTILE: dict[str, Callable[[Message, Context], RecordDict]] = {
    "nothing": lambda message, context: RecordDict(),
    "no json": _says(b"\xff\xfe"),
    "wrong types": _says(b'{"client_id": "zero"}'),
    "another's name": _answer(client_id=2),
    "another round": _answer(round=77),
    "infinite scores": _answer(metrics={"accuracy": float("inf")}),
    "wonderful scores": _answer(metrics={"accuracy": 7.0, "evaluation_accuracy": 1.0}),
    "no scores": _answer(metrics={"accuracy": 0.5}),
    "many scores": _answer(metrics={f"m{chr(97 + k)}": 0.0 for k in range(20)}),
    "odd names": _answer(metrics={"../../x": 1.0}),
    "negative time": _answer(seconds={"train": -5.0}),
    "negative counts": _answer(num_examples=-1),
    "long words": _answer(error="x" * 10_000),
    "extra fields": _answer(extra=1),
    "no safetensors": _answer(),
    "an exception": _raises,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_answer_costs_only_its_sender(what: str, tmp_path: Path) -> None:
    hostile = ClientApp()

    @hostile.train()
    def train(message: Message, context: Context) -> Message:
        if context.node_config["client"] == 1:
            return Message(HOSTILE[what](message, context), reply_to=message)
        return client.app(message, context)

    experiment = quick("federation.rounds=2", "run.deadline=20")
    house = House(tmp_path / "house", experiment, [hostile])
    run = house.run()
    straight = training.run(
        experiment, tmp_path / "serial", make_engine=with_absent({(1, 1), (1, 2)}, "")
    )
    for record, expected in zip(run.records(), straight.records(), strict=True):
        bad = [item["client"] for item in record["failed"] + record["rejected"]]
        assert bad == [1]
        assert record["accuracy_per_client"][0] == expected["accuracy_per_client"][0]
        assert record["train_loss"] == expected["train_loss"]
    assert house.states() == {
        name: content for name, content in states(straight).items() if name != "server.safetensors"
    }


# Participants with their own networks and data.

PRIVATE = ["data.name=private", "data.classes=a,b,c", "federation.clients=3", "model.rep_dim=8"]


class Secretive(nn.Module):
    """A network that nobody else has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def bring(task: Task, node: NodeConfig) -> Participant:
    """Three clouds of points."""
    rng = torch.Generator().manual_seed(int(node["client"]))
    y = torch.arange(90) % task.num_classes
    centres = torch.eye(task.num_classes, 5) * 4
    return Participant(Secretive(task.rep_dim), centres[y] + torch.randn(90, 5, generator=rng), y)


@pytest.mark.parametrize("method", ["fedgh", "fedproto", "fd", "lg_fedavg", "standalone"])
def test_participants_bring_their_own_networks_and_data(method: str, tmp_path: Path) -> None:
    experiment = quick(*PRIVATE, f"method.name={method}", "local.lr=0.1", "federation.rounds=4")
    house = House(tmp_path / "house", experiment, [client_app(bring)])
    run = house.run()
    summary = run.summary()
    assert summary is not None
    assert summary["final_accuracy"] > 0.9
    assert summary["paper_bytes_per_client_round"] is None
    assert [c["extractor"] for c in run.clients()] == ["private"] * 3


def test_nothing_of_a_network_or_of_data_leaves_the_participant(tmp_path: Path) -> None:
    seen: list[bytes] = []
    own = client_app(bring)
    spy = ClientApp()

    @spy.train()
    def train(message: Message, context: Context) -> Message:
        answer = own(message, context)
        seen.extend(
            [bytes(answer.content["fedgh"]["json"]), answer.content["payload"]["safetensors"].data]  # type: ignore[arg-type,union-attr]
        )
        return answer

    House(tmp_path / "house", quick(*PRIVATE, "federation.rounds=1"), [spy]).run()
    for head, body in zip(seen[::2], seen[1::2], strict=True):
        assert set(json.loads(head)) == {
            "client_id",
            "round",
            "num_examples",
            "metrics",
            "seconds",
            "error",
        }
        assert json.loads(head)["num_examples"] == 0  # fedgh does not ask for it
        payload = wire.from_bytes(body)
        assert {name: tuple(tensor.shape) for name, tensor in payload.items()} == {
            "classes": (3,),
            "means": (3, 8),
        }


def test_an_error_in_a_participants_code_tells_nothing_of_its_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def careless(task: Task, node: NodeConfig) -> Participant:
        if node["client"] == 1:
            raise FileNotFoundError("/data/patient-17.png")
        return bring(task, node)

    house = House(tmp_path / "house", quick(*PRIVATE), [client_app(careless)])
    (failure,) = house.run().records()[0]["failed"]
    assert failure["reason"] == "FileNotFoundError; the participant's own log says more"
    assert "patient-17" in caplog.text


@pytest.mark.parametrize(
    ("brought", "problem"),
    [
        (lambda x, y: Participant(Secretive(7), x, y), r"maps 2 inputs to shape \(2, 7\)"),
        (lambda x, y: Participant(Secretive(8), x[:, :3], y), r"fails on inputs of shape \(3,\)"),
        (lambda x, y: Participant(Secretive(8), x, y + 1), r"labels from 1 to 3"),
        (lambda x, y: Participant(Secretive(8), x[:2], y[:2]), r"needs at least 3"),
        (lambda x, y: Participant(Secretive(8), x, y[:5]), r"90 inputs and 5 labels"),
    ],
)
def test_what_a_participant_brings_is_checked(
    brought: Callable[..., Participant], problem: str, tmp_path: Path
) -> None:
    def make(task: Task, node: NodeConfig) -> Participant:
        good = bring(task, node)
        return brought(good.x, good.y)

    house = House(tmp_path / "house", quick(*PRIVATE), [client_app(make)])
    with pytest.raises(RunError, match=problem):
        house.run()


def test_data_of_ones_own_do_not_go_with_a_federation_that_deals(tmp_path: Path) -> None:
    house = House(tmp_path / "house", quick(), [client_app(bring)])
    with pytest.raises(RunError, match="deals out its data"):
        house.run()
    house = House(tmp_path / "other", quick(*PRIVATE))
    with pytest.raises(RunError, match="name your app"):
        house.run()


def test_the_app_that_the_node_config_names_is_used(tmp_path: Path) -> None:
    named = {"app": "tests.flower.test_grid:named"}
    run = House(tmp_path / "house", quick(*PRIVATE), settings=named).run()
    assert run.records()[-1]["failed"] == []
    wrong = {"app": "tests.flower.nowhere:app"}
    with pytest.raises(RunError, match="app cannot be imported"):
        House(tmp_path / "other", quick(*PRIVATE), settings=wrong).run()


named = client_app(bring)


def test_private_data_are_nowhere_else(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the data are with the participants"):
        training.run(quick(*PRIVATE), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"data\.classes"):
        quick("data.name=private")
    for method in ("fedavg", "fml"):
        with pytest.raises(ConfigError, match=r"data\.shape"):
            quick(*PRIVATE, f"method.name={method}")


def test_a_client_that_hangs_is_ended(tmp_path: Path) -> None:
    script = """
import time
from fedgh.flower.client import _watchdog
with _watchdog(1.0):
    time.sleep(100)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "Timeout" in done.stderr


def test_wire_bytes_are_measured_beside_tensor_bytes(house: House) -> None:
    for record in RunFolder(house.path / "run").records():
        assert record["wire_bytes"] > record["bytes_up"] + record["bytes_down"]


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
        training.resume(house.path / "run")
