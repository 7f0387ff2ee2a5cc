"""Attacks on the second moment that a client of FedGH+ sends: who is behind it?"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgh.audit.cases import AttackCase, Effort, Say, told
from fedgh.audit.result import Audit, Told
from fedgh.audit.roc import Scores
from fedgh.audit.second_moment import Attacker, SentMoment, Vectors, leverage, send
from fedgh.audit.subject import LEAST, Victim, others_samples, own_samples, vectors
from fedgh.core.rng import stream
from fedgh.core.types import Examples
from fedgh.errors import RunError


def attack(victim: Victim, seed: int, effort: Effort, say: Say) -> Audit:
    """Attack one upload of a victim, over all its samples and over fewer."""
    attacks = MomentAttacks.on(victim, seed, effort, say)
    return Audit(
        **victim.about(victim.client.data.train.labels.unique().tolist(), seed),
        attacked="moments",
        auxiliary=len(attacks.attacker.own),
        networks=0,
        width=attacks.width,
        clip=victim.method.up.max_norm,
        reconstructed=[],
        told=list(attacks.memberships()),
        pictures={},
    )


@dataclass(frozen=True)
class MomentAttacks:
    """An attacker that knows the feature map, and samples of other clients."""

    victim: Victim
    seed: int
    effort: Effort
    say: Say
    members: Vectors  # of the victim's training samples
    attacker: Attacker
    others: dict[str, Vectors]  # of samples that are not behind the upload

    @classmethod
    def on(cls, victim: Victim, seed: int, effort: Effort, say: Say) -> "MomentAttacks":
        """Compute the vectors of all samples; RunError when other clients have too few."""
        labels = victim.client.data.train.labels.unique().tolist()
        train, held_out = own_samples(victim, labels)
        theirs = others_samples(victim, labels, seed)
        if len(theirs) < 2 * LEAST:
            raise RunError(
                f"other clients have fewer than {2 * LEAST} samples of the classes of client "
                f"{victim.client.id}: the attacker would have nothing to compare with; choose "
                "another --client"
            )

        def seen(samples: Examples) -> Vectors:
            return Vectors(vectors(victim.method, victim.client, samples), samples.labels)

        say("computing feature vectors")
        foreign = seen(theirs)
        order = torch.randperm(len(foreign), generator=stream(seed, "audit-own", victim.client.id))
        others = {"held out": seen(held_out), "other clients": foreign.choose(order[1::2])}
        attacker = Attacker(foreign.choose(order[::2]))
        return cls(victim, seed, effort, say, seen(train), attacker, others)

    @property
    def width(self) -> int:
        """Numbers in a feature vector."""
        return self.members.values.shape[1]

    def memberships(self) -> Iterator[Told]:
        """Samples behind the upload told from others."""
        sizes = [round(share * self.width) for share in self.effort.widths]
        fewer = [size for size in sizes if 0 < size < len(self.members)]
        for level in dict.fromkeys([*self.effort.levels, self.victim.level]):
            for size in [*fewer, None]:
                yield from self._case(AttackCase(size=size, level=level))

    def _case(self, case: AttackCase) -> Iterator[Told]:
        self.say(f"members of the second moment of {case}")
        rng = stream(self.seed, "audit-send", self.victim.client.id, case.size or 0)
        times = 1 if case.size is None else -(-self.effort.candidates // case.size)
        met: dict[tuple[str, str], list[Scores]] = defaultdict(list)
        for _ in range(times):
            rows = torch.randperm(len(self.members), generator=rng)[: case.size]
            behind = self.members.choose(rows)
            sent = send(behind, self.victim.client.task.num_classes, case.level, rng)
            for name, values in self._scores(sent, behind).items():
                met[name, "members"].append(Scores(values, rows))
            for against, candidates in self.others.items():
                some = torch.randperm(len(candidates), generator=rng)[: len(rows)]
                for name, values in self._scores(sent, candidates.choose(some)).items():
                    met[name, against].append(Scores(values, some))
        all_met = {key: _together(parts) for key, parts in met.items()}
        size = torch.tensor([case.size or len(self.members)])
        for (name, against), scores in all_met.items():
            if against != "members" and len(scores):
                row = {**case.row(size), "attack": name}
                yield told(row, against, all_met[name, "members"], scores)

    def _scores(self, sent: SentMoment, candidates: Vectors) -> dict[str, Tensor]:
        found = {"likelihood ratio": self.attacker.likelihood_ratio(sent, candidates)}
        plain = {} if sent.std else {"leverage": -leverage(sent.second, candidates.rounded)}
        return found | plain


def _together(parts: list[Scores]) -> Scores:
    values, samples = ([part.values for part in parts], [part.samples for part in parts])
    return Scores(torch.cat(values), torch.cat(samples))
