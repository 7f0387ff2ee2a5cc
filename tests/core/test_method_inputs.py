"""Inputs of a method's hooks: recipients, uploads and the round."""

from dataclasses import field

import pytest
import torch
from torch import nn

from fedgh.core import wire
from fedgh.core.defence import Defence
from fedgh.core.server import Server, ServerResources
from fedgh.core.types import Job, Payload, Recipient, Reply, SplitModel, Task
from fedgh.errors import RunError
from fedgh.methods import api
from fedgh.methods.api import Client, Uploads
from tests.support.scripted import Scripted

SCORES = {"accuracy": 0.5, "validation_accuracy": 0.5}
TASK = Task(num_classes=3, rep_dim=2, num_clients=4, rounds=9, seed=0)


class Recording(api.Method):
    """A method that records recipients and uploads, and adds up class means."""

    up = down = api.PerClass("representation")
    recipients: list[Recipient] = field(default_factory=list)
    uploads: list[Uploads] = field(default_factory=list)

    def broadcast(self, server: Payload, to: Recipient) -> Payload:
        self.recipients.append(to)
        return {"classes": torch.zeros(0, dtype=torch.int32), "means": torch.zeros(0, 2)}

    def client_update(self, client: Client, down: Payload) -> Payload:
        raise NotImplementedError

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        self.uploads.append(uploads)
        sums = [upload.payload["means"].sum() for upload in uploads]
        uploads.metrics["heard"] = float(len(sums))
        return {"total": server["total"] + sum(sums)}


def reply_with_classes(job: Job, scale: float = 1.0) -> Reply:
    """Return the reply of a client: k has the classes k and k + 1, client 3 has none."""
    held = [label for label in (job.client_id, job.client_id + 1) if label < 3]
    classes = torch.tensor(held, dtype=torch.int32)
    means = torch.full((len(held), 2), scale)
    up = wire.to_bytes({"classes": classes, "means": means})
    return Reply(job.client_id, job.round, 1, up, SCORES)


def server_of(method: api.Method, engine: Scripted, **settings: object) -> Server:
    state = Server.initial_state(TASK, {"total": torch.zeros(())})
    return Server(TASK, method, engine, state, **settings)  # type: ignore[arg-type]


def classes_of(recipients: list[Recipient]) -> list[list[bool] | None]:
    return [None if to.classes is None else to.classes.tolist() for to in recipients]


def test_a_recipient_has_its_classes_and_last_round() -> None:
    method = Recording()
    server = server_of(method, Scripted(reply_with_classes))
    server.round(1)
    assert classes_of(method.recipients) == [None] * 4
    assert [to.last_round for to in method.recipients] == [0] * 4
    method.recipients.clear()
    server.round(2)
    shown: list[list[bool] | None] = [
        [True, True, False],
        [False, True, True],
        [False, False, True],
    ]
    assert classes_of(method.recipients) == [*shown, None]  # client 3 has sent no classes
    assert [to.last_round for to in method.recipients] == [1] * 4
    assert [uploads.round for uploads in method.uploads] == [1, 2]


def test_equal_downloads_are_held_once() -> None:
    """The method makes a new payload for every participant."""
    jobs: list[Job] = []

    def keep(job: Job) -> Reply:
        jobs.append(job)
        return reply_with_classes(job)

    server_of(Recording(), Scripted(keep)).round(1)
    assert len(jobs) == 4
    assert len({id(job.down) for job in jobs}) == 1


def test_a_restored_server_knows_classes_and_last_rounds() -> None:
    server = server_of(Recording(), Scripted(reply_with_classes))
    server.round(1)
    again = Recording()
    Server(TASK, again, Scripted(reply_with_classes), server.state()).round(2)
    assert classes_of(again.recipients)[0] == [True, True, False]


