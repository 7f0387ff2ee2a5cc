"""The helper process from which worker processes are forked.

It has no threads, which would not survive a fork, and imports what all workers need once.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from typing import Any

PRELOADED = ("fedgh.engines.workers", "fedgh.methods")


def start_early() -> None:
    """Start the helper process before this process has threads.

    Where that is safe, this process imports the modules and the helper is a fork of it: they share
    the memory of the modules, about 100 MiB.
    """
    preload()
    with no_interrupts():
        if _may_fork():
            _start_as_fork()
        else:
            forkserver.ensure_running()


def start_in_fork() -> None:
    """Start a helper process of this process, itself a fork of one, before it computes anything.

    As long as it has not, it is what a helper process is, so the new one can be a fork of it.
    """
    if sys.platform == "linux":  # libraries of macOS do not survive a fork
        preload()
        with no_interrupts():
            _start_as_fork()


def preload() -> None:
    """Choose the modules that the helper process imports, if it has not started yet."""
    forkserver.set_forkserver_preload(list(PRELOADED))


@contextmanager
def no_interrupts() -> Iterator[None]:
    """Block Ctrl-C; processes that start in this block never receive it: the parent handles it."""
    resource_tracker.ensure_running()  # started inside the block, it would unblock Ctrl-C
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _may_fork() -> bool:
    """Return true if this process certainly has no threads but those that survive a fork.

    Libraries of macOS do not survive a fork. A process that has used torch may have its threads.
    """
    return sys.platform == "linux" and threading.active_count() == 1 and "torch" not in sys.modules


def _start_as_fork() -> None:
    for module in PRELOADED:
        import_module(module)
    start_python = util.spawnv_passfds
    util.spawnv_passfds = _fork
    try:
        forkserver.ensure_running()
    finally:
        util.spawnv_passfds = start_python


def _fork(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:  # noqa: ARG001
    """Run the statement `python -c` would, the last of `args`, in a fork of this process.

    Return the fork's process id. It keeps only the standard streams and the descriptors `passfds`.
    The function replaces the one by which multiprocessing starts a new Python for the helper.
    """
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        kept = {0, 1, 2, *passfds}
        for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if descriptor not in kept:
                with suppress(OSError):  # that of the folder itself is closed by now
                    os.close(descriptor)
        exec(args[-1], {})
        status = 0
    except Exception:
        traceback.print_exc()  # as a new Python would; nothing else tells why the helper has ended
        sys.stderr.flush()
    finally:
        os._exit(status)
