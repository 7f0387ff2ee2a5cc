"""The only training loop and the only inference loops of a client.

Only this module sets the train and eval mode of clients' networks. Every sample is used, also
those of the last, smaller batch.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from fedgh.core.batches import in_order, shuffled
from fedgh.core.class_table import nearest_distributions
from fedgh.core.finite import all_finite
from fedgh.core.metrics import Evaluation
from fedgh.core.sgd import SGD
from fedgh.core.types import (
    CPU,
    Augmentation,
    Client,
    Examples,
    LocalTraining,
    OptimizerName,
    Payload,
    Release,
)

Loss = Callable[[Tensor, Tensor], Tensor]
"""Function of a batch (x, y) that returns its mean loss."""


def train(
    client: Client,
    loss: Loss,
    modules: Sequence[nn.Module] | None = None,
    *,
    on: Examples | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    optimizer: OptimizerName | None = None,
    stream: str = "batches",
    views: int = 1,
    augment: Sequence[Augmentation] | None = None,
    metric: str = "train_loss",
) -> int:
    """Train `modules` (default: the client's model) on `on` (default: its training samples).

    Return the number of steps. Raise FloatingPointError if the training diverges.

    Arguments that are None take their value from `[local]`; the schedule also applies to a given
    `lr`, and the weight decay to a given `optimizer`. If a round has several training phases, each
    needs its own `stream`, or it gets the batches of the phase before. Each phase records its mean
    loss under its `metric`.

    The optimizer is new, so momentum does not carry over to the next phase. The client's networks
    outside `modules` are fixed: they are in eval mode and without gradients, so neither weights nor
    running statistics change. With `views` > 1 the loss receives x as [views, batch, ...], each
    view augmented independently. With `on=numbered(...)` it receives positions of samples as y.
    """
    local = client.local
    modules = [client.model] if modules is None else modules
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    if not parameters:
        return 0
    rate = (local.lr if lr is None else lr) * local.rate_factor(client.round, client.task.rounds)
    stepper = _optimizer(optimizer or local.optimizer, local, parameters, rate)
    rng = client.stream(stream)
    total, samples, steps = torch.zeros((), device=client.device), 0, 0
    with client.timed("train"), _train_only(client, modules), _freed_gradients(stepper):
        for _ in range(local.epochs if epochs is None else epochs):
            for x, y in shuffled(
                client.data.train if on is None else on,
                local.batch_size if batch_size is None else batch_size,
                rng,
                local.augment if augment is None else augment,
                client.device,
                views,
            ):
                value = loss(x, y)
                stepper.zero_grad()
                value.backward()
                if local.clip > 0:
                    # Separately: a large gradient of one module must not shrink another's.
                    for module in modules:
                        clip_gradients(module, local.clip)
                stepper.step()
                total += value.detach() * len(y)
                samples += len(y)
                steps += 1
    if not all_finite([total, *parameters]):
        raise FloatingPointError("training diverged; lower local.lr or set local.clip")
    if samples:
        client.metrics[metric] = float(total) / samples
    return steps


def _optimizer(
    name: OptimizerName, local: LocalTraining, parameters: list[nn.Parameter], lr: float
) -> SGD | torch.optim.Optimizer:
    if name == "sgd":
        return SGD(parameters, lr, local.momentum, local.weight_decay)
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind(parameters, lr, weight_decay=local.weight_decay, fused=True)


@contextmanager
def _train_only(client: Client, modules: Sequence[nn.Module]) -> Iterator[None]:
    """Put `modules` into train mode and fix the client's other networks for the duration."""
    eval_mode(client)
    for module in modules:
        module.train()
    trained = {parameter for module in modules for parameter in module.parameters()}
    parameters = (parameter for network in networks(client) for parameter in network.parameters())
    fixed = [p for p in parameters if p.requires_grad and p not in trained]
    for parameter in fixed:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in fixed:
            parameter.requires_grad_(True)


def numbered(examples: Examples) -> Examples:
    """Return these samples with their positions 0, 1, ... in place of their labels.

    A loss can then look up values that it keeps per sample: `targets[y]`.
    """
    positions = torch.zeros(len(examples.x), dtype=torch.int64)
    positions[examples.index] = torch.arange(len(examples))
    return replace(examples, y=positions)


def unlabelled(x: Tensor) -> Examples:
    """Return samples with these inputs, such as representations, whose labels are -1."""
    return Examples(x, torch.full((len(x),), -1), torch.arange(len(x)))


@contextmanager
def _freed_gradients(optimizer: SGD | torch.optim.Optimizer) -> Iterator[None]:
    """Free the gradients afterwards, so that an idle client does not use twice the memory."""
    try:
        yield
    finally:
        optimizer.zero_grad()


def clip_gradients(module: nn.Module, max_norm: float) -> None:
    """Scale the gradients of a module down if their norm exceeds `max_norm`."""
    norm = nn.utils.get_total_norm([p.grad for p in module.parameters() if p.grad is not None])
    if norm > max_norm:
        nn.utils.clip_grads_with_norm_(module.parameters(), max_norm, norm)


@dataclass(frozen=True)
class Gradient:
    """The gradient of a client's loss over all its samples, and the variance over mini-batches."""

    loss: float
    mean: Tensor  # flat, in main memory and double precision
    noise: float  # mean squared distance of mini-batch gradients from `mean`
    batches: int


def gradient(client: Client, loss: Loss, parameters: Sequence[nn.Parameter]) -> Gradient:
    """Return the gradient of the loss over all training samples; train nothing, set no `grad`.

    The model is in eval mode, so its running statistics do not change, and images are not
    augmented. Mini-batches have the configured size. They are shuffled, with a random stream of
    their own, because clients keep their samples sorted by class. Each is weighted by its number of
    samples, so the weighted mean is exactly the gradient of the whole loss.
    """
    client.model.eval()
    train, local = client.data.train, client.local
    mean = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    total, squares, batches = 0.0, 0.0, 0
    for x, y in shuffled(train, local.batch_size, client.stream("gradient"), device=client.device):
        value = loss(x, y)
        parts = torch.autograd.grad(value, parameters, materialize_grads=True)
        batch_gradient = torch.cat([part.flatten() for part in parts]).cpu().double()
        share = len(y) / len(train)
        mean.add_(batch_gradient, alpha=share)
        squares += share * float(batch_gradient @ batch_gradient)
        total += share * float(value.detach())
        batches += 1
    return Gradient(total, mean, max(0.0, squares - float(mean @ mean)), batches)


def networks(client: Client) -> Iterator[nn.Module]:
    """Yield the client's model and the additional networks of its method."""
    yield client.model
    yield from client.modules.values()


def eval_mode(client: Client) -> None:
    """Put all networks of a client into eval mode."""
    for network in networks(client):
        if any(module.training for module in network.modules()):
            network.eval()


@torch.no_grad()
def measure_batch_statistics(client: Client) -> None:
    """Set the running statistics of batch normalisation to those of the training samples.

    They become the means over shuffled batches: clients keep their samples sorted by class, and
    batches in that order would have the variance within a class. Weights do not change.
    """
    layers = (layer for layer in client.model.modules() if isinstance(layer, _BatchNorm))
    norms = [norm for norm in layers if norm.track_running_stats]
    if not norms:
        return
    eval_mode(client)
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch then takes the mean over all batches
        norm.train()
    rng, size = client.stream("batch-statistics"), client.local.batch_size
    for x, _ in shuffled(client.data.train, size, rng, device=client.device):
        client.model(x)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    eval_mode(client)


BatchFunction = Callable[[Tensor], Tensor]
"""Function of a batch x that returns a vector for each sample."""


def class_means(
    client: Client, of: BatchFunction | None = None, max_norm: float = math.inf
) -> Payload:
    """Return the `class_statistics` of a client without the counts."""
    statistics = class_statistics(client, of, max_norm)
    return {"classes": statistics["classes"], "means": statistics["means"]}


@torch.no_grad()
def class_statistics(
    client: Client, of: BatchFunction | None = None, max_norm: float = math.inf
) -> Payload:
    """Return the exact mean of `of(x)` over the client's training samples of each of its classes.

    By default `of` is the representation; the means are then the class means of FedGH (in its
    paper: local averaged representations). The payload has `classes` [s], ascending, `means`
    [s, width], and `counts` [s], the numbers of samples.

    With `client.privacy`, vectors are clipped and noise is added, so means and counts may be sent.
    `max_norm` is an upper bound of the length of the vectors, if `of` guarantees one.
    Raise RuntimeError on a second call in a round with privacy: only one release is accounted for.
    """
    privacy = None if client.privacy is None else client.privacy.with_max_norm(max_norm)
    of = client.model.represent if of is None else of
    eval_mode(client)
    num_classes = client.task.num_classes
    sums: Tensor | None = None
    with client.timed("summarise"):
        for x, y in in_order(client.data.train, client.device):
            # Double precision, so that the result does not depend on the batch size.
            values = of(x).cpu().double()
            if privacy is not None:
                values = privacy.clipped(values)
            if sums is None:
                sums = values.new_zeros(num_classes, values.shape[1])
            sums.index_add_(0, y.cpu(), values)
        assert sums is not None, "a client has at least one training sample"
        counts = client.data.train.labels.bincount(minlength=num_classes)
        present = counts.nonzero().flatten()
        sums, counts = sums[present], counts[present]
        if privacy is None:
            means = sums / counts[:, None]
        else:
            if client.release is not None and client.release.round == client.round:
                raise RuntimeError(
                    "with privacy a round has one release, the one that is accounted for; "
                    "compute class means once per round"
                )
            means, counts = privacy.release(sums, counts, privacy.normal(client.stream("privacy")))
    return _record_release(
        client, {"classes": present.int(), "means": means.float(), "counts": counts.int()}
    )


def class_outputs(client: Client) -> Payload:
    """Return the mean softmax output of the client's model for each of its classes, without counts.

    With privacy, each noisy mean is replaced by the nearest probability distribution. A negative
    target would reward a model without limit for never predicting a class.
    """
    payload = class_means(client, lambda x: client.model(x).softmax(dim=1), 1.0)
    if client.privacy is None:
        return payload
    return _record_release(client, payload | {"means": nearest_distributions(payload["means"])})


def _record_release(client: Client, payload: Payload) -> Payload:
    """With privacy, store a copy of the released class means: uploads are checked against it."""
    if client.privacy is not None:
        copies = {name: tensor.clone() for name, tensor in payload.items()}
        client.release = Release(client.round, copies)
    return payload


@torch.no_grad()
def network_outputs(network: nn.Module, on: Examples, device: torch.device = CPU) -> Tensor:
    """Return a network's outputs in eval mode for all samples, in order and in main memory."""
    network.eval()
    return torch.cat([network(x).cpu() for x, _ in in_order(on, device)])


@torch.no_grad()
def outputs(client: Client, of: Callable[[Tensor], Tensor], on: Examples) -> Tensor:
    """Return `of(x)` in eval mode for all samples, in order and in main memory."""
    eval_mode(client)
    return torch.cat([of(x).cpu() for x, _ in in_order(on, client.device)])


Predict = Callable[[Client, Tensor], Tensor]
"""Function of a client and a batch that returns the logits used for evaluation."""


@torch.inference_mode()
def evaluate(client: Client, predict: Predict, on: Examples) -> Evaluation:
    """Return the confusion matrix and mean loss of the client's predictions on samples."""
    classes = client.task.num_classes
    counts = torch.zeros(classes * classes, dtype=torch.int64)
    total, accuracies = 0.0, []
    eval_mode(client)
    with client.timed("evaluate"):
        for x, y in in_order(on, client.device):
            logits, labels = predict(client, x).cpu(), y.cpu()
            counts += (labels * classes + logits.argmax(1)).bincount(minlength=len(counts))
            total += float(cross_entropy(logits.double(), labels, reduction="sum"))
            accuracies.append(float((logits.argmax(1) == labels).double().mean()))
    return Evaluation(counts.view(classes, classes), total / len(on), tuple(accuracies))
