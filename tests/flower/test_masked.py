"""Secure aggregation on Flower: equal bits, restarts, and what a client refuses."""

import json
import shutil
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from torch import nn

from fedgh.core import wire
from fedgh.core.types import Job, Recipient, Reply, Task
from fedgh.engines.masked import Masked
from fedgh.errors import MethodError, RunError
from fedgh.flower import ClientSpec, NodeConfig, client_app, masked, messages
from fedgh.flower.engine import Flower
from fedgh.flower.folder import FederationFolder
from fedgh.flower.server import read_participants, shared_settings
from fedgh.secure.content import Invitation, Parcels, Senders, dump, load
from fedgh.secure.step import Step
from fedgh.secure.terms import Terms, digest_of_bytes
from fedgh.trained.forget import forget
from fedgh.training import loop
from fedgh.training.experiment import Experiment
from tests.flower.local import FIRST_NODE, LocalFederation
from tests.support.states import states
from tests.support.tiny import numbers, quick
from tests.support.unmasked import unmasked_engine

pytestmark = pytest.mark.usefixtures("impatient")

Ask = Callable[..., Reply]


def secure(*more: str) -> Experiment:
    """Return an experiment with small uploads."""
    return quick("secure.enabled=true", "method.name=lg_fedavg", "federation.rounds=2", *more)


def test_the_grid_gives_the_bits_of_a_run_without_masks(tmp_path: Path) -> None:
    oracle = loop.run(secure(), tmp_path / "oracle", make_engine=unmasked_engine)
    federation = LocalFederation(tmp_path / "federation", secure())
    run = federation.run()
    assert numbers(run) == numbers(oracle)
    server = states(run)["server.safetensors"]
    assert {**federation.states(), "server.safetensors": server} == states(oracle)
    for k in range(5):
        file = federation.client_folder(k) / "secure.json"
        assert file.stat().st_mode & 0o777 == 0o600
        memory = json.loads(file.read_text())
        secrets = ("encryption_key", "mask_key", "seed")
        assert [memory[name] for name in secrets] == [""] * 3, "no secret stays"
    assert run.records()[0].wire_bytes > 5 * 3 * 1000, "messages of all phases count"


@pytest.mark.parametrize("after", [12, 22])
def test_a_restarted_server_begins_the_round_again_with_new_keys(
    after: int, tmp_path: Path
) -> None:
    """A round takes 25 messages, five in each phase."""
    experiment = secure("run.global_accuracy=never")
    oracle = loop.run(experiment, tmp_path / "oracle", make_engine=unmasked_engine)
    federation = LocalFederation(tmp_path / "federation", experiment)
    federation.grid.break_after = after
    with pytest.raises(KeyboardInterrupt):
        federation.run()
    federation.grid.break_after = 2**62
    federation.grid.waiting.clear()
    run = federation.run()
    assert numbers(run) == numbers(oracle)
    server = states(run)["server.safetensors"]
    assert {**federation.states(), "server.safetensors": server} == states(oracle)


def test_too_few_clients_end_the_run_with_the_reason(tmp_path: Path) -> None:
    federation = LocalFederation(tmp_path / "federation", secure("run.secure_deadline=1"))
    for k in (0, 3):
        del federation.grid.nodes[FIRST_NODE + k]
    why = "3 of 5 clients sent keys; 4 are needed; this client: phase keys: not connected"
    with pytest.raises(RunError, match=why):
        federation.run()


def test_a_client_that_sends_no_upload_is_recovered_from(tmp_path: Path) -> None:
    federation = LocalFederation(tmp_path / "federation", secure("run.deadline=2"))

    class Breaking(type(federation.grid)):  # type: ignore[misc]
        """A grid on which client 2 cannot train."""

        def _deliver(self, message: Message, node_id: int) -> Message:
            request, down = messages.read_request(message.content)
            if request.client == 2 and down is not None:
                shutil.rmtree(federation.client_folder(2))
            delivered: Message = super()._deliver(message, node_id)
            return delivered

    federation.grid.__class__ = Breaking
    for record in federation.run().records():
        assert [problem.client for problem in record.failed] == [2]
        assert record.discarded is None


