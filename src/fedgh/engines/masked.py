"""Secure aggregation on any engine: the messages before and after that of the upload.

`Masked` is the server's side. It asks for keys and shares before the clients train, and for what
unmasks the sum afterwards. Every such message is a job with a `Step`, which the engine inside
carries to the client. `InProcess` answers these jobs for simulated clients.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache

import torch
from cryptography.hazmat.primitives.asymmetric import ec
from torch import Tensor

from fedgh.core import wire
from fedgh.core.server import Engine
from fedgh.core.sums import NUMBERS
from fedgh.core.types import Job, Reply
from fedgh.secure.client import MaskingClient, Memory
from fedgh.secure.content import Invitation, load
from fedgh.secure.primitives import Numbers
from fedgh.secure.server import UnmaskingServer
from fedgh.secure.signatures import is_signed, sign
from fedgh.secure.step import Phase, Step
from fedgh.secure.terms import ProtocolError, Terms, Verify, digest_of_bytes

MakeTerms = Callable[[int, tuple[int, ...], str], Terms]
"""Function of a round, its participants and the digest of their download that returns its terms."""

MAX_ANSWER, MAX_ANSWER_PER_CLIENT = 4096, 512
"""Bounds of the bytes of a client's answer: in any case, and in addition for each participant."""


class Masked:
    """An engine whose clients mask their uploads.

    `make_terms` returns the terms of a round, `verify` checks signatures of clients.
    """

    def __init__(self, engine: Engine, make_terms: MakeTerms, verify: Verify) -> None:
        self._engine = engine
        self._make_terms = make_terms
        self._verify = verify
        self._server: UnmaskingServer | None = None
        self._jobs: dict[int, Job] = {}  # of the participants of the round
        self._problems: dict[int, str] = {}  # why clients have dropped out
        self._wire_bytes: Counter[int] = Counter()  # of messages without an upload, by client

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Agree on masks with the participants, run the jobs, and yield a reply for each."""
        self._jobs = {job.client_id: job for job in jobs if job.down is not None}
        self._problems, self._wire_bytes = {}, Counter()
        steps, reason = self._agree() if self._jobs else ({}, "")
        for client, job in self._jobs.items():
            if client not in steps:
                texts = filter(None, (reason, self._problems.get(client)))
                yield Reply(
                    client,
                    job.round,
                    error="secure aggregation: " + "; this client: ".join(texts),
                    wire_bytes=self._wire_bytes[client],
                )
        work = [replace(self._jobs[client], secure=steps[client]) for client in steps]
        work += [job for job in jobs if job.down is None]
        for reply in self._engine.run(work) if work else ():
            agreed = self._wire_bytes.pop(reply.client_id, 0)
            yield replace(reply, wire_bytes=reply.wire_bytes + agreed)

    def unmask(self, senders: Sequence[int], length: int) -> tuple[Tensor, int]:
        """Return the sum of the masks in these clients' uploads, and the bytes of messages.

        Raise ProtocolError if too few clients have answered.
        """
        assert self._server is not None
        self._problems, self._wire_bytes = {}, Counter()  # the earlier ones are in replies
        self._server.close_uploads(senders)
        try:
            self._exchange(self._server, "consistency")
            self._exchange(self._server, "unmask")
            masks = self._server.masks(length)
        except ProtocolError as error:
            raise ProtocolError(f"{error}{self._first_problem()}") from None
        return _as_tensor(masks), self._wire_bytes.total()

    def save(self, round: int) -> None:
        """Save the clients' states."""
        self._engine.save(round)

    def close(self) -> None:
        """Close the engine inside."""
        self._engine.close()

    def _agree(self) -> tuple[dict[int, Step], str]:
        """Return the message with which a client masks its upload; none, and why, if none can.

        All clients must have the same download. Otherwise the sum could be about one of them: the
        download of the others could make their uploads known.
        """
        downloads = {job.down for job in self._jobs.values()}
        if len(downloads) > 1:
            return {}, "the participants have different downloads"
        (job, *_), (down,) = self._jobs.values(), downloads
        clients = tuple(sorted(self._jobs))
        terms = self._make_terms(job.round, clients, digest_of_bytes(down or b""))
        self._server = UnmaskingServer(terms, self._verify)
        try:
            self._exchange(self._server, "keys")
            self._exchange(self._server, "shares")
            return self._server.steps("upload"), ""
        except ProtocolError as error:
            return {}, str(error)

    def _exchange(self, server: UnmaskingServer, phase: Phase) -> None:
        """Send the messages of a phase and take the answers; raise ProtocolError if too few sent.

        A client without a valid answer has dropped out; the next phase does not ask it.
        """
        limit = MAX_ANSWER + MAX_ANSWER_PER_CLIENT * len(self._jobs)
        steps = server.steps(phase)
        jobs = [
            replace(self._jobs[client], down=None, evaluate=False, evaluate_globally=False)
            for client in sorted(steps)
        ]
        asked = [replace(job, max_upload=limit, secure=steps[job.client_id]) for job in jobs]
        for reply in self._engine.run(asked):
            self._wire_bytes[reply.client_id] += reply.wire_bytes
            try:
                server.add(phase, reply.client_id, _answer(reply))
            except ProtocolError as error:
                self._problems[reply.client_id] = f"phase {phase}: {error}"

    def _first_problem(self) -> str:
        """Return why the first client has dropped out, to be appended to a message."""
        return "".join(f"; client {k}: {text}" for k, text in list(self._problems.items())[:1])


