"""Stored answers of a client: a repeated question gets the same bytes again.

Noise protects only if it is drawn once, because a server with many answers to one question could
average the noise away. So a client writes an answer to disk before it sends it, and keeps it until
the server cannot request its round again. A different question about an answered round is a new
release. A client answers it only after a new start of the server, which may have lost the uploads
of the round, and its ledger counts the release. Within one start of the server there is no reason
to ask twice, and the client refuses.
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
class Question:
    """A request of the server: its round, the start of the server, and a digest of the rest."""

    round: int
    start: int
    digest: str

    @classmethod
    def of(cls, request: Request, down: bytes) -> "Question":
        """Return the question of a request; fields that do not affect the answer are left out."""
        rest = replace(request, start=0, committed=0, settled=0, deadline=1.0, torch="")
        digest = blake2b(json.dumps(asdict(rest), sort_keys=True).encode(), digest_size=16)
        digest.update(down)
        return cls(request.round, request.start, digest.hexdigest())


class Answers:
    """A client's answers for the rounds that the server may request again, one file each."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder, 0o700)
        discard_parts(folder)
        self._folder = folder

    def rounds(self) -> set[int]:
        """Return the rounds that have a stored answer."""
        return {int(path.stem) for path in self._folder.glob("*.safetensors")}

    def again(self, question: Question) -> Reply | None:
        """Return the stored answer to this question, or None if the client may compute a new one.

        Raise PublicError for a different question about the round within the same start.
        """
        path = self._path(question.round)
        if not path.exists():
            return None
        try:
            attributes, content = unpack(read_bytes(path, MAX_STATE))
            answered = Question(question.round, attributes["start"], attributes["question"])
            reply = Reply(**json.loads(attributes["reply"]), up=content["up"].numpy().tobytes())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} cannot be read ({error}); put it back from a copy") from None
        if answered.digest == question.digest:
            if answered.start < question.start:
                self.store(question, reply)
            return reply
        if answered.start >= question.start:
            raise PublicError(
                f"round {question.round} was answered already, to a different question"
            )
        return None

    def store(self, question: Question, reply: Reply) -> None:
        """Write an answer to disk; call this before the answer is sent."""
        assert reply.up is not None
        fields = asdict(replace(reply, up=None))
        del fields["up"]
        content = pack(
            {"up": torch.frombuffer(bytearray(reply.up), dtype=torch.uint8)},
            start=question.start,
            question=question.digest,
            reply=json.dumps(fields),
        )
        write_atomic(self._path(question.round), content)

    def forget_from(self, round: int) -> None:
        """Delete the answers from `round` on: that round is computed anew."""
        self._forget({stored for stored in self.rounds() if stored >= round})
        sync_folder(self._folder)  # must be durable before the states of these rounds are replaced

    def forget_up_to(self, round: int) -> None:
        """Delete the answers up to `round`: the server cannot request these rounds again."""
        self._forget({stored for stored in self.rounds() if stored <= round})

    def _forget(self, rounds: set[int]) -> None:
        for round in rounds:
            self._path(round).unlink(missing_ok=True)

    def _path(self, round: int) -> Path:
        return self._folder / f"{round:06}.safetensors"
