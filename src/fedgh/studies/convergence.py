"""Theorem 2 of the FedGH paper beside what a run does.

The theorem, for a client with learning rate eta, E local steps a round, T rounds:

    1/T sum_t sum_e |grad L_(tE+e)|^2
        <= 2 (L_0 - L*) / (T eta (2 - L_1 eta)) + L_1 (E eta sigma^2 + delta^2) / (2 - L_1 eta)

How its symbols are read, and what is measured for each participant and round, on its own
training data:

L           the client's mean cross-entropy (without weight decay). The paper prints |L|^2, but its
            Lemma 1 needs the gradient there. L_0 is the loss of the first round, with the global
            header in place; L* is taken as 0, which no cross-entropy can be below.
e, E        SGD steps, as section 4 says ("local iteration"); in section 5 E is a number of epochs.
            The sum over e has a term for each step taken, 0 to E - 1 (the paper writes 0 to E). The
            gradient of all data is measured before the first (`gradient_start`: the model with the
            global header). At every step that would take an epoch each, so there the mini-batches
            that are trained on stand for it: their mean squared gradient (`gradient_steps`) is that
            of all data plus sigma^2.
sigma^2     the mean squared distance of a mini-batch's gradient from that of all data, before the
            first step and after the last (`gradient_noise`, the mean of both).
L_1         the change of the gradient over the distance travelled (`smoothness`), by the round's
            training or by one step along the gradient of all data, whichever is more: the
            assumption's constant is at least this.
delta^2     |grad L(theta_k) - grad L(theta)|^2 for the parameters of the header, where it is
            replaced: the extractor, the client's data, its old header and the one it received
            (`header_gap`). Known from the second time on that a client takes part.

The assumptions ask for bounds over all clients and rounds. Means stand for them here, so the right
side is an estimate that a single client may exceed. The theorem follows one client through its
rounds, so everybody must take part in all of them. Momentum, weight decay, clipping and
augmentation are not in it: run without them to test it.

Lemma 2, from which delta^2 comes, does not hold as proved: (c) drops an inner product and (f) a
distance that may be positive, (e) takes one step of the same length for client and server, and the
last line has eta where eta^2 is due. What it bounds can be measured: how much the loss grows when
the header is replaced (`loss_jump`). With that growth J in its place the floor of the theorem is
(L_1 E eta sigma^2 + 2 J / eta) / (2 - L_1 eta), and what is left in doubt is L_1. Where the left
side is larger nevertheless, L_1 is larger than was measured: about as large as makes the sides
equal (`Convergence.smoothness_implied`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedgh.core.local import Gradient, gradient
from fedgh.core.records import Round
from fedgh.core.rng import isolated
from fedgh.core.types import Client, Payload
from fedgh.errors import RunError
from fedgh.methods.fedgh import FedGH


class Probed(FedGH):
    """FedGH to the bit, with measurements before and after local training."""

    name: ClassVar[str] = "fedgh_probed"

    def client_update(self, client: Client, down: Payload) -> Payload:
        """FedGH's, measured: about three epochs more."""
        model, header = client.model, client.model.header
        with_own_header = _look(client, header)
        header.load_state_dict(down)
        start = _look(client, model)
        one_step_on = _after_a_step(client, start)
        with _gradients_of_training(model) as squares:
            up = super().client_update(client, down)
        end = _look(client, model)

        steps = client.local.epochs * start.gradient.batches
        client.metrics |= {
            "gradient_start": float(start.gradient.mean.square().sum()),
            "gradient_steps": float(sum(squares)) / steps,
            "gradient_noise": (start.gradient.noise + end.gradient.noise) / 2,
            "smoothness": max(_secant(start, end), _secant(start, one_step_on)),
            "loss_start": start.gradient.loss,
            "steps": steps,
        }
        if client.memory:  # else its own header is no more than its random start
            own = with_own_header.gradient
            gap = own.mean - start.gradient.mean[-len(own.mean) :]  # a model ends with its header
            client.metrics |= {
                "header_gap": float(gap @ gap),
                "loss_jump": start.gradient.loss - own.loss,
            }
        client.memory = {"took_part": torch.ones((), device=client.device)}
        return up


@dataclass(frozen=True)
class _Point:
    """Where a client's model is, and the gradient there."""

    position: Tensor  # the parameters, flat and in double precision
    gradient: Gradient


def _look(client: Client, module: nn.Module) -> _Point:
    """The client's model as a function of the parameters of `module`."""
    parameters = _trained(module)
    with client.timed("probe"), isolated(client.task.seed, "probe", client.id, client.round):
        found = gradient(client, lambda x, y: cross_entropy(client.model(x), y), parameters)
    position = torch.cat([p.detach().flatten() for p in parameters]).cpu().double()
    return _Point(position, found)


def _after_a_step(client: Client, start: _Point) -> _Point:
    """One step of gradient descent from `start`; the client is back there afterwards."""
    before, parameters = client.state(), _trained(client.model)
    direction = start.gradient.mean.split([p.numel() for p in parameters])
    with torch.no_grad():
        for parameter, part in zip(parameters, direction, strict=True):
            parameter.sub_(part.view_as(parameter).to(parameter), alpha=client.local.lr)
    found = _look(client, client.model)
    client.load(before)
    return found


@contextmanager
def _gradients_of_training(module: nn.Module) -> Iterator[list[Tensor]]:
    """The squared norm of every gradient that is computed for a parameter, as it is computed."""
    squares: list[Tensor] = []

    def note(parameter: Tensor) -> None:
        assert parameter.grad is not None
        squares.append(parameter.grad.square().sum())

    hooks = [p.register_post_accumulate_grad_hook(note) for p in _trained(module)]
    try:
        yield squares
    finally:
        for hook in hooks:
            hook.remove()


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _secant(one: _Point, other: _Point) -> float:
    """How fast the gradient changes from one place to another."""
    moved = float((other.position - one.position).norm())
    changed = float((other.gradient.mean - one.gradient.mean).norm())
    return changed / moved if moved else 0.0


