"""The load by others is computed from the ticks of the cores that may be used."""

import os
from collections.abc import Callable

import pytest

from benchmarks.load import Load, core_times, highest, is_too_high, load_average

STAT = """\
cpu  900 0 90 9000 900 0 9 90 0 0
cpu0 {0}
cpu1 {1}
cpu10 9 9 9 9 9 9 9 9 9 9
intr 12345 0 0
"""
#       user nice system idle iowait irq softirq steal guest guest_nice
BEFORE = "10 1 5 100 10 1 2 3 7 1"


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("time.process_time", lambda: 0.0)


def measured(*stats: str) -> Callable[[], float]:
    """Return a load that is computed from these contents of /proc/stat."""
    return Load(read=iter(stats).__next__, sleep=lambda _: None)


def stat(first: str, second: str = BEFORE) -> str:
    return STAT.format(first, second)


def test_the_times_are_summed_over_the_cores_that_may_be_used() -> None:
    times = core_times(stat(BEFORE), {0, 1})
    assert (times.total, times.busy, times.stolen) == (2 * 132, 2 * 22, 2 * 3)
    times = core_times(stat(BEFORE), {1})
    assert (times.total, times.busy, times.stolen) == (132, 22, 3)


def test_the_load_is_the_share_of_the_cores_that_are_busy() -> None:
    # Of 200 ticks: 4 user, 3 system, 2 softirq, 1 steal. 10 of iowait are idle time.
    busy, idle = "14 1 8 180 20 1 4 4 7 1", "10 1 5 200 10 1 2 3 7 1"
    assert measured(stat(BEFORE), stat(busy, idle))() == pytest.approx(10 / 200)


def test_a_guest_of_this_machine_counts_once() -> None:
    guest, idle = "60 1 5 150 10 1 2 3 57 1", "10 1 5 200 10 1 2 3 7 1"
    assert measured(stat(BEFORE), stat(guest, idle))() == pytest.approx(50 / 200)


def test_the_time_stolen_during_a_section_counts() -> None:
    after = "10 1 5 300 10 1 2 3 7 1"
    later = "510 1 5 700 10 1 2 103 7 1"  # a section: 500 user, 400 idle, 100 stolen
    last = "510 1 5 900 10 1 2 103 7 1"
    load = measured(stat(BEFORE), stat(after), stat(later), stat(last))
    assert load() == 0
    assert load() == pytest.approx(100 / 1200)


def test_the_processor_time_of_the_benchmark_itself_is_not_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.process_time", iter([1.0, 1.04]).__next__)
    busy, idle = "20 1 5 190 10 1 2 3 7 1", "10 1 5 200 10 1 2 3 7 1"
    load = measured(stat(BEFORE), stat(busy, idle))
    assert load() == pytest.approx(10 / 200 - 0.04 / 2)


def test_the_load_average_is_read_once_because_it_contains_the_benchmark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1.0, 9.0, 9.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    load = load_average()
    assert [load(), load()] == [0.25, None]


def test_the_highest_load_is_found_by_name() -> None:
    assert highest({"load_0": 0.01, "load_1": 0.2, "seconds": 7.0, "quick": True}) == 0.2
    assert highest({"seconds": 7.0}) == 0
    assert is_too_high("load_3", 0.051)
    assert not is_too_high("load_3", 0.05)
    assert not is_too_high("start_seconds", 3.0)
