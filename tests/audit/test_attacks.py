"""Attacks on synthetic target clients, for which the answer is known."""

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from fedgh.audit.images import psnr
from fedgh.audit.membership import CandidateScores, MembershipAttack, score_candidates
from fedgh.audit.noise import DELTA, NO_NOISE, Level
from fedgh.audit.reconstruct import ReconstructionAttack, mean_images
from fedgh.audit.scene import AttackerData, Samples, Scene, send_means
from fedgh.core.rng import stream
from fedgh.privacy.accounting import noise_multiplier

WIDTH = 12
SHAPE = (1, 3, 4)


def normal(name: str, *shape: int) -> Tensor:
    return torch.randn(shape, generator=stream(0, name), dtype=torch.float64)


def vectors_of(latent: Tensor, labels: Tensor, network: str) -> Tensor:
    """Outputs of a network that mixes all inputs, so that a few directions dominate."""
    mix = normal(network, WIDTH, WIDTH) * torch.logspace(1, -1, WIDTH, dtype=torch.float64)
    return latent @ mix + 3 * normal(f"{network}-means", 2, WIDTH)[labels]


def images_of(latent: Tensor, labels: Tensor) -> Tensor:
    around = 0.01 * latent @ normal("pixels", WIDTH, math.prod(SHAPE))
    return (0.5 + 0.1 * labels[:, None] + around).float().view(-1, *SHAPE)


def a_scene(*networks: str, own: int = 2000, target: int = 400) -> Scene:
    """A target client whose network is `target`, and an attacker with these networks."""

    def draw(name: str, count: int) -> tuple[Tensor, Tensor]:
        return normal(name, count, WIDTH), torch.arange(count) % 2

    def samples(name: str, count: int) -> Samples:
        latent, labels = draw(name, count)
        estimates = torch.stack([vectors_of(latent, labels, name) for name in networks]).mean(0)
        vectors = vectors_of(latent, labels, "target")
        return Samples(labels, vectors, estimates, images_of(latent, labels))

    latent, labels = draw("own", own)
    vectors = torch.stack([vectors_of(latent, labels, name) for name in networks])
    attacker = AttackerData(labels, vectors, images_of(latent, labels))
    return Scene(attacker, samples("members", target), samples("held-out", 100))


def gain(scene: Scene, size: int | None, level: Level = NO_NOISE) -> float:
    attack = ReconstructionAttack.of(scene, stream(0, "learn"))
    sent = send_means(scene.target, size, level, 40, stream(0, "send"))
    images, truth = (
        attack.attack(sent, level, stream(0, "rehearse")),
        mean_images(sent, scene.target),
    )
    return float((psnr(images, truth) - psnr(attack.baseline(sent), truth)).mean())


def members(scene: Scene, size: int, level: Level = NO_NOISE, count: int = 400) -> CandidateScores:
    attack = MembershipAttack.of(scene, stream(0, "learn"))
    sent = send_means(scene.target, size, level, count // size, stream(0, "send"))
    score = attack.best_score(size, level, stream(0, "rehearse"))
    return score_candidates(score, attack.geometry, sent, scene, stream(0, "meet"))


def area(scores: CandidateScores) -> float:
    beats = scores.members.values[:, None] > scores.left_out.values
    return float(beats.double().mean())


def test_sent_means_are_the_means_of_their_rows() -> None:
    target = a_scene("target").target
    sent = send_means(target, 7, NO_NOISE, 10, stream(0, "send"))
    assert len(sent.rows) == 10
    for rows, label, vector in zip(sent.rows, sent.labels, sent.vectors, strict=True):
        assert len(set(rows.tolist())) == 7
        assert (target.labels[rows] == label).all()
        assert torch.allclose(vector, target.vectors[rows].mean(0))
    everything = send_means(target, None, NO_NOISE, 10, stream(0, "send"))
    assert sorted(torch.cat(everything.rows).tolist()) == list(range(400))


@pytest.mark.parametrize("size", [1, 10, None])
def test_images_are_reconstructed_if_the_network_keeps_all_information(size: int | None) -> None:
    assert gain(a_scene("target"), size) > 10


@pytest.mark.parametrize("size", [1, 10, None])
def test_unrelated_networks_give_no_gain_and_no_loss(size: int | None) -> None:
    assert -1 < gain(a_scene("other", "third", "fourth"), size) < 0.2


def test_noise_prevents_reconstruction() -> None:
    scene = a_scene("target").clipped(30.0)
    gains = [gain(scene, 10, Level(protects="sample", epsilon=e)) for e in (1e4, 64, 1)]
    assert gains[0] > gains[1] + 1 > gains[2]
    assert abs(gains[2]) < 0.3


def test_the_sample_behind_a_single_vector_is_always_detected() -> None:
    assert area(members(a_scene("target"), 1)) == 1


def test_the_auc_of_the_likelihood_ratio_agrees_with_theory() -> None:
    """For a mean of n Gaussian vectors of dimension d, the scores of members and of others differ
    by about √(d/n) standard deviations.
    """
    for size in (10, 50):
        expected = norm.cdf(math.sqrt(WIDTH / size / 2))
        assert area(members(a_scene("target"), size, count=1000)) == pytest.approx(
            expected, abs=0.04
        )


def test_means_of_other_samples_detect_no_members() -> None:
    scene = a_scene("target")
    attack = MembershipAttack.of(scene, stream(0, "learn"))
    sent = send_means(scene.held_out, 20, NO_NOISE, 40, stream(0, "send"))
    # The rows of these means belong to held-out samples, so no candidate is a member.
    score = attack.best_score(20, NO_NOISE, stream(0, "rehearse"))
    scores = score_candidates(score, attack.geometry, sent, scene, stream(0, "meet"))
    assert area(scores) == pytest.approx(0.5, abs=0.05)


def test_unrelated_networks_detect_no_members() -> None:
    assert area(members(a_scene("other", "third"), 2)) == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_the_auc_with_noise_is_below_the_bound_of_the_mechanism(epsilon: float) -> None:
    """A Gaussian mechanism with multiplier z allows no test an AUC above Φ(1/(z√2)).

    The vectors are the worst case: two opposite points at the clipping length S, so that replacing
    a sample changes the sum by 2S.
    """
    scene = a_scene("target")
    sign = torch.sign(normal("sign", 400))
    far = torch.zeros(400, WIDTH, dtype=torch.float64)
    far[:, 0] = 5 * sign
    target = replace(scene.target, vectors=far, estimates=far)
    own = torch.zeros(2000, WIDTH, dtype=torch.float64)
    own[:, 0] = 5 * torch.sign(normal("own-sign", 2000))
    attacker = replace(scene.attacker, vectors=own[None])
    worst = Scene(attacker, target, scene.held_out).clipped(1.0)
    achieved = area(members(worst, 2, Level(protects="sample", epsilon=epsilon), count=1600))
    bound = norm.cdf(1 / noise_multiplier(epsilon, DELTA, 1) / math.sqrt(2))
    assert achieved > 0.45
    assert achieved < bound + 0.03


def test_a_rehearsal_uses_no_data_of_the_target_client() -> None:
    scene = a_scene("target", "other", "third")
    secret = replace(scene.target, vectors=torch.full_like(scene.target.vectors, torch.nan))
    small = replace(scene, target=secret).rehearsal(stream(0, "learn"))
    own = {tuple(row) for row in scene.attacker.vectors[0].tolist()}
    assert {tuple(row) for row in small.target.vectors.tolist()} <= own
    assert len(small.attacker.vectors) == 2
    assert len(small.target) + len(small.attacker.labels) == len(scene.attacker.labels)