@dataclass(frozen=True)
class Fit:
    """a / T + b, fitted to a running mean by least squares.

    A mean over rounds takes that form whenever its terms settle soon, so a good fit speaks for
    a floor, not for this theorem.
    """

    a: float
    b: float  # the floor
    r_squared: float | None  # None: fewer than three rounds, or all the same


@dataclass(frozen=True)
class ConvergenceBound:
    """Theorem 2 with measured values: sums over the steps of a round, mean over rounds."""

    left: float  # the squared gradient; by chance below zero when it is nothing beside the noise
    transient: float  # 2 (L_0 - L*) / (T eta (2 - L_1 eta))
    noise: float  # L_1 E eta sigma^2 / (2 - L_1 eta)
    header: float  # L_1 delta^2 / (2 - L_1 eta)
    header_by_jump: float  # 2 J / (eta (2 - L_1 eta)), which does not need Lemma 2

    @property
    def right(self) -> float:
        """As the paper has it."""
        return self.transient + self.noise + self.header

    @property
    def right_by_jump(self) -> float:
        """With the measured cost of replacing the header in the place of Lemma 2."""
        return self.transient + self.noise + self.header_by_jump


@dataclass(frozen=True)
class Jump:
    """Lemma 2: how much the loss grows when the global header replaces the local one."""

    measured: float
    claimed: float  # at most eta L_1 delta^2 / 2


@dataclass(frozen=True)
class Convergence:
    """What a run of `Probed` says about Theorem 2. Constants are means over clients and rounds."""

    rounds: int  # T
    gradient: list[float]  # its squared norm at the start of each round, global header in place
    running_mean: list[float]  # of `gradient` over the rounds 1 to T, for each T
    fit: Fit  # of `running_mean`
    noise: float  # sigma^2
    header_gap: float | None  # delta^2; None: nobody took part twice
    smoothness: float  # L_1
    smoothness_implied: float | None  # what L_1 must be for the sides (by jump) to be equal
    steps: float  # E
    initial_loss: float  # L_0
    jump: Jump | None  # None: nobody took part twice
    bound: ConvergenceBound | None
    no_bound: str | None  # why there is none


def analyse(records: Sequence[Round], lr: float) -> Convergence:
    """Both sides of Theorem 2 from the records of a run of `Probed` with this `local.lr`."""
    rounds = [record.method_metrics for record in records if record.method_metrics]
    noise, smoothness = _mean(rounds, "gradient_noise"), _mean(rounds, "smoothness")
    steps, initial_loss = _mean(rounds, "steps"), rounds[0]["loss_start"]
    gradient = [measured["gradient_start"] for measured in rounds]
    running_mean = np.cumsum(gradient) / np.arange(1, len(rounds) + 1)

    header_gap = jump = implied = bound = no_bound = None
    if any("header_gap" in measured for measured in rounds):
        header_gap = _mean(rounds, "header_gap")
        jump = Jump(_mean(rounds, "loss_jump"), lr * smoothness * header_gap / 2)
    if header_gap is None or jump is None:
        no_bound = "delta^2 is not known: no client has taken part twice"
    elif len({tuple(record.participants) for record in records}) > 1:
        no_bound = "not everybody took part in every round: set federation.participation=1.0"
    else:
        left = steps * (_mean(rounds, "gradient_steps") - noise)
        transient, by_jump = 2 * initial_loss / (len(rounds) * lr), 2 * jump.measured / lr
        implied = (2 * left - transient - by_jump) / (lr * (left + steps * noise))
        room = 2 - smoothness * lr
        if room > 0:
            bound = ConvergenceBound(
                left=left,
                transient=transient / room,
                noise=smoothness * steps * lr * noise / room,
                header=smoothness * header_gap / room,
                header_by_jump=by_jump / room,
            )
        else:
            no_bound = (
                f"the theorem needs L_1 eta < 2, but L_1 = {smoothness:.3g} was measured and "
                f"eta = {lr:g}"
            )
    return Convergence(
        rounds=len(rounds),
        gradient=gradient,
        running_mean=running_mean.tolist(),
        fit=fit(running_mean),
        noise=noise,
        header_gap=header_gap,
        smoothness=smoothness,
        smoothness_implied=implied,
        steps=steps,
        initial_loss=initial_loss,
        jump=jump,
        bound=bound,
        no_bound=no_bound,
    )


def fit(running_mean: NDArray[np.float64]) -> Fit:
    """The a / T + b that is nearest to a running mean over T = 1, 2, ... rounds."""
    inverse = 1 / np.arange(1, len(running_mean) + 1)
    design = np.stack([inverse, np.ones_like(inverse)], axis=1)
    (a, b), *_ = np.linalg.lstsq(design, running_mean)
    missed = float(np.square(running_mean - design @ (a, b)).sum())
    spread = float(np.square(running_mean - running_mean.mean()).sum())
    known = len(running_mean) > 2 and spread > 0
    return Fit(float(a), float(b), 1 - missed / spread if known else None)


def _mean(rounds: Sequence[dict[str, float]], name: str) -> float:
    """The mean over the rounds in which it was measured."""
    known = [measured[name] for measured in rounds if name in measured]
    if not known:
        raise RunError(
            f"no round has measured '{name}'; run with method.name=fedgh.studies.convergence:Probed"
        )
    return float(np.mean(known))
