"""Theorem 2 of the FedGH paper, compared with measurements of a run.

For a client with learning rate eta, E local steps per round and T rounds the theorem states:

    1/T sum_t sum_e |grad L_(tE+e)|^2
        <= 2 (L_0 - L*) / (T eta (2 - L_1 eta)) + L_1 (E eta sigma^2 + delta^2) / (2 - L_1 eta)

The symbols are interpreted and measured as follows, for each participant and round, on its own
training data:

L           The client's mean cross-entropy, without weight decay. The paper prints |L|^2, but its
            Lemma 1 needs the gradient. L_0 is the loss in the first round with the global header.
            L* is set to 0, the lower bound of every cross-entropy.
e, E        SGD steps, as in section 4 ("local iteration"); in section 5, E is a number of epochs.
            The sum over e has one term for each step, 0 to E - 1 (the paper writes 0 to E). Before
            the first step the gradient over all data is measured, for the model with the global
            header (`gradient_start`). Measuring it at every step would take an epoch each time, so
            the mini-batches of training are used instead: their mean squared gradient
            (`gradient_steps`) is that of all data plus sigma^2.
sigma^2     Mean squared distance between the gradients of a mini-batch and of all data: the mean of
            its values before the first step and after the last (`gradient_noise`).
L_1         Change of the gradient divided by the distance between two points (`smoothness`). The
            larger value of two pairs of points is used: before and after the round's training, and
            before and after one step along the gradient of all data. The constant of the theorem's
            assumption is at least as large.
delta^2     |grad L(theta_k) - grad L(theta)|^2 over the parameters of the header (`header_gap`),
            with the client's extractor and data, its old header theta_k and the received header
            theta. It is known from the second round in which a client takes part.

The theorem assumes bounds over all clients and rounds. Here means replace them, so the right side
is an estimate that single clients may exceed. The theorem is about one client in successive rounds,
so all clients must take part in all rounds. It has no momentum, weight decay, clipping or
augmentation: to test it, run without them.

Lemma 2, the source of delta^2, does not hold as proved: (c) drops an inner product and (f) a
distance that may be positive, (e) assumes one step of equal length for client and server, and the
last line has eta instead of eta^2. But the quantity that it bounds can be measured: the increase J
of the loss when the header is replaced (`loss_jump`). With J the last term of the theorem becomes
(L_1 E eta sigma^2 + 2 J / eta) / (2 - L_1 eta), and only L_1 remains uncertain. If the left side is
still larger, L_1 is larger than measured: about the value at which both sides are equal
(`Convergence.smoothness_implied`).
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
    """FedGH with measurements before and after local training; its results are bit-identical."""

    name: ClassVar[str] = "fedgh_probed"

    def client_update(self, client: Client, down: Payload) -> Payload:
        """Do the update of FedGH and measure it, at the cost of about three more epochs."""
        model, header = client.model, client.model.header
        with_own_header = _measure(client, header)
        header.load_state_dict(down)
        start = _measure(client, model)
        after_step = _measure_after_step(client, start)
        with _squared_gradients(model) as squares:
            up = super().client_update(client, down)
        end = _measure(client, model)

        steps = client.local.epochs * start.gradient.batches
        client.metrics |= {
            "gradient_start": float(start.gradient.mean.square().sum()),
            "gradient_steps": float(sum(squares)) / steps,
            "gradient_noise": (start.gradient.noise + end.gradient.noise) / 2,
            "smoothness": max(_secant(start, end), _secant(start, after_step)),
            "loss_start": start.gradient.loss,
            "steps": steps,
        }
        if client.memory:  # otherwise its own header is still the random initial one
            own = with_own_header.gradient
            gap = (
                own.mean - start.gradient.mean[-len(own.mean) :]
            )  # the header's parameters are last
            client.metrics |= {
                "header_gap": float(gap @ gap),
                "loss_jump": start.gradient.loss - own.loss,
            }
        client.memory = {"took_part": torch.ones((), device=client.device)}
        return up


@dataclass(frozen=True)
class _Point:
    """The parameters of a client's model, and the gradient of the loss at them."""

    position: Tensor  # the parameters, flat and in double precision
    gradient: Gradient


def _measure(client: Client, module: nn.Module) -> _Point:
    """Return the parameters of `module` and the gradient of the client's loss at them."""
    parameters = _trained(module)
    with client.timed("probe"), isolated(client.task.seed, "probe", client.id, client.round):
        measured = gradient(client, lambda x, y: cross_entropy(client.model(x), y), parameters)
    position = torch.cat([p.detach().flatten() for p in parameters]).cpu().double()
    return _Point(position, measured)


def _measure_after_step(client: Client, start: _Point) -> _Point:
    """Measure after one step of gradient descent from `start`, then undo the step."""
    before, parameters = client.state(), _trained(client.model)
    direction = start.gradient.mean.split([p.numel() for p in parameters])
    with torch.no_grad():
        for parameter, part in zip(parameters, direction, strict=True):
            parameter.sub_(part.view_as(parameter).to(parameter), alpha=client.local.lr)
    point = _measure(client, client.model)
    client.load(before)
    return point


