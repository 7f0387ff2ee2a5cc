"""The engine of a federation between machines: it sends jobs to clients over a Flower grid."""

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
from fedgh.flower.messages import MAX_JSON, Request
from fedgh.version import __version__

POLL = 0.3
"""Seconds between polls for replies; a reply can be lost when its node disconnects."""

MAX_RESENT = 10
"""Maximum number of times that a job is sent again in a round because its node disconnected."""

MIN_FIRST_ROUND = 120.0
"""Minimum number of seconds for the first round after a start of the server.

For a minute after a crash the SuperLink takes lost nodes for connected, and refuses the same nodes
when they come back.
"""


class Flower:
    """An engine that sends all jobs of a round at once and yields replies as they arrive.

    A client that is late or not connected has failed in this round. A client is identified by its
    public key, which the operator has registered, never by what its node reports about itself.
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
        # client -> rounds in which it trained and that the server counts
        self._trained = {client: [round] for client, round in trained.items()}
        self._settled = settled  # the last round of the last checkpoint
        self._asking = asking  # called with the clients before an upload is requested from them
        self._say = say
        self._first_round_over = False
        self._superlink_error = ""  # the last error of the SuperLink in this round

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Send all jobs, and yield one reply for each before the deadline."""
        inbox = Inbox(self._grid)
        seconds = self._deadline
        if not self._first_round_over:
            seconds = max(seconds, MIN_FIRST_ROUND)
        nodes = self._wait_for_nodes({job.client_id for job in jobs}, seconds)
        self._first_round_over = True
        unsent = []
        for job in jobs:
            if job.client_id in nodes:
                unsent.append(job)
            else:
                yield _failed(job, "not connected")
        waiting: dict[str, tuple[Job, int]] = {}  # message -> its job, its size in bytes
        resent: Counter[int] = Counter()
        self._superlink_error = ""
        self._asking([job.client_id for job in jobs if job.down is not None])
        end = time.monotonic() + seconds
        while (unsent or waiting) and time.monotonic() < end:
            unsent = self._push(unsent, waiting, end - time.monotonic())
            for name in list(waiting):
                job, sent_bytes = waiting[name]
                answer = self.pull(inbox, name, job)
                if answer is None:
                    continue
                del waiting[name]
                if _node_has_gone(answer) and resent[job.client_id] < MAX_RESENT:
                    resent[job.client_id] += 1
                    unsent.append(job)  # the node may come back in time
                    continue
                reply = reply_of(job, answer, sent_bytes)
                # Durations come from the client; none can be longer than the deadline.
                durations = {phase: min(s, seconds) for phase, s in reply.seconds.items()}
                yield replace(reply, seconds=durations)
            if unsent or waiting:
                time.sleep(POLL)
        for job, sent_bytes in waiting.values():
            yield _failed(job, f"no answer within {seconds:g} s{self._superlink_error}", sent_bytes)
        for job in unsent:
            yield _failed(job, "its node could not be reached")

    def save(self, round: int) -> None:
        """Note that rounds up to `round` are committed.

        Clients store their own states; the next messages tell them which are still needed.
        """
        self._settled = round

    def close(self) -> None:
        """Do nothing: the grid belongs to Flower."""

    def _wait_for_nodes(self, clients: set[int], seconds: float) -> dict[int, int]:
        """Return the node of each client that is connected.

        Before the first round, wait for all clients; later only while none is connected.
        """
        end = time.monotonic() + seconds
        while True:
            nodes = self._nodes(clients)
            enough = len(nodes) == len(clients) or (self._first_round_over and nodes)
            if enough or time.monotonic() > end:
                return nodes
            self._say(f"{len(nodes)} of {len(clients)} clients are connected; waiting")
            time.sleep(min(2.0, seconds / 10))

    def _nodes(self, clients: set[int]) -> dict[int, int]:
        keys = {bytes(node.public_key): node.node_id for node in self._grid.get_nodes()}
        registered = {client: self._participants.get(client, b"") for client in clients}
        return {client: keys[key] for client, key in registered.items() if key in keys}

    def _push(
        self, jobs: list[Job], waiting: dict[str, tuple[Job, int]], seconds: float
    ) -> list[Job]:
        """Send the jobs whose nodes are connected; return the jobs that could not be sent.

        `waiting` gets an entry for each message that was sent.
        """
        nodes = self._nodes({job.client_id for job in jobs}) if jobs else {}
        reachable = [job for job in jobs if job.client_id in nodes]
        sent = [self.message(job, nodes[job.client_id], seconds) for job in reachable]
        names: list[str | None] = list(self._grid.push_messages(sent)) if sent else []
        for job, message, name in zip(reachable, sent, names, strict=False):
            if name is not None:
                waiting[name] = job, messages.wire_bytes(message)
        asked = {job.client_id for job, _ in waiting.values()}
        return [job for job in jobs if job.client_id not in asked]

    def message(self, job: Job, node: int, seconds: float) -> Message:
        """Return the message that sends a job to a node; `seconds` is its deadline."""
        counted = self._trained.setdefault(job.client_id, [0])
        counted.append(job.trained)
        request = Request(
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
            messages.pack_request(request, job.down),
            dst_node_id=node,
            message_type=MessageType.TRAIN,
            group_id=str(job.round),
            ttl=seconds,
        )

    def pull(self, inbox: Inbox, name: str, job: Job) -> Message | Exception | None:
        """Return the reply to a job's message, the exception that it caused, or None.

        Replies are pulled one by one, for two reasons: the SuperLink then says whose reply it is,
        not the reply itself, and bytes that are not a message cannot affect other replies.
        """
        try:
            return inbox.pull(name, Limit(record=MAX_JSON, array=job.max_upload))
        except httpx.HTTPStatusError as error:  # Flower has retried where that may help
            self._superlink_error = f"; the SuperLink answered {error.response.status_code}"
            return None
        except httpx.HTTPError as error:
            raise RunError(f"the SuperLink cannot be reached: {error}") from None
        except RunNotRunningException:
            raise RunError("Flower has stopped this run; start it again to continue") from None
        except Exception as error:  # Flower may raise any exception on bytes that are no message
            return error