def test_the_server_hears_whose_shares_cannot_be_decrypted(tmp_path: Path) -> None:
    settings = ["federation.rounds=1", "run.secure_deadline=1"]
    federation = LocalFederation(tmp_path / "federation", secure(*settings))
    del federation.grid.nodes[FIRST_NODE]  # its absence is not the reason

    class Spoiling(type(federation.grid)):  # type: ignore[misc]
        """A grid on which client 2 is malicious: its shares are false ciphertexts."""

        def _deliver(self, message: Message, node_id: int) -> Message:
            request, _ = messages.read_request(message.content)
            delivered: Message = super()._deliver(message, node_id)
            step = request.secure
            if request.client == 2 and step is not None and step.phase == "shares":
                text, up = messages.unpack(delivered.content)
                sent = load(Parcels, (up or b"").decode()).parcels
                false = tuple(replace(each, content="00" * 94) for each in sent)
                delivered.content = messages.pack(text, dump(Parcels(false)).encode())
            return delivered

    federation.grid.__class__ = Spoiling
    (record,) = federation.run().records()
    assert "1 of 5 clients sent shares to unmask the sum; 4 are needed" in (record.discarded or "")
    why = "client 1: phase unmask: the shares of client 2 cannot be decrypted"
    assert why in (record.discarded or "")


# What a client refuses


@pytest.fixture
def federation(tmp_path: Path) -> LocalFederation:
    return LocalFederation(tmp_path / "federation", secure())


DOWN = b"not a download"
ASKED = tuple(range(5))


def keys_step(down: bytes = DOWN, asked: tuple[int, ...] = ASKED) -> Step:
    return Step("keys", dump(Invitation(asked, digest_of_bytes(down))))


def ask(
    federation: LocalFederation,
    step: Step | None,
    down: bytes | None = None,
    client: int = 0,
    experiment: Experiment | None = None,
    **changes: Any,
) -> Reply:
    """Send a message of round 1 to a client."""
    prepared = experiment or secure()
    server = Flower(
        federation.grid,
        {},
        experiment="e",
        start=1,
        settings=shared_settings(prepared),
        fingerprint=prepared.fingerprint(),
        deadline=60.0,
        trained={},
        settled=0,
    )
    job = Job(client, 1, down, evaluate=False, secure=step)
    message = server.message(job, FIRST_NODE + client, 60.0)
    request, _ = messages.read_request(message.content)
    message.content = messages.pack_request(replace(request, **changes), down)
    (name,) = federation.grid.push_messages([message])
    (answer,) = federation.grid.pull_messages([name])
    return messages.read_answer(answer.content, replace(job, round=changes.get("round", 1)))


def test_a_client_answers_a_message_once_and_again_with_the_same_bytes(
    federation: LocalFederation,
) -> None:
    first = ask(federation, keys_step())
    assert first.error is None
    assert ask(federation, keys_step()).up == first.up
    other = ask(federation, keys_step(asked=(0, 1, 2, 3)))
    assert other.error == "a second message of phase keys, with another content"
    again = ask(federation, keys_step(), start=2)
    assert again.error is None
    assert again.up != first.up, "a new start of the server gets new keys"


def sum_of(
    federation: LocalFederation,
    experiment: Experiment,
    round: int,
    clients: Collection[int],
    start: int = 1,
) -> torch.Tensor:
    """Return the sum of the first uploads of some clients, as a malicious server gets it."""
    keys, settings = federation.path / "keys", shared_settings(experiment)
    fingerprint = experiment.fingerprint()
    engine = Flower(
        federation.grid,
        read_participants(keys, federation.clients),
        experiment="e",
        start=start,
        settings=settings,
        fingerprint=fingerprint,
        deadline=60.0,
        trained={},
        settled=0,
    )
    agreed = masked.settings_digest(settings, fingerprint, None)
    server = Masked(
        engine,
        lambda round, asked, down: Terms("e", start, round, agreed, down, asked, 3),
        masked.Peers(keys).verify,
    )
    method = experiment.config.method
    down = method.broadcast(experiment.initial_server(), Recipient(0, None, 0, 0, {}))
    jobs = [Job(k, round, wire.to_bytes(down), evaluate=False, max_upload=2**20) for k in clients]
    total = torch.zeros(1, dtype=torch.int64)
    for reply in server.run(jobs):
        assert reply.up is not None, reply.error
        total = total + wire.from_bytes(reply.up)["numbers"]
    return total - server.unmask(list(clients), len(total))[0]


def test_no_round_comes_before_the_first(federation: LocalFederation) -> None:
    """It would not be noted, so that the next round would not be a second one."""
    assert ask(federation, keys_step(), round=0).error == "the first round is round 1"


