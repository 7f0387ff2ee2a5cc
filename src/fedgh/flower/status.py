"""The status of a federation: its processes, its run, the round in progress, and every client.

It is read from the federation's folder and the run folder, also while a server works there, and for
federations that were started by their scripts. Both folders are validated; nothing in them is
executed.
"""

import os
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import httpx

from fedgh.core.records import Round
from fedgh.files import read_bytes
from fedgh.flower._flwr import connected_keys
from fedgh.flower.current import MAX_INTERVAL, ClientProgress, CurrentRound, read_current
from fedgh.flower.folder import PORT, FederationFolder
from fedgh.flower.keys import MAX_KEY, read_public_key
from fedgh.flower.logs import as_time
from fedgh.flower.processes import running_processes
from fedgh.flower.session import Session
from fedgh.runs.read import name_runs

SILENCE = 4 * MAX_INTERVAL
"""Seconds after its last sign of life for which a server still counts as running."""


@dataclass(frozen=True)
class RoundStatus:
    """The round in progress."""

    round: int
    tries: int  # deadlines that it has had, with the present one
    age: float  # seconds since this try began
    deadline: float  # seconds that it lasts at most
    asked: int
    answered: int
    failed: int
    awaited: list[int]  # clients


@dataclass(frozen=True)
class ClientStatus:
    """A client as the server knows it."""

    client: int
    connected: bool | None  # None: not known, since neither a server nor a SuperLink answers
    round: int | None  # the last round that needed it
    state: str | None  # in that round
    seconds: float | None  # from the request to the answer, or until now
    reason: str  # of a failure
    last_round: int | None  # of its last answer with a result
    last_answer: str | None  # when that came
    last_answer_age: float | None  # seconds


@dataclass(frozen=True)
class FederationStatus:
    """A federation: totals of completed rounds, the round in progress, and the clients."""

    run: str
    state: Literal["not started", "running", "stopped", "finished"]
    error: str | None = None  # of the last start
    rounds: int | None = None  # planned
    rounds_completed: int = 0
    accuracy: float | None = None  # the last one
    uploads: int = 0  # accepted, in all rounds
    failed: int = 0  # participants, in all rounds
    rejected: int = 0  # uploads, in all rounds
    excluded: int = 0  # clients
    bytes: int = 0  # of tensors
    wire_bytes: int = 0  # of whole messages
    epsilon: float | None = None
    silence: float | None = None  # seconds since the last sign of life of the server
    processes: dict[str, int] = field(default_factory=dict)  # of `fedgh flower up`
    superlink: str | None = None  # the SuperLink's address, if it was asked and has answered
    current: RoundStatus | None = None
    clients: list[ClientStatus] = field(default_factory=list)


def federation_status(
    folder: FederationFolder, out: Path, *, ask_superlink: bool = False
) -> FederationStatus:
    """Return the status of a federation and of its run in `out`.

    If no server works on the run, `ask_superlink` asks the SuperLink who is connected.
    """
    keys = _keys(folder)
    processes = running_processes(folder.processes)[1] if folder.processes.exists() else {}
    status = FederationStatus(str(out), "not started", processes=processes)
    records: list[Round] = []
    current = None
    if (out / "config.toml").exists():
        (run,) = name_runs([out])
        records, current = run.rounds, read_current(out, run.identity.run)
        session = Session.read(out)
        status = replace(
            _with_totals(status, records),
            state="finished" if run.finished else "stopped",
            error=session.error if session is not None else None,
            rounds=run.settings.federation.rounds,
            silence=None if current is None else max(0.0, time.time() - current.updated),
        )
    connected: Collection[int] | None = None
    if current is not None and not current.ended and (status.silence or 0.0) < SILENCE:
        connected = current.connected
        in_progress = current.round > len(records)
        status = replace(
            status, state="running", current=round_status(current) if in_progress else None
        )
    elif ask_superlink and not processes:
        address = _superlink_address()
        connected = _ask_superlink(folder, address, keys)
        status = replace(status, superlink=None if connected is None else address)
    seen = current.clients if current is not None else {}
    return replace(
        status, clients=[client_status(client, seen.get(client), connected) for client in keys]
    )


def running_superlink(folder: FederationFolder) -> str | None:
    """Return the address of the SuperLink that server/superlink.sh has started, if it answers."""
    address = _superlink_address()
    return None if _ask_superlink(folder, address, {}) is None else address


def _superlink_address() -> str:
    return f"127.0.0.1:{os.environ.get('FEDGH_PORT', PORT)}"


def _with_totals(status: FederationStatus, records: list[Round]) -> FederationStatus:
    """Return a status with the totals of completed rounds."""
    if not records:
        return status
    last = records[-1]
    accuracies = [record.accuracy for record in records if record.accuracy is not None]
    return replace(
        status,
        rounds_completed=len(records),
        accuracy=accuracies[-1] if accuracies else None,
        uploads=sum(len(record.answered) for record in records),
        failed=sum(len(record.failed) for record in records),
        rejected=sum(len(record.rejected) for record in records),
        excluded=len(last.excluded),
        bytes=last.bytes_total,
        wire_bytes=sum(record.wire_bytes for record in records),
        epsilon=last.epsilon,
    )


def round_status(current: CurrentRound) -> RoundStatus:
    """Return the status of a round from what the server has noted."""
    clients = current.in_round()
    states = [one.state for one in clients.values()]
    awaited = [client for client, one in clients.items() if one.state == "awaited"]
    answered = states.count("answered")
    return RoundStatus(
        round=current.round,
        tries=current.tries,
        age=max(0.0, time.time() - current.began),
        deadline=current.deadline,
        asked=len(states),
        answered=answered,
        failed=len(states) - answered - len(awaited),
        awaited=awaited,
    )


def client_status(
    client: int, seen: ClientProgress | None, connected: Collection[int] | None
) -> ClientStatus:
    """Return the status of a client; `seen` is what the server has noted."""
    seen, now = seen or ClientProgress(), time.time()
    end = now if seen.ended is None else seen.ended
    return ClientStatus(
        client=client,
        connected=None if connected is None else client in connected,
        round=seen.round or None,
        state=seen.state if seen.round else None,
        seconds=None if seen.asked is None else max(0.0, end - seen.asked),
        reason=seen.reason,
        last_round=seen.answered_round or None,
        last_answer=None if seen.answered is None else as_time(seen.answered),
        last_answer_age=None if seen.answered is None else max(0.0, now - seen.answered),
    )


def _keys(folder: FederationFolder) -> dict[int, bytes]:
    """Return the public key of each client for which the operator has one, by client."""
    numbers = sorted(int(file.stem) for file in folder.keys.glob("*.pub") if file.stem.isdecimal())
    return {client: read_public_key(folder.keys / f"{client}.pub") for client in numbers}


def _ask_superlink(
    folder: FederationFolder, address: str, keys: dict[int, bytes]
) -> set[int] | None:
    """Return the clients that are connected to the SuperLink; None if it does not answer."""
    try:
        online = connected_keys(address, read_bytes(folder.server / "ca.crt", MAX_KEY))
    except (httpx.HTTPError, OSError):  # also ca.crt is missing, or does not fit
        return None
    return {client for client, key in keys.items() if key in online}
