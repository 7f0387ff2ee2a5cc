"""FedAvg and LG-FedAvg: means with weights n_k / n, worked by hand."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fedgh.core.average import load_network, mean_by_examples, network_state, plain_mean
from fedgh.core.groups import check_same_part
from fedgh.core.types import Payload, SplitModel, Task, Upload
from fedgh.errors import ConfigError, MethodError
from fedgh.methods.fedavg import FedAvg
from fedgh.methods.lg_fedavg import LGFedAvg
from fedgh.training import loop
from tests.support.rounds import uploads_of
from tests.support.tiny import a_client, noisy, quick


def model(seed: int) -> SplitModel:
    torch.manual_seed(seed)
    return SplitModel(noisy((6,), 4), nn.Linear(4, 3))


def test_the_weighted_mean_equals_one_computed_by_hand() -> None:
    uploads = [
        Upload(0, 1, {"w": torch.tensor([1.0, 0.0])}),
        Upload(1, 3, {"w": torch.tensor([5.0, 4.0])}),
    ]
    for method in (FedAvg(), LGFedAvg()):
        assert_close(
            method.server_update({"w": torch.zeros(2)}, uploads_of(uploads)),
            {"w": torch.tensor([4.0, 3.0])},
        )


def test_fedavg_averages_whole_models_with_their_batch_norm_statistics() -> None:
    models = [model(seed) for seed in range(3)]
    for k, each in enumerate(models):
        each.extractor[2].running_mean.fill_(k)  # type: ignore[index]
    sizes = [10, 20, 70]
    uploads = [
        Upload(k, n, network_state(m)) for k, (n, m) in enumerate(zip(sizes, models, strict=True))
    ]
    mean = FedAvg().server_update(uploads[0].payload, uploads_of(uploads))
    for name in network_state(models[0]):
        expected = sum(
            n / 100 * m.state_dict()[name].double() for n, m in zip(sizes, models, strict=True)
        )
        assert_close(mean[name], expected.float())
    assert_close(mean["extractor.2.running_mean"], torch.full((4,), 0.2 * 1 + 0.7 * 2))
    assert not any("num_batches_tracked" in name for name in mean)


def test_a_network_state_is_unchanged_after_serialisation() -> None:
    one, two = model(0), model(1)
    one.extractor[2].num_batches_tracked.fill_(7)  # type: ignore[index]
    load_network(one, network_state(two))
    assert_close(network_state(one), network_state(two))
    assert one.extractor[2].num_batches_tracked == 7  # type: ignore[index]
    with pytest.raises(RuntimeError):
        load_network(one, {})


def test_fedavg_starts_every_participant_from_the_global_model() -> None:
    client = a_client(torch.randn(20, 6), torch.arange(20) % 3, lr=1e-12)
    down = network_state(SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(6, 4)), nn.Linear(4, 3)))
    up = FedAvg().client_update(client, down)
    assert_close(up, down)


def test_lg_fedavg_shares_the_header_and_nothing_else() -> None:
    client = a_client(torch.randn(20, 6), torch.arange(20) % 3, lr=1e-12)
    own = {n: t for n, t in client.state().items() if "extractor" in n}
    down: Payload = {"weight": torch.randn(3, 4), "bias": torch.randn(3)}
    assert_close(LGFedAvg().client_update(client, down), down)
    assert_close({n: t for n, t in client.state().items() if "extractor" in n}, own)


def test_fedavg_rejects_different_architectures_and_names_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"networks of clients 1, 3 differ from client 0's"):
        quick("method.name=fedavg")
    wide = SplitModel(nn.Linear(6, 4), nn.Linear(4, 3))
    narrow = SplitModel(nn.Linear(5, 4), nn.Linear(4, 3))
    task = Task(3, 4, num_clients=6, rounds=1, seed=0)
    with pytest.raises(ConfigError, match="clients 2, 5 differ"):
        check_same_part(FedAvg(), task, [wide, wide, narrow])


def test_without_training_fedavg_returns_the_global_model(tmp_path: Path) -> None:
    """With a learning rate of almost zero the average is the global model."""
    prepared = quick(
        "method.name=fedavg", "model.extractors=tests.support.tiny:mlp", "local.lr=1e-12"
    )
    run = loop.run(prepared, tmp_path / "run")
    from safetensors.torch import load_file

    server = load_file(run.checkpoint / "server.safetensors")
    start = prepared.initial_server()
    for name, tensor in start.items():
        assert_close(server[f"server.{name}"], tensor)


def test_a_mean_by_samples_needs_numbers_of_samples() -> None:
    sent = uploads_of([Upload(0, 0, {"w": torch.ones(1)})])
    with pytest.raises(MethodError, match="weighs_by_examples = True"):
        mean_by_examples(sent, if_none={})


def test_a_plain_mean_ignores_the_numbers_of_samples() -> None:
    sent = [Upload(0, 1, {"w": torch.tensor([1.0])}), Upload(1, 3, {"w": torch.tensor([3.0])})]
    assert_close(plain_mean(uploads_of(sent), if_none={}), {"w": torch.tensor([2.0])})
    start = {"w": torch.tensor([7.0])}
    assert plain_mean(uploads_of([]), if_none=start) == start
