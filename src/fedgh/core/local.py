"""The only training loop and the only inference loops of a client.

Train and eval mode are set here and nowhere else. Every sample is used: the last, smaller batch
counts too.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedgh.core.batches import in_order, shuffled
from fedgh.core.class_table import nearest_distributions
from fedgh.core.metrics import Judged
from fedgh.core.types import (
    CPU,
    Augmentation,
    Client,
    Examples,
    LocalTraining,
    Payload,
    Release,
)

Loss = Callable[[Tensor, Tensor], Tensor]
"""From a batch (x, y) to the mean loss over it."""


def train(
    client: Client,
    loss: Loss,
    modules: Sequence[nn.Module] | None = None,
    *,
    on: Examples | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    stream: str = "batches",
    views: int = 1,
    augment: Sequence[Augmentation] | None = None,
    metric: str = "train_loss",
) -> int:
    """Train `modules` (default: the client's model) on `on` (default: its training samples).

    Return the number of steps.

    What is not given is as `[local]` configures it; a learning rate that is given follows the
    schedule, too. A round may have several phases: each gives a `stream` of its own, or it sees
    the batches of the one before it, and a `metric` under which its mean loss is recorded.

    The optimizer starts afresh, so its momentum does not outlive the phase. The client's networks
    outside `modules` are fixed: in eval mode and without gradients, so that neither weights nor
    running statistics change. With several `views` the loss is given x as [views, batch, ...],
    each view augmented by itself. `numbered(on)` gives it positions of samples in place of labels.
    """
    how = client.local
    modules = [client.model] if modules is None else modules
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    if not parameters:
        return 0
    rate = (how.lr if lr is None else lr) * how.rate_factor(client.round, client.task.rounds)
    optimizer = _optimizer(how, parameters, rate)
    rng = client.stream(stream)
    total, seen, steps = torch.zeros((), device=client.device), 0, 0
    with client.timed("train"), _only(client, modules), _gradients_gone_after(optimizer):
        for _ in range(how.epochs if epochs is None else epochs):
            for x, y in shuffled(
                client.data.train if on is None else on,
                how.batch_size if batch_size is None else batch_size,
                rng,
                how.augment if augment is None else augment,
                client.device,
                views,
            ):
                value = loss(x, y)
                optimizer.zero_grad()
                value.backward()
                if how.clip > 0:
                    for module in modules:  # each by itself: one must not slow the other down
                        clip_gradients(module, how.clip)
                optimizer.step()
                total += value.detach() * len(y)
                seen += len(y)
                steps += 1
    if not (total.isfinite() and all(bool(p.isfinite().all()) for p in parameters)):
        raise FloatingPointError("training diverged; lower local.lr or set local.clip")
    if seen:
        client.metrics[metric] = float(total) / seen
    return steps


def _optimizer(
    how: LocalTraining, parameters: list[nn.Parameter], lr: float
) -> torch.optim.Optimizer:
    if how.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, lr, how.momentum, weight_decay=how.weight_decay, fused=True
        )
    kind = torch.optim.Adam if how.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr, weight_decay=how.weight_decay, fused=True)


@contextmanager
def _only(client: Client, modules: Sequence[nn.Module]) -> Iterator[None]:
    """Let `modules` learn, and fix the client's other networks."""
    eval_mode(client)
    for module in modules:
        module.train()
    learning = {parameter for module in modules for parameter in module.parameters()}
    own = (parameter for network in networks(client) for parameter in network.parameters())
    fixed = [p for p in own if p.requires_grad and p not in learning]
    for parameter in fixed:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in fixed:
            parameter.requires_grad_(True)


def numbered(examples: Examples) -> Examples:
    """Return the same samples with their positions 0, 1, ... in place of their labels.

    A loss then finds what it keeps of each sample: `targets[y]`.
    """
    positions = torch.zeros(len(examples.x), dtype=torch.int64)
    positions[examples.index] = torch.arange(len(examples))
    return replace(examples, y=positions)


@contextmanager
def _gradients_gone_after(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """A client that waits for its next round should not take twice the room."""
    try:
        yield
    finally:
        optimizer.zero_grad()


def clip_gradients(module: nn.Module, largest: float) -> None:
    """Shrink gradients whose norm is too large; most are not, and are left alone."""
    norm = nn.utils.get_total_norm([p.grad for p in module.parameters() if p.grad is not None])
    if norm > largest:
        nn.utils.clip_grads_with_norm_(module.parameters(), largest, norm)


@dataclass(frozen=True)
class Gradient:
    """The gradient of a client's loss over all its samples, and how far mini-batches are off."""

    loss: float
    mean: Tensor  # flat, in main memory and double precision
    noise: float  # the mean squared distance of a mini-batch's gradient from `mean`
    batches: int


def gradient(client: Client, loss: Loss, parameters: Sequence[nn.Parameter]) -> Gradient:
    """What the client would follow if it trained now; nothing is trained, and no `grad` is set.

    The model is in eval mode, so that looking changes nothing, and images are not augmented.
    Mini-batches have the configured size. They are shuffled, by a stream of their own, because
    clients keep their samples sorted by class. Each counts by its samples: then their mean is
    the gradient of the whole loss exactly.
    """
    client.model.eval()
    train, how = client.data.train, client.local
    mean = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    total, squares, batches = 0.0, 0.0, 0
    for x, y in shuffled(train, how.batch_size, client.stream("gradient"), device=client.device):
        value = loss(x, y)
        parts = torch.autograd.grad(value, parameters, materialize_grads=True)
        of_batch = torch.cat([part.flatten() for part in parts]).cpu().double()
        share = len(y) / len(train)
        mean.add_(of_batch, alpha=share)
        squares += share * float(of_batch @ of_batch)
        total += share * float(value.detach())
        batches += 1
    return Gradient(total, mean, max(0.0, squares - float(mean @ mean)), batches)


def networks(client: Client) -> Iterator[nn.Module]:
    """The client's model, and the networks that its method keeps beside it."""
    yield client.model
    yield from client.modules.values()


def eval_mode(client: Client) -> None:
    """Put all networks of a client into the mode in which they are judged."""
    for network in networks(client):
        network.eval()


Of = Callable[[Tensor], Tensor]
"""From a batch x to a vector for each sample."""


def class_means(client: Client, of: Of | None = None, largest: float = math.inf) -> Payload:
    """The `class_statistics` of a client without the counts."""
    found = class_statistics(client, of, largest)
    return {"classes": found["classes"], "means": found["means"]}


@torch.no_grad()
def class_statistics(client: Client, of: Of | None = None, largest: float = math.inf) -> Payload:
    """The exact mean, over the client's training samples, of `of(x)` for each of its classes.

    By default `of` is the representation, and the means are the paper's local averaged
    representations (LARs). Returns `classes` [s], ascending, `means` [s, width], and the `counts`
    [s] of samples behind them.

    With `client.privacy` both are what may leave the client: vectors are clipped, and noise is
    added. `largest` is a length that no vector has more than, where `of` knows one.
    """
    privacy = None if client.privacy is None else client.privacy.within(largest)
    of = client.model.represent if of is None else of
    eval_mode(client)
    num_classes = client.task.num_classes
    sums: Tensor | None = None
    with client.timed("summarise"):
        for x, y in in_order(client.data.train, client.device):
            values = of(x).cpu().double()  # so that the batch size does not show in the result
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
                    "with privacy a round has one release: all that is accounted for"
                )
            means, counts = privacy.release(sums, counts, privacy.normal(client.stream("privacy")))
    return _released(
        client, {"classes": present.int(), "means": means.float(), "counts": counts.int()}
    )


def class_outputs(client: Client) -> Payload:
    """The mean softmax output of the client's model for each of its classes, without counts.

    Noise makes of them what no output is, and a negative target would reward a model without end
    for never naming a class: with privacy the nearest distributions are returned.
    """
    found = class_means(client, lambda x: client.model(x).softmax(dim=1), 1.0)
    if client.privacy is None:
        return found
    return _released(client, found | {"means": nearest_distributions(found["means"])})


def _released(client: Client, payload: Payload) -> Payload:
    """Keep a copy of class means that may leave the client: uploads are compared with it."""
    if client.privacy is not None:
        kept = {name: tensor.clone() for name, tensor in payload.items()}
        client.release = Release(client.round, kept)
    return payload


@torch.no_grad()
def network_outputs(network: nn.Module, on: Examples, device: torch.device = CPU) -> Tensor:
    """Return the outputs of a network in eval mode for each sample, in order and in main memory."""
    network.eval()
    return torch.cat([network(x).cpu() for x, _ in in_order(on, device)])


@torch.no_grad()
def outputs(client: Client, of: Callable[[Tensor], Tensor], on: Examples) -> Tensor:
    """What `of(x)` is for each sample, in order and in main memory."""
    eval_mode(client)
    return torch.cat([of(x).cpu() for x, _ in in_order(on, client.device)])


Predict = Callable[[Client, Tensor], Tensor]
"""From a client and a batch to the logits by which the client is judged."""


@torch.inference_mode()
def judge(client: Client, predict: Predict, on: Examples) -> Judged:
    """Let the client's model classify samples."""
    classes = client.task.num_classes
    counts = torch.zeros(classes * classes, dtype=torch.int64)
    total = 0.0
    eval_mode(client)
    with client.timed("evaluate"):
        for x, y in in_order(on, client.device):
            logits, labels = predict(client, x).cpu(), y.cpu()
            counts += (labels * classes + logits.argmax(1)).bincount(minlength=len(counts))
            total += float(cross_entropy(logits.double(), labels, reduction="sum"))
    return Judged(counts.view(classes, classes), total / len(on))
