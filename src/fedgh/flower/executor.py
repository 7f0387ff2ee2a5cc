"""The process that runs a client's code for its SuperNode.

    python3 -m fedgh.flower.executor ADDRESS-OF-THE-SUPERNODE PID-OF-THE-SUPERNODE

Flower wants a new process for every message. It starts the process again if it has not reported
within 30 s, which on a busy machine is less than Python needs for its imports. This process imports
everything once, takes a message only then, and forks a process for it. Where a fork is not safe, it
starts a new Python as Flower does.

One SuperNode handles one message at a time.
"""

import logging
import multiprocessing
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from importlib import import_module
from multiprocessing.context import ForkProcess

import numpy as np

from fedgh.flower import logs
from fedgh.flower._flwr import (
    ExecutionSpec,
    LaunchResult,
    SubprocessExecutor,
    TaskType,
    console_handler,
    run_clientapp,
    run_superexec,
)

logger = logging.getLogger("fedgh.flower.executor")  # it is the program, too

PRELOADED = ("fedgh.flower.client", "fedgh.flower.participant", "fedgh.methods")
"""Modules that every message needs; the client's own app is imported for each message anew."""


class ClientExecutor(SubprocessExecutor):
    """Starts the processes for messages: forks, if that is safe here."""

    def __init__(self, *, fork: bool) -> None:
        self._fork = fork
        self._process: ForkProcess | None = None
        self._task, self._starts = 0, 0  # the last task, and how often it was started

    def get_eligible_capacity(
        self,
        supported_task_types: set[TaskType],  # noqa: ARG002
        *,
        insecure: bool = False,  # noqa: ARG002
        root_certificates_path: str | None = None,  # noqa: ARG002
    ) -> tuple[set[TaskType], set[str]]:
        """Accept messages for a client app, and no programs of other kinds."""
        return {TaskType.CLIENT_APP}, set()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start the process for a message; if this is not its first start, say why."""
        self._starts = self._starts + 1 if spec.task_id == self._task else 1
        self._task = spec.task_id
        if self._starts == 1 and self._process is not None and (self._process.exitcode or 0) < 0:
            logger.warning(
                "the process for the message before was killed (signal %d), perhaps because this "
                "machine had too little memory",
                -(self._process.exitcode or 0),
            )
        if self._starts > 1:
            logger.warning(
                "start %d of the process for this message: it has not reported within 30 s. This "
                "machine is too busy: end other programs, or the answer will miss the round's "
                "deadline",
                self._starts,
            )
            self._kill()  # Flower no longer accepts its answer
        if not self._fork:
            return super().launch(spec)
        self._process = multiprocessing.get_context("fork").Process(target=_run, args=(spec,))
        self._process.start()
        return LaunchResult.accepted()

    def close(self) -> None:
        """End the process of the last message."""
        self._kill()

    def _kill(self) -> None:
        """End the process for the last message; what it has stored is complete or absent."""
        if self._process is not None:
            self._process.kill()
            self._process.join()


def _run(spec: ExecutionSpec) -> None:
    """Handle a message; this runs in a process of its own."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    np.random.seed()  # or the client's own code would draw the same numbers for every message
    run_clientapp(
        runtime_api_address=spec.runtime_api_address,
        token=spec.token,
        insecure=True,
        parent_pid=os.getppid(),
    )


def _end_with(parent: int) -> None:
    """End this process, which must not have threads, soon after its parent has ended."""

    def check(*_: object) -> None:
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGALRM, check)
    signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)


def _wait_for(address: str) -> None:
    """Wait until the SuperNode answers at its address."""
    host, _, port = address.rpartition(":")
    while True:
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
            return
        time.sleep(0.2)


def main() -> None:
    """Run messages of a SuperNode until it ends."""
    address, parent = sys.argv[1], int(sys.argv[2])
    logs.configure(console_handler.level)
    _end_with(parent)
    started = time.monotonic()
    for module in PRELOADED:
        import_module(module)
    _wait_for(address)
    logger.info("ready for messages after %.1f s", time.monotonic() - started)
    run_superexec(address, ClientExecutor(fork=sys.platform == "linux"))


if __name__ == "__main__":
    main()
