"""Clients at participants that a Flower grid reaches: the engine of a real federation."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx
import torch
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedgh.core.server import ignore
from fedgh.core.types import Job, Reply
from fedgh.errors import RunError, WireError, printable
from fedgh.flower import messages
from fedgh.flower._flwr import ErrorCode, Inbox, Limit, ObjectPullError, RunNotRunningException
from fedgh.flower.messages import MAX_HEAD, Request
from fedgh.version import __version__

POLL = 0.3
"""Seconds between looks at what has come; a node that leaves may take its reply with it."""

MAX_RESENT = 10
"""Times a job is sent again in a round because its node has gone."""

GATHERING = 120.0
"""Seconds, at least, for the first round after a start: for a minute after a crash the SuperLink
takes lost nodes for connected, and refuses the same ones when they come back."""


class Flower:
    """Sends jobs, takes replies as they come; who is late or away has failed this round.

    A participant is known by its public key, which the operator has registered: what a node says
    of itself counts for nothing.
    """

    def __init__(
        self,
        grid: Grid,
        participants: Mapping[int, bytes],
        *,
        experiment: str,
        start: int,
        settings: dict[str, Any],
        fingerprint: str | None,
        public: str | None = None,
        deadline: float,
        trained: Mapping[int, int],
        settled: int,
        asking: Callable[[list[int]], None] = ignore,
        say: Callable[[str], None] = ignore,
    ) -> None:
        self._grid = grid
        self._participants = participants
        self._experiment = experiment
        self._start = start
        self._settings = settings
        self._fingerprint = fingerprint
        self._public = public
        self._deadline = deadline
        # client -> the rounds in which it trained, as far as the server counts them
        self._trained = {client: [round] for client, round in trained.items()}
        self._settled = settled  # the last round of the last checkpoint
        self._asking = asking  # is told who is asked for an upload, before they are
        self._say = say
        self._met = False  # whether everybody has had a chance to join
        self._trouble = ""  # what the SuperLink said last when replies were asked for

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Ask everybody at once; one reply for each job before the deadline is over."""
        inbox = Inbox(self._grid)
        patience = self._deadline if self._met else max(self._deadline, GATHERING)
        nodes = self._wait_for_nodes({job.client_id for job in jobs}, patience)
        self._met = True
        unsent = []
        for job in jobs:
            if job.client_id in nodes:
                unsent.append(job)
            else:
                yield _failed(job, "not connected")
        waiting: dict[str, tuple[Job, int]] = {}  # message -> what it asks, its size
        resent: Counter[int] = Counter()
        self._trouble = ""
        self._asking([job.client_id for job in jobs if job.down is not None])
        end = time.monotonic() + patience
        while (unsent or waiting) and time.monotonic() < end:
            unsent = self._push(unsent, waiting, end - time.monotonic())
            for name in list(waiting):
                job, sent = waiting[name]
                found = self.pull(inbox, name, job)
                if found is None:
                    continue
                del waiting[name]
                if _node_has_gone(found) and resent[job.client_id] < MAX_RESENT:
                    resent[job.client_id] += 1
                    unsent.append(job)  # it may come back in time
                    continue
                reply = reply_of(job, found, sent)
                # A participant cannot have worked for longer than it was given.
                known = {phase: min(s, patience) for phase, s in reply.seconds.items()}
                yield replace(reply, seconds=known)
            if unsent or waiting:
                time.sleep(POLL)
        for job, sent in waiting.values():
            yield _failed(job, f"no answer within {patience:g} s{self._trouble}", sent)
        for job in unsent:
            yield _failed(job, "its node could not be reached")

    def save(self, round: int) -> None:
        """Participants keep their own states; they are told which of them still count."""
        self._settled = round

    def close(self) -> None:
        """The grid is Flower's."""

    def _wait_for_nodes(self, clients: set[int], patience: float) -> dict[int, int]:
        """The node of each client that is connected.

        At the start everybody is waited for; later only an empty house is.
        """
        end = time.monotonic() + patience
        while True:
            nodes = self._nodes(clients)
            enough = len(nodes) == len(clients) or (self._met and nodes)
            if enough or time.monotonic() > end:
                return nodes
            self._say(f"{len(nodes)} of {len(clients)} participants are connected; waiting")
            time.sleep(min(2.0, patience / 10))

    def _nodes(self, clients: set[int]) -> dict[int, int]:
        keys = {bytes(node.public_key): node.node_id for node in self._grid.get_nodes()}
        known = {client: self._participants.get(client, b"") for client in clients}
        return {client: keys[key] for client, key in known.items() if key in keys}

    def _push(
        self, jobs: list[Job], waiting: dict[str, tuple[Job, int]], seconds: float
    ) -> list[Job]:
        """Send the jobs whose nodes are there; those that could not be sent."""
        nodes = self._nodes({job.client_id for job in jobs}) if jobs else {}
        there = [job for job in jobs if job.client_id in nodes]
        sent = [self.message(job, nodes[job.client_id], seconds) for job in there]
        names: list[str | None] = list(self._grid.push_messages(sent)) if sent else []
        for job, message, name in zip(there, sent, names, strict=False):
            if name is not None:
                waiting[name] = job, messages.wire_bytes(message)
        asked = {job.client_id for job, _ in waiting.values()}
        return [job for job in jobs if job.client_id not in asked]

    def message(self, job: Job, node: int, seconds: float) -> Message:
        """A job for a node, to be done within so many seconds."""
        counted = self._trained.setdefault(job.client_id, [0])
        counted.append(job.trained)
        ask = Request(
            version=__version__,
            torch=torch.__version__,
            experiment=self._experiment,
            start=self._start,
            client=job.client_id,
            round=job.round,
            trained=job.trained,
            committed=max(round for round in counted if round <= self._settled),
            settled=self._settled,
            evaluate=job.evaluate,
            evaluate_globally=job.evaluate_globally,
            deadline=seconds,
            settings=self._settings,
            fingerprint=self._fingerprint,
            public=self._public,
        )
        return Message(
            messages.request(ask, job.down),
            dst_node_id=node,
            message_type=MessageType.TRAIN,
            group_id=str(job.round),
            ttl=seconds,
        )

    def pull(self, inbox: Inbox, name: str, job: Job) -> Message | Exception | None:
        """The reply to a job's message, if it has come.

        Asked for one by one: whose reply it is says the SuperLink, not the reply; and bytes that
        are no message spoil nobody else's.
        """
        try:
            return inbox.pull(name, Limit(record=MAX_HEAD, array=job.max_upload))
        except httpx.HTTPStatusError as error:  # Flower has tried again where that may help
            self._trouble = f"; the SuperLink answered {error.response.status_code}"
            return None
        except httpx.HTTPError as error:
            raise RunError(f"the SuperLink is out of reach: {error}") from None
        except RunNotRunningException:
            raise RunError("Flower has stopped this run; start it again to go on") from None
        except Exception as error:  # whatever Flower makes of bytes that are no message
            return error


