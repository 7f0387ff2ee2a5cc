"""The complete audit: both attackers, all numbers of samples behind an upload, all noise levels."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from fedgh.audit import moments
from fedgh.audit.cases import (
    AttackCase,
    Effort,
    ReconstructedImages,
    ShowProgress,
    membership_result,
)
from fedgh.audit.membership import MembershipAttack, Score, negative_distance, score_candidates
from fedgh.audit.noise import NO_NOISE, Level
from fedgh.audit.pictures import pictures
from fedgh.audit.reconstruct import ReconstructionAttack, mean_images, similarity
from fedgh.audit.result import Audit, Extractor, MembershipResult, ReconstructionResult
from fedgh.audit.roc import Scores
from fedgh.audit.scene import Scene, SentMeans, send_means, smallest_class
from fedgh.audit.subject import Subject, TargetClient, choose_target, prepare
from fedgh.core.rng import stream
from fedgh.core.threads import one_thread
from fedgh.extras import need
from fedgh.runs.folder import RunFolder
from fedgh.trust import Trust


def audit(
    folder: RunFolder,
    client: int | None,
    seed: int,
    show_progress: ShowProgress,
    effort: Effort | None = None,
    *,
    trust: Trust,
) -> Audit:
    """Attack the uploads of a client of a run, and return what the attacks achieved.

    Raise FedghError if the run or the client cannot be attacked.
    """
    start = time.perf_counter()
    need("privacy", "an audit")
    show_progress("loading the run")
    with one_thread():
        target = choose_target(folder, client, trust=trust)
        attack = moments.attack if target.method.shares == "moments" else _attack_means
        result = attack(target, seed, effort or Effort(), show_progress)
    return result.model_copy(update={"seconds": time.perf_counter() - start})


def _attack_means(
    target: TargetClient, seed: int, effort: Effort, show_progress: ShowProgress
) -> Audit:
    """Attack the class means of the target client."""
    subject = prepare(target, seed)
    attacks = _MeanAttacks(subject, seed, effort, show_progress)
    reconstructed, members = list(attacks.reconstructions()), list(attacks.memberships())
    known, unknown = subject.known, subject.unknown
    about = target.about(subject.labels, seed)
    return Audit(
        **about,
        auxiliary=len(known.attacker.labels),
        networks=0 if unknown is None else len(unknown.attacker.vectors),
        width=known.target.vectors.shape[1],
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
    show_progress: ShowProgress
    made: dict[AttackCase, ReconstructedImages] = field(default_factory=dict)

    @property
    def clip(self) -> float:
        """The clipping length of the run, else the median length of the attacker's own vectors."""
        target = self.subject.target
        privacy = target.checkpoint.experiment.privacy
        if privacy is not None:
            return privacy.with_max_norm(target.method.up.max_norm).clip
        return float(self.subject.known.attacker.vectors[0].norm(dim=1).median())

    def reconstructions(self) -> Iterator[ReconstructionResult]:
        """Reconstruct images from class means in every case."""
        if self.subject.known.target.images is None:
            return
        for scene, cases in self._scenes():
            attack = ReconstructionAttack.of(scene, self._stream("learn"))
            for case in cases:
                self.show_progress(f"reconstructing images from class means of {case}")
                sent = self._send(scene, case, self.effort.reconstructions)
                images = attack.attack(sent, case.level, self._stream("rehearse", case))
                truth = mean_images(sent, scene.target)
                baseline = attack.baseline(sent)
                self.made[case] = ReconstructedImages(sent.labels, truth, images, baseline)
                quality = similarity(images, truth, sent, scene.target)
                without = similarity(baseline, truth, sent, scene.target)
                gain = quality.psnr - without.psnr
                yield ReconstructionResult(
                    **case.row(sent.sizes),
                    targets=len(gain),
                    psnr=float(quality.psnr.mean()),
                    psnr_without=float(without.psnr.mean()),
                    gain=float(gain.mean()),
                    gain_error=float(gain.std() / len(gain) ** 0.5) if len(gain) > 1 else 0.0,
                    ssim=float(quality.ssim.mean()),
                    ssim_without=float(without.ssim.mean()),
                    nearest=float(quality.nearest.mean()),
                    nearest_without=float(without.nearest.mean()),
                )

    def memberships(self) -> Iterator[MembershipResult]:
        """Separate members from other samples in every case."""
        yield self._by_loss()
        for scene, cases in self._scenes():
            attack = MembershipAttack.of(scene, self._stream("learn"))
            for case in cases:
                self.show_progress(f"testing membership in class means of {case}")
                sent = self._send(scene, case, -(-self.effort.candidates // (case.size or 1)))
                min_size, rng = int(sent.sizes.min()), self._stream("rehearse", case)
                attacks: dict[str, Score] = {
                    "likelihood ratio": attack.best_score(min_size, case.level, rng)
                }
                if case.level.noiseless and case.extractor == "known":
                    attacks["distance"] = negative_distance
                for name, score in attacks.items():
                    rng = self._stream("meet", case)
                    scores = score_candidates(score, attack.geometry, sent, scene, rng)
                    row = {**case.row(sent.sizes), "attack": name}
                    if len(scores.left_out):
                        yield membership_result(row, "left out", scores.members, scores.left_out)
                    yield membership_result(row, "held out", scores.members, scores.held_out)

    def _by_loss(self) -> MembershipResult:
        """Attack without class means: a model's loss is lower on samples it was trained on."""
        row = {
            **AttackCase().row(self._send(self.subject.known, AttackCase(), 1).sizes),
            "attack": "loss",
        }
        losses = (self.subject.loss_members, self.subject.loss_held_out)
        members, others = (Scores(-loss, torch.arange(len(loss))) for loss in losses)
        return membership_result(row, "held out", members, others)

    def _scenes(self) -> Iterator[tuple[Scene, list[AttackCase]]]:
        """Yield each attacker with its cases; only the attacker with the extractor meets noise."""
        known, unknown = self.subject.known, self.subject.unknown
        max_size = smallest_class(known.target)
        sizes = [*(size for size in self.effort.sizes if size < max_size), None]

        def cases(extractor: Extractor, levels: Sequence[Level]) -> list[AttackCase]:
            return [AttackCase(extractor, size, level) for level in levels for size in sizes]

        yield known, cases("known", [NO_NOISE])
        if unknown is not None:
            yield unknown, cases("unknown", [NO_NOISE])
        levels = dict.fromkeys([*self.effort.levels, self.subject.target.level])
        noisy = [level for level in levels if not level.noiseless]
        yield known.clipped(self.clip), cases("known", noisy)

    def _send(self, scene: Scene, case: AttackCase, count: int) -> SentMeans:
        """Send class means of the same random samples to every attacker, with every noise level."""
        return send_means(scene.target, case.size, case.level, count, self._stream("send", case))

    def _stream(self, name: str, case: AttackCase | None = None) -> torch.Generator:
        size = 0 if case is None or case.size is None else case.size
        return stream(self.seed, f"audit-{name}", self.subject.target.client.id, size)