def _node_has_gone(answer: Message | Exception) -> bool:
    return (
        isinstance(answer, Message)
        and answer.has_error()
        and answer.error.code == ErrorCode.NODE_UNAVAILABLE
    )


def reply_of(job: Job, message: Message | Exception, sent_bytes: int) -> Reply:
    """Return the reply that a message contains; an unreadable message gives a reply with a reason.

    `sent_bytes` is the size of the message with the job, which is added to `Reply.wire_bytes`.
    """
    if isinstance(message, ObjectPullError):
        return _failed(job, "its node has sent only a part of the reply", sent_bytes)
    if isinstance(message, WireError):
        return _invalid(job, str(message), sent_bytes)
    if isinstance(message, Exception):
        return _invalid(job, f"not a readable message ({type(message).__name__})", sent_bytes)
    if message.has_error():
        return _failed(job, _flower_error(message), sent_bytes)
    total_bytes = sent_bytes + messages.wire_bytes(message)
    try:
        return replace(messages.read_answer(message.content, job), wire_bytes=total_bytes)
    except WireError as error:
        return _invalid(job, str(error), total_bytes)


def _flower_error(message: Message) -> str:
    """Return the text of Flower's own error: the node has gone, or its app failed."""
    return f"Flower error {message.error.code}: {message.error.reason or 'no reason given'}"


def _invalid(job: Job, reason: str, wire_bytes: int) -> Reply:
    return Reply(job.client_id, job.round, invalid=reason, wire_bytes=wire_bytes)


def _failed(job: Job, reason: str, wire_bytes: int = 0) -> Reply:
    return Reply(job.client_id, job.round, error=printable(reason), wire_bytes=wire_bytes)
