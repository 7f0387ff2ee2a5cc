"""Run a command of Flower with the logs of fedgh: python3 -m fedgh.flower.command NAME OPTIONS."""

import logging
import os
import signal
import sys
import time
from importlib.metadata import distribution
from threading import Thread

from fedgh.flower import logs
from fedgh.flower._flwr import console_handler, format_server_logs

logger = logging.getLogger("fedgh.flower.command")  # it is the program, too

EXECUTOR = "FEDGH_EXECUTOR"
"""Name of the environment variable with the PID of a SuperNode's executor, a child process."""

ENDS_TOO = 10.0
"""Seconds after the end of the executor in which a SuperNode that was told to end has ended."""


def main() -> None:
    """Run the command whose name and options are the arguments of this process."""
    sys.argv = sys.argv[1:]
    commands = distribution("flwr").entry_points.select(group="console_scripts", name=sys.argv[0])
    (command,) = commands
    run = command.load()
    # The level is $FLWR_LOG_LEVEL. The HTTP servers write their logs to the standard streams.
    logs.configure(console_handler.level, printed=False)
    format_server_logs(logs.LogFormatter)
    if EXECUTOR in os.environ:
        Thread(target=_end_without, args=[int(os.environ[EXECUTOR])], daemon=True).start()
    code = run()
    if command.name == "flower-supernode":
        # After an error of TLS it returns, but the thread of its HTTP server keeps the process.
        logger.error("this node has given up the connection to the server")
        os.kill(os.getpid(), signal.SIGTERM)
    sys.exit(code)


def _end_without(executor: int) -> None:
    """End this SuperNode if its executor has ended: alone it would accept messages in vain."""
    _, status = os.waitpid(executor, 0)
    time.sleep(ENDS_TOO)
    code = os.waitstatus_to_exitcode(status)
    logger.error("the executor of this node has ended (exit code %d)", code)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
