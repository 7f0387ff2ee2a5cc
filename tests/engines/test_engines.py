"""Engines: results have the same bits whatever the engine, the memory and interruptions."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedgh import config
from fedgh.core import wire
from fedgh.core.batches import to_input
from fedgh.core.local import evaluate
from fedgh.core.metrics import accuracy, own_metrics
from fedgh.core.records import Round
from fedgh.core.types import Client, Job, Payload, Reply
from fedgh.data.sources import Source
from fedgh.engines.host import ClientHost
from fedgh.engines.serial import Serial
from fedgh.engines.workers import Workers
from fedgh.errors import ConfigError, RunError
from fedgh.methods.fedgh import FedGH
from fedgh.runs.checkpoint import ClientFiles
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from fedgh.training.callbacks import Callback
from fedgh.training.experiment import prepare
from tests.support.runs import EVERYTHING, StopAfter, interrupted
from tests.support.states import client_states, states
from tests.support.tiny import mlp, numbers, quick


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run on the serial engine, which all other runs must equal."""
    return loop.run(quick(*EVERYTHING), tmp_path_factory.mktemp("serial") / "run")


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_give_the_same_bits_as_serial(
    straight: RunFolder, workers: int, tmp_path: Path
) -> None:
    prepared = quick(*EVERYTHING, "run.engine=workers", f"run.workers={workers}")
    run = loop.run(prepared, tmp_path / "run")
    assert numbers(run) == numbers(straight)
    assert states(run) == states(straight)


