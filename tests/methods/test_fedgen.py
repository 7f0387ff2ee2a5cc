"""FedGen: losses worked by hand, what the generator learns from, what is sent and kept."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from fedgh.core import wire
from fedgh.core.message import LabelCounts
from fedgh.core.types import Client, Payload, Task, Upload, part
from fedgh.errors import RunError, WireError
from fedgh.methods import api
from fedgh.methods.fedgen import FedGen
from fedgh.models import generator
from tests.support.rounds import TASK, recipient, shapes_of, uploads_of
from tests.support.tiny import a_client, quick

METHOD = FedGen(server_steps=3, server_batch=4, noise=2, hidden=5)


def upload(client: int, examples: int, value: float, counts: list[int]) -> Upload:
    payload = {
        "weight": torch.full((4, 3), value),
        "bias": torch.zeros(4),
        "counts": torch.tensor(counts, dtype=torch.int32),
    }
    return Upload(client, examples, payload)


SENT = [upload(0, 1, 1.0, [1, 0, 0, 0]), upload(1, 3, 3.0, [1, 2, 0, 0])]


def after(method: FedGen, *rounds: int) -> Payload:
    server = method.init_server(TASK, [], torch.Generator().manual_seed(0))
    for round in rounds:
        server = method.server_update(server, uploads_of(SENT, round=round))
    return server


def test_the_loss_of_the_headers_worked_by_hand() -> None:
    """z = 1, headers (1, -1) and (0, 0) without bias, class 0: losses 0.126928 and 0.693147."""
    logits, y = torch.tensor([[[1.0, -1.0]], [[0.0, 0.0]]]), torch.tensor([0])
    counts = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    assert_close(generator.headers_loss(logits, y, counts, "losses"), torch.tensor(0.551592))
    assert_close(generator.headers_loss(logits, y, counts, "logits"), torch.tensor(0.313262))


def test_the_diversity_loss_worked_by_hand() -> None:
    noise, made = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [2.0]])
    assert_close(generator.diversity_loss(noise, made), torch.tensor(0.367879))
    assert_close(generator.diversity_loss(noise, torch.ones(2, 1)), torch.tensor(1.0))


def client(round: int, **local: Any) -> Client:
    rng = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    made = a_client(torch.randn(12, 6, generator=rng), torch.arange(12) % 2, **local)
    made.round = round
    return made


def download(each: Client, value: float = 0.0, trained: bool = True) -> Payload:
    shape = (each.task.num_classes, each.task.rep_dim)
    header = {"weight": torch.full(shape, value), "bias": torch.zeros(shape[0])}
    made = api.network_state(METHOD.shared_network(each.task))
    return {**header, **(api.prefixed("gen.", made) if trained else {})}


@pytest.mark.parametrize(
    ("round", "trained", "expected"), [(1, False, 1.0), (1, True, 11.0), (3, True, 10.604)]
)
def test_the_weight_of_generated_representations_falls_with_the_rounds(
    round: int, trained: bool, expected: float
) -> None:
    """A header of zeros gives all classes the same chance: each cross-entropy is ln 3."""
    each = client(round, lr=1e-12)
    method = replace(METHOD, alpha=10.0, beta=10.0, decay=0.98)
    method.client_update(each, download(each, trained=trained))
    assert each.metrics["train_loss"] == pytest.approx(expected * math.log(3))


def test_generated_representations_move_the_header_only() -> None:
    """In the one step of this round the extractor hears only of the client's own samples."""
    states, local = [], {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    for alpha in (0.0, 5.0):
        each = client(2, batch_size=12, **local)
        replace(METHOD, alpha=alpha).client_update(each, download(each, 0.5))
        states.append(each.state())
    for name in states[0]:
        assert states[0][name].equal(states[1][name]) == ("extractor" in name), name


def test_distillation_moves_the_model_towards_what_the_header_says_of_generated_samples() -> None:
    """The header's own answer is a constant: only a step on real samples changes anything."""
    states = []
    for beta in (0.0, 5.0):
        each = client(2, batch_size=12, lr=0.1)
        replace(METHOD, beta=beta).client_update(each, download(each, 0.5))
        states.append(each.state())
    assert all(not states[0][name].equal(states[1][name]) for name in states[0])


def test_an_upload_is_the_header_and_the_numbers_of_samples() -> None:
    each = client(1)
    up = METHOD.client_update(each, download(each, trained=False))
    (spec,) = METHOD.upload_specs(shapes_of(each.task))
    wire.check(up, spec)
    assert up.keys() == {"weight", "bias", "counts"}
    assert up["counts"].tolist() == [6, 6, 0]


def test_headers_are_averaged_by_samples_and_labels_by_counts() -> None:
    server = after(METHOD, 1)
    assert_close(server["weight"], torch.full((4, 3), 2.5))
    assert server["gen.labels"].tolist() == [0.5, 0.5, 0.0, 0.0]
    assert METHOD.server_update(server, uploads_of([])) is server


def test_a_class_that_no_participant_has_is_not_drawn() -> None:
    made = METHOD.shared_network(TASK, after(METHOD, 1))
    drawn = made.draw_labels(200, torch.Generator().manual_seed(0))
    assert drawn.unique().tolist() == [0, 1]
    start = METHOD.shared_network(TASK)
    assert start.labels.tolist() == [0.25] * 4


def test_the_moments_are_kept_and_not_sent() -> None:
    server = after(METHOD, 1, 2)
    assert part(server, "adam.")["step.0"] == 6  # two rounds of three steps
    down = METHOD.broadcast(server, recipient(4))  # to a new client, too
    first, later = METHOD.download_specs(shapes_of(TASK))
    assert down.keys() == later.keys()
    wire.check(down, later)
    wire.check(METHOD.broadcast(after(METHOD), recipient(0)), first)
    forgotten = {name: t for name, t in after(METHOD, 1).items() if not name.startswith("adam.")}
    other = METHOD.server_update(forgotten, uploads_of(SENT, round=2))
    assert not other["gen.layers.0.weight"].equal(server["gen.layers.0.weight"])


def test_the_generator_learns_what_the_headers_agree_on() -> None:
    """Two headers by which the first two numbers of a representation decide."""
    sent = [upload(k, 1, 0.0, [5, 5, 0, 0]) for k in range(2)]
    for each in sent:
        each.payload["weight"][:3] = torch.eye(3)
    method = replace(METHOD, server_steps=60, server_lr=0.05, server_batch=16)
    for ensemble in ("losses", "logits"):
        method = replace(method, ensemble=ensemble)
        server = method.init_server(TASK, [], torch.Generator())
        server = method.server_update(server, uploads_of(sent))
        y = torch.tensor([0, 1] * 20)
        trained = method.shared_network(TASK, server).eval()
        made = trained.sample(y, torch.Generator().manual_seed(0))
        assert (made[:, :2].argmax(dim=1) == y).float().mean() > 0.9


def test_the_rate_of_the_generator_falls_with_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []

    def learn(*words: Any, **options: Any) -> Payload:
        rates.append((options["lr"], options["weight_decay"]))
        return {}

    monkeypatch.setattr(api, "learn", learn)
    after(METHOD, 1, 3)
    assert rates == [(3e-4, 0.01), (pytest.approx(3e-4 * 0.98**2), 0.01)]


def test_counts_without_a_sample_are_rejected() -> None:
    LabelCounts().check({"counts": torch.tensor([0, 1]).int()})
    with pytest.raises(WireError, match="'counts' has no sample of any class"):
        METHOD.up.check(upload(0, 1, 1.0, [0, 0, 0, 0]).payload)


def test_bytes_of_the_messages() -> None:
    task = Task(10, 500, num_clients=2, rounds=9, seed=0, input_shape=(3, 32, 32))
    method = FedGen()
    (up,) = method.upload_specs(shapes_of(task))
    first, later = method.download_specs(shapes_of(task))

    def size(spec: wire.Spec) -> int:
        empty = {n: torch.zeros(f.shape, dtype=f.dtype) for n, f in spec.items()}  # type: ignore
        return wire.nbytes(empty)

    assert [size(spec) for spec in (up, first, later)] == [20_080, 20_040, 20_040 + 562_128 + 40]


@pytest.mark.parametrize("hidden", [2**14, 2**31 - 1])
def test_a_generator_larger_than_the_memory_is_refused(hidden: int) -> None:
    sizes = ["method.noise=2147483647", f"method.hidden={hidden}"]
    with pytest.raises(RunError, match="of memory at once"):
        quick("method.name=fedgen", *sizes).initial_server()