def test_classes_dropped_by_the_defence_are_not_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def only_first(self: Defence, uploads: api.Uploads, dropped: object) -> object:
        return (upload for upload in uploads if upload.client_id == 0)

    monkeypatch.setattr(Defence, "apply", only_first)
    method = Recording()
    server = server_of(method, Scripted(reply_with_classes))
    server.round(1)
    method.recipients.clear()
    server.round(2)
    assert classes_of(method.recipients) == [[True, True, False], None, None, None]


def test_classes_of_a_discarded_round_are_not_recorded() -> None:
    method = Recording()
    server = server_of(
        method, Scripted(lambda job: reply_with_classes(job, 300.0)), max_norm=1000.0
    )
    assert server.round(1).discarded is not None
    method.recipients.clear()
    server.round(2)
    assert classes_of(method.recipients) == [None] * 4
    assert [to.last_round for to in method.recipients] == [1] * 4


def test_metrics_of_server_update_are_recorded() -> None:
    assert server_of(Recording(), Scripted(reply_with_classes)).round(1).method_metrics == {
        "heard": 4.0
    }


class Diverging(Recording):
    """A method whose server update diverges."""

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        raise FloatingPointError("the server's training diverged; lower its learning rate")


def test_a_diverging_server_update_ends_the_run_without_a_commit() -> None:
    server = server_of(Diverging(), Scripted(reply_with_classes))
    before = server.state()
    with pytest.raises(RunError, match=r"round 1: the server's training diverged.*round is safe"):
        server.round(1)
    assert server.state()["server.total"].equal(before["server.total"])


class Overflowing(Recording):
    """A method whose server update has a number that is too large for Python."""

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return {"total": server["total"] * 1e200**2}


class Enormous(Recording):
    """A method whose server update needs more memory than there is."""

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return {"total": torch.zeros(2**45)}


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        (Overflowing(), "round 1: the server computed a number beyond the largest one"),
        (Enormous(), "round 1: the server's update needs 140,737,488,355,328 bytes of memory"),
    ],
)
def test_settings_that_are_too_large_for_the_server_end_the_run_in_one_line(
    method: api.Method, problem: str
) -> None:
    with pytest.raises(RunError, match=problem):
        server_of(method, Scripted(reply_with_classes)).round(1)


class Whole(Recording):
    """Networks cross."""

    up = down = api.Network("own")  # type: ignore[assignment]

    def broadcast(self, server: Payload, to: Recipient) -> Payload:
        self.recipients.append(to)
        return {}

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        self.uploads.append(uploads)
        widths = [(upload.group, upload.payload["header.weight"].shape[1]) for upload in uploads]
        assert widths == [(0, 2), (1, 5), (0, 2), (0, 2)]
        return server


def network(width: int) -> SplitModel:
    return SplitModel(nn.Linear(3, width), nn.Linear(width, 3))


def sent_network(job: Job) -> Reply:
    width = 5 if job.client_id == 1 else 2
    up = wire.to_bytes(api.network_state(network(width)))
    return Reply(job.client_id, job.round, 1, up, SCORES)


def test_clients_with_the_same_network_are_a_group_and_each_has_its_own_spec() -> None:
    around = ServerResources([lambda: network(2), lambda: network(5), lambda: network(2)])
    method = Whole()
    server = server_of(method, Scripted(sent_network), resources=around)
    assert server.round(1).rejected == []
    assert [to.group for to in method.recipients] == [0, 1, 0, 0]
    assert method.recipients[1].sizes["extractor.weight"] == (5, 3)
    assert method.uploads[0].network(1).header.in_features == 5


def test_a_network_of_another_architecture_is_rejected() -> None:
    around = ServerResources([lambda: network(2), lambda: network(2)])

    class Any(Whole):
        def server_update(self, server: Payload, uploads: Uploads) -> Payload:
            return server | {"total": torch.tensor(float(len(list(uploads))))}

    strict = server_of(Any(), Scripted(sent_network), resources=around)
    record = strict.round(1)
    assert [problem.client for problem in record.rejected] == [1]
    assert "declared (2, 3)" in record.rejected[0].reason
    assert strict.server["total"] == 3
