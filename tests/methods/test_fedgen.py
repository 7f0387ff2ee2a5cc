"""FedGen: losses, training of the generator and of clients, messages and the server's state."""

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


def server_after(method: FedGen, *rounds: int) -> Payload:
    """Return the server's state after rounds with these numbers and the uploads `SENT`."""
    server = method.init_server(TASK, [], torch.Generator().manual_seed(0))
    for round in rounds:
        server = method.server_update(server, uploads_of(SENT, round=round))
    return server


def test_the_loss_of_two_headers_equals_a_computation_by_hand() -> None:
    """Compare the loss for both kinds of ensemble; the sample has class 0.

    The losses of the headers are 0.126928 and 0.693147. Weighted by the counts 1 and 3 of class 0,
    their mean is 0.551592. The mean of the logits is (0.5, -0.5), with the loss 0.313262.
    """
    logits, y = torch.tensor([[[1.0, -1.0]], [[0.0, 0.0]]]), torch.tensor([0])
    counts = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    assert_close(generator.headers_loss(logits, y, counts, "losses"), torch.tensor(0.551592))
    assert_close(generator.headers_loss(logits, y, counts, "logits"), torch.tensor(0.313262))


def test_the_diversity_loss_equals_a_computation_by_hand() -> None:
    noise, generated = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [2.0]])
    assert_close(generator.diversity_loss(noise, generated), torch.tensor(0.367879))  # exp(-1)
    assert_close(generator.diversity_loss(noise, torch.ones(2, 1)), torch.tensor(1.0))


def client_in_round(round: int, **local: Any) -> Client:
    rng = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    client = a_client(torch.randn(12, 6, generator=rng), torch.arange(12) % 2, **local)
    client.round = round
    return client


def download(client: Client, value: float = 0.0, with_generator: bool = True) -> Payload:
    """Return a download with a header whose weights are all `value`."""
    shape = (client.task.num_classes, client.task.rep_dim)
    header = {"weight": torch.full(shape, value), "bias": torch.zeros(shape[0])}
    state = api.network_state(METHOD.shared_network(client.task))
    return {**header, **(api.prefixed("gen.", state) if with_generator else {})}


@pytest.mark.parametrize(
    ("round", "with_generator", "expected"), [(1, False, 1.0), (1, True, 11.0), (3, True, 10.604)]
)
def test_the_weight_of_generated_representations_decays_over_the_rounds(
    round: int, with_generator: bool, expected: float
) -> None:
    """Compare the loss with (1 + weight) ln 3, where weight = alpha * decay^(round - 1).

    With a header of zeros all classes have the same probability, so that the cross-entropy is ln 3
    for own samples and for generated ones, and the loss of distillation is 0.
    """
    client = client_in_round(round, lr=1e-12)
    method = replace(METHOD, alpha=10.0, beta=10.0, decay=0.98)
    method.client_update(client, download(client, with_generator=with_generator))
    assert client.metrics["train_loss"] == pytest.approx(expected * math.log(3))


def test_generated_representations_train_only_the_header() -> None:
    """Change the weight alpha of their loss: after one step, only the header differs."""
    states, local = [], {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    for alpha in (0.0, 5.0):
        client = client_in_round(2, batch_size=12, **local)
        replace(METHOD, alpha=alpha).client_update(client, download(client, 0.5))
        states.append(client.state())
    for name in states[0]:
        assert states[0][name].equal(states[1][name]) == ("extractor" in name), name


def test_distillation_trains_the_extractor_and_the_header() -> None:
    """Change the weight beta of its loss: after one step, both differ."""
    states = []
    for beta in (0.0, 5.0):
        client = client_in_round(2, batch_size=12, lr=0.1)
        replace(METHOD, beta=beta).client_update(client, download(client, 0.5))
        states.append(client.state())
    assert all(not states[0][name].equal(states[1][name]) for name in states[0])


def test_an_upload_is_the_header_and_the_number_of_samples_of_each_class() -> None:
    client = client_in_round(1)
    up = METHOD.client_update(client, download(client, with_generator=False))
    (spec,) = METHOD.upload_specs(shapes_of(client.task))
    wire.check(up, spec)
    assert up.keys() == {"weight", "bias", "counts"}
    assert up["counts"].tolist() == [6, 6, 0]


def test_the_server_averages_headers_by_samples_and_sums_the_counts_of_classes() -> None:
    server = server_after(METHOD, 1)
    assert_close(server["weight"], torch.full((4, 3), 2.5))
    assert server["gen.labels"].tolist() == [0.5, 0.5, 0.0, 0.0]
    assert METHOD.server_update(server, uploads_of([])) is server


def test_the_generator_draws_only_classes_that_participants_have() -> None:
    trained = METHOD.shared_network(TASK, server_after(METHOD, 1))
    drawn = trained.draw_labels(200, torch.Generator().manual_seed(0))
    assert drawn.unique().tolist() == [0, 1]
    initial = METHOD.shared_network(TASK)
    assert initial.labels.tolist() == [0.25] * 4


def test_the_server_keeps_the_moments_of_adam_and_does_not_send_them() -> None:
    server = server_after(METHOD, 1, 2)
    assert part(server, "adam.")["step.0"] == 6  # two rounds of three steps
    down = METHOD.broadcast(server, recipient(4))  # to a new client, too
    first, later = METHOD.download_specs(shapes_of(TASK))
    assert down.keys() == later.keys()
    wire.check(down, later)
    wire.check(METHOD.broadcast(server_after(METHOD), recipient(0)), first)
    after_one = server_after(METHOD, 1)
    without_moments = {name: t for name, t in after_one.items() if not name.startswith("adam.")}
    other = METHOD.server_update(without_moments, uploads_of(SENT, round=2))
    assert not other["gen.layers.0.weight"].equal(server["gen.layers.0.weight"])


def test_the_generator_learns_representations_that_the_headers_classify_correctly() -> None:
    """Use headers whose logit of a class k < 3 is the k-th number of the representation.

    The clients have samples of the classes 0 and 1 only.
    """
    sent = [upload(k, 1, 0.0, [5, 5, 0, 0]) for k in range(2)]
    for one in sent:
        one.payload["weight"][:3] = torch.eye(3)
    method = replace(METHOD, server_steps=60, server_lr=0.05, server_batch=16)
    for ensemble in ("losses", "logits"):
        method = replace(method, ensemble=ensemble)
        server = method.init_server(TASK, [], torch.Generator())
        server = method.server_update(server, uploads_of(sent))
        y = torch.tensor([0, 1] * 20)
        trained = method.shared_network(TASK, server).eval()
        generated = trained.sample(y, torch.Generator().manual_seed(0))
        assert (generated[:, :2].argmax(dim=1) == y).float().mean() > 0.9


def test_the_learning_rate_of_the_generator_decays_over_the_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = []

    def learn(*_: Any, **options: Any) -> Payload:
        rates.append((options["lr"], options["weight_decay"]))
        return {}

    monkeypatch.setattr(api, "learn", learn)
    server_after(METHOD, 1, 3)
    assert rates == [(3e-4, 0.01), (pytest.approx(3e-4 * 0.98**2), 0.01)]


def test_an_upload_whose_counts_are_all_zero_is_rejected() -> None:
    LabelCounts().check({"counts": torch.tensor([0, 1]).int()})
    with pytest.raises(WireError, match="'counts' has no sample of any class"):
        METHOD.up.check(upload(0, 1, 1.0, [0, 0, 0, 0]).payload)


def test_the_messages_have_the_expected_bytes() -> None:
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
