"""The promise on which everything rests: where and when a client works changes no bit."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from fedgh import config, experiment
from fedgh.core.runs import Record, RunFolder
from fedgh.core.types import Reply
from fedgh.engines.workers import Workers
from fedgh.errors import ConfigError, RunError
from fedgh.experiment import Experiment, Unwatched, prepare
from tests.tiny import mlp, numbers, quick, states

# Real networks, batch norm, dropout, augmentation, momentum, partial participation, rare
# evaluation: everything that could make two runs differ.
EVERYTHING = [
    "model.zoo=cnn5,tests.tiny:noisy",
    "federation.rounds=4",
    "federation.participation=0.6",
    "local.augment=flip,crop,erase",
    "local.epochs=1",
    "local.batch_size=64",
    "local.momentum=0.9",
    "local.clip=1.0",
    "run.eval_every=3",
    "run.global_accuracy=true",
]


class StopAfter(Unwatched):
    """Break off after some round, as Ctrl-C would."""

    def __init__(self, round: int) -> None:
        self.round = round

    def finished_round(self, record: Record) -> None:
        if record["round"] == self.round:
            raise KeyboardInterrupt


def interrupted(prepared: Experiment, out: Path, after: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        experiment.run(prepared, out, StopAfter(after))


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run that all others must equal."""
    return experiment.run(quick(*EVERYTHING), tmp_path_factory.mktemp("serial") / "run")


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_give_the_same_bits_as_serial(
    straight: RunFolder, workers: int, tmp_path: Path
) -> None:
    prepared = quick(*EVERYTHING, "run.engine=workers", f"run.workers={workers}")
    run = experiment.run(prepared, tmp_path / "run")
    assert numbers(run) == numbers(straight)
    assert states(run) == states(straight)


@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("every", [1, 2])
def test_a_resumed_run_ends_as_a_straight_one(
    straight: RunFolder, after: int, every: int, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    interrupted(quick(*EVERYTHING, f"run.checkpoint_every={every}"), out, after)
    assert RunFolder.open(out).summary() is None
    run = experiment.resume(out)
    assert numbers(run) == numbers(straight)
    # A client's file is named after the round in which it was written: compare what is in them.
    assert sorted(states(run).values()) == sorted(states(straight).values())


def test_a_run_stopped_on_one_engine_goes_on_on_the_other(
    straight: RunFolder, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    interrupted(quick(*EVERYTHING, "run.engine=workers", "run.workers=2"), out, 2)
    run = experiment.resume(out, how={"engine": "serial"})
    assert numbers(run) == numbers(straight)


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    run = experiment.run(quick(), tmp_path / "run")
    before = numbers(run), states(run)
    again = experiment.resume(run.path)
    assert (numbers(again), states(again)) == before


def test_another_seed_gives_another_run(straight: RunFolder, tmp_path: Path) -> None:
    run = experiment.run(quick(*EVERYTHING, "federation.seed=1"), tmp_path / "run")
    assert numbers(run) != numbers(straight)


def test_what_torch_drew_before_does_not_matter(straight: RunFolder, tmp_path: Path) -> None:
    torch.manual_seed(12345)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run = experiment.run(quick(*EVERYTHING), tmp_path / "run")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert states(run) == states(straight)


@pytest.mark.parametrize("engine", ["serial", "workers"])
def test_a_client_that_fails_is_recorded_and_stays_as_it_was(engine: str, tmp_path: Path) -> None:
    zoo = "model.zoo=tests.tiny:mlp,tests.tiny:failing,tests.tiny:infinite"
    prepared = quick(zoo, f"run.engine={engine}", "run.workers=2", "federation.clients=6")
    run = experiment.run(prepared, tmp_path / "run")
    for record in run.records():
        assert [failed["client"] for failed in record["failed"]] == [1, 2, 4, 5]
        assert record["failed"][0]["reason"].startswith("ValueError: out of [memory] (tiny.py:")
        assert "lower local.lr" in record["failed"][1]["reason"]
        assert record["bytes_up"] == 2 * 2 * (4 + 16 * 4)  # of clients 0 and 3, two classes each
        assert None not in record["accuracy_per_client"]  # judged as they were made
    trained = {name[:13] for name in states(run) if name.startswith("client")}
    assert trained == {"client-000000", "client-000003"}


def test_a_dead_worker_ends_the_run_and_it_can_be_resumed(tmp_path: Path) -> None:
    class KillOne(Unwatched):
        engine: Workers | None = None

        def replied(self, reply: Reply) -> None:
            if reply.round == 2:
                import multiprocessing

                os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
                time.sleep(0.3)

    prepared = quick("run.engine=workers", "run.workers=2", "federation.rounds=4")
    with pytest.raises(RunError, match="fedgh resume"):
        experiment.run(prepared, tmp_path / "run", KillOne())
    run = experiment.resume(tmp_path / "run")
    straight = experiment.run(quick("federation.rounds=4"), tmp_path / "straight")
    assert numbers(run) == numbers(straight)


def test_workers_leave_no_process_behind(tmp_path: Path) -> None:
    import multiprocessing

    experiment.run(quick("run.engine=workers", "run.workers=2"), tmp_path / "run")
    interrupted(quick("run.engine=workers", "run.workers=2"), tmp_path / "broken", 1)
    assert multiprocessing.active_children() == []


def test_an_extractor_may_be_an_object(tmp_path: Path) -> None:
    settings = config.load("demo", ["model.rep_dim=16", "federation.rounds=1", "run.workers=2"])
    run = experiment.run(prepare(settings, extractors=[mlp]), tmp_path / "run")
    assert run.clients()[0]["extractor"] == "tests.tiny:mlp"

    def local(shape: tuple[int, ...], rep_dim: int) -> nn.Module:
        return mlp(shape, rep_dim)

    with pytest.raises(ConfigError, match="cannot be sent to worker processes"):
        experiment.run(prepare(settings, extractors=[local]), tmp_path / "closure")
    serial = config.load("demo", ["model.rep_dim=16", "federation.rounds=1", "run.engine=serial"])
    same = experiment.run(prepare(serial, extractors=[local]), tmp_path / "serial")
    assert numbers(same) == numbers(run)


def test_an_unwritable_checkpoint_is_an_error(tmp_path: Path) -> None:
    class RemoveFolder(Unwatched):
        def replied(self, reply: Reply) -> None:
            (tmp_path / "run" / "checkpoint").rename(tmp_path / "run" / "gone")

    for engine in ("serial", "workers"):
        prepared = quick(f"run.engine={engine}", "federation.clients=5", "federation.rounds=1")
        with pytest.raises((RunError, OSError)):
            experiment.run(prepared, tmp_path / "run", RemoveFolder())
        (tmp_path / "run").rename(tmp_path / engine)
