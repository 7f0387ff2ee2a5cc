"""Generators: shapes, bounds, a start that the seed decides, and sizes that are refused."""

import pytest
import torch

from fedgh.core.types import Task
from fedgh.errors import ConfigError
from fedgh.models.input_generator import input_generator


def task(*shape: int, seed: int = 0) -> Task:
    return Task(10, 8, num_clients=1, rounds=1, seed=seed, input_shape=shape)


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 4), (7,), (5, 3)])
def test_generators_make_inputs_of_the_tasks_shape(shape: tuple[int, ...]) -> None:
    made = input_generator(6, task(*shape))(5, rng())
    assert made.shape == (5, *shape)
    if len(shape) == 3:
        assert made.abs().max() <= 1


def test_the_generator_of_images_is_that_of_data_free_adversarial_distillation() -> None:
    """By hand for 32x32 and noise of 100; two numbers for each normalised channel."""
    generator = input_generator(100, task(3, 32, 32))
    linear, first, second, last = (
        100 * 128 * 64 + 128 * 64,
        128 * 128 * 9 + 128,
        128 * 64 * 9 + 64,
        64 * 3 * 9 + 3,
    )
    normalised = 2 * (128 + 128 + 64)
    found = sum(parameter.numel() for parameter in generator.parameters())
    assert found == linear + first + second + last + normalised == 1_051_139


def test_the_start_follows_from_the_seed_alone() -> None:
    one, same, other = (input_generator(4, task(6, seed=seed)) for seed in (0, 0, 1))
    state = torch.random.get_rng_state()
    assert one(3, rng()).equal(same(3, rng()))
    assert not one(3, rng()).equal(other(3, rng()))
    assert torch.random.get_rng_state().equal(state)


@pytest.mark.parametrize(
    ("shape", "why"), [((), "one shape"), ((3, 30, 32), "divisible by 4, not 30x32")]
)
def test_what_cannot_be_generated_is_refused(shape: tuple[int, ...], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        input_generator(4, task(*shape))
