"""The benchmark counts correctly and compares equal computations; speed itself is not tested."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from benchmarks import header, idle, memory, rounds, scale, start, suite
from benchmarks.helpers import Helpers
from benchmarks.plain import plain_clients, plain_round
from benchmarks.terminal import bench, verdicts
from fedgh.core.rng import stream
from fedgh.core.types import Task, part
from fedgh.data.sources import Source
from fedgh.errors import ConfigError, RunError
from fedgh.models import EXTRACTORS
from fedgh.models.cost import estimated_flops, forward_flops, training_flops
from fedgh.training import loop
from tests.support.records import a_round


def images(n: int) -> Source:
    rng = stream(0, "test-images")
    x = torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=rng)
    return Source("random", x, torch.arange(n) % 10, tuple("0123456789"))


@pytest.mark.parametrize(("name", "conv2", "fc1"), [("cnn1", 32, 2000), ("cnn2", 16, 2000)])
def test_multiplications_are_counted_exactly(name: str, conv2: int, fc1: int) -> None:
    task = Task(10, 500, 10, 1, 0, (3, 32, 32))
    first = 28 * 28 * 16 * 3 * 25
    later = 10 * 10 * conv2 * 16 * 25 + 25 * conv2 * fc1 + fc1 * 500 + 500 * 10
    assert forward_flops(EXTRACTORS[name], task) == 2 * (first + later)
    assert estimated_flops(EXTRACTORS[name], task) == 2 * (first + later)
    # Backward: gradients of weights and of inputs, except the gradient of the images.
    assert training_flops(EXTRACTORS[name], task) == 2 * (2 * first + 3 * later)


def test_the_products_inside_a_recurrent_layer_are_counted() -> None:
    task = Task(10, 500, 10, 1, 0, (3, 32, 32))

    def recurrent(shape: tuple[int, ...], rep_dim: int) -> nn.Module:
        return Recurrent(rep_dim)

    assert forward_flops(recurrent, task) == 2 * (4 * 500 * (96 + 500) + 500 * 10)
    assert estimated_flops(recurrent, task) == 2 * (4 * 500 * (96 + 500) + 500 * 10)


class Recurrent(nn.Module):
    """An LSTM over the lines of an image."""

    def __init__(self, rep_dim: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(96, rep_dim, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.lstm(x.transpose(1, 2).flatten(2))[0][:, -1]
        return out


def test_the_flops_of_a_round_are_the_sum_over_clients_and_phases() -> None:
    experiment = rounds.hetero(images(400), 64, 3, 1, "model.extractors=tests.support.tiny:mlp")
    per_image = 2 * (3 * 32 * 32 * 500 + 500 * 10)
    first = 2 * 3 * 32 * 32 * 500
    sizes = experiment.partition.bounds.diff(dim=1).sum(0).tolist()
    expected = 3 * sizes[0] * (3 * per_image - first) + sum(sizes) * per_image
    assert rounds.round_flops(experiment) == expected


def test_the_plain_implementation_gives_the_same_header_and_accuracies(tmp_path: Path) -> None:
    experiment = rounds.hetero(images(1200), 40, 2, 1, "local.augment=[]", "run.engine=serial")
    assert all(size % 40 != 1 for size in experiment.partition.bounds.diff(dim=1)[:, 0].tolist())
    run = loop.run(experiment, tmp_path / "run")
    start = experiment.initial_server()
    plain, accuracies = plain_round(plain_clients(experiment), start, server_lr=0.01)
    ours = part(run.committed()[1], "server.")
    assert not plain["weight"].equal(start["weight"])
    torch.testing.assert_close(plain, ours, atol=1e-5, rtol=0)
    assert run.records()[0].per_client["accuracy"] == pytest.approx(accuracies)


def test_a_stopwatch_excludes_the_first_round_and_measurements_between_rounds() -> None:
    watch = rounds.Stopwatch(iter([1.0, 3.0, 5.0]).__next__)
    for number in (1, 2, 3):
        watch.finished_round(a_round(number))
    assert [timed.record.round for timed in watch.rounds] == [2, 3]
    assert [timed.around for timed in watch.rounds] == [2.0, 4.0]
    assert all(0 <= timed.seconds < 1 for timed in watch.rounds)


def test_helpers_are_single_threaded_processes_that_end() -> None:
    with Helpers() as helpers:
        assert len(set(helpers.all(os.getpid))) == helpers.count
        assert helpers.all(torch.get_num_threads) == [1] * helpers.count
        assert helpers.limit(0.05) > 0
        processes = list(helpers.processes)
    assert not any(process.is_alive() for process in processes)


def test_memory_of_a_process_is_measured() -> None:
    assert os.getpid() in memory.tree(os.getpid())
    if Path("/proc/self/smaps_rollup").exists():
        before = memory.proportional_set(os.getpid())
        ballast = torch.ones(64 * 2**20, dtype=torch.uint8)
        assert memory.proportional_set(os.getpid()) - before > 60 * 2**20
        del ballast


def test_the_peak_is_that_of_all_processes_together() -> None:
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("this system does not report the memory of a process")
    ballast = "x = b'1' * (64 << 20)"
    child = f"{ballast}; import time; time.sleep(1)"
    both = f"{ballast}; import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", both], text=True) as parent:
        assert memory.peak_memory(parent, every=0.05) > 128 * 2**20


def test_ten_of_a_hundred_clients_take_part_in_each_round(tmp_path: Path) -> None:
    seconds, prepared = scale.simulate(100, 10, 2, tmp_path / "run")
    assert seconds > 0
    assert prepared > 0
    records = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").open()]
    assert [len(record["participants"]) for record in records] == [10, 10]


def test_the_header_section_yields_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header, "COMPARED", 50)
    monkeypatch.setattr(header, "REPETITIONS", 1)
    monkeypatch.setattr(header, "MILLION", 100_000)
    inputs: Any = SimpleNamespace(quick=True)
    numbers = dict(header.header_training(inputs))
    assert numbers["header_difference_c10"] < 1e-4
    assert numbers["header_difference_c100"] < 1e-4
    assert all(value >= 0 for value in numbers.values())
    assert "million_pairs_seconds" in numbers


def test_idle_participants_take_time_on_both_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "WORKERS", (6,))
    monkeypatch.setattr(idle, "SERIAL", (5,))
    inputs: Any = SimpleNamespace(quick=True, folder=tmp_path)
    numbers = dict(idle.idle_participants(inputs))
    assert list(numbers) == [
        "idle_seconds_5_serial",
        "idle_seconds_6_workers",
        "idle_seconds_6_workers_without_checkpoint",
    ]
    assert all(value > 0 for value in numbers.values())
    rounds = [json.loads(line) for line in (tmp_path / [*numbers][1] / "rounds.jsonl").open()]
    assert [len(record["participants"]) for record in rounds] == [6] * 4


def test_the_state_of_an_idle_participant_has_four_kilobytes() -> None:
    extractor = idle.smallest((1, 8, 8), idle.REP_DIM)
    network = nn.Sequential(extractor, nn.Linear(idle.REP_DIM, 10))
    assert sum(4 * tensor.numel() for tensor in network.parameters()) == 3940


def test_many_participants_are_measured_in_a_process_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scale, "SIZES", (10, 20))
    monkeypatch.setattr(scale, "MANY_PARTICIPANTS", 12)
    inputs: Any = SimpleNamespace(quick=True)
    numbers = dict(scale.many_participants(inputs))
    names = [f"scale_{what}_12_of_20" for what in ("seconds", "prepare_seconds", "peak_gib")]
    assert list(numbers)[:2] == names[:2]
    assert (names[2] in numbers) == Path("/proc/self/smaps_rollup").exists()
    assert all(value > 0 for value in numbers.values())


def test_the_start_of_a_run_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ["federation.rounds=1", "run.engine=serial", "model.extractors=perceptron"]
    command = [*start.COMMAND, *(part for setting in small for part in ("--set", setting))]
    monkeypatch.setattr(start, "COMMAND", command)
    inputs: Any = SimpleNamespace(quick=True, folder=tmp_path)
    numbers = dict(start.start_of_a_run(inputs))
    assert numbers["start_seconds"] > 0
    assert ("start_peak_mib" in numbers) == Path("/proc/self/smaps_rollup").exists()
    assert (tmp_path / "start" / "summary.json").exists()


def test_no_process_of_a_timed_run_remains(tmp_path: Path) -> None:
    ids: list[int] = []

    def noted(pid: int) -> list[int]:
        ids.extend(memory.tree(pid))
        return ids

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "tree", noted)
        start._seconds(tmp_path / "run")
    assert len(ids) > 2 or not Path("/proc/self/task").exists()
    assert not any(map(memory.proportional_set, ids))


def test_a_run_that_fails_is_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "COMMAND", [sys.executable, "-c", "raise SystemExit(1)"])
    inputs: Any = SimpleNamespace(quick=True, folder=tmp_path)
    with pytest.raises(RunError, match="failed"):
        dict(start.start_of_a_run(inputs))


def two_numbers(bench: suite.Bench) -> Iterator[tuple[str, float]]:
    """A section of two numbers"""
    yield "one", 1.0
    one = bench.numbers["one"]
    assert isinstance(one, float)
    yield "two", 2 * one


def test_numbers_are_printed_with_the_machine_and_its_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "images", lambda *_: images(20))
    printed = StringIO()
    loads = iter([0.04, 0.06])
    numbers = bench(Console(file=printed), (two_numbers,), quick=True, load=loads.__next__)
    lines = [line.strip() for line in printed.getvalue().splitlines()]
    assert f"{'two':<44} {'2':>12}" in lines
    assert f"{'load_0':<44} {'0.04':>12}" in lines
    assert f"{'load_1':<44} {'0.06':>12}  busy" in lines
    assert (numbers["one"], numbers["two"]) == (1.0, 2.0)
    assert (numbers["load_0"], numbers["load_1"]) == (0.04, 0.06)
    assert numbers["data"] == "random"
    assert {"processor", "instruction_set", "cores", "memory_gib", "system"} <= set(numbers)
    assert not any(isinstance(value, dict | list) for value in numbers.values())


@pytest.mark.parametrize(
    ("loads", "last", "times"),
    [([0.0, 0.01], 0.01, 1), ([0.9, 0.2, 0.05], 0.05, 2), ([0.0, 0.2, 0.2, 0.3], 0.3, 3)],
)
def test_a_section_is_measured_again_if_others_used_the_machine(
    monkeypatch: pytest.MonkeyPatch, loads: list[float], last: float, times: int
) -> None:
    monkeypatch.setattr(suite, "images", lambda *_: images(20))
    folders = []

    def section(bench: suite.Bench) -> Iterator[tuple[str, float]]:
        """A section that counts its calls"""
        folders.append(bench.folder)
        yield "calls", float(len(folders))

    numbers = suite.measure([section], load=iter(loads).__next__)
    assert (numbers["load_1"], numbers["calls"]) == (last, times)
    assert len(set(folders)) == times


def idle_machine() -> float:
    return 0.0


def interrupted(bench: suite.Bench) -> Iterator[tuple[str, float]]:
    """Interrupted after its first number"""
    yield "one", 1.0
    raise KeyboardInterrupt


def test_numbers_measured_before_an_interruption_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "images", lambda *_: images(20))
    with pytest.raises(KeyboardInterrupt):
        bench(
            Console(quiet=True),
            (interrupted,),
            quick=True,
            load=idle_machine,
            out=tmp_path / "numbers.json",
        )
    assert json.loads((tmp_path / "numbers.partial.json").read_text()) == {
        "load_0": 0.0,
        "one": 1.0,
    }
    assert not (tmp_path / "numbers.json").exists()


def test_an_output_that_cannot_be_written_is_refused_before_measuring(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path, tmp_path / "file" / "numbers.json"):
        with pytest.raises(ConfigError, match="--out"):
            bench(Console(quiet=True), (interrupted,), quick=True, load=idle_machine, out=out)


def test_the_benchmark_downloads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGH_DATA", str(tmp_path))
    monkeypatch.setattr("pooch.os_cache", lambda _: str(tmp_path / "cache"))
    monkeypatch.setattr("pooch.retrieve", lambda *_, **__: pytest.fail("a download"))
    source = suite.images(quick=True, data_dir=None)
    assert (source.name, len(source), source.shape) == ("random images", 8000, (3, 32, 32))


def test_the_table_shows_targets_as_met_missed_or_not_measured() -> None:
    table = verdicts({"a": 1.0, "b": 2.0}, {"a": 1.0, "c": 1.0}, {"b": 1.5})
    assert list(table.columns[-1].cells) == ["met", "not measured", "[red]missed[/]"]
