"""How many hostile inputs are tried, and where the number comes from.

Every test asks for a share of `INPUTS`. Without $FEDGH_FUZZ the inputs are few and always the same;
with it they are as many as it says, new ones every time, and a failure prints how to repeat it.
No input may take seconds of computing, or gigabytes; one that waits is ended by pytest's timeout.
"""

import functools
import math
import os
import resource
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

ASKED = os.environ.get("FEDGH_FUZZ")
INPUTS = int(ASKED or 2_000)

MAX_SECONDS = 5.0
"""Of computing, for one input: a busy machine is no bug."""

MAX_MEMORY = 2**30
"""Bytes by which one input may raise the most that this process has ever used."""

Test = Callable[..., None]


class Tally:
    """How many inputs the tests of this process have seen."""

    seen = 0


def _most_used() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(share: float, **strategies: SearchStrategy[Any]) -> Callable[[Test], Test]:
    """Run a test on its share of the inputs; a parametrised one takes it for every parameter."""
    wanted = math.ceil(share * INPUTS)
    tuned = settings(
        max_examples=wanted,
        derandomize=ASKED is None,
        database=None,
        deadline=None,  # a busy machine is no bug
        print_blob=True,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.function_scoped_fixture,
        ],
    )

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def counted(*args: Any, **kwargs: Any) -> None:
            Tally.seen += 1
            before, start = _most_used(), time.process_time()
            test(*args, **kwargs)
            assert time.process_time() - start < MAX_SECONDS
            assert _most_used() - before < MAX_MEMORY

        search: Test = tuned(given(**strategies)(counted))
        search.__dict__["wanted"] = wanted
        return search

    return decorate
