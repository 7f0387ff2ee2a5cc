"""The load of the machine by others: other processes, and other guests of a hypervisor."""

import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
PAUSE = 1.0  # seconds in which the processes of the previous section end
SECONDS = 1.0  # of a measurement
LIMIT = 0.05
"""Largest load of an idle machine, as a share of the cores that may be used.

It slows work on all cores by about half of the smallest loss that a comparison reports.
"""


@dataclass(frozen=True)
class CoreTimes:
    """The time of all cores together since the system started, in the unit of /proc/stat."""

    total: int
    busy: int  # including the stolen time
    stolen: int  # time in which a hypervisor ran something else


def core_times(stat: str, cores: Collection[int]) -> CoreTimes:
    """Return the time of these cores, given the content of /proc/stat."""
    names = {f"cpu{core}" for core in cores}
    lines = (line.split() for line in stat.splitlines())
    # user, nice, system, idle, iowait, irq, softirq, steal; the rest is contained in these
    rows = [list(map(int, line[1:9])) for line in lines if line and line[0] in names]
    total = sum(map(sum, rows))
    idle = sum(row[3] + row[4] for row in rows)
    return CoreTimes(total, total - idle, sum(row[7] for row in rows))


class Load:
    """The load by others, measured while the benchmark itself is idle.

    A hypervisor steals time only from cores that have work. So the share that it stole since the
    previous measurement counts as well: the result is the larger of the two.
    """

    def __init__(
        self,
        read: Callable[[], str] = STAT.read_text,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._read = read
        self._sleep = sleep
        self._cores = os.sched_getaffinity(0)
        self._previous: CoreTimes | None = None

    def __call__(self) -> float:
        """Measure for a second, and return a share of the cores that may be used."""
        self._sleep(PAUSE)
        before, own = self._times(), time.process_time()
        self._sleep(SECONDS)
        after, own = self._times(), time.process_time() - own
        others = _share(after.busy - before.busy, before, after) - own / SECONDS / len(self._cores)
        previous, self._previous = self._previous or before, after
        return max(0.0, others, _share(after.stolen - previous.stolen, previous, after))

    def _times(self) -> CoreTimes:
        return core_times(self._read(), self._cores)


def _share(part: int, before: CoreTimes, after: CoreTimes) -> float:
    return part / max(1, after.total - before.total)


def load_average() -> Callable[[], float | None]:
    """Return a function that returns the load average of a minute, as a share of the cores.

    It does so once, at the start: later, the load average contains the benchmark itself.
    """
    values = iter([os.getloadavg()[0] / (os.cpu_count() or 1)])
    return lambda: next(values, None)


def load_by_others() -> Callable[[], float | None]:
    """Return a function that measures the load on this system."""
    return Load() if STAT.exists() else load_average()


def highest(numbers: Mapping[str, float | str | bool]) -> float:
    """Return the highest load among the numbers of a benchmark; 0 if none was measured."""
    return max(
        (value for name, value in numbers.items() if _is_load(name) and isinstance(value, float)),
        default=0.0,
    )


def is_too_high(name: str, value: float) -> bool:
    """Return true for a load, by its name, that is above the limit."""
    return _is_load(name) and value > LIMIT


def _is_load(name: str) -> bool:
    return name.startswith("load_")