@pytest.mark.parametrize(("round", "start"), [(2, 1), (1, 2)])
def test_a_client_warns_if_a_server_gets_two_sums_of_the_same_statistics(
    round: int, start: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server says that it has lost the first sum, and leaves client 3 out of the second."""
    settings = ["method.name=fedgh_plus", "method.features=relu", "method.feature_dim=16"]
    experiment = secure(*settings)
    federation = LocalFederation(tmp_path / "f", experiment, settings={"min-peers": "3"})
    first = sum_of(federation, experiment, 1, range(4))
    assert not caplog.records
    second = sum_of(federation, experiment, round, range(3), start)
    classes = experiment.task.num_classes
    own = torch.bincount(experiment.blueprint().make(3).data.train.labels, minlength=classes)
    assert (first - second)[:classes].equal(own), "the attack succeeds, but is seen"
    assert caplog.text.count("round 1 is added up again: the server says") == 3
    assert caplog.text.count(f"asks in round {round} for statistics that it has asked for") == 3


def test_a_client_does_not_warn_of_rounds_that_follow_one_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ["method.name=fedgh_plus", "method.features=relu", "method.feature_dim=16"]
    LocalFederation(tmp_path / "f", secure(*settings)).run()
    assert "again" not in caplog.text
    assert "statistics" not in caplog.text


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (Step("consistency", dump(Senders(ASKED))), "this client has no keys of this round"),
        (keys_step(asked=(0, 1)), "2 clients are asked; a sum needs 3"),
        (keys_step(asked=(1, 2, 3)), "this client is not in the list of clients"),
        (Step("keys", "{"), "not a readable message"),
    ],
)
def test_a_client_refuses_wrong_messages(federation: LocalFederation, step: Step, why: str) -> None:
    assert why in (ask(federation, step).error or "")


def test_a_client_never_sends_an_upload_without_masks_in_a_run_with_secure_aggregation(
    federation: LocalFederation,
) -> None:
    """A malicious server leaves the protocol's messages out, or the settings."""
    plain = quick("method.name=lg_fedavg", "federation.rounds=2")
    for step, experiment in ((None, secure()), (Step("upload", "{}"), plain)):
        reply = ask(federation, step, DOWN, experiment=experiment)
        assert reply.up is None
        assert reply.error == "the server's settings and messages differ about secure aggregation"


def test_a_client_with_min_peers_sends_no_upload_without_masks(tmp_path: Path) -> None:
    federation = LocalFederation(tmp_path / "f", secure(), settings={"min-peers": "4"})
    plain = quick("method.name=lg_fedavg", "federation.rounds=2")
    reply = ask(federation, None, DOWN, experiment=plain)
    assert "sends only masked uploads (min-peers)" in (reply.error or "")
    assert ask(federation, keys_step()).error is None
    stricter = LocalFederation(tmp_path / "g", secure(), settings={"min-peers": "5"})
    assert "this client wants at least 5" in (ask(stricter, keys_step()).error or "")


def test_a_client_with_min_peers_reports_accuracies_only(tmp_path: Path) -> None:
    """The operator switches `[secure]` off, and asks for the metrics of an evaluation."""
    plain = quick("method.name=lg_fedavg", "federation.rounds=2")
    reported = {}
    for name, settings in (("min", {"min-peers": "3"}), ("none", {})):
        federation = LocalFederation(tmp_path / name, plain, settings=settings)
        reply = ask(federation, None, experiment=plain, evaluate=True)
        reported[name] = set(reply.metrics)
    assert reported["min"] == {"accuracy", "validation_accuracy"}
    assert reported["none"] > reported["min"], "without min-peers the operator decides"


def test_an_upload_that_is_too_large_does_not_reveal_its_norm(tmp_path: Path) -> None:
    """A malicious server could set a small limit to learn norms of single uploads."""
    federation = LocalFederation(
        tmp_path / "f", secure("method.name=fedproto", "run.max_norm=0.001")
    )
    with pytest.raises(RunError) as problem:
        federation.run()
    why = "'means' has a row with a norm above run.max_norm = 0.001: secure aggregation cannot"
    assert why in str(problem.value)


@pytest.mark.parametrize("other", ["download", "settings"])
def test_a_client_trains_only_with_what_all_clients_have_agreed_on(
    other: str, federation: LocalFederation
) -> None:
    """The server changes its request after all clients have signed it."""
    ask(federation, keys_step())
    file = federation.client_folder(0) / "secure.json"
    memory = json.loads(file.read_text())
    memory["answered"].append({"digest": "", "answer": ""})  # as after the phase of shares
    file.write_text(json.dumps(memory))
    down, settings = (
        (b"another", secure()) if other == "download" else (DOWN, secure("local.lr=0.5"))
    )
    reply = ask(federation, Step("upload", "{}"), down, experiment=settings)
    assert "not those that all clients have agreed on" in (reply.error or "")


def test_a_client_without_the_key_of_a_peer_refuses(federation: LocalFederation) -> None:
    adverts = []
    for client in range(5):
        reply = ask(federation, keys_step(), client=client)
        assert reply.up is not None
        adverts.append(json.loads(reply.up))
    (federation.path / "keys" / "3.pub").unlink()
    reply = ask(federation, Step("shares", json.dumps({"adverts": adverts})))
    assert "no public key of client 3 (3.pub in its folder of peers)" in (reply.error or "")


def test_other_settings_for_one_client_are_detected(federation: LocalFederation) -> None:
    """The server asks client 4 to train otherwise, so that its upload is known."""
    adverts = []
    for client in range(5):
        other = secure("local.lr=0.5") if client == 4 else secure()
        reply = ask(federation, keys_step(), client=client, experiment=other)
        assert reply.up is not None
        adverts.append(json.loads(reply.up))
    reply = ask(federation, Step("shares", json.dumps({"adverts": adverts})))
    assert reply.error == "the keys of client 4 are not signed by it"


def test_a_client_that_crashes_after_masking_does_not_mask_again(
    federation: LocalFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends between the note that masks were used and the stored answer."""
    stored = masked.MaskedRound._store
    crashes = [True]

    def store(self: masked.MaskedRound, client: Any) -> None:
        stored(self, client)
        step = self.request.secure
        if step is not None and step.phase == "upload" and self.request.client == 1 and crashes:
            crashes.pop()
            raise KeyboardInterrupt

    monkeypatch.setattr(masked.MaskedRound, "_store", store)
    with pytest.raises(KeyboardInterrupt):
        federation.run()
    grid = federation.grid
    waiting = [name for name, node in grid.waiting.items() if node == FIRST_NODE + 1]
    assert waiting == [], "the message was taken"
    (name_file,) = (federation.path / "states" / "experiments").glob("*/client-1/name.txt")
    memory = json.loads((name_file.parent / "secure.json").read_text())
    assert len(memory["answered"]) == 3
    run = federation.run()  # the server's next start
    assert [record.failed for record in run.records()] == [[], []]


def test_init_writes_the_keys_of_all_peers_only_if_they_are_needed(tmp_path: Path) -> None:
    with_peers = FederationFolder.create(tmp_path / "a", secure().config)
    for k in range(5):
        for other in range(5):
            own = (with_peers.participant(other) / "key.pub").read_bytes()
            assert (with_peers.participant(k) / "peers" / f"{other}.pub").read_bytes() == own
    without = FederationFolder.create(tmp_path / "b", quick().config)
    assert not (without.participant(0) / "peers").exists()


def make_client(task: Task, node: NodeConfig) -> ClientSpec:
    """Return a client with points in three clusters, and a network of its own."""
    rng = torch.Generator().manual_seed(int(node["client"]))
    y = torch.arange(90) % task.num_classes
    x = torch.eye(task.num_classes, 5)[y] * 4 + torch.randn(90, 5, generator=rng)
    hidden = 8 + int(node["client"])
    network = nn.Sequential(nn.Linear(5, hidden), nn.ReLU(), nn.Linear(hidden, task.rep_dim))
    return ClientSpec(network, (x, y))


@pytest.mark.parametrize("method", ["fedproto", "fedgh_plus"])
def test_clients_with_their_own_networks_and_data_send_masked_uploads(
    method: str, tmp_path: Path
) -> None:
    settings = ["data.name=private", "data.classes=a,b,c", "data.shape=[5]", "model.rep_dim=8"]
    settings += ["secure.enabled=true", "federation.clients=3", "federation.rounds=4"]
    settings += ["local.lr=0.1", "local.batch_size=16", f"method.name={method}"]
    settings += ["method.feature_dim=16"] if method == "fedgh_plus" else []
    apps = [client_app(make_client)]
    federation = LocalFederation(tmp_path / "f", quick(*settings), apps, {"min-peers": "3"})
    run = federation.run()
    assert (run.records()[-1].accuracy or 0) > 0.9
    assert not any(record.failed or record.discarded for record in run.records())
    if method == "fedgh_plus":
        with pytest.raises(MethodError, match="knows only the sum of all statistics"):
            forget(run.path, 1)