class InProcess:
    """An engine with simulated clients that mask their uploads in this process."""

    def __init__(self, engine: Engine, make_terms: MakeTerms) -> None:
        self._engine = engine
        self._make_terms = make_terms
        self._clients: dict[int, MaskingClient] = {}  # of the last round
        self.verify: Verify = lru_cache(2**16)(_verify)  # all clients check the same signatures

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Answer the messages of secure aggregation; run other jobs, and mask their uploads."""
        steps = {job.client_id: job.secure for job in jobs if job.secure is not None}
        work = [replace(job, secure=None) for job in jobs if not _is_message(job)]
        yield from map(self._answer, filter(_is_message, jobs))
        for reply in self._engine.run(work) if work else ():
            step = steps.get(reply.client_id)
            yield reply if step is None else self._masked(reply, step)

    def save(self, round: int) -> None:
        """Save the clients' states."""
        self._engine.save(round)

    def close(self) -> None:
        """Close the engine inside."""
        self._engine.close()

    def _answer(self, job: Job) -> Reply:
        """Return a client's answer to a message."""
        assert job.secure is not None
        client = job.client_id
        try:
            if job.secure.phase == "keys":
                self._clients[client] = self._start(job, job.secure)
            answer = self._clients[client].answer(job.secure)
        except ProtocolError as error:
            return Reply(client, job.round, error=str(error))
        return Reply(client, job.round, up=answer.encode())

    def _start(self, job: Job, step: Step) -> MaskingClient:
        invitation = load(Invitation, step.content)
        terms = self._make_terms(job.round, invitation.asked, invitation.download)
        key = _signing_key(job.client_id)
        return MaskingClient(
            job.client_id, Memory(terms), lambda message: sign(key, message), self.verify
        )

    def _masked(self, reply: Reply, step: Step) -> Reply:
        """Return the reply with its upload masked."""
        if reply.up is None:
            return reply
        return replace(reply, up=masked_upload(self._clients[reply.client_id], step, reply.up))


def masked_upload(client: MaskingClient, step: Step, up: bytes) -> bytes:
    """Return a client's upload with its masks; raise ProtocolError if the rules forbid it."""
    numbers = wire.from_bytes(up)[NUMBERS].numpy().view("uint64")
    return wire.to_bytes({NUMBERS: _as_tensor(client.masked(step, numbers))})


def _as_tensor(numbers: Numbers) -> Tensor:
    """Return numbers modulo 2**64 as int64, whose sums have the same bits."""
    return torch.from_numpy(numbers.view("int64"))


def _is_message(job: Job) -> bool:
    return job.secure is not None and job.down is None


def _answer(reply: Reply) -> str:
    """Return the text of an answer; raise ProtocolError if there is none."""
    if reply.up is None:
        raise ProtocolError(reply.error or reply.invalid or "no answer")
    try:
        return reply.up.decode()
    except UnicodeDecodeError:
        raise ProtocolError("not a readable message") from None


@cache
def _signing_key(_: int) -> ec.EllipticCurvePrivateKey:
    """Return the key with which a simulated client is registered."""
    return ec.generate_private_key(ec.SECP384R1())


def _verify(client: int, signature: bytes, message: bytes) -> bool:
    return is_signed(_signing_key(client).public_key(), signature, message)
