"""Is this sample behind that class mean?

The likelihood-ratio test: how much better does a candidate's vector d explain the mean r of n
samples as one of them than as none? With vectors that spread around their class mean with
covariance C, and noise of variance σ², r is distributed around d/n with (n-1)/n²·C + σ²·I in the
first case, around 0 with C/n + σ²·I in the second (all measured from the class mean that the
attacker knows). For Gaussian vectors no test tells the cases apart better. A plain distance between
candidate and mean stands beside it: it sees next to nothing where this test still sees a lot,
because the few directions in which vectors vary most drown all the others.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgh.audit.noise import Level
from fedgh.audit.roc import Scores, auc
from fedgh.audit.scene import Geometry, Scene, SentMeans, send, smallest_class

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Added to the spread, in units of the mean variance; what works best in a rehearsal is taken."""

FLOOR = 1e-6
"""Variance, in the same units, that remains when a mean is one sample's vector itself."""

REHEARSALS = 20

Score = Callable[[Tensor, Tensor, int, float], Tensor]
"""From a mean [width], candidates [m, width], n and noise to a number each, high for members."""


def likelihood_ratio(geometry: Geometry, ridge: float) -> Score:
    """The logarithm of the ratio, up to a constant."""
    spread = geometry.variances + ridge * geometry.scale
    floor = FLOOR * geometry.scale

    def score(mean: Tensor, candidates: Tensor, size: int, std: float) -> Tensor:
        within = (size - 1) / size**2 * spread + std**2 + floor
        without = spread / size + std**2 + floor
        as_member = ((mean - candidates / size) ** 2 / within).sum(1)
        as_other = (mean**2 / without).sum()
        ratio: Tensor = (as_other - as_member) / 2
        return ratio

    return score


def closeness(mean: Tensor, candidates: Tensor, size: int, std: float) -> Tensor:  # noqa: ARG001
    """Minus the Euclidean distance."""
    distance: Tensor = torch.linalg.vector_norm(candidates - mean, dim=1)
    return -distance


@dataclass(frozen=True)
class Candidates:
    """Scores of samples behind the means, of training samples that are not, of held-out samples."""

    members: Scores
    left_out: Scores
    held_out: Scores


def meet(
    score: Score, geometry: Geometry, sent: SentMeans, scene: Scene, rng: torch.Generator
) -> Candidates:
    """Judge for each mean those behind it, and at most as many of the same class that are not."""
    samples, held_out = scene.victim, scene.held_out
    places = geometry.coordinates(samples.guesses, samples.labels)
    others = geometry.coordinates(held_out.guesses, held_out.labels)
    means = geometry.coordinates(sent.vectors, sent.labels)
    met: list[list[Tensor]] = [[], [], []]
    said: list[list[Tensor]] = [[], [], []]
    for mean, rows, label, std in zip(
        means, sent.rows, sent.labels.tolist(), sent.std.tolist(), strict=True
    ):
        left = samples.labels == label
        left[rows] = False
        candidates = (
            (places, rows),
            (places, _some(left, len(rows), rng)),
            (others, _some(held_out.labels == label, len(rows), rng)),
        )
        for group, (of, some) in enumerate(candidates):
            met[group].append(some)
            said[group].append(score(mean, of[some], len(rows), std))
    return Candidates(*(Scores(torch.cat(s), torch.cat(m)) for s, m in zip(said, met, strict=True)))


def _some(which: Tensor, most: int, rng: torch.Generator) -> Tensor:
    rows = which.nonzero().flatten()
    return rows[torch.randperm(len(rows), generator=rng)[:most]]


@dataclass(frozen=True)
class Membership:
    """An attacker that has learned from its own data, and can rehearse with them."""

    geometry: Geometry
    rehearsing: Geometry
    rehearsal: Scene

    @classmethod
    def of(cls, scene: Scene, rng: torch.Generator) -> "Membership":
        """Learn."""
        small = scene.rehearsal(rng)
        return cls(Geometry.of(scene.attacker), Geometry.of(small.attacker), small)

    def test(self, size: int, level: Level, rng: torch.Generator) -> Score:
        """The test that best tells members from others in a rehearsal."""
        played = self.rehearsal.victim
        size = max(1, min(size, smallest_class(played) // 2))
        tried = send(played, size, level, REHEARSALS, rng)
        quality = []
        for ridge in RIDGES:
            test = likelihood_ratio(self.rehearsing, ridge)
            same = rng.clone_state()  # so that only the ridge differs
            said = meet(test, self.rehearsing, tried, self.rehearsal, same)
            quality.append(auc(said.members, said.left_out).value)
        return likelihood_ratio(self.geometry, RIDGES[quality.index(max(quality))])
