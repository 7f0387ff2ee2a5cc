"""Results are kept by kind of machine and compared; a busy machine gives none."""

import json
from fnmatch import fnmatch
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from benchmarks import __main__ as main
from benchmarks import compare, idle, scale, start
from benchmarks.compare import losses
from benchmarks.machine import Machine, this_machine
from benchmarks.suite import Bench, Numbers
from benchmarks.terminal import conclude

COMMITTED = Path(__file__).parents[2] / "benchmarks" / "results"

RESULT: Numbers = {
    "round_fraction_of_limit_b64_e5": 0.6,
    "limit_gflops": 100.0,
    "start_seconds": 2.0,
    "load_0": 0.01,
    "load_1": 0.05,
    "quick": False,
}

NOT_COMPARED = (
    "limit_gflops",  # the machine, not fedgh
    "round_*seconds_*",  # the fraction of the limit is compared
    "round_gflops_*",
    "share_of_*",  # neither more nor less is better
    "plain_*",  # the plain implementation
    "header_autograd_*",
    "header_difference_*",
    "overhead_seconds_*",  # measured by earlier versions only
    "memory_gib",
    "seconds",
)


@pytest.mark.parametrize(
    ("processor", "instruction_set", "cores", "kind"),
    [
        ("AMD EPYC", "AVX512", 2, "amd-epyc-avx512-2-cores"),
        ("Intel(R) Xeon(R) Processor @ 2.50GHz", "AVX512", 2, "intel-xeon-avx512-2-cores"),
        ("Intel(R) Core(TM) i7-8650U CPU @ 1.90GHz", "AVX2", 8, "intel-core-i7-8650u-avx2-8-cores"),
        ("", "NO AVX", 1, "no-avx-1-core"),
    ],
)
def test_the_kind_of_a_machine_is_its_processor_instruction_set_and_cores(
    processor: str, instruction_set: str, cores: int, kind: str
) -> None:
    assert Machine(processor, instruction_set, cores, 8.0, "a system").kind == kind


def test_this_machine_is_described() -> None:
    here = this_machine()
    assert here.cores >= 1
    assert here.memory_gib > 0.5
    assert here.system
    assert here.kind == here.kind.lower()


def concluded(numbers: Numbers, stored: Numbers, out: Path) -> tuple[int, str]:
    printed = StringIO()
    return conclude(Console(file=printed, width=200), numbers, stored, out), printed.getvalue()


def test_a_result_is_written(tmp_path: Path) -> None:
    out = tmp_path / "kind.json"
    code, _ = concluded(RESULT, {}, out)
    assert code == 0
    assert json.loads(out.read_text()) == RESULT


@pytest.mark.parametrize("name", ["load_0", "load_1", "load_7"])
def test_the_numbers_of_a_busy_machine_are_not_a_result(tmp_path: Path, name: str) -> None:
    out = tmp_path / "kind.json"
    code, text = concluded(RESULT | {name: 0.37}, {}, out)
    assert code == 1
    assert "not a result" in text
    assert "others used 37% of the cores (the limit is 5%)" in text
    assert not out.exists()


def test_the_numbers_of_a_quick_benchmark_are_not_a_result(tmp_path: Path) -> None:
    out = tmp_path / "kind.json"
    worse: Numbers = {**RESULT, "start_seconds": 9.0, "quick": True}
    code, text = concluded(worse, RESULT, out)
    assert code == 0
    assert "not a result" in text
    assert not out.exists()
    assert concluded(worse | {"load_0": 0.5}, RESULT, out)[0] == 1


def test_a_loss_is_printed_and_the_result_is_written(tmp_path: Path) -> None:
    out = tmp_path / "kind.json"
    out.write_text("{}")
    now: Numbers = {**RESULT, "start_seconds": 2.3}
    code, text = concluded(now, RESULT, out)
    assert code == 1
    assert "start_seconds" in text
    assert "15%" in text
    assert "round_fraction" not in text
    assert json.loads(out.read_text()) == now