def test_a_client_that_moves_to_another_worker_changes_nothing(
    straight: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = []
    move = Workers.relocate

    def counted(self: Workers, *args: int) -> None:
        moves.append(args)
        move(self, *args)

    monkeypatch.setattr(Workers, "relocate", counted)
    run = loop.run(quick(*EVERYTHING, "run.engine=workers", "run.workers=2"), tmp_path / "run")
    assert moves
    assert states(run) == states(straight)


@pytest.mark.parametrize("engine", ["serial", "workers"])
@pytest.mark.parametrize("memory", ["0.000001", "0.0005"])  # GiB: for no client, for a few clients
def test_clients_moved_to_files_give_the_same_bits(
    straight: RunFolder, engine: str, memory: str, tmp_path: Path
) -> None:
    settings = [*EVERYTHING, f"run.engine={engine}", "run.workers=2", f"run.memory={memory}"]
    run = loop.run(quick(*settings), tmp_path / "run")
    assert numbers(run) == numbers(straight)
    assert states(run) == states(straight)
    # States may also be written long before the checkpoint that they belong to.
    interrupted(quick(*settings, "run.checkpoint_every=3"), tmp_path / "rare", 2)
    rare = loop.resume(tmp_path / "rare")
    assert numbers(rare) == numbers(straight)
    assert sorted(states(rare).values()) == sorted(states(straight).values())


def test_least_recently_used_clients_are_evicted_from_memory(tmp_path: Path) -> None:
    blueprint = quick().blueprint()
    down = wire.to_bytes(quick().initial_server())
    one = blueprint.make(0).nbytes
    assert one == sum(t.nbytes for t in blueprint.make(0).state().values())
    files = ClientFiles(tmp_path, 0)
    host = ClientHost(blueprint, files, memory=3 * one)
    for client in (0, 2, 4, 0, 1):  # clients 1 and 3 are larger: they have batch normalisation
        assert host.run(Job(client, 1, down, evaluate=False)).error is None
    assert list(host.clients) == [0, 1]  # the least recently used clients were evicted
    assert files.clients == [2, 4]


def test_a_client_in_memory_has_no_gradients(tmp_path: Path) -> None:
    host = ClientHost(quick().blueprint(), ClientFiles(tmp_path, 0))
    host.run(Job(0, 1, wire.to_bytes(quick().initial_server()), evaluate=True))
    assert all(p.grad is None for p in host.clients[0].model.parameters())


@pytest.mark.parametrize("engine", ["serial", "workers"])
def test_an_unreadable_state_file_ends_the_run(engine: str, tmp_path: Path) -> None:
    class CutShort(Callback):
        def finished_round(self, record: Round) -> None:
            for path in (tmp_path / "run" / "checkpoint").glob("clients-*"):
                path.write_bytes(path.read_bytes()[:100])

    prepared = quick(f"run.engine={engine}", "run.workers=2", "run.memory=0.000001")
    with pytest.raises(RunError, match=r"clients-.*the state of client \d cannot be read"):
        loop.run(prepared, tmp_path / "run", [CutShort()])


def test_resume_accepts_only_settings_that_do_not_change_the_result(
    straight: RunFolder, tmp_path: Path
) -> None:
    interrupted(quick(*EVERYTHING), tmp_path / "run", 2)
    with pytest.raises(RunError, match="holds another run: its data, settings"):
        loop.resume(tmp_path / "run", overrides=["local.lr=0.5"])
    run = loop.resume(tmp_path / "run", overrides=["run.memory=0.001", "run.workers=1"])
    assert numbers(run) == numbers(straight)


def test_a_full_disk_ends_the_run_with_an_error_that_names_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedgh.files.os.fsync", full)
    host = ClientHost(quick().blueprint(), ClientFiles(tmp_path, 0), memory=1)
    down = wire.to_bytes(quick().initial_server())
    host.run(Job(0, 1, down, evaluate=False))
    with pytest.raises(OSError, match="No space"):
        host.save(1)
    serial = Serial(quick().blueprint(), ClientFiles(tmp_path, 0), memory=1)
    list(serial.run([Job(0, 1, down, evaluate=False)]))
    with pytest.raises(RunError, match="fedgh resume"):
        serial.save(1)


def test_the_longest_jobs_go_to_different_workers_and_run_in_client_order(tmp_path: Path) -> None:
    settings = [
        "federation.clients=4",
        "data.classes_per_client=3",
        "model.extractors=cnn1,tests.support.tiny:mlp",
    ]
    blueprint = quick(*settings).blueprint()
    costs = [blueprint.cost(Job(client, 1, b"", evaluate=True)) for client in range(4)]
    assert min(costs[0], costs[2]) > max(costs[1], costs[3])
    engine = Workers(blueprint, ClientFiles(tmp_path, 0), 2**30, 2)
    try:
        down = wire.to_bytes(quick(*settings).initial_server())
        replies = list(engine.run([Job(c, 1, down, evaluate=True) for c in range(4)]))
        order = [reply.client_id for reply in replies]
        of_worker = [[c for c in order if engine.worker_of[c] == worker] for worker in range(2)]
        assert engine.worker_of[0] != engine.worker_of[2]
        assert all(clients == sorted(clients) for clients in of_worker)
    finally:
        engine.close()


@pytest.mark.parametrize("engine", ["serial", "workers"])
def test_evaluate_trained_evaluates_only_clients_that_have_participated(
    engine: str, tmp_path: Path
) -> None:
    run = loop.run(
        quick("run.evaluate=trained", "federation.participation=0.4", f"run.engine={engine}"),
        tmp_path / "run",
    )
    all_evaluated = loop.run(quick("federation.participation=0.4"), tmp_path / "all")
    participated: set[int] = set()
    for record, full in zip(run.records(), all_evaluated.records(), strict=True):
        participated |= set(record.participants)
        known = record.accuracies
        assert {k for k, score in enumerate(known) if score is not None} == participated
        assert all(known[k] == full.accuracies[k] for k in participated)
        assert record.accuracy == pytest.approx(
            sum(known[k] or 0 for k in participated) / len(participated)
        )


@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("every", [1, 2])
def test_a_resumed_run_gives_the_same_bits_as_an_uninterrupted_one(
    straight: RunFolder, after: int, every: int, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    interrupted(quick(*EVERYTHING, f"run.checkpoint_every={every}"), out, after)
    assert not RunFolder.open(out).finished
    run = loop.resume(out)
    assert numbers(run) == numbers(straight)
    # File names include the round of writing, which may differ: compare only the contents.
    assert sorted(states(run).values()) == sorted(states(straight).values())


def test_a_run_stopped_on_workers_is_resumed_on_serial_with_equal_records(
    straight: RunFolder, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    interrupted(quick(*EVERYTHING, "run.engine=workers", "run.workers=2"), out, 2)
    run = loop.resume(out, engine="serial")
    assert numbers(run) == numbers(straight)


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    run = loop.run(quick(), tmp_path / "run")
    before = numbers(run), states(run)
    again = loop.resume(run.path)
    assert (numbers(again), states(again)) == before


def test_another_seed_gives_different_records(straight: RunFolder, tmp_path: Path) -> None:
    run = loop.run(quick(*EVERYTHING, "federation.seed=1"), tmp_path / "run")
    assert numbers(run) != numbers(straight)


def test_torchs_global_seed_and_threads_do_not_change_a_run(
    straight: RunFolder, tmp_path: Path
) -> None:
    torch.manual_seed(12345)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run = loop.run(quick(*EVERYTHING), tmp_path / "run")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert states(run) == states(straight)


@pytest.mark.parametrize("engine", ["serial", "workers"])
def test_a_failed_client_is_recorded_and_keeps_its_state(engine: str, tmp_path: Path) -> None:
    names = ",".join(f"tests.support.tiny:{name}" for name in ("mlp", "failing", "infinite"))
    zoo = f"model.extractors={names}"
    prepared = quick(zoo, f"run.engine={engine}", "run.workers=2", "federation.clients=6")
    run = loop.run(prepared, tmp_path / "run")
    for record in run.records():
        assert [failed.client for failed in record.failed] == [1, 2, 4, 5]
        assert record.failed[0].reason.startswith("ValueError: out of [memory] (tiny.py:")
        assert "lower local.lr" in record.failed[1].reason
        assert record.bytes_up == 2 * 2 * (4 + 16 * 4)  # of clients 0 and 3, two classes each
        assert (
            None not in record.accuracies
        )  # failed clients are evaluated with their initial weights
    trained = {name[:13] for name in states(run) if name.startswith("client")}
    assert trained == {"client-000000", "client-000003"}


class FailsInRound2(FedGH):
    """FedGH in which client 0 fails in round 2."""

    def client_update(self, client: Client, down: Payload) -> Payload:
        if client.round == 2 and client.id == 0:
            raise ValueError
        return super().client_update(client, down)


def test_a_client_that_fails_later_keeps_the_round_before_in_a_rare_checkpoint(
    tmp_path: Path,
) -> None:
    method = f"method.name={__name__}:FailsInRound2"
    rare = ["federation.rounds=2", "run.checkpoint_every=2", "run.engine=serial"]
    run = loop.run(quick(method, *rare), tmp_path / "run")
    assert [failed.client for failed in run.records()[1].failed] == [0]
    trained = run.committed()[1]["trained"].tolist()
    assert trained == [1, 2, 2, 2, 2]
    run.client_files(2).check(trained)
    once = loop.run(quick(method, "federation.rounds=1", "run.engine=serial"), tmp_path / "once")
    assert (
        client_states(run.checkpoint)["client-000000.round-000002"]
        == client_states(once.checkpoint)["client-000000.round-000001"]
    )


def test_a_killed_worker_ends_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    class KillOne(Callback):
        killed = False

        def replied(self, reply: Reply) -> None:
            if reply.round == 2 and not self.killed:  # further replies may have been sent already
                self.killed = True
                os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
                time.sleep(0.3)

    prepared = quick("run.engine=workers", "run.workers=2", "federation.rounds=4")
    with pytest.raises(RunError, match="fedgh resume"):
        loop.run(prepared, tmp_path / "run", [KillOne()])
    run = loop.resume(tmp_path / "run")
    straight = loop.run(quick("federation.rounds=4"), tmp_path / "straight")
    assert numbers(run) == numbers(straight)


def test_workers_leave_no_process_behind(tmp_path: Path) -> None:
    loop.run(quick("run.engine=workers", "run.workers=2"), tmp_path / "run")
    interrupted(quick("run.engine=workers", "run.workers=2"), tmp_path / "broken", 1)
    assert multiprocessing.active_children() == []


def test_extractors_can_be_functions_if_workers_can_import_them(tmp_path: Path) -> None:
    settings = config.load("demo", ["model.rep_dim=16", "federation.rounds=1", "run.workers=2"])
    run = loop.run(prepare(settings, extractors=[mlp]), tmp_path / "run")
    assert run.clients()[0].extractor == "tests.support.tiny:mlp"

    def local(shape: tuple[int, ...], rep_dim: int) -> nn.Module:
        return mlp(shape, rep_dim)

    with pytest.raises(ConfigError, match="cannot be sent to worker processes"):
        loop.run(prepare(settings, extractors=[local]), tmp_path / "closure")
    serial = config.load("demo", ["model.rep_dim=16", "federation.rounds=1", "run.engine=serial"])
    same = loop.run(prepare(serial, extractors=[local]), tmp_path / "serial")
    assert numbers(same) == numbers(run)


@pytest.mark.parametrize("engine", ["serial", "workers"])
def test_a_missing_checkpoint_folder_ends_the_run_which_can_be_resumed(
    engine: str, tmp_path: Path
) -> None:
    class TakeAway(Callback):
        replies = 0

        def replied(self, reply: Reply) -> None:
            self.replies += 1
            if self.replies == 5:  # the last of the round: all workers have started
                (tmp_path / "run" / "checkpoint").rename(tmp_path / "gone")

    prepared = quick(f"run.engine={engine}", "federation.rounds=2")
    with pytest.raises(RunError, match=r"cannot write .*checkpoint.*fedgh resume"):
        loop.run(prepared, tmp_path / "run", [TakeAway()])
    (tmp_path / "gone").rename(tmp_path / "run" / "checkpoint")
    run = loop.resume(tmp_path / "run")
    straight = loop.run(quick("federation.rounds=2"), tmp_path / "straight")
    assert numbers(run) == numbers(straight)


@pytest.mark.parametrize("moment", ["append", "commit", "discard_leftovers", "write_summary"])
def test_a_crash_at_any_step_of_a_checkpoint_does_not_change_the_resumed_run(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = loop.run(quick(), tmp_path / "straight")
    original = getattr(RunFolder, moment)
    for before in (True, False):
        out = tmp_path / f"{moment}-{before}"
        calls = 0

        def crash(folder: RunFolder, *words: object, before: bool = before) -> None:
            nonlocal calls
            calls += 1
            last = calls == (3 if moment in ("append", "commit") else 1)
            if not (last and before):
                original(folder, *words)
            if last:
                raise KeyboardInterrupt

        monkeypatch.setattr(RunFolder, moment, crash)
        with pytest.raises(KeyboardInterrupt):
            loop.run(quick(), out)
        monkeypatch.setattr(RunFolder, moment, original)
        run = loop.resume(out)
        assert numbers(run) == numbers(straight)
        assert states(run) == states(straight)


def test_resume_refuses_changed_data_or_settings(tmp_path: Path) -> None:
    source = quick().source
    other = Source("other", source.x.flip(0), source.y.flip(0), source.class_names)
    with pytest.raises(KeyboardInterrupt):
        loop.run(prepare(quick().config, source=other), tmp_path / "own", [StopAfter(1)])
    with pytest.raises(RunError, match="holds another run: its data, settings"):
        loop.resume(tmp_path / "own")
    run = loop.resume(tmp_path / "own", prepare=lambda c: prepare(c, source=other))
    assert run.summary().data == "other"

    interrupted(quick(), tmp_path / "edited", after=1)
    path = tmp_path / "edited" / "config.toml"
    path.write_text(path.read_text().replace("server_lr = 0.01", "server_lr = 0.5"))
    with pytest.raises(RunError, match="holds another run: its data, settings"):
        loop.resume(tmp_path / "edited")


class FailsLate(nn.Module):
    """An extractor that raises an error in the third batch, after its weights have changed."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.batches = 0

    def forward(self, x: Tensor) -> Tensor:
        self.batches += self.training
        if self.training and self.batches == 3:
            raise ValueError("late")
        out: Tensor = self.inner(x)
        return out


def fails_late(shape: tuple[int, ...], rep_dim: int) -> nn.Module:
    return FailsLate(mlp(shape, rep_dim))


def test_a_client_that_fails_during_training_is_restored(tmp_path: Path) -> None:
    prepared = quick("model.extractors=tests.engines.test_engines:fails_late")
    host = ClientHost(prepared.blueprint(), ClientFiles(tmp_path, 0))
    down = wire.to_bytes(prepared.initial_server())
    reply = host.run(Job(0, 1, down, evaluate=True))
    assert reply.error is not None
    assert reply.up is None
    fresh = prepared.blueprint().make(0)
    client = host.clients[0]
    assert all(t.equal(fresh.state()[n]) for n, t in client.state().items())
    assert reply.metrics["accuracy"] == accuracy(evaluate(fresh, FedGH().logits, fresh.data.test))
    host.save(1)
    assert list(tmp_path.iterdir()) == []


class Counting(FedGH):
    """FedGH with two metrics of its own, one of them not finite."""

    name = "counting"

    def client_update(self, client: Client, down: Payload) -> Payload:
        client.metrics |= {"samples": len(client.data.train), "ratio": float("nan")}
        return super().client_update(client, down)


@pytest.mark.parametrize("engine", ["serial", "workers"])
def test_a_methods_own_metrics_are_recorded_if_finite(engine: str, tmp_path: Path) -> None:
    counting = "method.name=tests.engines.test_engines:Counting"
    experiment = quick("federation.rounds=1", counting, f"run.engine={engine}", "run.workers=2")
    (record,) = loop.run(experiment, tmp_path / "run").records()
    sizes = [client.train for client in experiment.clients()]
    assert record.method_metrics == {"samples": sum(sizes) / len(sizes)}


def test_clients_are_evaluated_on_their_own_splits(tmp_path: Path) -> None:
    prepared = quick()
    blueprint = prepared.blueprint()
    reply = ClientHost(blueprint, ClientFiles(tmp_path, 0)).run(Job(2, 1, None, evaluate=True))
    client = blueprint.make(2)
    _, validation, test = prepared.partition.indices(2)
    for metric, index in (("accuracy", test), ("validation_accuracy", validation)):
        with torch.inference_mode():
            client.model.eval()
            right = (
                client.model(to_input(prepared.source.x[index])).argmax(1)
                == prepared.source.y[index]
            )
        assert reply.metrics[metric] == pytest.approx(float(right.float().mean()))


class PredictsFirstClass(FedGH):
    """FedGH that predicts the first class for all samples of the global evaluation."""

    name = "predicts_first_class"

    def global_logits(self, client: Client, x: Tensor) -> Tensor:
        return torch.eye(client.task.num_classes)[torch.zeros(len(x), dtype=torch.int64)]


def test_trained_clients_are_evaluated_on_test_samples_of_all_clients(tmp_path: Path) -> None:
    prepared = quick("model.extractors=tests.support.tiny:mlp")
    blueprint, down = prepared.blueprint(), wire.to_bytes(prepared.initial_server())
    host = ClientHost(blueprint, ClientFiles(tmp_path, 0))
    trained = host.run(Job(2, 1, down, evaluate=False, evaluate_globally=True))
    sample = blueprint.global_sample
    assert sample is not None
    # The sample has test data of all clients, and the same number of samples per class.
    index = sample.indices(2)
    of_clients = [set(prepared.partition.indices(k)[2].tolist()) for k in range(5)]
    assert set(index.tolist()) <= set().union(*of_clients)
    assert all(set(index.tolist()) & each for each in of_clients)
    counts = prepared.source.y[index].bincount(minlength=10)
    assert counts.min() == counts.max() > 0
    with torch.inference_mode():
        x, y = to_input(prepared.source.x[index]), prepared.source.y[index]
        right = host.clients[2].model.eval()(x).argmax(1) == y
    assert trained.metrics.keys() == {"train_loss", "global_accuracy"}
    assert trained.metrics["global_accuracy"] == pytest.approx(float(right.float().mean()))
    again = host.run(Job(2, 2, None, evaluate=True, trained=1, evaluate_globally=True))
    assert again.metrics["global_accuracy"] == trained.metrics["global_accuracy"]
    never = host.run(Job(1, 1, None, evaluate=True, evaluate_globally=True))
    assert never.metrics.keys() == set(own_metrics())


def test_global_logits_affect_only_the_global_accuracy(tmp_path: Path) -> None:
    predicts_first_class = "method.name=tests.engines.test_engines:PredictsFirstClass"
    run = loop.run(quick(predicts_first_class), tmp_path / "run")
    last = run.records()[-1]
    assert last.per_client["global_accuracy"] == [0.1] * 5, "one of ten classes"
    plain = loop.run(quick(), tmp_path / "plain")
    assert last.accuracies == plain.records()[-1].accuracies


def test_measuring_global_accuracy_changes_nothing_else(tmp_path: Path) -> None:
    settings = [*EVERYTHING[:-1], "method.name=fedkd", "method.shared=tests.support.tiny:noisy"]
    runs = [
        loop.run(quick(*settings, f"run.global_accuracy={when}"), tmp_path / when)
        for when in ("never", "last", "every")
    ]
    for run in runs[1:]:
        rest = [
            {key: value for key, value in record.items() if not key.startswith("global_")}
            for record in numbers(run)
        ]
        assert rest == numbers(runs[0])
        clients = {name: state for name, state in states(run).items() if "client" in name}
        assert clients
        assert clients.items() <= states(runs[0]).items()
    last, every = (numbers(run) for run in runs[1:])
    assert [r["global_accuracy"] is None for r in last] == [True, True, True, False]
    assert [r["global_accuracy"] is None for r in every] == [True, True, False, False]
    assert last[-1] == every[-1], "independent of earlier measurements"
    trained = {client for record in last for client in record["participants"]}
    scores = last[-1]["global_accuracy_per_client"]
    assert {k for k, score in enumerate(scores) if score is not None} == trained
    assert len(last[-1]["participants"]) < len(trained), (
        "clients that were not selected are evaluated, too"
    )


def test_global_accuracy_switched_on_at_resume_equals_that_of_a_full_run(tmp_path: Path) -> None:
    settings = [*EVERYTHING[:-1], "run.global_accuracy=never"]
    interrupted(quick(*settings), tmp_path / "run", 3)
    run = loop.resume(tmp_path / "run", overrides=["run.global_accuracy=last"])
    whole = loop.run(quick(*EVERYTHING[:-1], "run.engine=workers"), tmp_path / "whole")
    assert numbers(run)[-1] == numbers(whole)[-1]


def test_data_samples_limits_training_and_validation_but_not_test_samples(tmp_path: Path) -> None:
    settings = ["data.samples=27", "data.partition=iid"]
    prepared = quick(*settings)
    run = loop.run(prepared, tmp_path / "run")
    assert [(c.train, c.validation) for c in run.clients()] == [(24, 3)] * 5
    for few, many in zip(run.clients(), quick(settings[1]).clients(), strict=True):
        assert few.test == many.test
        assert sum(few.classes.values()) == 27 + few.test
    assert prepared.fingerprint() != quick(settings[1]).fingerprint()
    workers = loop.run(quick(*settings, "run.engine=workers"), tmp_path / "workers")
    assert numbers(workers) == numbers(run)
    assert states(workers) == states(run)


def test_the_cost_of_a_job_includes_the_global_test_samples() -> None:
    blueprint = quick("model.extractors=tests.support.tiny:mlp").blueprint()
    assert blueprint.global_sample is not None
    own = blueprint.cost(Job(0, 1, b"", evaluate=True))
    both = blueprint.cost(Job(0, 1, b"", evaluate=True, evaluate_globally=True))
    assert both - own == blueprint.global_sample.size * blueprint.flops(0) > 0
    without = quick(
        "model.extractors=tests.support.tiny:mlp", "run.global_accuracy=never"
    ).blueprint()
    assert without.cost(Job(0, 1, b"", evaluate=True, evaluate_globally=True)) == own


def test_every_client_has_its_own_initial_weights() -> None:
    blueprint = quick("model.extractors=tests.support.tiny:mlp").blueprint()
    weights = [blueprint.make(k).model.header.weight for k in range(5)]
    for k in range(5):
        assert blueprint.make(k).model.header.weight.equal(weights[k])
        assert not any(weights[k].equal(weights[other]) for other in range(k))


def test_clients_that_are_only_evaluated_are_not_kept_in_memory(tmp_path: Path) -> None:
    host = ClientHost(quick().blueprint(), ClientFiles(tmp_path, 0))
    for client in range(5):
        host.run(Job(client, 1, None, evaluate=True))
    assert host.clients == {}


def test_extractors_with_equal_names_get_different_names() -> None:
    from functools import partial

    settings = config.load("demo", ["model.rep_dim=16"])
    made = prepare(settings, extractors=[partial(mlp), partial(mlp)])
    assert made.config.model.extractors == ["functools:partial", "functools:partial#2"]
    with pytest.raises(ConfigError, match="at least one"):
        prepare(settings, extractors=[])


def test_augmentation_of_other_inputs_than_images_is_refused() -> None:
    table = Source("table", torch.randn(100, 5), torch.arange(100) % 10, tuple("0123456789"))
    settings = config.load("demo", ["local.augment=flip", "federation.clients=5"])
    with pytest.raises(ConfigError, match=r"local\.augment is for images"):
        prepare(settings, source=table, extractors=[mlp])


@pytest.mark.parametrize(("method", "missing"), [("fedproto", "server.means"), ("fd", "classes")])
def test_a_server_state_of_an_earlier_version_of_a_method_is_refused(
    method: str, missing: str, tmp_path: Path
) -> None:
    interrupted(quick(f"method.name={method}"), tmp_path / "run", after=1)
    folder = RunFolder.open(tmp_path / "run")
    with folder.locked():
        done, state = folder.committed()
        state["server.known"] = state.pop(missing)
        folder.commit(done, state)
    with pytest.raises(
        RunError, match=f"its server's state is that of an earlier {method}; resume"
    ):
        loop.resume(tmp_path / "run")
