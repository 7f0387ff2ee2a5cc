"""The attacks where the answer is known: synthetic victims."""

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from fedgh.audit.images import psnr
from fedgh.audit.membership import Candidates, Membership, meet
from fedgh.audit.noise import DELTA, OPEN, Level
from fedgh.audit.reconstruct import Reconstruction, behind
from fedgh.audit.scene import Knowledge, Samples, Scene, send
from fedgh.core.rng import stream
from fedgh.privacy.accounting import noise_multiplier

WIDTH = 12
SHAPE = (1, 3, 4)


def normal(name: str, *shape: int) -> Tensor:
    return torch.randn(shape, generator=stream(0, name), dtype=torch.float64)


def vectors_of(latent: Tensor, labels: Tensor, network: str) -> Tensor:
    """A network: everything that varies, mixed, and stretched so that a few directions dominate."""
    mix = normal(network, WIDTH, WIDTH) * torch.logspace(1, -1, WIDTH, dtype=torch.float64)
    return latent @ mix + 3 * normal(f"{network}-means", 2, WIDTH)[labels]


def images_of(latent: Tensor, labels: Tensor) -> Tensor:
    around = 0.01 * latent @ normal("pixels", WIDTH, math.prod(SHAPE))
    return (0.5 + 0.1 * labels[:, None] + around).float().view(-1, *SHAPE)


def a_scene(*networks: str, own: int = 2000, victim: int = 400) -> Scene:
    """A victim whose network is `victim`, and an attacker with these networks."""

    def draw(name: str, count: int) -> tuple[Tensor, Tensor]:
        return normal(name, count, WIDTH), torch.arange(count) % 2

    def samples(name: str, count: int) -> Samples:
        latent, labels = draw(name, count)
        guesses = torch.stack([vectors_of(latent, labels, one) for one in networks]).mean(0)
        vectors = vectors_of(latent, labels, "victim")
        return Samples(labels, vectors, guesses, images_of(latent, labels))

    latent, labels = draw("own", own)
    vectors = torch.stack([vectors_of(latent, labels, one) for one in networks])
    knowledge = Knowledge(labels, vectors, images_of(latent, labels))
    return Scene(knowledge, samples("members", victim), samples("held-out", 100))


def gain(scene: Scene, size: int | None, level: Level = OPEN) -> float:
    attack = Reconstruction.of(scene, stream(0, "learn"))
    sent = send(scene.victim, size, level, 40, stream(0, "send"))
    made, truth = attack.attack(sent, level, stream(0, "rehearse")), behind(sent, scene.victim)
    return float((psnr(made, truth) - psnr(attack.without(sent), truth)).mean())


def members(scene: Scene, size: int, level: Level = OPEN, count: int = 400) -> Candidates:
    attack = Membership.of(scene, stream(0, "learn"))
    sent = send(scene.victim, size, level, count // size, stream(0, "send"))
    test = attack.test(size, level, stream(0, "rehearse"))
    return meet(test, attack.geometry, sent, scene, stream(0, "meet"))


def area(met: Candidates) -> float:
    beats = met.members.values[:, None] > met.left_out.values
    return float(beats.double().mean())


def test_means_are_of_the_samples_that_are_named() -> None:
    victim = a_scene("victim").victim
    sent = send(victim, 7, OPEN, 10, stream(0, "send"))
    assert len(sent.rows) == 10
    for rows, label, vector in zip(sent.rows, sent.labels, sent.vectors, strict=True):
        assert len(set(rows.tolist())) == 7
        assert (victim.labels[rows] == label).all()
        assert torch.allclose(vector, victim.vectors[rows].mean(0))
    everything = send(victim, None, OPEN, 10, stream(0, "send"))
    assert sorted(torch.cat(everything.rows).tolist()) == list(range(400))


@pytest.mark.parametrize("size", [1, 10, None])
def test_what_a_network_keeps_is_reconstructed(size: int | None) -> None:
    assert gain(a_scene("victim"), size) > 10


@pytest.mark.parametrize("size", [1, 10, None])
def test_other_networks_do_not_help_and_the_attacker_notices(size: int | None) -> None:
    assert -1 < gain(a_scene("other", "third", "fourth"), size) < 0.2


def test_noise_takes_the_image_away() -> None:
    scene = a_scene("victim").clipped(30.0)
    gains = [gain(scene, 10, Level(protects="sample", epsilon=e)) for e in (1e4, 64, 1)]
    assert gains[0] > gains[1] + 1 > gains[2]
    assert abs(gains[2]) < 0.3


def test_a_single_vector_gives_its_sample_away() -> None:
    assert area(members(a_scene("victim"), 1)) == 1


def test_the_ratio_test_is_as_good_as_theory_says() -> None:
    """For a mean of n Gaussian vectors of width d, members stand out by about √(d/n) deviations."""
    for size in (10, 50):
        expected = norm.cdf(math.sqrt(WIDTH / size / 2))
        assert area(members(a_scene("victim"), size, count=1000)) == pytest.approx(
            expected, abs=0.04
        )


def test_means_of_others_tell_nothing() -> None:
    scene = a_scene("victim")
    attack = Membership.of(scene, stream(0, "learn"))
    sent = send(scene.held_out, 20, OPEN, 40, stream(0, "send"))  # the rows name other samples
    test = attack.test(20, OPEN, stream(0, "rehearse"))
    met = meet(test, attack.geometry, sent, scene, stream(0, "meet"))
    assert area(met) == pytest.approx(0.5, abs=0.05)


def test_without_the_network_nobody_is_told_apart() -> None:
    assert area(members(a_scene("other", "third"), 2)) == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_noise_keeps_what_it_promises(epsilon: float) -> None:
    """A Gaussian mechanism with multiplier z allows no test an AUC above Φ(1/(z√2)).

    The vectors are the worst there are: two opposite points, so that a swap moves the mean by 2S.
    """
    scene = a_scene("victim")
    sign = torch.sign(normal("sign", 400))
    far = torch.zeros(400, WIDTH, dtype=torch.float64)
    far[:, 0] = 5 * sign
    victim = replace(scene.victim, vectors=far, guesses=far)
    own = torch.zeros(2000, WIDTH, dtype=torch.float64)
    own[:, 0] = 5 * torch.sign(normal("own-sign", 2000))
    attacker = replace(scene.attacker, vectors=own[None])
    worst = Scene(attacker, victim, scene.held_out).clipped(1.0)
    found = area(members(worst, 2, Level(protects="sample", epsilon=epsilon), count=1600))
    bound = norm.cdf(1 / noise_multiplier(epsilon, DELTA, 1) / math.sqrt(2))
    assert found > 0.45
    assert found < bound + 0.03


def test_a_rehearsal_uses_nothing_of_the_victim() -> None:
    scene = a_scene("victim", "other", "third")
    secret = replace(scene.victim, vectors=torch.full_like(scene.victim.vectors, torch.nan))
    small = replace(scene, victim=secret).rehearsal(stream(0, "learn"))
    own = {tuple(row) for row in scene.attacker.vectors[0].tolist()}
    assert {tuple(row) for row in small.victim.vectors.tolist()} <= own
    assert len(small.attacker.vectors) == 2
    assert len(small.victim) + len(small.attacker.labels) == len(scene.attacker.labels)