@pytest.mark.parametrize(
    ("name", "worse"),
    [
        ("round_fraction_of_limit_b512_e1", -1),
        ("speedup_over_plain_e5", -1),
        ("header_speedup_c10", -1),
        ("header_pairs_per_second_c100", -1),
        ("method_fedgh_over_standalone", 1),
        ("scale_time_ratio_100_to_100000", 1),
        ("scale_peak_gib_100000", 1),
        ("scale_seconds_1000_of_100000", 1),
        ("idle_seconds_100_workers_without_checkpoint", 1),
        ("start_peak_mib", 1),
    ],
)
def test_only_losses_of_more_than_a_tenth_are_reported(name: str, worse: int) -> None:
    before: Numbers = {name: 2.0}
    assert losses(before, {name: 2.0 * (1 + 0.09 * worse)}) == []
    assert losses(before, {name: 2.0 * (1 - 0.5 * worse)}) == []
    (loss,) = losses(before, {name: 2.0 * (1 + 0.11 * worse)})
    assert (loss.name, loss.before) == (name, 2.0)
    assert loss.share == pytest.approx(0.11)


def test_seconds_and_speeds_are_compared_relative_to_the_limit() -> None:
    before: Numbers = {
        "limit_gflops": 100.0,
        "start_seconds": 2.0,
        "header_pairs_per_second_c10": 1000.0,
        "start_peak_mib": 500.0,
    }
    slower: Numbers = {
        "limit_gflops": 50.0,
        "start_seconds": 4.0,
        "header_pairs_per_second_c10": 500.0,
        "start_peak_mib": 500.0,
    }
    assert losses(before, slower) == []
    faster = losses(before, before | {"limit_gflops": 200.0})
    assert {loss.name: loss.share for loss in faster} == {
        "start_seconds": pytest.approx(1.0),
        "header_pairs_per_second_c10": pytest.approx(0.5),
    }


def test_a_number_of_one_result_only_is_not_compared() -> None:
    assert losses({"start_seconds": 1.0}, {"idle_seconds_10_serial": 9.0}) == []


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    inputs: Any = SimpleNamespace(quick=True, folder=tmp_path)
    return inputs  # type: ignore[no-any-return]


@pytest.fixture
def names(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the names of the committed numbers and of those that all sections would measure."""
    monkeypatch.setattr(scale, "_measure", lambda *_: (1.0, 1.0, 2**30))
    monkeypatch.setattr(idle, "_seconds", lambda *_: 1.0)
    monkeypatch.setattr(start, "_peak", lambda *_: 2**20)
    monkeypatch.setattr(start, "_seconds", lambda *_: 1.0)
    sections = (
        scale.many_clients,
        scale.many_participants,
        idle.idle_participants,
        start.start_of_a_run,
    )
    new = {name for section in sections for name, _ in section(bench)}
    committed = [json.loads(path.read_text()) for path in COMMITTED.glob("*-cores.json")]
    return new | {
        name for numbers in committed for name, value in numbers.items() if type(value) is float
    }


def test_every_target_is_one_of_the_numbers(names: set[str]) -> None:
    assert {"limit_gflops", *main.AT_LEAST, *main.AT_MOST} <= names


def test_every_number_is_compared_or_deliberately_not(names: set[str]) -> None:
    groups = (
        compare.HIGHER_IS_BETTER,
        compare.LOWER_IS_BETTER,
        compare.SPEEDS,
        compare.SECONDS,
        (*NOT_COMPARED, "load_*"),
    )
    for name in names:
        found = [group for group in groups if any(fnmatch(name, pattern) for pattern in group)]
        assert len(found) == 1, name


def test_committed_results_are_named_by_kind_and_were_not_quick() -> None:
    for path in COMMITTED.glob("*-cores.json"):
        numbers = json.loads(path.read_text())
        assert path.stem.endswith(f"-{numbers.get('cores', numbers.get('workers'))}-cores")
        assert not numbers["quick"]


def test_the_benchmark_of_a_busy_machine_leaves_the_stored_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / f"{this_machine().kind}.json"
    out.write_text(json.dumps(RESULT))
    monkeypatch.setattr(main, "RESULTS", tmp_path)
    monkeypatch.setattr(main, "SECTIONS", (limit,))
    monkeypatch.setattr(main, "against_plain", nothing)
    monkeypatch.setattr("sys.argv", ["benchmarks"])
    assert main.main(lambda: 0.5) == 1
    assert json.loads(out.read_text()) == RESULT
    assert main.main(lambda: 0.0) == 0
    assert json.loads(out.read_text())["limit_gflops"] == 50.0


def limit(_: Bench) -> Any:
    """The limit"""
    yield "limit_gflops", 50.0


def nothing(_: Bench) -> Any:
    """No numbers"""
    return iter(())
