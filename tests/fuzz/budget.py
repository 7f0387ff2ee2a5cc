"""The number of inputs of the fuzz tests, and the limits on time and memory for one input.

Every test uses a share of `INPUTS`. Without $FEDGH_FUZZ the inputs are few and always the same. The
variable sets the number of inputs; they are then new in every run, and a failure prints how to
repeat it. An input that blocks is ended by pytest's timeout.
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

REQUESTED = os.environ.get("FEDGH_FUZZ")
INPUTS = int(REQUESTED or 2_000)

MAX_SECONDS = 5.0
"""Maximum seconds of CPU time for one input, so that a busy machine does not fail a test."""

MAX_MEMORY = 2**30
"""Maximum number of bytes by which one input may raise the peak memory of this process."""

Test = Callable[..., None]


class Tally:
    """The number of inputs that the tests of this process have used."""

    seen = 0


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(share: float, **strategies: SearchStrategy[Any]) -> Callable[[Test], Test]:
    """Run a test on its share of the inputs; a parametrised test, for every parameter."""
    wanted = math.ceil(share * INPUTS)
    tuned = settings(
        max_examples=wanted,
        derandomize=REQUESTED is None,
        database=None,
        deadline=None,  # a busy machine must not fail a test
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
            before, start = _peak_memory(), time.process_time()
            test(*args, **kwargs)
            assert time.process_time() - start < MAX_SECONDS
            assert _peak_memory() - before < MAX_MEMORY

        search: Test = tuned(given(**strategies)(counted))
        search.__dict__["wanted"] = wanted
        return search

    return decorate
