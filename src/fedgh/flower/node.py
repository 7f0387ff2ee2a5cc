"""A participant's node: started, restarted when Flower refuses it for a while, explained."""

import os
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from click import ClickException
from flwr.common.config import parse_config_args

from fedgh.errors import ConfigError, RunError
from fedgh.files import read_bytes
from fedgh.flower.bound import read_bound
from fedgh.flower.processes import clean_end, end_groups

REFUSED = "Failed to activate SuperNode"

HINTS = {
    REFUSED: (
        "the SuperLink does not accept this key: the operator has not registered key.pub, or a "
        "node with the same key was connected until a minute ago"
    ),
    "CERTIFICATE_VERIFY_FAILED": (
        "the server has no certificate of the authority in ca.crt: ask the operator for the right "
        "ca.crt, and for the name by which the server was certified"
    ),
    r"--insecure. was set[\s\S]*(disconnected|Connection reset)": "the server speaks TLS only",
    "Connection refused|Name or service not known|All connection attempts failed": (
        "nothing answers at this address; is the SuperLink up, and is it the right address?"
    ),
    "address already in use": "another program has this port; set another FEDGH_NODE_PORT",
}
"""What Flower prints when it gives up, and what it means."""

MAX_SETTINGS = 2**16
"""Bytes of node.conf."""

BACK_OFF = (10.0, 20.0, 30.0, 30.0)
"""Seconds between starts: for 45 to 60 s the SuperLink believes that a lost node is still there."""


def join(folder: Path, say: Callable[[str], None]) -> None:
    """Take part as the participant whose folder this is, until Ctrl-C."""
    script = folder.absolute() / "node.sh"
    if not script.is_file():
        raise ConfigError(f"{folder} is not the folder of a participant (it has no node.sh)")
    _check_settings(folder / "node.conf")
    waits = list(BACK_OFF)
    with clean_end():
        while True:
            words = _run(script, say)
            if REFUSED not in words or not waits:
                raise RunError(explained(words) or f"the node has ended:\n{words}")
            wait = waits.pop(0)
            say(f"refused; perhaps an earlier node is still remembered. Next try in {wait:.0f} s")
            time.sleep(wait)


def _check_settings(path: Path) -> None:
    """Refuse what Flower would not see or not read, and a bound that cannot be meant."""
    settings: dict[str, Any] = {}
    try:
        for line in read_bytes(path, MAX_SETTINGS, follow=True).decode().splitlines():
            if line.lstrip().startswith("#"):
                continue
            found = parse_config_args([f"{line} "])
            if not found and line.strip():
                raise ValueError(line)
            settings.update(found)
    except (OSError, ValueError, ClickException) as error:
        raise ConfigError(
            f'{path}: expected lines like key=1 or other="text", without spaces around the = '
            f"({' '.join(str(error).split())})"
        ) from None
    read_bound(settings)


def explained(words: str) -> str | None:
    """What the last words of a node mean; None when nobody knows."""
    last = words.rpartition("Starting Flower SuperNode")[2]  # a log may have those of earlier ones
    return next((hint for sign, hint in HINTS.items() if re.search(sign, last, re.I)), None)


def _run(script: Path, say: Callable[[str], None]) -> str:
    """Let a node run until it ends; its last words."""
    programs = str(Path(sys.executable).parent)
    path = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    process = subprocess.Popen(
        ["sh", str(script)],
        env={**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    last: deque[str] = deque(maxlen=40)

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line)
            with suppress(OSError, ValueError):  # nobody reads us; the node must not wait for that
                say(line.rstrip())

    listener = Thread(target=listen, daemon=True)
    listener.start()
    try:
        process.wait()  # what it has started notices only then, and ends as well
    finally:
        end_groups([process.pid])
        process.wait()
    listener.join(timeout=5)
    return "".join(last)
