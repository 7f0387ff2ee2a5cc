"""The server of a small federation whose clients answer with given bytes and do not train."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch

from fedgh.core import wire
from fedgh.core.defence import Defence
from fedgh.core.message import Shapes
from fedgh.core.method import Method
from fedgh.core.metrics import own_metrics
from fedgh.core.moments import Moments
from fedgh.core.rng import isolated, stream
from fedgh.core.server import Server, ServerResources
from fedgh.core.types import Job, Payload, Recipient, Reply, SplitModel, Task, Upload, part
from fedgh.data.public import HIDDEN, PublicData
from fedgh.methods import METHODS
from fedgh.models import split_model
from tests.fuzz.payloads import honest
from tests.support.tiny import mlp

CLIENTS = 4
HOSTILE = 1
TRAIN = 10  # training samples of an honest client
NORM = 1000.0  # the default of run.max_norm
METRICS = own_metrics()
torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # the first one imports for seconds
PUBLIC = torch.arange(12.0).view(6, 2) / 6 - 1
TASK = Task(
    num_classes=4,
    rep_dim=3,
    num_clients=CLIENTS,
    rounds=9,
    seed=0,
    input_shape=(2,),
    public_size=len(PUBLIC),
)


SMALL_BATCH = {"fedzkt": {"server_batch": 2}}  # of other methods it is a word


@cache
def method_of(name: str) -> Method:
    """Return a method; one that shares a network or feature map has a small one."""
    kind: Callable[..., Method] = METHODS[name]
    network = "tests.support.tiny:mlp"
    small: dict[str, Any] = {"shared": network, "widths": [network], "shared_dim": 2}
    small |= {"feature_dim": 8, "hidden": 4, "noise": 4}
    small |= {"server_steps": 2, "server_epochs": 1, **SMALL_BATCH.get(name, {})}
    settings = {field.name for field in fields(METHODS[name])}
    return kind(**{key: value for key, value in small.items() if key in settings})


@cache
def public_of(name: str) -> PublicData:
    """Return the public data, with labels if the method reads them."""
    labels = torch.arange(len(PUBLIC)) % TASK.num_classes
    known = method_of(name).public_labels
    return PublicData("points", PUBLIC, labels if known else torch.full_like(labels, HIDDEN), b"")


@dataclass(frozen=True)
class Answers:
    """An engine whose clients send the given uploads; a client without one has failed."""

    uploads: Mapping[int, bytes]
    examples: Mapping[int, int]

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Yield the replies without any computation."""
        scores = dict.fromkeys(METRICS, 0.5)
        for job in jobs:
            up = self.uploads.get(job.client_id)
            error = "down" if up is None else None
            examples = self.examples.get(job.client_id, 5)
            yield Reply(job.client_id, job.round, examples, up, scores, error=error)

    def save(self, round: int) -> None:
        """Do nothing: the clients have no state."""

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class RoundResult:
    """The result of a round."""

    server: Payload
    recipients: list[Recipient]  # of the next round
    rejected: dict[int, str]
    accepted: dict[int, Upload]


def play(
    name: str,
    uploads: Mapping[int, bytes],
    examples: Mapping[int, int] | None = None,
    defence: Defence | None = None,
) -> RoundResult:
    """Run round 2 with these uploads, and return its result."""
    federation = Server(
        TASK,
        method_of(name),
        Answers(uploads, examples or {}),
        start(name),
        defence=defence,
        max_norm=NORM,
        strikes=3,
        resources=resources_of(name),
    )
    accepted: dict[int, Upload] = {}
    record = federation.round(
        2, on_upload=lambda upload: accepted.update({upload.client_id: upload})
    )
    rejected = {problem.client: problem.reason for problem in record.rejected}
    recipients = [federation.recipient(client) for client in range(CLIENTS)]
    return RoundResult(federation.server, recipients, rejected, accepted)


def _network() -> SplitModel:
    with isolated(0, "models"):
        return split_model(mlp, TASK)


@cache
def resources_of(name: str) -> ServerResources:
    """Return the server's networks and public data."""
    return ServerResources(networks=(_network,), public=public_of(name).examples())


@cache
def init_server(name: str) -> Payload:
    """Return the server's state before the first round."""
    return method_of(name).init_server(TASK, [_network()], stream(0, "server"))


@cache
def start(name: str) -> Payload:
    """Return the state after a first round of honest clients."""
    server = init_server(name)
    before = Server.initial_state(TASK, server)
    answers = Answers(_sent(name, spec_of(name), server), {})
    federation = Server(TASK, method_of(name), answers, before, resources=resources_of(name))
    federation.round(1)
    return federation.state()


@cache
def specs_of(name: str) -> list[wire.Spec]:
    """Return the declarations of the uploads to that server: one, or one for each form."""
    return method_of(name).upload_specs(Shapes(TASK, _network))


def spec_of(name: str) -> wire.Spec:
    """Return the declaration of the first upload of a client."""
    return specs_of(name)[0]


@cache
def honest_uploads(name: str) -> dict[int, bytes]:
    """Return the uploads of honest clients in round 2."""
    return _sent(name, spec_of(name), part(start(name), "server."))


@cache
def without_hostile(name: str, defence: Defence) -> Payload:
    """Return the server's state after a round in which only the malicious client failed."""
    others = {k: up for k, up in honest_uploads(name).items() if k != HOSTILE}
    return play(name, others, defence=defence).server


def _sent(name: str, spec: wire.Spec, server: Payload) -> dict[int, bytes]:
    size = TRAIN if name == "fedgkt" else 2  # rows of all training samples
    if name == "fedgems":  # a row for each sample that the server asks about
        size = len(server["wanted"])
    payloads = [honest(spec, seed=client, size=size) for client in range(CLIENTS)]
    if name in ("fd", "hfd"):  # means of distributions
        payloads = [{**sent, "means": sent["means"].softmax(1)} for sent in payloads]
    if "probabilities" in spec:
        payloads = [{name: rows.softmax(1) for name, rows in sent.items()} for sent in payloads]
    if name == "fedgh_plus":  # moments of samples
        rng = torch.Generator().manual_seed(0)
        features = torch.rand(CLIENTS, 9, 8, generator=rng)
        moments = [Moments.of(x, torch.arange(9) % 2 + k % 3, 4) for k, x in enumerate(features)]
        payloads = [sent | one.payload() for sent, one in zip(payloads, moments, strict=True)]
    return {client: wire.to_bytes(sent) for client, sent in enumerate(payloads)}
