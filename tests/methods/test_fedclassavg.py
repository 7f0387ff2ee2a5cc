"""FedClassAvg: averaged headers, two views of each batch, a header near the received one."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize
from torch.testing import assert_close

from fedgh.core.types import Client, Payload, Upload
from fedgh.methods.fedclassavg import FedClassAvg, contrast
from fedgh.training import loop
from tests.support.phases import another_part, phases_of, rough_client
from tests.support.rounds import uploads_of
from tests.support.tiny import a_client, quick

HEADER: Payload = {"weight": torch.zeros(3, 4), "bias": torch.zeros(3)}


def plain_client() -> Client:
    torch.manual_seed(0)
    return a_client(torch.randn(20, 6), torch.arange(20) % 3)


def test_the_contrastive_loss_worked_by_hand() -> None:
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(2, 1)
    y = torch.tensor([0, 1, 0, 1])
    assert_close(contrast(z, y, 1.0, 1.0).item(), 0.5514447)
    assert_close(contrast(z, y, 100.0, 0.07).item(), 1559.938, rtol=1e-6, atol=1e-3)


def test_the_contrastive_loss_is_a_mean_over_anchors_of_a_mean_over_positives() -> None:
    torch.manual_seed(0)
    z, y = torch.randn(8, 3, dtype=torch.float64), torch.tensor([0, 1, 1, 2] * 2)
    anchors = []
    for i in range(8):
        others = [a for a in range(8) if a != i]
        log_sum = torch.stack([z[i] @ z[a] / 0.5 for a in others]).logsumexp(0)
        positives = [p for p in others if y[p] == y[i]]
        anchors.append(torch.stack([z[i] @ z[p] / 0.5 - log_sum for p in positives]).mean())
    assert_close(contrast(z, y, 0.5, 0.2), -0.5 / 0.2 * torch.stack(anchors).mean())


def test_the_proximal_term_is_a_mean_for_each_tensor() -> None:
    client = a_client(torch.zeros(2, 2), torch.zeros(2).long(), rep_dim=2, num_classes=1)
    with torch.no_grad():
        client.model.header.weight.copy_(torch.tensor([[1.0, 2.0]]))
        client.model.header.bias.fill_(2.0)
    received = {"weight": torch.zeros(1, 2), "bias": torch.zeros(1)}
    x, y = torch.zeros(2, 2, 2), torch.zeros(2).long()
    far, near = (
        FedClassAvg(mu=mu).loss(client, x, y, received).item() for mu in (0.1, 0.0)
    )  # fmt: skip
    assert_close(far - near, 0.325, rtol=0, atol=1e-6)


@pytest.mark.parametrize("unit_length", [True, False])
def test_the_header_sees_the_first_view_and_the_contrast_both(unit_length: bool) -> None:
    client, method = plain_client(), FedClassAvg(mu=0, unit_length=unit_length)
    x, y = torch.randn(2, 5, 6), torch.tensor([0, 1, 2, 0, 1])
    z = client.model.represent(torch.cat([x[0], x[1]]))
    compared = normalize(z) if unit_length else z
    expected = contrast(compared, torch.cat([y, y]), 0.07, 0.07)
    expected = expected + cross_entropy(client.model(x[0]), y)
    assert_close(method.loss(client, x, y, HEADER), expected)


def test_without_augmentation_the_two_views_are_equal() -> None:
    """The copy of an anchor is a positive whose similarity is a constant."""
    client, seen = plain_client(), []
    loss = FedClassAvg.loss

    class Watched(FedClassAvg):
        def loss(
            self, client: Client, x: torch.Tensor, y: torch.Tensor, received: Payload
        ) -> torch.Tensor:
            seen.append(x)
            return loss(self, client, x, y, received)

    Watched().client_update(client, HEADER)
    assert all(len(x) == 2 and x[0].equal(x[1]) for x in seen)
    assert client.metrics["train_loss"] > 0


def test_a_client_with_one_sample_and_a_dead_representation_trains() -> None:
    client = a_client(torch.zeros(1, 6), torch.zeros(1).long())
    for parameter in client.model.extractor.parameters():
        torch.nn.init.zeros_(parameter)
    up = FedClassAvg().client_update(client, HEADER)
    assert all(tensor.isfinite().all() for tensor in up.values())


def test_a_new_client_starts_with_the_global_header_and_its_own_extractor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    newcomer = rough_client()
    newcomer.round = 3
    own, down = newcomer.state(), another_part(newcomer, "header")
    up, (phase,) = phases_of(FedClassAvg(), newcomer, down, monkeypatch)
    assert all(phase.before[f"model.header.{name}"].equal(down[name]) for name in down)
    extractor = [name for name in own if name.startswith("model.extractor.")]
    assert all(phase.before[name].equal(own[name]) for name in extractor)
    assert phase.changed() == {"extractor", "header"}
    assert up.keys() == {"weight", "bias"}
    assert all(up[name].equal(phase.after[f"model.header.{name}"]) for name in up)


def test_the_server_weighs_by_samples() -> None:
    sent = [Upload(0, 1, {"w": torch.tensor([1.0])}), Upload(1, 3, {"w": torch.tensor([3.0])})]
    assert_close(FedClassAvg().server_update({}, uploads_of(sent)), {"w": torch.tensor([2.5])})


def test_augmented_views_of_images_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    original = FedClassAvg.loss

    def watched(self: FedClassAvg, *words: torch.Tensor) -> torch.Tensor:
        seen.append(words[1][0].equal(words[1][1]))
        return original(self, *words)  # type: ignore[arg-type]

    monkeypatch.setattr(FedClassAvg, "loss", watched)
    words = ["method.name=fedclassavg", "local.augment=flip,crop", "federation.rounds=1"]
    run = loop.run(quick(*words), tmp_path / "run")
    assert run.records()[-1].failed == []
    assert seen
    assert not any(seen)
