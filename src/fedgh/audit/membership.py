"""Membership inference on class means: decide whether a sample is behind a class mean.

The samples behind a mean, its members, are those over which it was computed.

The likelihood-ratio test compares how well a candidate's vector d explains the mean r of n samples
if it is one of them, and if it is not. Vectors have covariance C around their class mean, and the
noise has variance σ². All vectors are measured from the class mean that the attacker knows. Then r
is distributed around d/n with covariance (n-1)/n²·C + σ²·I if the candidate is a member, and around
0 with C/n + σ²·I if it is not. For Gaussian vectors no test separates the two cases better.

The plain distance between candidate and mean is computed for comparison. It detects almost nothing
where the likelihood ratio still detects a lot, because the few directions in which vectors vary
most dominate the distance.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgh.audit.noise import Level
from fedgh.audit.roc import Scores, auc
from fedgh.audit.scene import Geometry, Scene, SentMeans, send_means, smallest_class

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Values added to the variances, in units of the mean variance; a rehearsal chooses the best."""

FLOOR = 1e-6
"""Variance, in the same units, that remains when a mean is the vector of a single sample."""

REHEARSALS = 20

Score = Callable[[Tensor, Tensor, int, float], Tensor]
"""Function of a mean [width], candidates [m, width], n and the standard deviation of the noise.

It returns a score for each candidate, higher for likely members.
"""


def likelihood_ratio(geometry: Geometry, ridge: float) -> Score:
    """Return the score that is the logarithm of the likelihood ratio, up to a constant."""
    variances = geometry.variances + ridge * geometry.scale
    floor = FLOOR * geometry.scale

    def score(mean: Tensor, candidates: Tensor, size: int, std: float) -> Tensor:
        with_candidate = (size - 1) / size**2 * variances + std**2 + floor
        without_candidate = variances / size + std**2 + floor
        as_member = ((mean - candidates / size) ** 2 / with_candidate).sum(1)
        as_other = (mean**2 / without_candidate).sum()
        ratio: Tensor = (as_other - as_member) / 2
        return ratio

    return score


def negative_distance(
    mean: Tensor,
    candidates: Tensor,
    size: int,  # noqa: ARG001
    std: float,  # noqa: ARG001
) -> Tensor:
    """Return the score that is minus the Euclidean distance."""
    distance: Tensor = torch.linalg.vector_norm(candidates - mean, dim=1)
    return -distance


@dataclass(frozen=True)
class CandidateScores:
    """Scores of members, of training samples that are not behind the mean, and of held-out ones."""

    members: Scores
    left_out: Scores
    held_out: Scores


def score_candidates(
    score: Score, geometry: Geometry, sent: SentMeans, scene: Scene, rng: torch.Generator
) -> CandidateScores:
    """Score, for each mean, its members and at most as many samples of each other group.

    All candidates for a mean have its class.
    """
    train, held_out = scene.target, scene.held_out
    train_vectors = geometry.coordinates(train.estimates, train.labels)
    held_out_vectors = geometry.coordinates(held_out.estimates, held_out.labels)
    means = geometry.coordinates(sent.vectors, sent.labels)
    candidates: list[list[Tensor]] = [[], [], []]
    scores: list[list[Tensor]] = [[], [], []]
    for mean, rows, label, std in zip(
        means, sent.rows, sent.labels.tolist(), sent.std.tolist(), strict=True
    ):
        left_out = train.labels == label
        left_out[rows] = False
        groups = (
            (train_vectors, rows),
            (train_vectors, _random_rows(left_out, len(rows), rng)),
            (held_out_vectors, _random_rows(held_out.labels == label, len(rows), rng)),
        )
        for group, (vectors, chosen) in enumerate(groups):
            candidates[group].append(chosen)
            scores[group].append(score(mean, vectors[chosen], len(rows), std))
    return CandidateScores(
        *(Scores(torch.cat(s), torch.cat(c)) for s, c in zip(scores, candidates, strict=True))
    )


def _random_rows(mask: Tensor, max_rows: int, rng: torch.Generator) -> Tensor:
    rows = mask.nonzero().flatten()
    return rows[torch.randperm(len(rows), generator=rng)[:max_rows]]


@dataclass(frozen=True)
class MembershipAttack:
    """An attacker that has measured its own data, and can rehearse with them."""

    geometry: Geometry
    rehearsal_geometry: Geometry
    rehearsal: Scene

    @classmethod
    def of(cls, scene: Scene, rng: torch.Generator) -> "MembershipAttack":
        """Measure the attacker's data, all of them and those of a rehearsal."""
        rehearsal = scene.rehearsal(rng)
        return cls(Geometry.of(scene.attacker), Geometry.of(rehearsal.attacker), rehearsal)

    def best_score(self, size: int, level: Level, rng: torch.Generator) -> Score:
        """Return the likelihood ratio with the ridge that has the highest AUC in a rehearsal."""
        samples = self.rehearsal.target
        size = max(1, min(size, smallest_class(samples) // 2))
        sent = send_means(samples, size, level, REHEARSALS, rng)
        areas = []
        for ridge in RIDGES:
            score = likelihood_ratio(self.rehearsal_geometry, ridge)
            same_rng = rng.clone_state()  # so that only the ridge differs
            scores = score_candidates(
                score, self.rehearsal_geometry, sent, self.rehearsal, same_rng
            )
            areas.append(auc(scores.members, scores.left_out).value)
        return likelihood_ratio(self.geometry, RIDGES[areas.index(max(areas))])
