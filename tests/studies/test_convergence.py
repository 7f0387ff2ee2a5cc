"""Both sides of Theorem 2: measurements compared with autograd, values worked by hand."""

from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedgh.core.records import Round
from fedgh.core.types import Client, SplitModel
from fedgh.errors import RunError
from fedgh.methods.fedgh import FedGH
from fedgh.runs.folder import RunFolder
from fedgh.studies import measured
from fedgh.studies.convergence import Probed, analyse, fit
from fedgh.training import loop
from tests.support.records import a_round
from tests.support.tiny import a_client, numbers, quick

PROBED = "method.name=fedgh.studies.convergence:Probed"


def without_metrics(run: RunFolder) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "method_metrics"} for record in numbers(run)]


def test_measuring_does_not_change_a_bit_of_fedgh(tmp_path: Path) -> None:
    """Measuring must not disturb dropout, batch normalisation and clients that do not take part."""
    how = ["federation.participation=0.6", "local.momentum=0.9", "local.clip=1.0"]
    plain = loop.run(quick(*how), tmp_path / "plain")
    probed = loop.run(quick(*how, PROBED), tmp_path / "probed")
    assert without_metrics(probed) == without_metrics(plain)
    assert all(record.method_metrics == {} for record in plain.records())
    assert all("smoothness" in record.method_metrics for record in probed.records())
    assert_close(probed.committed()[1], plain.committed()[1], atol=0, rtol=0, equal_nan=True)
    files = [run.client_files(run.committed()[0]) for run in (probed, plain)]
    assert files[0].clients == files[1].clients
    for client in files[0].clients:
        of_probed, of_plain = (each.load(client) for each in files)
        assert of_probed is not None
        of_probed.pop("memory.took_part", None)
        assert_close(of_probed, of_plain, atol=0, rtol=0, equal_nan=True)


def test_workers_measure_the_same_as_one_process(tmp_path: Path) -> None:
    serial = loop.run(quick(PROBED), tmp_path / "serial")
    workers = loop.run(quick(PROBED, "run.engine=workers", "run.workers=2"), tmp_path / "two")
    assert numbers(workers) == numbers(serial)
    assert len(serial.records()[1].method_metrics) == 8


def loss_and_gradient(model: SplitModel, x: Tensor, y: Tensor) -> tuple[float, Tensor]:
    """Return the loss over all samples at once, and its gradient."""
    model.eval()
    loss = cross_entropy(model(x), y)
    parts = torch.autograd.grad(loss, list(model.parameters()))
    return float(loss.detach()), torch.cat([part.flatten() for part in parts])


@pytest.fixture
def client() -> Client:
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 6, generator=rng), torch.arange(30) % 3
    torch.manual_seed(0)
    return a_client(x, y, lr=0.1, epochs=2, batch_size=8)


def test_measurements_agree_with_autograd(client: Client) -> None:
    x, y = client.data.train.x, client.data.train.y
    down = {"weight": torch.randn(3, 4), "bias": torch.randn(3)}
    Probed().client_update(client, down)  # the first time the client has no header of its own
    assert not {"header_gap", "loss_jump"} & client.metrics.keys()

    own = deepcopy(client.model)
    down = {"weight": torch.randn(3, 4), "bias": torch.randn(3)}
    Probed().client_update(client, down)
    spliced = deepcopy(own)
    spliced.header.load_state_dict(down)
    loss_own, at_own = loss_and_gradient(own, x, y)
    loss_start, at_start = loss_and_gradient(spliced, x, y)
    _, at_end = loss_and_gradient(client.model, x, y)
    travelled = torch.cat(
        [
            (p - q).detach().flatten()
            for p, q in zip(client.model.parameters(), spliced.parameters(), strict=True)
        ]
    )
    header = slice(-(3 * 4 + 3), None)
    over_the_round = (at_end - at_start).norm() / travelled.norm()
    stepped = deepcopy(spliced)
    flat = torch.nn.utils.parameters_to_vector(spliced.parameters()) - 0.1 * at_start
    torch.nn.utils.vector_to_parameters(flat, stepped.parameters())
    over_a_step = (loss_and_gradient(stepped, x, y)[1] - at_start).norm() / (0.1 * at_start.norm())
    found = client.metrics
    assert found["gradient_start"] == pytest.approx(float(at_start @ at_start), rel=1e-4)
    assert found["smoothness"] == pytest.approx(float(max(over_the_round, over_a_step)), rel=1e-3)
    assert found["header_gap"] == pytest.approx(
        float((at_own - at_start)[header].square().sum()), rel=1e-4
    )
    assert found["loss_start"] == pytest.approx(loss_start, rel=1e-4)
    assert found["loss_jump"] == pytest.approx(loss_start - loss_own, rel=1e-4)
    assert found["steps"] == 2 * 4  # 30 samples are four batches of at most 8
    assert all(p.grad is None for p in client.model.parameters())
    assert found["gradient_noise"] > 0


