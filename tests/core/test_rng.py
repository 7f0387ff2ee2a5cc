import pytest
import torch
from torch import nn

from fedgh.core.average import network_state
from fedgh.core.rng import isolated, numpy_stream, seed_of, stream
from fedgh.methods.fedgh import FedGH
from tests.support.families import FAMILIES
from tests.support.tiny import quick


def test_the_same_stream_gives_the_same_numbers() -> None:
    a, b = (torch.rand(5, generator=stream(1, "x", 2, 3)) for _ in range(2))
    assert a.equal(b)
    assert numpy_stream(1, "x", 2, 3).random() == numpy_stream(1, "x", 2, 3).random()


def test_seed_name_client_and_round_each_change_the_stream() -> None:
    seeds = {
        seed_of(seed, name, client, round)
        for seed in range(5)
        for name in ("a", "b")
        for client in range(20)
        for round in range(20)
    }
    assert len(seeds) == 5 * 2 * 20 * 20


def test_isolated_draws_are_reproducible_and_restore_the_global_generator() -> None:
    before = torch.get_rng_state()
    with isolated(0, "model", 1):
        first = nn.Linear(3, 3).weight.detach().clone()
    assert torch.get_rng_state().equal(before)
    torch.rand(7)
    with isolated(0, "model", 1):
        assert nn.Linear(3, 3).weight.equal(first)


def test_isolated_draws_are_those_of_manual_seed() -> None:
    torch.manual_seed(seed_of(3, "model", 2, 1))
    expected = torch.rand(5), torch.randn(3)
    with isolated(3, "model", 2, 1):
        assert torch.rand(5).equal(expected[0])
        assert torch.randn(3).equal(expected[1])


def test_preparing_an_experiment_does_not_change_the_global_generator() -> None:
    """A participant may prepare an experiment while a server in the same process trains."""
    for method in ("fedgh", "fml", "fedkd", "fedtgp", "fedgen", *FAMILIES):
        torch.manual_seed(0)
        prepared = quick(f"method.name={method}", *FAMILIES.get(method, []))
        prepared.initial_server()
        prepared.server_resources().network(0)
        drawn = torch.rand(1)
        torch.manual_seed(0)
        assert drawn.equal(torch.rand(1)), method


def test_layers_of_a_server_at_its_start_are_reproducible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedGH, "init_server", lambda *_: network_state(nn.Linear(16, 10)))
    prepared, before = quick(), torch.get_rng_state()
    first = prepared.initial_server()["weight"]
    assert torch.get_rng_state().equal(before)
    torch.rand(7)
    assert prepared.initial_server()["weight"].equal(first)