@contextmanager
def _squared_gradients(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the squared norm of each parameter's gradient at every backward pass."""
    squares: list[Tensor] = []

    def collect(parameter: Tensor) -> None:
        assert parameter.grad is not None
        squares.append(parameter.grad.square().sum())

    hooks = [p.register_post_accumulate_grad_hook(collect) for p in _trained(module)]
    try:
        yield squares
    finally:
        for hook in hooks:
            hook.remove()


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _secant(one: _Point, other: _Point) -> float:
    """Return the change of the gradient between two points, divided by their distance."""
    distance = float((other.position - one.position).norm())
    change = float((other.gradient.mean - one.gradient.mean).norm())
    return change / distance if distance else 0.0


@dataclass(frozen=True)
class Fit:
    """The function a / T + b, fitted to a running mean by least squares.

    A running mean has this form whenever its terms settle early. So a good fit is evidence that the
    mean has a limit above zero, not evidence for this theorem.
    """

    a: float
    b: float  # limit for large T
    r_squared: float | None  # None with fewer than three rounds or equal values


@dataclass(frozen=True)
class ConvergenceBound:
    """Both sides of Theorem 2, measured: sums over the steps of a round, means over rounds."""

    left: float  # squared gradient; noise can make the estimate negative
    transient: float  # 2 (L_0 - L*) / (T eta (2 - L_1 eta))
    noise: float  # L_1 E eta sigma^2 / (2 - L_1 eta)
    header: float  # L_1 delta^2 / (2 - L_1 eta)
    header_by_jump: float  # 2 J / (eta (2 - L_1 eta)), without Lemma 2

    @property
    def right(self) -> float:
        """The right side as in the paper."""
        return self.transient + self.noise + self.header

    @property
    def right_by_jump(self) -> float:
        """The right side with the measured jump of the loss instead of Lemma 2."""
        return self.transient + self.noise + self.header_by_jump


@dataclass(frozen=True)
class Jump:
    """Lemma 2: the increase of the loss when the global header replaces the local one."""

    measured: float
    claimed: float  # upper bound of the lemma: eta L_1 delta^2 / 2


@dataclass(frozen=True)
class Convergence:
    """The quantities of Theorem 2 in a run of `Probed`; constants are means over all rounds."""

    rounds: int  # T
    gradient: list[float]  # squared norm at the start of each round, with the global header
    running_mean: list[float]  # of `gradient` over the rounds 1 to T, for each T
    fit: Fit  # of `running_mean`
    noise: float  # sigma^2
    header_gap: float | None  # delta^2; None if no client took part twice
    smoothness: float  # L_1
    smoothness_implied: float | None  # L_1 at which both sides (by jump) are equal
    steps: float  # E
    initial_loss: float  # L_0
    jump: Jump | None  # None if no client took part twice
    bound: ConvergenceBound | None
    no_bound: str | None  # the reason if `bound` is None


def analyse(records: Sequence[Round], lr: float) -> Convergence:
    """Return the quantities of Theorem 2 from the records of a run of `Probed`.

    `lr` is the `local.lr` of the run. Raise RunError if another method was run.
    """
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
        no_bound = "delta^2 is unknown, because no client has taken part twice"
    elif len({tuple(record.participants) for record in records}) > 1:
        no_bound = "not all clients took part in every round: set federation.participation=1.0"
    else:
        left = steps * (_mean(rounds, "gradient_steps") - noise)
        transient, by_jump = 2 * initial_loss / (len(rounds) * lr), 2 * jump.measured / lr
        implied = (2 * left - transient - by_jump) / (lr * (left + steps * noise))
        denominator = 2 - smoothness * lr
        if denominator > 0:
            bound = ConvergenceBound(
                left=left,
                transient=transient / denominator,
                noise=smoothness * steps * lr * noise / denominator,
                header=smoothness * header_gap / denominator,
                header_by_jump=by_jump / denominator,
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
    """Return the least-squares fit of a / T + b to a running mean over T = 1, 2, ... rounds."""
    inverse = 1 / np.arange(1, len(running_mean) + 1)
    design = np.stack([inverse, np.ones_like(inverse)], axis=1)
    (a, b), *_ = np.linalg.lstsq(design, running_mean)
    residual = float(np.square(running_mean - design @ (a, b)).sum())
    spread = float(np.square(running_mean - running_mean.mean()).sum())
    defined = len(running_mean) > 2 and spread > 0
    return Fit(float(a), float(b), 1 - residual / spread if defined else None)


def _mean(rounds: Sequence[dict[str, float]], name: str) -> float:
    """Return the mean of a metric over the rounds in which it was measured."""
    values = [measured[name] for measured in rounds if name in measured]
    if not values:
        raise RunError(
            f"no round has the metric '{name}'; run the experiment with "
            "method.name=fedgh.studies.convergence:Probed"
        )
    return float(np.mean(values))
