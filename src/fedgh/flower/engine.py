"""The engine of a federation between machines: it sends jobs to clients over a Flower grid."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from fedgh.flower.current import ClientState, CurrentFile
from fedgh.flower.messages import MAX_JSON, Request
from fedgh.version import __version__

POLL = 0.3
"""Seconds between polls for replies; a reply can be lost when its node disconnects."""

MAX_RESENT = 10
"""Maximum number of times that a job is sent again in a round because its node disconnected."""

MAX_TRIES = 3
"""Deadlines in a row after which a round with too few answers ends the run."""

LOOK = 5.0
"""Seconds between looks at who is connected."""

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
        secure_deadline: float = 60.0,
        trained: Mapping[int, int],
        settled: int,
        asking: Callable[[list[int]], None] = ignore,
        say: Callable[[str], None] = ignore,
        share: float = 0.0,
        current: CurrentFile | None = None,
    ) -> None:
        self._grid = grid
        self._participants = participants
        self._experiment = experiment
        self._start = start
        self._settings = settings
        self._fingerprint = fingerprint
        self._public = public
        self._deadline = deadline
        self._secure_deadline = secure_deadline  # of messages without an upload
        # client -> rounds in which it trained and that the server counts
        self._trained = {client: [round] for client, round in trained.items()}
        self._settled = settled  # the last round of the last checkpoint
        self._asking = asking  # called with the clients before an upload is requested from them
        self._say = say
        self._share = share  # of the participants; with fewer uploads a round is tried again
        self._current = current or CurrentFile()
        self._next_look = 0.0  # time to look again who is connected
        self._first_round_over = False
        self._superlink_error = ""  # the last error of the SuperLink in this round

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Send all jobs, and yield one reply for each.

        If too few participants have answered at the deadline, ask the missing ones again: a client
        that has finished meanwhile sends its stored answer. Raise RunError after MAX_TRIES.
        """
        inbox, missing, tally = Inbox(self._grid), list(jobs), _Tally()
        participants = sum(job.down is not None for job in jobs)
        needed = self._share * participants
        for tries in range(1, MAX_TRIES + 1):
            yield from self._ask(inbox, missing, tally, needed, tries)
            missing = [job for job in missing if job.client_id in tally.absent]
            late = sum(job.down is not None for job in missing)
            if tally.uploads >= needed or tally.uploads + late < needed:
                break
            self._say(
                f"round {jobs[0].round}: {tally.uploads} of {participants} participants have sent "
                f"an upload, too few{tally.example()} (deadline {tries} of {MAX_TRIES})"
            )
        else:
            raise RunError(
                f"round {jobs[0].round}: {tally.uploads} of {participants} participants have sent "
                f"an upload, in {MAX_TRIES} deadlines of {self._deadline:g} s in a row"
                f"{tally.example()}. The last completed round is safe. If clients need longer, "
                "raise run.deadline in the federation's experiment.toml; then start again, with "
                "`fedgh flower up` or server/train.sh"
            )
        yield from tally.absent.values()

    def _ask(
        self, inbox: Inbox, jobs: Sequence[Job], tally: "_Tally", needed: float, tries: int
    ) -> Iterator[Reply]:
        """Send jobs and yield the replies before a deadline; put the others into `tally.absent`.

        Only when a round is tried again, wait for clients that are not connected, and only as long
        as answers are too few.
        """
        tally.absent.clear()
        messages_only = all(job.secure is not None and job.down is None for job in jobs)
        seconds = self._secure_deadline if messages_only else self._deadline
        if not self._first_round_over:
            seconds = max(seconds, MIN_FIRST_ROUND)
        self._current.begin(jobs, seconds, tries)
        unsent = list(jobs)
        if tries == 1:
            nodes = self._wait_for_nodes({job.client_id for job in jobs}, seconds)
            for job in jobs:
                if job.client_id not in nodes:
                    self._give_up(tally, job, "not connected")
            unsent = [job for job in jobs if job.client_id in nodes]
            self._asking([job.client_id for job in jobs if job.down is not None])
        self._first_round_over = True
        waiting: dict[str, tuple[Job, int]] = {}  # message -> its job, its size in bytes
        resent: Counter[int] = Counter()
        self._superlink_error = ""
        end = time.monotonic() + seconds
        while time.monotonic() < end and (
            waiting or (unsent and (tries == 1 or tally.uploads < needed))
        ):
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
                tally.uploads += reply.up is not None
                self._current.ended(reply, _state_of(reply))
                yield replace(reply, seconds=durations)
            self._watch_nodes()
            if unsent or waiting:
                time.sleep(POLL)
        for job, sent_bytes in waiting.values():
            reason = f"no answer within {seconds:g} s{self._superlink_error}"
            self._give_up(tally, job, reason, sent_bytes)
        for job in unsent:
            self._give_up(tally, job, "not connected")

    def _give_up(self, tally: "_Tally", job: Job, reason: str, sent_bytes: int = 0) -> None:
        """Note that a client has not answered before this deadline."""
        reply = _failed(job, reason, sent_bytes)
        tally.absent[job.client_id] = reply
        self._current.ended(reply, "late" if sent_bytes else "not connected")

    def save(self, round: int) -> None:
        """Note that rounds up to `round` are committed.

        Clients store their own states; the next messages tell them which are still needed.
        """
        self._settled = round

    def close(self) -> None:
        """Write current.json for the last time; the grid belongs to Flower."""
        self._current.close()

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
        """Return the node of each of these clients that is connected."""
        keys = {bytes(node.public_key): node.node_id for node in self._grid.get_nodes()}
        registered = self._participants.items()
        nodes = {client: keys[key] for client, key in registered if key in keys}
        self._current.connected(nodes)
        return {client: node for client, node in nodes.items() if client in clients}

    def _watch_nodes(self) -> None:
        """Look from time to time who is connected, also clients that this round does not need."""
        if time.monotonic() > self._next_look:
            self._next_look = time.monotonic() + LOOK
            with suppress(httpx.HTTPError, RunNotRunningException):  # `pull` reports it
                self._nodes(set())

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
                self._current.sent(job.client_id)
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
            secure=job.secure,
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


@dataclass
class _Tally:
    """The uploads of a round so far, and replies for the clients that have not answered."""

    uploads: int = 0
    absent: dict[int, Reply] = field(default_factory=dict)

    def example(self) -> str:
        """Return why the first client has not answered, to be appended to a message."""
        first = next(iter(self.absent.values()))
        return f"; client {first.client_id}: {first.error}"


def _state_of(reply: Reply) -> ClientState:
    if reply.invalid is not None:
        return "rejected"
    return "answered" if reply.error is None else "failed"


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
