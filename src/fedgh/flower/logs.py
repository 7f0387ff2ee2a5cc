"""Logs of the processes of a federation: every entry has a time, and no colour codes.

If $FEDGH_LOG_FORMAT is "json", an entry is a line with one JSON object: its time, level, logger and
message. Every process imports this module, so it imports nothing that takes time.
"""

import json
import logging
import os
import sys
import time
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO, cast

VARIABLE = "FEDGH_LOG_FORMAT"
"""Name of the environment variable with the format: text (the default) or json."""

MAX_LINE = 2**16
"""Number of characters after which a printed line becomes an entry, even if it goes on."""


class LogFormatter(logging.Formatter):
    """Makes a line of text or a JSON object of an entry. `format` is not used; Flower passes it."""

    def __init__(self, format: str | None = None) -> None:  # noqa: A002, ARG002
        super().__init__()
        self._json = os.environ.get(VARIABLE) == "json"

    def format(self, record: logging.LogRecord) -> str:
        """Return an entry with its time in UTC, and the traceback of an exception."""
        message = record.getMessage().strip()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        moment = as_time(record.created)
        if self._json:
            return as_json(message, level=record.levelname, logger=record.name, moment=moment)
        return f"{moment} {record.levelname} [{record.name}] {message}"


def as_json(message: str, *, level: str, logger: str, moment: str) -> str:
    """Return an entry of a log as one line of JSON."""
    return json.dumps({"time": moment, "level": level, "logger": logger, "message": message})


def print_line(text: str) -> None:
    """Print a line of a node's log, or a message about the node, in the format of the logs."""
    if os.environ.get(VARIABLE) == "json" and not text.startswith("{"):
        text = as_json(text, level="INFO", logger="fedgh.node", moment=as_time(time.time()))
    print(text, flush=True)


def as_time(moment: float) -> str:
    """Return seconds since 1970 as text in UTC: 2026-11-19T03:20:41.123Z."""
    text = datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def configure(level: int = logging.INFO, *, printed: bool = True) -> None:
    """Write the logs of fedgh and of Flower to standard output.

    The exception that ends the process becomes an entry, and with `printed` each printed line.
    """
    logging.raiseExceptions = False  # an error of the log would become an entry, and so on
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(LogFormatter())
    handler.setLevel(level)
    handler.addFilter(lambda record: bool(record.getMessage().strip()))  # Flower logs empty lines
    for name in ("fedgh", "flwr"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
    logging.getLogger("fedgh").setLevel(level)
    sys.excepthook = _log_exception
    if printed:
        sys.stdout = cast(TextIO, _Printed(sys.stdout, logging.INFO))
        sys.stderr = cast(TextIO, _Printed(sys.stderr, logging.WARNING))


class _Printed:
    """A standard stream whose lines become entries of the log; all else is as in the original."""

    def __init__(self, original: TextIO, level: int) -> None:
        self._original, self._level = original, level
        self._line = ""

    def write(self, text: str) -> int:
        """Log the lines that are complete."""
        *lines, self._line = (self._line + text).split("\n")
        if len(self._line) > MAX_LINE:
            lines, self._line = [*lines, self._line], ""
        for line in lines:
            logging.getLogger("fedgh.output").log(self._level, "%s", line)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _log_exception(
    kind: type[BaseException], problem: BaseException, trace: TracebackType | None
) -> None:
    text = "this process has failed"
    logging.getLogger(__name__).critical(text, exc_info=(kind, problem, trace))
