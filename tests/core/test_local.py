from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedgh.core import batches
from fedgh.core.batches import shuffled
from fedgh.core.local import Loss, class_means, evaluate, gradient, numbered, train
from fedgh.core.metrics import accuracy
from fedgh.core.types import Client, Examples, LocalTraining, OptimizerName
from tests.support.tiny import a_client, noisy


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(101, 6, generator=rng)
    return x, (x[:, 0] > 0).long() * 2  # classes 0 and 2 of 3: class 1 is absent


def trained(client: Client) -> None:
    train(client, lambda x, y: cross_entropy(client.model(x), y))


@pytest.mark.parametrize("size", [1, 10, 100, 101, 1000])
def test_class_means_are_exact_for_any_batch_size(
    data: tuple[Tensor, Tensor], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = data
    client = a_client(x, y, noisy((6,), 4))
    trained(client)  # changes the batch norm statistics and leaves the model in train mode
    monkeypatch.setattr(batches.in_order, "__defaults__", (size,))
    computed = class_means(client)
    client.model.eval()
    with torch.inference_mode():
        one_by_one = [(client.model.represent(x[i : i + 1])[0], int(y[i])) for i in range(len(x))]
    for label, mean in zip(computed["classes"].tolist(), computed["means"], strict=True):
        assert_close(mean, torch.stack([r for r, y in one_by_one if y == label]).mean(0))
    assert computed["classes"].tolist() == [0, 2]
    assert computed["classes"].dtype == torch.int32


def test_class_means_do_not_depend_on_train_mode(data: tuple[Tensor, Tensor]) -> None:
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
    # 101 samples in tens: the last, single sample is merged into the batch before it.
    assert [len(x) for x in seen] == [10] * 9 + [11] + [10] * 9 + [11] + [10] * 9 + [11]


def test_training_equals_a_hand_written_loop(data: tuple[Tensor, Tensor]) -> None:
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
    assert accuracy(evaluate(client, predict, client.data.train)) == pytest.approx(1 - wrong / 101)


def test_weights_that_overflow_in_the_last_step_raise(
    data: tuple[Tensor, Tensor],
) -> None:
    client = a_client(*data, batch_size=200, lr=1e38)
    with pytest.raises(FloatingPointError, match=r"lower local\.lr"):
        # the only loss is finite: it is computed before the step
        train(client, lambda x, y: 1e4 * cross_entropy(client.model(x), y))


@pytest.mark.parametrize("size", [10, 25, 1000])
def test_gradient_is_that_of_all_samples_and_noise_the_variance_over_batches(
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
        order = (*order[:-2], torch.cat(order[-2:]))  # a single last sample is merged
    assert found.batches == len(order)
    expected = sum(len(rows) / 101 * float((of(rows) - full).square().sum()) for rows in order)
    assert found.noise == pytest.approx(expected, rel=1e-3, abs=1e-9)
    assert all(tensor.equal(before[name]) for name, tensor in client.state().items())
    assert all(parameter.grad is None for parameter in parameters)


def test_gradient_noise_equals_the_variance_of_sampling_without_replacement() -> None:
    """With the loss (w - x)^2 / 2, a batch's gradient is w minus its mean, of known variance."""
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


def parts(client: Client) -> tuple[nn.Module, nn.Module]:
    return client.model.extractor, client.model.header


def loss_of(client: Client) -> Loss:
    return lambda x, y: cross_entropy(client.model(x), y)


@pytest.mark.parametrize("which", [0, 1])
def test_a_part_that_is_not_trained_keeps_its_bits(data: tuple[Tensor, Tensor], which: int) -> None:
    """Also with momentum, weight decay and batch normalisation."""
    client = a_client(*data, noisy((6,), 4), momentum=0.9, weight_decay=0.1, epochs=2)
    trained_part, fixed = parts(client)[which], parts(client)[1 - which]
    before = {name: tensor.clone() for name, tensor in fixed.state_dict().items()}
    start = {name: tensor.clone() for name, tensor in trained_part.state_dict().items()}
    train(client, loss_of(client), [trained_part])
    assert all(tensor.equal(before[name]) for name, tensor in fixed.state_dict().items())
    assert not all(tensor.equal(start[name]) for name, tensor in trained_part.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in client.model.parameters())


@pytest.mark.parametrize("left_in_train_mode", [True, False])
def test_training_sets_the_mode_of_each_part_itself(
    data: tuple[Tensor, Tensor], left_in_train_mode: bool
) -> None:
    """After an evaluation the model is in eval mode, after loading in train mode."""
    torch.manual_seed(0)
    client = a_client(*data, noisy((6,), 4))
    client.model.train(left_in_train_mode)
    modes: list[bool] = []
    client.model.extractor.register_forward_pre_hook(lambda part, _: modes.append(part.training))
    train(client, loss_of(client), [client.model.header])
    assert not any(modes)
    train(client, loss_of(client), [client.model.extractor], stream="second")
    assert modes[-1]


def test_training_phases_have_their_own_epochs_rates_batches_and_losses(
    data: tuple[Tensor, Tensor],
) -> None:
    client = a_client(*data, epochs=1, batch_size=50, lr=0.1)
    seen: dict[str, list[Tensor]] = {"one": [], "two": []}

    def recording_loss(phase: str) -> Loss:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            seen[phase].append(x)
            return cross_entropy(client.model(x), y)

        return loss

    train(client, recording_loss("one"), metric="first_loss")
    train(client, recording_loss("two"), epochs=2, batch_size=101, stream="other")
    assert [len(x) for x in seen["one"]] == [50, 51]
    assert [len(x) for x in seen["two"]] == [101, 101]
    assert not torch.cat(seen["one"]).equal(seen["two"][0])
    assert client.metrics.keys() == {"first_loss", "train_loss"}
    before = client.state()
    train(client, loss_of(client), epochs=0)
    train(client, loss_of(client), lr=0.0)
    assert_close(client.state(), before, atol=0, rtol=0)


def test_training_without_trainable_parameters_does_nothing(data: tuple[Tensor, Tensor]) -> None:
    client = a_client(*data)
    client.model.requires_grad_(False)
    train(client, loss_of(client))
    assert client.metrics == {}


def test_numbered_gives_the_loss_the_position_of_each_sample(data: tuple[Tensor, Tensor]) -> None:
    client = a_client(*data, batch_size=10)
    some = Examples(*data, torch.arange(100, 0, -3))
    kept = some.x[some.index]

    def loss(x: Tensor, position: Tensor) -> Tensor:
        assert x.equal(kept[position])
        return 0 * cross_entropy(client.model(x), torch.zeros_like(position))

    train(client, loss, on=numbered(some))


def test_views_are_augmented_independently() -> None:
    x = torch.randint(0, 255, (12, 3, 32, 32), dtype=torch.uint8)
    rng = torch.Generator().manual_seed(0)
    examples = Examples(x, torch.arange(12), torch.arange(12))
    for views, y in shuffled(examples, 4, rng, ["flip", "crop"], views=2):
        assert views.shape == (2, len(y), 3, 32, 32)
        assert not views[0].equal(views[1])


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_and_adamw_equal_those_of_torch(data: tuple[Tensor, Tensor], name: str) -> None:
    how: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1, "batch_size": 200, "epochs": 4}
    torch.manual_seed(0)
    client = a_client(*data, optimizer=name, **how)
    torch.manual_seed(0)
    plain = a_client(*data)
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    optimizer = kind(plain.model.parameters(), lr=0.01, weight_decay=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        cross_entropy(plain.model(data[0]), data[1]).backward()
        optimizer.step()
    trained(client)
    assert_close(client.model.state_dict(), plain.model.state_dict(), atol=1e-5, rtol=1e-4)


def test_an_optimizer_of_one_phase_replaces_the_configured_one(data: tuple[Tensor, Tensor]) -> None:
    how: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1}
    ends = []
    pairs: list[tuple[str, OptimizerName | None]] = [("sgd", "adam"), ("adam", None), ("sgd", None)]
    for configured, given in pairs:
        torch.manual_seed(0)
        client = a_client(*data, optimizer=configured, **how)
        train(client, loss_of(client), optimizer=given)
        ends.append(client.model.header.weight)
    assert ends[0].equal(ends[1])
    assert not ends[0].equal(ends[2])


def test_rate_factor_follows_the_schedule_over_rounds() -> None:
    constant, cosine = LocalTraining(), LocalTraining(schedule="cosine")
    step = LocalTraining(schedule="step", schedule_rounds=2, schedule_factor=0.5)
    assert [constant.rate_factor(r, 4) for r in (1, 4)] == [1, 1]
    assert [step.rate_factor(r, 6) for r in range(1, 7)] == [1, 1, 0.5, 0.5, 0.25, 0.25]
    found = [cosine.rate_factor(r, 4) for r in range(1, 5)]
    assert found == pytest.approx([1, 0.853553, 0.5, 0.146447], rel=1e-5)


def test_step_schedule_scales_the_change_of_weights_in_a_round(data: tuple[Tensor, Tensor]) -> None:
    moved = []
    for number in (1, 3):
        torch.manual_seed(0)
        client = a_client(*data, schedule="step", schedule_rounds=1, batch_size=200)
        client.task = replace(client.task, rounds=5)
        client.round = number
        before = client.model.header.bias.detach().clone()
        trained(client)
        moved.append(client.model.header.bias.detach() - before)
    assert_close(moved[1], moved[0] * 0.01, atol=1e-6, rtol=1e-2)
