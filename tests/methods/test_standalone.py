from pathlib import Path

import torch

from fedgh import training
from fedgh.methods.standalone import Standalone
from tests.tiny import a_client, numbers, quick


def test_nothing_is_sent() -> None:
    client = a_client(torch.randn(30, 6), torch.arange(30) % 3)
    assert Standalone().client_update(client, {}) == {}


def test_the_header_starts_anew_every_round_when_asked_to() -> None:
    x, y = torch.randn(30, 6), torch.arange(30) % 3
    headers = []
    for round in (1, 1, 2):
        client = a_client(x, y, lr=1e-12)
        client.round = round
        own = client.model.header.weight.detach().clone()
        Standalone(reset_header=True).client_update(client, {})
        assert not client.model.header.weight.allclose(own)
        headers.append(client.model.header.weight.detach())
    assert headers[0].allclose(headers[1])
    assert not headers[0].allclose(headers[2])


def test_a_run_sends_nothing_and_trains_everybody(tmp_path: Path) -> None:
    run = training.run(quick("method.name=standalone"), tmp_path / "run")
    assert all(record["bytes_total"] == 0 for record in numbers(run))
    losses = [record["train_loss"] for record in numbers(run)]
    assert losses[-1] < losses[0]
