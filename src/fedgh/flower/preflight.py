"""A check of a client before it joins: its folder, the server, the versions, one round on trial.

Each finding is one line that says what was found and, if it is not good, what to do next.
"""

import os
import re
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cryptography.hazmat.primitives.asymmetric import ec

from fedgh.core.server import ignore
from fedgh.errors import ConfigError, FedghError, RunError, printable
from fedgh.files import read_bytes
from fedgh.flower import keys, reach
from fedgh.flower.bound import NodeConfig, read_bound
from fedgh.flower.dry_round import dry_round
from fedgh.flower.facts import Facts, versions
from fedgh.flower.node import MAX_SCRIPT, file_of_client, port_is_free, port_of, read_settings
from fedgh.flower.renewal import WARNING_DAYS
from fedgh.flower.server import read_participants
from fedgh.formats import human_bytes, percent

ADDRESS = re.compile(r"FEDGH_SUPERLINK:-([^}\s:]+):(\d{1,5})\}")
"""The address of the server, as node.sh has it."""

MAX_DRIFT = 2.0
"""Seconds of difference between two clocks above which at least one of them does not use NTP."""

Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Finding:
    """One line of the check."""

    check: str
    status: Status
    text: str
    advice: str = ""  # what to do next


def check(
    folder: Path,
    address: str | None = None,
    *,
    trial: bool = True,
    say: Callable[[str], None] = ignore,
) -> Iterator[Finding]:
    """Yield the findings about a client's folder, each as soon as it is known.

    `address` replaces the one in node.sh or $FEDGH_SUPERLINK. Without `trial` the app is not run.
    `say` is called before what takes long. Raise ConfigError if this is not a client's folder.
    """
    host, port, own_port = _addresses(folder, address)
    key = None
    try:
        key = _read_key(folder)
        yield Finding("key", "ok", "key is readable by its owner only, and belongs to key.pub")
    except FedghError as error:
        yield Finding("key", "failed", *_halves(error))
    authority = yield from _check_authority(folder / "ca.crt")
    yield from _check_server(authority, key, host, port)
    yield from _check_own_port(own_port)
    facts = None
    try:
        facts = Facts.read(folder / "federation.json")
    except ConfigError as error:
        advice = "ask the operator for it; fedgh flower init writes it into each client's folder"
        yield Finding("versions", "warning", str(error), advice)
    if facts is not None:
        yield from _check_versions(facts)
    try:
        node = read_settings(folder / "node.conf")
        yield Finding("node.conf", "ok", "its settings can be read")
    except ConfigError as error:
        yield Finding("node.conf", "failed", *_halves(error))
        return
    if facts is not None and facts.secure:
        yield _check_peers(folder, node, facts)
    if trial and facts is not None:
        say("a round on trial, in which nothing is sent: the app trains as long as in a real one")
        yield from _try_round(folder, node, facts)


def _addresses(folder: Path, address: str | None) -> tuple[str, int, int]:
    """Return the server's host and port, and the node's own port; raise ConfigError."""
    script = file_of_client(folder, "node.sh")
    text = read_bytes(script, MAX_SCRIPT, follow=True).decode(errors="replace")
    what = "$FEDGH_SUPERLINK" if address is None else "--server"
    address = address or os.environ.get("FEDGH_SUPERLINK")
    if address is not None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError(f"{what} {address}: expected a name and a port, such as a.org:8443")
        text = f"FEDGH_SUPERLINK:-{address}}} {text}"
    server, own_port = ADDRESS.search(text), port_of(script)
    if server is None or own_port is None:
        raise ConfigError(f"{script} does not name the server; give --server NAME:PORT")
    return server[1], int(server[2]), own_port


