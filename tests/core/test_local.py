from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedgh.core import batches
from fedgh.core.local import class_means, gradient, judge, train
from fedgh.core.metrics import accuracy
from fedgh.core.types import Client
from tests.support.tiny import a_client, noisy


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(101, 6, generator=rng)
    return x, (x[:, 0] > 0).long() * 2  # classes 0 and 2 of 3: class 1 is absent


def trained(client: Client) -> None:
    train(client, lambda x, y: cross_entropy(client.model(x), y))


@pytest.mark.parametrize("size", [1, 10, 100, 101, 1000])
def test_lars_are_the_plain_class_means_for_any_batch_size(
    data: tuple[Tensor, Tensor], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = data
    client = a_client(x, y, noisy((6,), 4))
    trained(client)  # gives batch norm statistics of its own, and leaves the model in train mode
    monkeypatch.setattr(batches.in_order, "__defaults__", (size,))
    sent = class_means(client)
    client.model.eval()
    with torch.inference_mode():
        one_by_one = [(client.model.represent(x[i : i + 1])[0], int(y[i])) for i in range(len(x))]
    for label, mean in zip(sent["classes"].tolist(), sent["means"], strict=True):
        assert_close(mean, torch.stack([r for r, of in one_by_one if of == label]).mean(0))
    assert sent["classes"].tolist() == [0, 2]
    assert sent["classes"].dtype == torch.int32


def test_lars_do_not_depend_on_the_last_training_mode(data: tuple[Tensor, Tensor]) -> None:
    client = a_client(*data, noisy((6,), 4))
    client.model.train()
    first = class_means(client)
    client.model.train()
    assert_close(class_means(client), first, atol=0, rtol=0)


def test_every_sample_is_trained_on_once_per_epoch(data: tuple[Tensor, Tensor]) -> None:
    client = a_client(*data, epochs=3, batch_size=10)
    seen: list[Tensor] = []

    def loss(x: Tensor, y: Tensor) -> Tensor:
        seen.append(x)
        return cross_entropy(client.model(x), y)

    train(client, loss)
    expected = data[0].repeat(3, 1)
    assert_close(torch.cat(seen).sort(0).values, expected.sort(0).values)
    # 101 samples in tens: the last, single one joins the batch before it.
    assert [len(x) for x in seen] == [10] * 9 + [11] + [10] * 9 + [11] + [10] * 9 + [11]


def test_training_equals_a_plain_loop(data: tuple[Tensor, Tensor]) -> None:
    x, y = data
    how: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "clip": 0.05}
    client, plain = a_client(x, y, batch_size=200, epochs=4, **how), a_client(x, y)
    plain.model.load_state_dict(client.model.state_dict())
    velocity = [torch.zeros_like(p) for p in plain.model.parameters()]
    for _ in range(4):
        loss = cross_entropy(plain.model(x), y)
        grads = torch.autograd.grad(loss, list(plain.model.parameters()))
        norm = torch.sqrt(sum((g**2).sum() for g in grads))  # type: ignore[arg-type]
        scale = min(1.0, how["clip"] / float(norm))
        with torch.no_grad():
            for p, v, g in zip(plain.model.parameters(), velocity, grads, strict=True):
                v.mul_(0.9).add_(g * scale + 0.01 * p)
                p.sub_(0.1 * v)
    trained(client)
    assert_close(client.model.state_dict(), plain.model.state_dict(), atol=1e-5, rtol=1e-4)


def test_train_loss_is_the_mean_over_samples(data: tuple[Tensor, Tensor]) -> None:
    client = a_client(*data, batch_size=7)
    train(client, lambda x, y: client.model(x).sum() * 0 + len(y))
    # batches of 7 (14 of them) and of 3: the mean over samples, not over batches
    assert client.metrics["train_loss"] == pytest.approx((14 * 7 * 7 + 3 * 3) / 101)


def test_accuracy_counts_every_sample_in_eval_mode(data: tuple[Tensor, Tensor]) -> None:
    client = a_client(*data, noisy((6,), 4))
    client.model.train()

    def predict(client: Client, x: Tensor) -> Tensor:
        assert not client.model.training
        right = nn.functional.one_hot((x[:, 0] > 0).long() * 2, 3).float()
        right[x[:, 1] > 1] = torch.tensor([0.0, 1.0, 0.0])
        return right

    wrong = int((data[0][:, 1] > 1).sum())
    assert 0 < wrong < 101
    assert accuracy(judge(client, predict, client.data.train)) == pytest.approx(1 - wrong / 101)


def test_a_model_that_blew_up_in_its_last_step_is_not_accepted(
    data: tuple[Tensor, Tensor],
) -> None:
    client = a_client(*data, batch_size=200, lr=1e38)
    with pytest.raises(FloatingPointError, match=r"lower local\.lr"):
        # the only loss is finite: it is computed before the step
        train(client, lambda x, y: 1e4 * cross_entropy(client.model(x), y))


@pytest.mark.parametrize("size", [10, 25, 1000])
def test_a_gradient_is_that_of_all_samples_and_noise_the_distance_of_batches(
    data: tuple[Tensor, Tensor], size: int
) -> None:
    x, y = data
    client = a_client(x, y, noisy((6,), 4), batch_size=size)
    trained(client)
    before, parameters = client.state(), list(client.model.parameters())

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(client.model(x), y)

    def of(rows: Tensor) -> Tensor:
        parts = torch.autograd.grad(loss(x[rows], y[rows]), parameters)
        return torch.cat([part.flatten() for part in parts]).double()

    found = gradient(client, loss, parameters)
    full = of(torch.arange(101))
    assert_close(found.mean, full, atol=1e-6, rtol=1e-4)
    assert found.loss == pytest.approx(float(loss(x, y).detach()), rel=1e-5)
    order = torch.randperm(101, generator=client.stream("gradient")).split(size)
    if size != 1000:
        order = (*order[:-2], torch.cat(order[-2:]))  # a single sample is no batch
    assert found.batches == len(order)
    expected = sum(len(rows) / 101 * float((of(rows) - full).square().sum()) for rows in order)
    assert found.noise == pytest.approx(expected, rel=1e-3, abs=1e-9)
    assert all(tensor.equal(before[name]) for name, tensor in client.state().items())
    assert all(parameter.grad is None for parameter in parameters)


def test_noise_is_what_sampling_theory_says() -> None:
    """With (w - x)^2 / 2 a batch's gradient is w minus its mean, whose variance is known."""
    x = torch.arange(12.0)[:, None]  # variance 143 / 12
    client = a_client(x, torch.zeros(12, dtype=torch.int64), batch_size=4)
    w = client.model.header.bias
    noise = []
    for client.round in range(400):
        found = gradient(client, lambda x, _: (w[0] - x).square().mean() / 2, [w])
        noise.append(found.noise)
    assert found.mean.tolist() == pytest.approx([float(w[0]) - 5.5, 0, 0], rel=1e-5)
    drawn_without_replacement = 143 / 12 / 4 * (12 - 4) / (12 - 1)
    assert sum(noise) / 400 == pytest.approx(drawn_without_replacement, rel=0.1)
