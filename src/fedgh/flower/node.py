"""Run a client's node: restart it while Flower still refuses it, and explain why it ended."""

import os
import re
import socket
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
from fedgh.flower import keys
from fedgh.flower.bound import read_bound
from fedgh.flower.processes import clean_end, end_groups

REFUSED = "Failed to activate SuperNode"
"""Text that Flower prints when the SuperLink does not accept a node's key."""

HINTS = {
    REFUSED: (
        "the SuperLink does not accept this key: the operator has not registered key.pub, or a "
        "node with the same key was connected until a minute ago"
    ),
    "certificate has expired": (
        "the server's certificate or ca.crt has ended; the operator can renew them (fedgh flower "
        "renew)"
    ),
    "CERTIFICATE_VERIFY_FAILED": (
        "the server's certificate is not signed by the authority in ca.crt, or is for another "
        "name: ask the operator for the right ca.crt, and for the server's name in the certificate"
    ),
    r"--insecure. was set[\s\S]*(disconnected|Connection reset)": (
        "the server accepts only TLS; start the node without --insecure"
    ),
    "Connection refused|Name or service not known|All connection attempts failed": (
        "no server answers at this address; check the address, and that the SuperLink runs"
    ),
    "the executor of this node has ended": (
        "the process that runs the client's code has ended: its log says why, or the machine had "
        "too little memory and the operating system has killed it"
    ),
    "this node has given up the connection": (
        "the connection to the server was refused or broken in a way that Flower does not retry; "
        "the log says how. Join again, and see: fedgh flower check"
    ),
    "address already in use": "another program uses this port, perhaps this client's own node, "
    "which still runs; otherwise set another FEDGH_NODE_PORT",
    r"Unable to parse the private key|No such file or directory: 'key'": (
        "the file key is missing or is no private key; see: fedgh flower check"
    ),
    "--root-certificates. does not point to a file": (
        "the file ca.crt is missing; ask the operator for it"
    ),
    # Flower's node gives no reason then. The last, because it ends in the same way in other cases.
    "SuperNode terminated gracefully": (
        "the server does not accept this node's signature: this machine's clock is more than 5 s "
        "ahead of the server's, or the operator has revoked the key; see: fedgh flower check"
    ),
}
"""For patterns in the last output of a node that ended, the cause in plain words."""

MAX_SETTINGS = MAX_SCRIPT = 2**16
"""Maximum sizes in bytes of node.conf and of node.sh."""

NODE_PORT = re.compile(r"FEDGH_NODE_PORT:-(\d{1,5})\}")
"""The node's own port, as node.sh has it."""

RETRY_DELAYS = (10.0, 20.0, 30.0, 30.0)
"""Seconds between starts: for 45 to 60 s the SuperLink takes a lost node for connected."""


def join(folder: Path, say: Callable[[str], None]) -> None:
    """Run the node of the client whose folder this is, until Ctrl-C.

    Raise ConfigError for a wrong folder or setting, and RunError when the node ends by itself.
    """
    script = file_of_client(folder.absolute(), "node.sh")
    read_settings(folder / "node.conf")
    keys.read_client_key(folder)
    try:
        keys.read_certificate(folder / "ca.crt")
    except ConfigError as error:
        raise ConfigError(f"{error}; ask the operator for ca.crt") from None
    port = port_of(script)
    if port is not None and not port_is_free(port):
        raise RunError(
            f"port {port} of 127.0.0.1 is in use, perhaps because this client's node runs already; "
            "otherwise set another FEDGH_NODE_PORT"
        )
    delays = list(RETRY_DELAYS)
    with clean_end():
        while True:
            output = _run(script, say)
            if REFUSED not in output or not delays:
                raise RunError(explanation(output) or f"the node has ended:\n{output}")
            delay = delays.pop(0)
            say(
                "the SuperLink refused this node, perhaps because it still takes an earlier one "
                f"for connected; next try in {delay:.0f} s"
            )
            time.sleep(delay)


def file_of_client(folder: Path, name: str) -> Path:
    """Return a file of a client's folder; raise ConfigError if the folder lacks it."""
    if not (folder / name).is_file():
        raise ConfigError(
            f"{folder} is not the folder of a client (it has no {name}); use the folder "
            "participants/K that the operator gave you"
        )
    return folder / name


def port_of(script: Path) -> int | None:
    """Return the node's own port, from $FEDGH_NODE_PORT or node.sh; None if neither names it.

    Raise ConfigError if it is no port.
    """
    text = read_bytes(script, MAX_SCRIPT, follow=True).decode(errors="replace")
    default = NODE_PORT.search(text)
    port = os.environ.get("FEDGH_NODE_PORT") or (default and default[1])
    if port is None:
        return None
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 2**16:
        raise ConfigError(f"FEDGH_NODE_PORT={port}: expected a port, a number from 1 to 65535")
    return int(port)


def port_is_free(port: int) -> bool:
    """Return True if a node can listen on a port of 127.0.0.1."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in node.conf.

    Raise ConfigError for lines that Flower would misread, and for wrong limits.
    """
    settings: dict[str, Any] = {}
    try:
        for line in read_bytes(path, MAX_SETTINGS, follow=True).decode().splitlines():
            if line.lstrip().startswith("#"):
                continue
            parsed = parse_config_args([f"{line} "])
            if not parsed and line.strip():
                raise ValueError(line)
            settings.update(parsed)
    except (OSError, ValueError, ClickException) as error:
        raise ConfigError(
            f'{path}: expected lines like key=1 or other="text", without spaces around the = '
            f"({' '.join(str(error).split())})"
        ) from None
    read_bound(settings)
    return settings


def explanation(output: str) -> str | None:
    """Return why a node ended, from its last output; None if the cause is not known."""
    last_start = output.rpartition("Starting Flower SuperNode")[2]  # a log may have several starts
    return next((hint for sign, hint in HINTS.items() if re.search(sign, last_start, re.I)), None)


def _run(script: Path, say: Callable[[str], None]) -> str:
    """Run a node until it ends; pass its output to `say`, and return the last lines."""
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
            with suppress(OSError, ValueError):  # if our output is closed, the node must not block
                say(line.rstrip())

    listener = Thread(target=listen, daemon=True)
    listener.start()
    try:
        process.wait()  # its child processes notice that it has ended, and end as well
    finally:
        end_groups([process.pid])
        process.wait()
    listener.join(timeout=5)
    return "".join(last)
