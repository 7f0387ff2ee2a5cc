"""What a participant has answered: a question that is asked again gets the same bytes again.

Noise protects because it is drawn once: whoever gets many answers to one question takes their mean.
So an answer is on disk before it is sent, until its round cannot be asked for any more. Another
question about a round that was answered is a new release. A server that has to start again may
have one, since it may have lost what the others had sent; the ledger counts it. Within one start
there is no reason to ask twice.
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
    """What a server asks of a client: in which round and start, and a digest of all the rest."""

    round: int
    start: int
    digest: str

    @classmethod
    def of(cls, request: Request, down: bytes) -> "Question":
        """The same digest for requests that differ in nothing that matters to the answer."""
        rest = replace(request, start=0, committed=0, settled=0, deadline=1.0, torch="")
        digest = blake2b(json.dumps(asdict(rest), sort_keys=True).encode(), digest_size=16)
        digest.update(down)
        return cls(request.round, request.start, digest.hexdigest())


class Answers:
    """A client's answers of the rounds that may be asked for again, a file for each."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder, 0o700)
        discard_parts(folder)
        self._folder = folder

    def rounds(self) -> set[int]:
        """The rounds whose answers are here."""
        return {int(path.stem) for path in self._folder.glob("*.safetensors")}

    def again(self, question: Question) -> Reply | None:
        """The answer that was given to this question; None when there may be a new one."""
        path = self._path(question.round)
        if not path.exists():
            return None
        try:
            about, content = unpack(read_bytes(path, MAX_STATE))
            asked = Question(question.round, about["start"], about["question"])
            reply = Reply(**json.loads(about["reply"]), up=content["up"].numpy().tobytes())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} cannot be read ({error}); put it back from a copy") from None
        if asked.digest == question.digest:
            if asked.start < question.start:
                self.keep(question, reply)
            return reply
        if asked.start >= question.start:
            raise PublicError(f"round {question.round} was answered, and the question was another")
        return None

    def keep(self, question: Question, reply: Reply) -> None:
        """Make sure of an answer that is about to be sent."""
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
        """What is done now in `round` is another history than that of these answers."""
        self._forget({known for known in self.rounds() if known >= round})
        sync_folder(self._folder)  # before the states that go with them are replaced

    def forget_up_to(self, round: int) -> None:
        """These rounds cannot be asked for any more."""
        self._forget({known for known in self.rounds() if known <= round})

    def _forget(self, rounds: set[int]) -> None:
        for round in rounds:
            self._path(round).unlink(missing_ok=True)

    def _path(self, round: int) -> Path:
        return self._folder / f"{round:06}.safetensors"