def test_the_measured_gradients_of_training_follow_from_its_steps(client: Client) -> None:
    """With plain SGD a step is eta times the gradient; two epochs of one batch are two steps."""
    client.local = replace(client.local, batch_size=1000)
    down = {"weight": torch.randn(3, 4), "bias": torch.randn(3)}
    first = deepcopy(client)
    first.local = replace(first.local, epochs=1)
    before = deepcopy(client.model)
    before.header.load_state_dict(down)
    models = [before]
    for each in (first, client):
        Probed().client_update(each, down)
        models.append(each.model)
    flat = [torch.nn.utils.parameters_to_vector(m.parameters()).detach() for m in models]
    steps = [float(((b - a) / 0.1).square().sum()) for a, b in pairwise(flat)]
    assert first.metrics["gradient_steps"] == pytest.approx(steps[0], rel=1e-3)
    assert client.metrics["gradient_steps"] == pytest.approx(sum(steps) / 2, rel=1e-3)
    assert client.metrics["gradient_noise"] == pytest.approx(0, abs=1e-9)


def test_a_probed_client_sends_what_fedgh_sends(client: Client) -> None:
    copy, down = deepcopy(client), {"weight": torch.randn(3, 4), "bias": torch.randn(3)}
    assert_close(
        Probed().client_update(client, down), FedGH().client_update(copy, down), atol=0, rtol=0
    )


def record(number: int, gradient: float, **more: float) -> Round:
    usual = {"gradient_steps": 5.5, "gradient_noise": 3.0, "smoothness": 4.0, "steps": 10.0}
    found = {**usual, "gradient_start": gradient, "loss_start": 2.0 / number, **more}
    return a_round(number, participants=[0, 1], method_metrics=found)


def test_a_fit_of_few_rounds_and_an_unneeded_smoothness_are_not_shown() -> None:
    """Two rounds fit a / T + b exactly; the implied L₁ is not needed where the bound holds."""
    gap = {"header_gap": 0.5, "loss_jump": 0.25}

    def shown_of(*records: Round) -> dict[Any, Any]:
        rows: Any = measured.theorem_rows(analyse(records, lr=0.25))
        return dict(rows)

    few = shown_of(record(1, 9.0), record(2, 3.0, **gap))
    assert few["fit of the running mean by a / T + b"] == "needs 3 rounds"
    assert "fit of the running mean: R²" not in few
    steep = {"gradient_steps": 100.0}
    for more, shown in ((gap, False), (gap | steep, True)):
        rows = shown_of(*(record(number, 3.0, **more) for number in (1, 2, 3)))
        assert ("L₁ at which both sides would be equal" in rows) == shown
        assert (rows["Theorem 2, left side"] > rows["Theorem 2, right side"]) == shown


