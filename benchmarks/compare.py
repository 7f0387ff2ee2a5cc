"""Comparison of new numbers with those stored for the same kind of machine.

Two machines of one kind, or one machine on two days, differ in speed. So seconds are multiplied by
the limit of the machine in the same run, and speeds divided by it, before they are compared. Ratios
and memory are compared as they are. The seconds of a whole round are not compared, because its
fraction of the limit is, and neither are shares, differences and the implementations that fedgh
is compared with.
"""

from dataclasses import dataclass
from fnmatch import fnmatch

from benchmarks.suite import Numbers

TOLERANCE = 0.10
RELATIVE_TO = "limit_gflops"

HIGHER_IS_BETTER = (
    "round_fraction_of_limit_*",
    "speedup_over_plain_*",
    "header_speedup_*",
)
LOWER_IS_BETTER = (
    "method_*_over_standalone",
    "scale_time_ratio_*",
    "scale_peak_gib_*",
    "start_peak_mib",
)
SPEEDS = ("header_pairs_per_second_*",)
SECONDS = (
    "million_pairs_seconds",
    "idle_seconds_*",
    "scale_seconds_*",
    "scale_prepare_seconds_*",
    "start_seconds",
)


@dataclass(frozen=True)
class Loss:
    """A number that has become worse."""

    name: str
    before: float
    now: float
    share: float  # 0.2: worse by 20%


def losses(before: Numbers, now: Numbers) -> list[Loss]:
    """Return the numbers that are worse by more than 10%, of those that are in both results."""
    limits = _pair(RELATIVE_TO, before, now)
    faster = limits[1] / limits[0] if limits else 1.0
    found = []
    for name in now:
        if pair := _pair(name, before, now):
            share = _worse_by(name, *pair, faster)
            if share > TOLERANCE:
                found.append(Loss(name, *pair, share))
    return found


def _worse_by(name: str, before: float, now: float, faster: float) -> float:
    """Return the share by which a number is worse; `faster` is the ratio of the limits."""
    if _matches(name, SECONDS):
        now *= faster
    if _matches(name, SPEEDS):
        now /= faster
    if _matches(name, LOWER_IS_BETTER + SECONDS):
        return now / before - 1
    if _matches(name, HIGHER_IS_BETTER + SPEEDS):
        return 1 - now / before
    return 0.0


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _pair(name: str, before: Numbers, now: Numbers) -> tuple[float, float] | None:
    values = before.get(name), now.get(name)
    if isinstance(values[0], float) and isinstance(values[1], float):
        return values[0], values[1]
    return None