def _node_has_gone(found: Message | Exception) -> bool:
    return (
        isinstance(found, Message)
        and found.has_error()
        and found.error.code == ErrorCode.NODE_UNAVAILABLE
    )


def reply_of(job: Job, message: Message | Exception, sent: int) -> Reply:
    """Read the reply to a job; what cannot be read is a reply that says why."""
    if isinstance(message, ObjectPullError):
        return _failed(job, "its node has sent only a part of the reply", sent)
    if isinstance(message, WireError):
        return _invalid(job, str(message), sent)
    if isinstance(message, Exception):
        return _invalid(job, f"not a readable message ({type(message).__name__})", sent)
    if message.has_error():
        return _failed(job, _explained(message), sent)
    received = sent + messages.wire_bytes(message)
    try:
        return replace(messages.read_answer(message.content, job), wire_bytes=received)
    except WireError as error:
        return _invalid(job, str(error), received)


def _explained(message: Message) -> str:
    """Flower's own errors: the node has gone, its app has crashed, could not be loaded."""
    return f"Flower error {message.error.code}: {message.error.reason or 'no reason given'}"


def _invalid(job: Job, reason: str, size: int) -> Reply:
    return Reply(job.client_id, job.round, invalid=reason, wire_bytes=size)


def _failed(job: Job, reason: str, sent: int = 0) -> Reply:
    return Reply(job.client_id, job.round, error=printable(reason), wire_bytes=sent)