def _read_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    """Return the client's key; raise ConfigError if others can read it, or key.pub is another's."""
    path = folder / "key"
    key = keys.read_client_key(folder)
    if path.stat().st_mode & 0o077:
        raise ConfigError(
            f"{path} is readable by others; run: chmod 600 {path}, and if others use this "
            "machine, replace the key"
        )
    if keys.public_pem(key.public_key()) != keys.read_public_key(folder / "key.pub"):
        raise ConfigError(
            f"{folder / 'key.pub'} is not the public key of {path}; write it again with: "
            f"ssh-keygen -y -f {path} > {folder / 'key.pub'}, and send it to the operator"
        )
    return key


def _check_authority(path: Path) -> Generator[Finding, None, Path | None]:
    """Yield a finding about ca.crt; return None if it cannot be used at all."""
    try:
        days = keys.days_left(keys.read_certificate(path))
    except ConfigError as error:
        yield Finding("ca.crt", "failed", str(error), "ask the operator for ca.crt")
        return None
    yield _lifetime("ca.crt", "ca.crt", days, "ask the operator for a new ca.crt")
    return path


def _lifetime(check: str, what: str, days: int, advice: str) -> Finding:
    """Return a finding about the days until a certificate ends."""
    if days < 0:
        return Finding(check, "failed", f"{what} has ended", advice)
    if days < WARNING_DAYS:
        return Finding(check, "warning", f"{what} ends in {days} days", advice)
    return Finding(check, "ok", f"{what} is valid for {days} days")


def _check_server(
    authority: Path | None, key: ec.EllipticCurvePrivateKey | None, host: str, port: int
) -> Iterator[Finding]:
    """Yield findings about the server; each needs those before it to be good."""
    try:
        reach.connect(host, port)
    except RunError as error:
        advice = (
            "check the address in node.sh, this machine's firewall for connections to the server, "
            "and with the operator that the proxy runs"
        )
        yield Finding("server", "failed", str(error), advice)
        return
    yield Finding("server", "ok", f"{host}:{port} can be reached")
    if authority is None:
        return
    try:
        certificate = reach.certificate_of(host, port, authority)
    except RunError as error:
        yield Finding("certificate", "failed", *_halves(error))
        return
    what = f"the certificate of {host}"
    advice = "tell the operator, who can renew it: fedgh flower renew"
    yield _lifetime("certificate", what, keys.days_left(certificate), advice)
    if key is None:
        return
    try:
        answer = reach.ask_about(key, host, port, authority)
    except RunError as error:
        yield Finding("registration", "failed", *_halves(error))
        return
    yield _clock(answer.clock_behind)
    yield _registration(answer.status)


def _clock(behind: float | None) -> Finding:
    """Return a finding about this machine's clock, compared with the server's."""
    limit = (
        f"the server refuses a clock more than {reach.MAX_AHEAD} s ahead of its own or more than "
        f"{reach.MAX_BEHIND} s behind"
    )
    if behind is None:
        return Finding("clock", "warning", "the server does not say what time it is", limit)
    side = "behind" if behind > 0 else "ahead of"
    text = f"this machine's clock is {abs(behind):.0f} s {side} the server's"
    if behind < -reach.MAX_AHEAD or behind > reach.MAX_BEHIND:
        return Finding("clock", "failed", text, f"synchronise both by NTP; {limit}")
    if abs(behind) > MAX_DRIFT:
        return Finding("clock", "warning", text, f"synchronise both by NTP; {limit}")
    return Finding("clock", "ok", text)


def _registration(status: int) -> Finding:
    """Return a finding about the client's key at the server."""
    if status == reach.REGISTERED:
        return Finding("registration", "ok", "the server knows this key")
    if status == reach.UNKNOWN_KEY:
        text = "the server does not know this key"
        advice = "send key.pub to the operator, who saves it and runs register.sh"
    elif status == reach.REFUSED_SIGNATURE:
        text = "the server refuses the signature"
        advice = "see the clock; if it is right, check that both have the same version of Flower"
    elif status in reach.NO_SUPERLINK:
        text = f"the proxy answers, but the SuperLink behind it does not (status {status})"
        advice = "ask the operator to start the SuperLink"
    else:
        text = f"the answer is not that of a SuperLink (status {status})"
        advice = "check the address in node.sh with the operator"
    return Finding("registration", "failed", text, advice)


