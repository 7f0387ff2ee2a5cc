"""A host keeps clients and does their jobs: the part that all engines share."""

import traceback
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedgh.core import wire
from fedgh.core.checkpoint import ClientFiles
from fedgh.core.local import accuracy
from fedgh.core.method import Method
from fedgh.core.rng import isolated
from fedgh.core.types import Client, Examples, Job, LocalTraining, Reply, Task
from fedgh.data.partition import Partition
from fedgh.models import Extractor, split_model


@dataclass(frozen=True)
class Blueprint:
    """All that is needed to make any client of the federation."""

    task: Task
    method: Method
    local: LocalTraining
    extractors: tuple[Extractor, ...]  # dealt round-robin
    x: Tensor
    y: Tensor
    partition: Partition
    global_sample: Tensor | None = None  # everybody's test data, balanced over the classes

    def make(self, client_id: int) -> Client:
        """The client as it is before its first round: a function of the seed alone."""
        task = self.task
        make = self.extractors[client_id % len(self.extractors)]
        with isolated(task.seed, "model", client_id):
            model = split_model(make, task)
        data = self.partition.data(client_id, self.x, self.y)
        client = Client(client_id, task, model, data, self.local)
        with isolated(task.seed, "init-client", client_id):
            self.method.init_client(client)
        return client


class ClientHost:
    """Clients made when first needed, kept in memory, saved on demand."""

    def __init__(self, blueprint: Blueprint, checkpoint: Path, round: int) -> None:
        self.blueprint = blueprint
        self._files = ClientFiles(checkpoint, round)
        self._clients: dict[int, Client] = {}
        self._changed: set[int] = set()

    def run(self, job: Job) -> Reply:
        """Train and judge a client. What its code raises becomes part of the reply."""
        try:
            client = self._client(job.client_id, keep=job.down is not None)
        except Exception as problem:  # a client's code may raise anything
            return Reply(job.client_id, job.round, error=_one_line(problem))
        client.round, client.metrics, client.seconds = job.round, {}, {}
        up: bytes | None = None
        errors: list[str] = []
        with isolated(client.task.seed, "client", client.id, job.round):
            if job.down is not None:
                before = client.state()
                try:
                    up = self._train(client, job.down)
                except Exception as problem:
                    client.load(before)
                    client.metrics.clear()
                    errors.append(_one_line(problem))
            if job.evaluate:
                try:
                    self._evaluate(client)
                except Exception as problem:
                    errors.append(_one_line(problem))
        return Reply(
            client_id=client.id,
            round=job.round,
            num_examples=len(client.data.train) if self.blueprint.method.weighs_by_examples else 0,
            up=up,
            metrics=client.metrics,
            seconds=client.seconds,
            error="; ".join(errors) or None,
        )

    def save(self, round: int) -> None:
        """Write the clients that have changed since the last time."""
        states = ((client, self._clients[client].state()) for client in sorted(self._changed))
        self._files.save(round, states)
        self._changed.clear()

    def _client(self, client_id: int, keep: bool) -> Client:
        """The client, made or loaded if need be; one that is only looked at is not kept."""
        if client_id in self._clients:
            return self._clients[client_id]
        client = self.blueprint.make(client_id)
        state = self._files.load(client_id)
        if state is not None:
            client.load(state)
        if keep:
            self._clients[client_id] = client
        return client

    def _train(self, client: Client, down: bytes) -> bytes:
        up = wire.to_bytes(self.blueprint.method.client_update(client, wire.from_bytes(down)))
        self._changed.add(client.id)
        return up

    def _evaluate(self, client: Client) -> None:
        predict = self.blueprint.method.predict
        scores = {
            "accuracy": accuracy(client, predict, client.data.test),
            "evaluation_accuracy": accuracy(client, predict, client.data.evaluation),
        }
        sample = self.blueprint.global_sample
        if sample is not None:
            everybody = Examples(self.blueprint.x, self.blueprint.y, sample)
            scores["global_accuracy"] = accuracy(client, predict, everybody)
        client.metrics.update(scores)


def _one_line(problem: Exception) -> str:
    """What happened and where, without a path that tells about the machine."""
    where = traceback.extract_tb(problem.__traceback__)[-1]
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text} ({Path(where.filename).name}:{where.lineno})"