def test_both_sides_worked_by_hand() -> None:
    gap = {"header_gap": 0.5, "loss_jump": 0.25}
    records = [record(1, 9.0), record(2, 3.0, **gap), record(3, 3.0, **gap), record(4, 5.0, **gap)]
    without_answers = a_round(5, participants=[0, 1])
    out = analyse([*records, without_answers], lr=0.25)
    assert out.rounds == 4
    assert out.running_mean == [9, 6, 5, 5]
    assert (out.noise, out.header_gap, out.smoothness, out.steps) == (3, 0.5, 4, 10)
    assert out.initial_loss == 2.0  # of the first round
    # 2 - L_1 eta = 1
    assert out.bound is not None
    assert out.no_bound is None
    assert out.bound.left == 10 * (5.5 - 3)  # without the noise
    assert out.bound.transient == 2 * 2.0 / (4 * 0.25)
    assert out.bound.noise == 4 * 10 * 0.25 * 3
    assert out.bound.header == 4 * 0.5
    assert out.bound.right == 4 + 30 + 2
    assert out.bound.header_by_jump == 2 * 0.25 / 0.25
    assert out.bound.right_by_jump == 4 + 30 + 2
    assert out.jump is not None
    assert out.jump.measured == 0.25
    assert out.jump.claimed == 0.25 * 4 * 0.5 / 2
    # 25 (2 - L / 4) = 4 + 10 L 3 / 4 / 4 + 2 gives 50 - 6 = L (25 + 30) / 4.
    assert out.smoothness_implied == pytest.approx(44 * 4 / 55)


def test_the_fit_recovers_a_running_mean_of_its_form() -> None:
    # Terms 8, 2, 2, 2, ... have the running mean 6 / T + 2.
    records = [record(n, 8.0 if n == 1 else 2.0) for n in range(1, 21)]
    found = analyse(records, lr=0.1).fit
    assert (found.a, found.b, found.r_squared) == pytest.approx((6, 2, 1))


def test_the_fit_has_the_smallest_squared_error() -> None:
    curve = np.array([5.0, 2.0, 4.0, 1.0, 3.0])
    found = fit(curve)
    inverse = 1 / np.arange(1, 6)

    def squared_error(a: float, b: float) -> float:
        return float(np.square(curve - a * inverse - b).sum())

    best = squared_error(found.a, found.b)
    assert all(
        best < squared_error(found.a + da, found.b + db)
        for da, db in ((0.1, 0), (-0.1, 0), (0, 0.1), (0, -0.1), (0.1, -0.1))
    )
    # For a line, R^2 is the squared correlation.
    assert found.r_squared == pytest.approx(float(np.corrcoef(inverse, curve)[0, 1] ** 2))
    assert fit(curve[:2]).r_squared is None


def test_a_bound_that_cannot_be_computed_is_explained() -> None:
    gap = {"header_gap": 0.5, "loss_jump": 0.1}
    steep = analyse([record(1, 9.0), record(2, 3.0, **gap)], lr=0.5)
    assert steep.bound is None
    assert steep.no_bound == (
        "the theorem needs L_1 eta < 2, but L_1 = 4 was measured and eta = 0.5"
    )
    assert steep.jump is not None
    others = record(2, 3.0, **gap).model_copy(update={"participants": [1, 2]})
    changing = analyse([record(1, 9.0), others], lr=0.1)
    assert (changing.bound, changing.smoothness_implied) == (None, None)
    assert "federation.participation=1.0" in (changing.no_bound or "")
    once = analyse([record(1, 9.0)], lr=0.1)
    assert (once.bound, once.jump, once.header_gap) == (None, None, None)
    assert "no client has taken part twice" in (once.no_bound or "")


@pytest.mark.parametrize("records", [[], [a_round(1)]])
def test_a_run_without_measurements_is_refused(records: list[Round]) -> None:
    with pytest.raises(RunError, match=r"fedgh\.studies\.convergence:Probed"):
        analyse(records, lr=0.1)


def test_descent_on_a_quadratic_obeys_the_theorem() -> None:
    """Gradient descent on L(w) = 2 w^2, one step per round, without noise and header."""
    lr, w, records = 0.1, 3.0, []
    for number in range(1, 31):
        start, w = w, w - lr * 4 * w
        records.append(
            record(
                number,
                (4 * start) ** 2,
                gradient_steps=(4 * start) ** 2,
                gradient_noise=0.0,
                smoothness=4.0,
                steps=1.0,
                loss_start=2 * start**2,
                header_gap=0.0,
                loss_jump=0.0,
            )
        )
    found = analyse(records, lr)
    out = found.bound
    assert out is not None
    assert out.left == pytest.approx(sum((12 * 0.6**t) ** 2 for t in range(30)) / 30)
    # Each step reduces the loss by exactly (eta - L_1 eta^2 / 2) |grad|^2: both sides are equal.
    assert out.left == pytest.approx(out.right, rel=1e-6)
    assert found.smoothness_implied == pytest.approx(4)
