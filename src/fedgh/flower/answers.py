"""Stored answers of a client: a repeated request gets the same bytes again.

Noise protects only if it is drawn once: a server with many answers to the same request could
average the noise away. A client therefore writes an answer to disk before it sends it, and keeps it
until the server cannot request the round again.

The server may send a different request for a round that the client has answered:

- After a restart, the server may have lost the uploads of the round. The client answers, and its
  ledger counts a new release.
- Without a restart, a correct server never does this. The client refuses.
"""

import json
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path

import torch

from fedgh.core.types import Reply
from fedgh.errors import RunError
from fedgh.files import discard_parts, make_folder, read_bytes, sync_folder, write_atomic
from fedgh.flower.bound import PublicError
from fedgh.flower.messages import Request
from fedgh.runs.sealed import MAX_STATE, pack, unpack


@dataclass(frozen=True)
class RequestIdentity:
    """The fields of a request that decide whether a stored answer is sent again."""

    round: int
    start: int  # number of the server's start; it increases with every restart
    digest: str  # of the download and of all other fields that affect the answer

    @classmethod
    def of(cls, request: Request, down: bytes) -> "RequestIdentity":
        """Return the identity of a request with this download."""
        # Fields that do not affect the answer get constant values.
        rest = replace(request, start=0, committed=0, settled=0, deadline=1.0, torch="")
        digest = blake2b(json.dumps(asdict(rest), sort_keys=True).encode(), digest_size=16)
        digest.update(down)
        return cls(request.round, request.start, digest.hexdigest())


def answered_rounds(folder: Path) -> set[int]:
    """Return the rounds that have an answer in a folder of answers."""
    return {int(path.stem) for path in folder.glob("*.safetensors")}


class Answers:
    """A client's answers for the rounds that the server may request again, one file each."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder, 0o700)
        discard_parts(folder)
        self._folder = folder

    def rounds(self) -> set[int]:
        """Return the rounds that have a stored answer."""
        return answered_rounds(self._folder)

    def find(self, request: RequestIdentity) -> Reply | None:
        """Return the stored answer to this request, or None if the client may compute a new one.

        Raise PublicError if the client has answered a different request for this round, and the
        server has not been restarted since.
        """
        path = self._path(request.round)
        if not path.exists():
            return None
        try:
            attributes, content = unpack(read_bytes(path, MAX_STATE))
            answered = RequestIdentity(request.round, attributes["start"], attributes["question"])
            reply = Reply(**json.loads(attributes["reply"]), up=content["up"].numpy().tobytes())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} cannot be read ({error}); put it back from a copy") from None
        if answered.digest == request.digest:
            if answered.start < request.start:
                self.store(request, reply)
            return reply
        if answered.start >= request.start:
            raise PublicError(f"round {request.round} was answered already, to a different request")
        return None

    def store(self, request: RequestIdentity, reply: Reply) -> None:
        """Write an answer to disk; call this before the answer is sent."""
        assert reply.up is not None
        fields = asdict(replace(reply, up=None))
        del fields["up"]
        content = pack(
            {"up": torch.frombuffer(bytearray(reply.up), dtype=torch.uint8)},
            start=request.start,
            question=request.digest,
            reply=json.dumps(fields),
        )
        write_atomic(self._path(request.round), content)

    def forget_from(self, round: int) -> None:
        """Delete the answers of `round` and of later rounds, because `round` is computed again."""
        self._forget({stored for stored in self.rounds() if stored >= round})
        sync_folder(self._folder)  # must be durable before the states of these rounds change

    def forget_up_to(self, round: int) -> None:
        """Delete the answers of `round` and earlier, which the server cannot request again."""
        self._forget({stored for stored in self.rounds() if stored <= round})

    def _forget(self, rounds: set[int]) -> None:
        for round in rounds:
            self._path(round).unlink(missing_ok=True)

    def _path(self, round: int) -> Path:
        return self._folder / f"{round:06}.safetensors"