def _check_own_port(port: int) -> Iterator[Finding]:
    if not port_is_free(port):
        text = f"port {port} of 127.0.0.1 is in use"
        advice = "it is if this node runs already; otherwise set another FEDGH_NODE_PORT"
        yield Finding("own port", "warning", text, advice)


def _check_versions(facts: Facts) -> Iterator[Finding]:
    """Yield a finding about this machine's versions, compared with those of the operator.

    No server says its version before the first round. So these are the versions when the operator
    created the folder.
    """
    here = versions()
    then = {name: printable(version) for name, version in facts.versions.items()}
    different = [
        f"{name} {here[name]} (the operator had {then.get(name, 'none')})"
        for name in here
        if here[name] != then.get(name)
    ]
    if not different:
        same = ", ".join(f"{name} {version}" for name, version in here.items())
        yield Finding("versions", "ok", f"{same}, as at the operator when this folder was made")
        return
    text = ", ".join(different)
    minor = [version.split(".")[:2] for version in (here["flwr"], then.get("flwr", ""))]
    if here["fedgh"] != then.get("fedgh") or minor[0] != minor[1]:
        advice = "ask the operator which version runs now, and install it: others are refused"
        yield Finding("versions", "failed", text, advice)
    else:
        advice = "the last bits of results may differ"
        yield Finding("versions", "warning", text, advice)


def _check_peers(folder: Path, node: NodeConfig, facts: Facts) -> Finding:
    """Return a finding about the keys with which the client verifies the others' messages."""
    clients, least = facts.clients, read_bound(node).min_peers or 0
    if least > clients:
        text = f"min-peers is {least}, but there are only {clients} clients"
        return Finding("peers", "failed", text, "agree on the number with the operator")
    peers = folder / str(node.get("peers", "peers"))
    advice = "ask the other clients for their key.pub, not the operator alone"
    try:
        known = read_participants(peers, clients)
        own = keys.read_public_key(folder / "key.pub")
    except ConfigError as error:
        return Finding("peers", "failed", str(error), advice)
    number = node.get("client")
    if not isinstance(number, int) or known.get(number) != own:
        text = f"{peers} has another key for this client than key.pub"
        advice = "send key.pub to all others, who have an old key, too; and replace it here"
        return Finding("peers", "failed", text, advice)
    text = (
        f"{peers} has the public keys of {clients} clients; compare them with these clients, "
        "without the operator: ssh-keygen -lf"
    )
    return Finding("peers", "ok", text)


def _try_round(folder: Path, node: NodeConfig, facts: Facts) -> Iterator[Finding]:
    """Yield findings about the client's app, data and network, from a round on trial."""
    started = time.monotonic()
    result = dry_round(folder, node, facts)
    seconds = time.monotonic() - started
    for run in result.changed:
        text = f"the data are not those of the run {run}"
        advice = "restore them if this run is to continue: a client refuses changed data"
        yield Finding("data", "warning", text, advice)
    if result.data is not None:
        yield Finding("data", "ok", printable(result.data))
    if result.error is not None or result.reply is None:
        name = "data" if result.data is None else "round"
        advice = f"change the app or node.conf in {folder}, then check again"
        yield Finding(name, "failed", printable(result.error or "no answer"), advice)
        return
    reply = result.reply
    masks = " without masks" if facts.secure else ""
    text = (
        f"a round on trial took {seconds:.1f} s: upload of {human_bytes(len(reply.up or b''))}"
        f"{masks}, accuracy {percent(reply.metrics.get('accuracy'))}"
    )
    if seconds > facts.deadline:
        advice = f"the deadline of a round is {facts.deadline:g} s: agree on a later one"
        yield Finding("round", "failed", text, advice)
    else:
        yield Finding("round", "ok", text)


def _halves(error: FedghError) -> tuple[str, str]:
    """Return what an error says is wrong, and what to do next: the part after the semicolon."""
    problem, _, advice = str(error).partition("; ")
    return problem, advice
