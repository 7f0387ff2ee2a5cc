"""Runs with secure aggregation: the bits of sums without masks, drop-outs, refusals."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedgh.core import wire
from fedgh.core.server import Engine
from fedgh.core.types import Job, Payload, Reply, part
from fedgh.engines.masked import InProcess, Masked
from fedgh.errors import ConfigError, MethodError, RunError
from fedgh.methods import METHODS
from fedgh.runs.folder import RunFolder
from fedgh.secure.terms import Terms
from fedgh.training import loop
from fedgh.training.experiment import Experiment
from fedgh.training.run import Run
from tests.support.runs import interrupted
from tests.support.states import states
from tests.support.tiny import numbers, quick, tiny_shared
from tests.support.unmasked import Losing, Lost, Unmasked, unmasked_engine

SECURE = ["secure.enabled=true", "model.extractors=tests.support.tiny:noisy"]
SETTINGS = {
    "fedgh_plus": ["method.features=relu", "method.feature_dim=16"],
    "fedrep": ["method.header_epochs=1"],
    "fedbabu": ["method.tune_epochs=1"],
}
SUMMABLE = sorted(name for name, method in METHODS.items() if method.sums_suffice)


def secure(method: str, *more: str) -> Experiment:
    settings = [*tiny_shared(method), *SETTINGS.get(method, [])]
    return quick(*SECURE, f"method.name={method}", *settings, *more)


def test_the_guide_lists_the_methods_that_need_only_sums() -> None:
    guide = Path(__file__).parents[2] / "docs/guides/secure-aggregation.md"
    listed = guide.read_text().partition("Twelve methods")[2].partition(".")[0]
    assert sorted(re.findall(r"`(\w+)`", listed)) == SUMMABLE


@pytest.mark.parametrize("method", ["fedavg", "fedgh_plus", "fedproto"])
def test_masks_do_not_change_a_bit(method: str, tmp_path: Path) -> None:
    experiment = secure(method, "federation.rounds=2")
    masked = loop.run(experiment, tmp_path / "masked")
    oracle = loop.run(experiment, tmp_path / "oracle", make_engine=unmasked_engine)
    summary = masked.summary()
    assert summary is not None
    assert summary.paper_bytes_per_client_round is None
    assert not masked.records()[0].failed
    assert numbers(masked) == numbers(oracle)
    assert states(masked) == states(oracle)
    classes = masked.committed()[1].get("classes", torch.zeros(0))
    assert not classes.any(), "a sum does not tell whose classes it has"


def test_clients_with_different_downloads_are_not_added_up(tmp_path: Path) -> None:
    """The download of the others could make their uploads known."""

    def make(of: Experiment, folder: RunFolder, round: int, state: Payload) -> Engine:
        engine = loop.local_engine(of, folder, round, state)
        jobs = [Job(k, 1, b"other" if k == 4 else b"", evaluate=False) for k in range(5)]
        replies = list(engine.run(jobs))
        assert [reply.client_id for reply in replies] == [0, 1, 2, 3, 4]
        why = "secure aggregation: the participants have different downloads"
        assert {(reply.up, reply.error) for reply in replies} == {(None, why)}
        return engine

    loop.run(secure("fedavg", "federation.rounds=1"), tmp_path / "run", make_engine=make)


@pytest.mark.parametrize("method", SUMMABLE)
def test_the_first_round_is_that_of_a_run_without_secure_aggregation(
    method: str, tmp_path: Path
) -> None:
    """Up to rounding; sums of FedGH+ are exact, so all bits of its header are equal."""
    ours, plain = (
        part(
            loop.run(
                secure(method, "federation.rounds=1", f"secure.enabled={on}"), tmp_path / on
            ).committed()[1],
            "server.",
        )
        for on in ("true", "false")
    )
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if method != "fedgh_plus" else {"rtol": 0, "atol": 0}
    assert ours.keys() <= plain.keys()
    for name, tensor in ours.items():
        assert_close(tensor, plain[name], **tolerance)


def test_fedgh_plus_adds_up_class_means_too(tmp_path: Path) -> None:
    experiment = secure("fedgh_plus", "federation.rounds=1", "method.covariance=own")
    state = loop.run(experiment, tmp_path / "run").committed()[1]
    assert part(state, "server.header.").keys() == {"classes", "means"}


def with_lost(lost: Lost, experiment: Experiment, engine: Engine) -> Masked:
    """Return an engine of clients that mask their uploads and drop out."""

    def make_terms(round: int, asked: tuple[int, ...], download: str) -> Terms:
        return Terms("e", 0, round, "", download, asked, experiment.config.secure.min_clients)

    clients = InProcess(engine, make_terms)
    return Masked(Losing(clients, lost), make_terms, clients.verify)


class Absent(Unmasked):
    """The oracle of drop-outs: some clients do not train, others train without an upload."""

    def __init__(self, engine: Engine, lost: Lost) -> None:
        super().__init__(engine)
        self.lost = lost

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        idle = {
            (round, client) for phase, round, client in self.lost if phase in ("keys", "shares")
        }
        silent = {(round, client) for phase, round, client in self.lost if phase == "upload"}
        present = [job for job in jobs if (job.round, job.client_id) not in idle]
        for job in jobs:
            if job not in present:
                yield Reply(job.client_id, job.round, error="lost")
        for reply in self.engine.run(present):
            at = (reply.round, reply.client_id)
            yield Reply(reply.client_id, reply.round, error="lost") if at in silent else reply


def run_with(lost: Lost, experiment: Experiment, out: Path, *, masks: bool = True) -> Run:
    def make(of: Experiment, folder: RunFolder, round: int, state: Payload) -> Engine:
        engine = loop.plain_engine(of, folder, round, state)
        return with_lost(lost, of, engine) if masks else Absent(engine, lost)

    return loop.run(experiment, out, make_engine=make)


def without_reasons(run: Run) -> list[dict[str, object]]:
    """Return the records with the numbers of failed clients, but not the reasons."""
    return [
        {**line, "failed": [problem["client"] for problem in line["failed"]]}
        for line in numbers(run)
    ]


DROPPED: Lost = [
    *(("keys", 1, 0), ("shares", 1, 3), ("upload", 1, 5)),
    *(("consistency", 2, 1), ("unmask", 2, 2), ("upload", 2, 4)),
    *(("upload", 3, 6), ("upload", 3, 7), ("unmask", 3, 0)),
]


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_the_sum_of_a_round_with_drop_outs_is_that_of_the_clients_that_sent(
    method: str, tmp_path: Path
) -> None:
    experiment = secure(method, "federation.clients=10", "data.samples=20")
    masked = run_with(DROPPED, experiment, tmp_path / "masked")
    oracle = run_with(DROPPED, experiment, tmp_path / "oracle", masks=False)
    assert [record.discarded for record in masked.records()] == [None] * 3
    assert without_reasons(masked) == without_reasons(oracle)
    assert states(masked) == states(oracle)


@pytest.mark.parametrize(
    ("phase", "why"),
    [
        ("keys", "3 of 5 clients sent keys; 4 are needed"),
        ("shares", "3 of 5 clients sent shares; 4 are needed"),
        ("upload", "3 of 5 clients sent an upload; 4 are needed"),
        ("consistency", "3 of 5 clients signed the list of senders; 4 are needed"),
        ("unmask", "3 of 5 clients sent shares to unmask the sum; 4 are needed"),
    ],
)
def test_a_round_with_too_few_clients_changes_nothing(phase: str, why: str, tmp_path: Path) -> None:
    lost = {(phase, 2, client) for client in (0, 1)}
    experiment = secure("fedavg")
    if phase in ("keys", "shares"):
        with pytest.raises(RunError, match=f"all 5 participants failed; client 0: .*: {why}; this"):
            run_with(lost, experiment, tmp_path / "run")  # type: ignore[arg-type]
        return
    run = run_with(lost, experiment, tmp_path / "run")  # type: ignore[arg-type]
    _, second, third = run.records()
    assert why in (second.discarded or "")
    assert third.discarded is None


def test_three_rounds_without_a_sum_end_the_run(tmp_path: Path) -> None:
    lost = [("unmask", round, client) for round in (1, 2, 3) for client in (0, 1)]
    with pytest.raises(RunError, match="for the 3rd time in a row; check that enough clients"):
        run_with(lost, secure("fedavg"), tmp_path / "run")  # type: ignore[arg-type]


def test_workers_and_a_resumed_run_give_the_same_bits(tmp_path: Path) -> None:
    serial = loop.run(secure("lg_fedavg"), tmp_path / "serial")
    more = ["run.engine=workers", "run.workers=2"]
    workers = loop.run(secure("lg_fedavg", *more), tmp_path / "workers")
    assert numbers(serial) == numbers(workers)
    assert part(serial.committed()[1], "server.").keys() == {"weight", "bias"}
    interrupted(secure("lg_fedavg"), tmp_path / "stopped", 1)
    resumed = loop.resume(tmp_path / "stopped")
    assert states(resumed) == states(serial)


class Watching(Unmasked):
    """An engine that keeps the uploads as the server receives them."""

    def __init__(self, engine: Masked) -> None:
        super().__init__(engine)
        self.masked = engine
        self.uploads: list[torch.Tensor] = []

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        for reply in self.engine.run(jobs):
            assert reply.up is not None
            assert (reply.num_examples, set(reply.metrics)) == (
                0,
                {"accuracy", "validation_accuracy"},
            )
            self.uploads.append(wire.from_bytes(reply.up)["numbers"])
            yield reply

    def unmask(self, senders: Sequence[int], length: int) -> tuple[torch.Tensor, int]:
        return self.masked.unmask(senders, length)


def test_the_server_receives_noise_and_no_metrics_but_accuracies(tmp_path: Path) -> None:
    watching: list[Watching] = []

    def make(of: Experiment, folder: RunFolder, round: int, state: Payload) -> Engine:
        engine = loop.local_engine(of, folder, round, state)
        assert isinstance(engine, Masked)
        watching.append(Watching(engine))
        return watching[0]

    loop.run(secure("fedavg", "run.global_accuracy=never"), tmp_path / "run", make_engine=make)
    for numbers_sent in watching[0].uploads:
        counts = np.bincount(numbers_sent.numpy().view(np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert 142 < ((counts - expected) ** 2 / expected).sum() < 368  # 255, five deviations


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            ["method.name=fedgh"],
            "the server of fedgh needs each upload, not only their sum; .*fedavg",
        ),
        (["method.name=fedgen"], "the server of fedgen needs each upload"),
        (["method.name=standalone"], "the server of standalone needs each upload"),
        (["method.name=fedavg", "defence.clip=2"], r"\[defence\] is about single uploads"),
        (["method.name=fedproto", "attack.clients=1"], r"\[attack\] is about single uploads"),
        (["method.name=fedavg", "federation.participation=0.4"], "2 clients take part in a round"),
        (["method.name=fedavg", "secure.min_clients=6"], "5 clients take part .* 6 to 1000"),
        (["method.name=fedavg", "secure.fraction_bits=40"], "could exceed 63 bits"),
        (["method.name=fedgh_plus", "method.statistics=own"], "cannot be added up"),
        (
            ["method.name=fedgh_plus", "privacy.protects=sample"],
            "privacy or secure aggregation, not both",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: list[str], says: str) -> None:
    with pytest.raises((ConfigError, MethodError), match=says):
        quick(*SECURE, *settings)


def test_fedgh_plus_cannot_forget_a_client_of_a_sum(tmp_path: Path) -> None:
    experiment = secure("fedgh_plus")
    state = experiment.initial_server()
    with pytest.raises(MethodError, match="knows only the sum"):
        experiment.config.method.forget(state, 0)


def test_noise_of_privacy_is_added_before_the_masks(tmp_path: Path) -> None:
    experiment = secure("fedproto", "privacy.protects=sample", "privacy.epsilon=8")
    masked = loop.run(experiment, tmp_path / "masked")
    oracle = loop.run(experiment, tmp_path / "oracle", make_engine=unmasked_engine)
    assert states(masked) == states(oracle)
    assert masked.records()[-1].epsilon == pytest.approx(8, rel=1e-6)


def test_a_run_without_secure_aggregation_has_its_fingerprint_of_before() -> None:
    assert "secure" not in quick().config.portable()
    assert "secure" in secure("fedavg").config.portable()
