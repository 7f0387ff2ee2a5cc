"""The only training loop of the server, for methods in which the server trains networks.

The optimizer's moments are passed in and returned as a payload. A method keeps them in the server
state, so a resumed run gives the same bits.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fedgh.core.local import clip_gradients
from fedgh.core.types import OptimizerName, Payload
from fedgh.core.uploads import Uploads


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
    clip: float = 0.0,
    moments: Payload | None = None,
    metric: str = "server_loss",
) -> Payload:
    """Train `modules` for `steps` steps on the value of `loss()`; return the optimizer's moments.

    `loss` draws its samples itself, with `uploads.stream(...)`. With `schedule="cosine"` the
    learning rate falls to zero over the steps. The mean loss is recorded as `metric` of the round.
    Raise FloatingPointError if the training diverges; the round is then not committed.
    """
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    trainer = _optimizer(optimizer, parameters, lr, weight_decay)
    _load_moments(trainer, moments or {})
    for module in modules:
        module.train()
    total = torch.zeros((), device=uploads.device)
    for step in range(steps):
        if schedule == "cosine":
            trainer.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * step / steps)) / 2
        value = loss()
        trainer.zero_grad()
        value.backward()
        if clip > 0:
            for module in modules:
                clip_gradients(module, clip)
        trainer.step()
        total += value.detach()
    trainer.zero_grad()
    for module in modules:
        module.eval()
    if not (total.isfinite() and all(bool(p.isfinite().all()) for p in parameters)):
        raise FloatingPointError("the server's training diverged; lower its learning rate")
    if steps:
        uploads.metrics[metric] = float(total) / steps
    return _moments(trainer)


def _optimizer(
    name: OptimizerName, parameters: list[nn.Parameter], lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(parameters, lr, weight_decay=weight_decay, fused=True)
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind(parameters, lr, weight_decay=weight_decay, fused=True)


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
