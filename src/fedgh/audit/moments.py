"""Attacks on the second moment that a client of FedGH+ sends: which samples are behind it?"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgh.audit.cases import AttackCase, Effort, ShowProgress, membership_result
from fedgh.audit.result import Audit, MembershipResult
from fedgh.audit.roc import Scores
from fedgh.audit.second_moment import Attacker, SentMoment, Vectors, leverage, send_moments
from fedgh.audit.subject import (
    MIN_SAMPLES,
    TargetClient,
    auxiliary_samples,
    samples_of_target,
    vectors,
)
from fedgh.core.rng import stream
from fedgh.core.types import Examples
from fedgh.errors import RunError


def attack(target: TargetClient, seed: int, effort: Effort, show_progress: ShowProgress) -> Audit:
    """Attack one upload of the target client: of all its samples, and of fewer."""
    attacks = MomentAttacks.on(target, seed, effort, show_progress)
    return Audit(
        **target.about(target.client.data.train.labels.unique().tolist(), seed),
        attacked="moments",
        auxiliary=len(attacks.attacker.own),
        networks=0,
        width=attacks.width,
        clip=target.method.up.max_norm,
        reconstructed=[],
        told=list(attacks.memberships()),
        pictures={},
    )


@dataclass(frozen=True)
class MomentAttacks:
    """An attacker that has the feature map and samples of other clients."""

    target: TargetClient
    seed: int
    effort: Effort
    show_progress: ShowProgress
    members: Vectors  # of the target client's training samples
    attacker: Attacker
    others: dict[str, Vectors]  # of samples that are not behind the upload

    @classmethod
    def on(
        cls, target: TargetClient, seed: int, effort: Effort, show_progress: ShowProgress
    ) -> "MomentAttacks":
        """Compute the vectors of all samples. Raise RunError if other clients have too few."""
        labels = target.client.data.train.labels.unique().tolist()
        train, held_out = samples_of_target(target, labels)
        auxiliary = auxiliary_samples(target, labels, seed)
        if len(auxiliary) < 2 * MIN_SAMPLES:
            raise RunError(
                f"other clients have fewer than {2 * MIN_SAMPLES} samples of the classes of client "
                f"{target.client.id}, too few for the attacker to compare with; choose another "
                "--client"
            )

        def vectors_of(samples: Examples) -> Vectors:
            return Vectors(vectors(target.method, target.client, samples), samples.labels)

        show_progress("computing feature vectors")
        of_others = vectors_of(auxiliary)
        rng = stream(seed, "audit-own", target.client.id)
        order = torch.randperm(len(of_others), generator=rng)
        others = {
            "held out": vectors_of(held_out),
            "other clients": of_others.choose(order[1::2]),
        }
        attacker = Attacker(of_others.choose(order[::2]))
        return cls(target, seed, effort, show_progress, vectors_of(train), attacker, others)

    @property
    def width(self) -> int:
        """Numbers in a feature vector."""
        return self.members.values.shape[1]

    def memberships(self) -> Iterator[MembershipResult]:
        """Separate samples behind the upload from others in every case."""
        sizes = [round(share * self.width) for share in self.effort.widths]
        fewer = [size for size in sizes if 0 < size < len(self.members)]
        for level in dict.fromkeys([*self.effort.levels, self.target.level]):
            for size in [*fewer, None]:
                yield from self._case(AttackCase(size=size, level=level))

    def _case(self, case: AttackCase) -> Iterator[MembershipResult]:
        self.show_progress(f"testing membership in the second moment of {case}")
        rng = stream(self.seed, "audit-send", self.target.client.id, case.size or 0)
        times = 1 if case.size is None else -(-self.effort.candidates // case.size)
        parts: dict[tuple[str, str], list[Scores]] = defaultdict(list)
        for _ in range(times):
            rows = torch.randperm(len(self.members), generator=rng)[: case.size]
            behind = self.members.choose(rows)
            sent = send_moments(behind, self.target.client.task.num_classes, case.level, rng)
            for name, values in self._scores(sent, behind).items():
                parts[name, "members"].append(Scores(values, rows))
            for against, candidates in self.others.items():
                chosen = torch.randperm(len(candidates), generator=rng)[: len(rows)]
                for name, values in self._scores(sent, candidates.choose(chosen)).items():
                    parts[name, against].append(Scores(values, chosen))
        all_scores = {key: _concatenated(scores) for key, scores in parts.items()}
        size = torch.tensor([case.size or len(self.members)])
        for (name, against), scores in all_scores.items():
            if against != "members" and len(scores):
                row = {**case.row(size), "attack": name}
                yield membership_result(row, against, all_scores[name, "members"], scores)

    def _scores(self, sent: SentMoment, candidates: Vectors) -> dict[str, Tensor]:
        scores = {"likelihood ratio": self.attacker.likelihood_ratio(sent, candidates)}
        if not sent.std:
            scores["leverage"] = -leverage(sent.second, candidates.rounded)
        return scores


def _concatenated(parts: list[Scores]) -> Scores:
    values, samples = ([part.values for part in parts], [part.samples for part in parts])
    return Scores(torch.cat(values), torch.cat(samples))
