"""The only training loop of the server, for methods in which the server trains networks.

The optimizer's moments are passed in and returned as a payload. A method keeps them in the server
state, so a resumed run gives the same bits.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fedgh.core.batches import forever
from fedgh.core.finite import all_finite
from fedgh.core.local import clip_gradients, network_outputs, numbered
from fedgh.core.types import OptimizerName, Payload
from fedgh.core.uploads import Uploads


class Learner:
    """The optimizer of some networks of the server, for methods whose networks learn in turn.

    `step` takes one step, `finish` ends the training of the round. A method with one loss calls
    `learn`.
    """

    def __init__(
        self,
        uploads: Uploads,
        modules: Sequence[nn.Module],
        *,
        lr: float,
        optimizer: OptimizerName = "adam",
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        clip: float = 0.0,
        moments: Payload | None = None,
    ) -> None:
        self._uploads, self._modules, self._clip, self._lr = uploads, modules, clip, lr
        self._parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
        self._trainer = _optimizer(optimizer, self._parameters, lr, weight_decay, amsgrad)
        _load_moments(self._trainer, moments or {})
        self._total, self._steps = torch.zeros((), device=uploads.device), 0
        for module in modules:
            module.train()

    def step(self, loss: Tensor, lr_factor: float = 1.0) -> None:
        """Take one step that lowers `loss`. Networks of other learners get no gradient."""
        self._trainer.param_groups[0]["lr"] = self._lr * lr_factor
        self._trainer.zero_grad()
        loss.backward(inputs=self._parameters)
        if self._clip > 0:
            for module in self._modules:
                clip_gradients(module, self._clip)
        self._trainer.step()
        self._total += loss.detach()
        self._steps += 1

    def finish(self, metric: str = "server_loss") -> Payload:
        """Put the networks into eval mode; return the optimizer's moments.

        The mean loss is recorded as `metric` of the round. Raise FloatingPointError if the training
        has diverged; the round is then not committed.
        """
        self._trainer.zero_grad()
        for module in self._modules:
            module.eval()
        if not all_finite([self._total, *self._parameters]):
            raise FloatingPointError("the server's training diverged; lower its learning rate")
        if self._steps:
            self._uploads.metrics[metric] = float(self._total) / self._steps
        return _moments(self._trainer)


def learn(
    uploads: Uploads,
    modules: Sequence[nn.Module],
    loss: Callable[[], Tensor],
    steps: int,
    *,
    lr: float,
    optimizer: OptimizerName = "adam",
    schedule: Literal["constant", "cosine"] = "constant",
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    clip: float = 0.0,
    moments: Payload | None = None,
    metric: str = "server_loss",
) -> Payload:
    """Train `modules` for `steps` steps on the value of `loss()`; return the optimizer's moments.

    `loss` draws its samples itself, with `uploads.stream(...)`. With `schedule="cosine"` the
    learning rate falls to zero over the steps. The mean loss is recorded as `metric` of the round.
    Raise FloatingPointError if the training diverges; the round is then not committed.
    """
    learner = Learner(
        uploads,
        modules,
        lr=lr,
        optimizer=optimizer,
        weight_decay=weight_decay,
        amsgrad=amsgrad,
        clip=clip,
        moments=moments,
    )
    for step in range(steps):
        cosine = (1 + math.cos(math.pi * step / steps)) / 2
        learner.step(loss(), cosine if schedule == "cosine" else 1.0)
    return learner.finish(metric)


def on_public(
    uploads: Uploads,
    networks: Sequence[nn.Module],
    batch_size: int,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> Callable[[], Tensor]:
    """Return a loss for `learn`: the sum of loss(logits, rows) of `networks` on a public batch.

    `rows` are the positions of the samples in the public data, to look up values that a method
    keeps per sample.
    """
    batches = forever(
        numbered(uploads.public), batch_size, uploads.stream("public-batches"), uploads.device
    )

    def of_batch() -> Tensor:
        x, rows = next(batches)
        return torch.stack([loss(network(x), rows) for network in networks]).sum()

    return of_batch


def public_outputs(uploads: Uploads, network: nn.Module) -> Tensor | None:
    """Return an uploaded network's logits of the public samples; None if they are not usable.

    Weights that are valid one by one may have outputs beyond the largest number. A method leaves
    out such an upload; their number is the metric `infinite_outputs` of the round.
    """
    logits = network_outputs(network, uploads.public, uploads.device)
    if bool(logits.log_softmax(1).isfinite().all()):
        return logits
    uploads.metrics["infinite_outputs"] = uploads.metrics.get("infinite_outputs", 0) + 1
    return None


def _optimizer(
    name: OptimizerName,
    parameters: list[nn.Parameter],
    lr: float,
    weight_decay: float,
    amsgrad: bool,
) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(parameters, lr, weight_decay=weight_decay, fused=True)
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind(parameters, lr, weight_decay=weight_decay, amsgrad=amsgrad, fused=True)


def _moments(optimizer: torch.optim.Optimizer) -> Payload:
    """Return the tensors of the optimizer's state, in main memory."""
    return {
        f"{name}.{number}": tensor.detach().cpu().clone()
        for number, state in optimizer.state_dict()["state"].items()
        for name, tensor in state.items()
        if isinstance(tensor, Tensor)
    }


def _load_moments(optimizer: torch.optim.Optimizer, moments: Payload) -> None:
    state: dict[int, Payload] = {}
    for key, tensor in moments.items():
        name, _, number = key.rpartition(".")
        state.setdefault(int(number), {})[name] = tensor.clone()
    if state:
        optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
