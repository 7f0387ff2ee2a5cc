"""The helper process from which worker processes are forked.

It has no threads, which would not survive a fork, and imports what all workers need once.
"""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker

PRELOADED = ("fedgh.engines.workers", "fedgh.methods")


def start_early(also: Sequence[str] = ()) -> None:
    """Start the helper process and do not wait: it imports while this process loads the data.

    `also` names modules to import beside those of workers. This module does not import torch.
    """
    preload(also)
    with no_interrupts():
        forkserver.ensure_running()


def preload(also: Sequence[str] = ()) -> None:
    """Choose the modules that the helper process imports, if it has not started yet."""
    forkserver.set_forkserver_preload([*PRELOADED, *also])


@contextmanager
def no_interrupts() -> Iterator[None]:
    """Block Ctrl-C; processes that start in this block never receive it: the parent handles it."""
    resource_tracker.ensure_running()  # started inside the block, it would unblock Ctrl-C
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
