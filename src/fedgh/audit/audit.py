"""The whole audit: both attackers, all sizes of what is sent, all levels of noise."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from fedgh.audit import moments
from fedgh.audit.cases import AttackCase, Effort, Made, Say, told
from fedgh.audit.membership import Membership, Score, closeness, meet
from fedgh.audit.noise import OPEN, Level
from fedgh.audit.pictures import pictures
from fedgh.audit.reconstruct import Reconstruction, behind, likeness
from fedgh.audit.result import Audit, Extractor, Reconstructed, Told
from fedgh.audit.roc import Scores
from fedgh.audit.scene import Scene, SentMeans, send, smallest_class
from fedgh.audit.subject import Subject, Victim, choose, find
from fedgh.core.rng import stream
from fedgh.core.threads import one_thread
from fedgh.extras import need
from fedgh.runs.folder import RunFolder
from fedgh.trust import Trust


def audit(
    folder: RunFolder,
    client: int | None,
    seed: int,
    say: Say,
    effort: Effort | None = None,
    *,
    trust: Trust,
) -> Audit:
    """Attack a client of a run; FedghError says why not."""
    start = time.perf_counter()
    need("privacy", "an audit")
    say("loading the run")
    with one_thread():
        victim = choose(folder, client, trust=trust)
        attack = moments.attack if victim.method.shares == "moments" else _attack_means
        found = attack(victim, seed, effort or Effort(), say)
    return found.model_copy(update={"seconds": time.perf_counter() - start})


def _attack_means(victim: Victim, seed: int, effort: Effort, say: Say) -> Audit:
    """Attack class means."""
    subject = find(victim, seed)
    attacks = _MeanAttacks(subject, seed, effort, say)
    reconstructed, members = list(attacks.reconstructions()), list(attacks.memberships())
    known, unknown = subject.known, subject.unknown
    about = victim.about(subject.labels, seed)
    return Audit(
        **about,
        auxiliary=len(known.attacker.labels),
        networks=0 if unknown is None else len(unknown.attacker.vectors),
        width=known.victim.vectors.shape[1],
        clip=attacks.clip,
        reconstructed=reconstructed,
        told=members,
        pictures=pictures(attacks.made, about["classes"]),
    )


@dataclass
class _MeanAttacks:
    subject: Subject
    seed: int
    effort: Effort
    say: Say
    made: dict[AttackCase, Made] = field(default_factory=dict)

    @property
    def clip(self) -> float:
        """The run's, else the median length of the vectors of samples that are not the victim's."""
        victim = self.subject.victim
        privacy = victim.left.experiment.privacy
        if privacy is not None:
            return privacy.with_max_norm(victim.method.up.max_norm).clip
        return float(self.subject.known.attacker.vectors[0].norm(dim=1).median())

    def reconstructions(self) -> Iterator[Reconstructed]:
        """Images from class means."""
        if self.subject.known.victim.images is None:
            return
        for scene, cases in self._scenes():
            attack = Reconstruction.of(scene, self._stream("learn"))
            for case in cases:
                self.say(f"images from means of {case}")
                sent = self._send(scene, case, self.effort.targets)
                images = attack.attack(sent, case.level, self._stream("rehearse", case))
                made = Made(sent.labels, behind(sent, scene.victim), images, attack.without(sent))
                self.made[case] = made
                near = likeness(made.images, made.truth, sent, scene.victim)
                without = likeness(made.without, made.truth, sent, scene.victim)
                gain = near.psnr - without.psnr
                yield Reconstructed(
                    **case.row(sent.sizes),
                    targets=len(gain),
                    psnr=float(near.psnr.mean()),
                    psnr_without=float(without.psnr.mean()),
                    gain=float(gain.mean()),
                    gain_error=float(gain.std() / len(gain) ** 0.5) if len(gain) > 1 else 0.0,
                    ssim=float(near.ssim.mean()),
                    ssim_without=float(without.ssim.mean()),
                    nearest=float(near.nearest.mean()),
                    nearest_without=float(without.nearest.mean()),
                )

    def memberships(self) -> Iterator[Told]:
        """Members told from others."""
        yield self._by_loss()
        for scene, cases in self._scenes():
            attack = Membership.of(scene, self._stream("learn"))
            for case in cases:
                self.say(f"members of means of {case}")
                sent = self._send(scene, case, -(-self.effort.candidates // (case.size or 1)))
                least, rng = int(sent.sizes.min()), self._stream("rehearse", case)
                tests: dict[str, Score] = {"likelihood ratio": attack.test(least, case.level, rng)}
                if case.level.open and case.extractor == "known":
                    tests["distance"] = closeness
                for name, test in tests.items():
                    met = meet(test, attack.geometry, sent, scene, self._stream("meet", case))
                    row = {**case.row(sent.sizes), "attack": name}
                    if len(met.left_out):
                        yield told(row, "left out", met.members, met.left_out)
                    yield told(row, "held out", met.members, met.held_out)

    def _by_loss(self) -> Told:
        """The attack without a class mean: a model is surer of what it was trained on."""
        row = {
            **AttackCase().row(self._send(self.subject.known, AttackCase(), 1).sizes),
            "attack": "loss",
        }
        losses = (self.subject.loss_members, self.subject.loss_held_out)
        members, others = (Scores(-loss, torch.arange(len(loss))) for loss in losses)
        return told(row, "held out", members, others)

    def _scenes(self) -> Iterator[tuple[Scene, list[AttackCase]]]:
        """Each attacker with what it is tried on; noise only against the stronger one."""
        known, unknown = self.subject.known, self.subject.unknown
        most = smallest_class(known.victim)
        sizes = [*(size for size in self.effort.sizes if size < most), None]

        def cases(extractor: Extractor, levels: Sequence[Level]) -> list[AttackCase]:
            return [AttackCase(extractor, size, level) for level in levels for size in sizes]

        yield known, cases("known", [OPEN])
        if unknown is not None:
            yield unknown, cases("unknown", [OPEN])
        levels = dict.fromkeys([*self.effort.levels, self.subject.victim.level])
        noisy = [level for level in levels if not level.open]
        yield known.clipped(self.clip), cases("known", noisy)

    def _send(self, scene: Scene, case: AttackCase, count: int) -> SentMeans:
        """The same choice of samples for every attacker and every level."""
        return send(scene.victim, case.size, case.level, count, self._stream("send", case))

    def _stream(self, name: str, case: AttackCase | None = None) -> torch.Generator:
        size = 0 if case is None or case.size is None else case.size
        return stream(self.seed, f"audit-{name}", self.subject.victim.client.id, size)
