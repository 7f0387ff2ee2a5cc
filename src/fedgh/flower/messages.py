"""What travels between the server and a participant: one record of JSON, one array of bytes.

Neither side trusts the other: every field is checked, nothing is executed. The array
holds a payload as safetensors. It is apart from the rest so that what all participants get is
stored and pushed once: Flower knows its objects by their content.
"""

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fedgh.core.metrics import METRICS
from fedgh.core.types import Job, Reply
from fedgh.errors import MAX_TEXT, WireError, printable
from fedgh.flower._flwr import get_all_nested_objects

_HEAD, _BODY, _FORMAT = "fedgh", "payload", "safetensors"

Count = Annotated[int, Field(ge=0, le=2**53)]
Finite = Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)]  # sums stay finite too
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Key = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,39}$")]
Few = Field(max_length=16)

MAX_HEAD = 2**20
"""Bytes of JSON in a message; an experiment's settings take a few thousand."""


@dataclass(frozen=True)
class Request:
    """What the server asks, beside the payload."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    version: str  # of fedgh: only the same computes the same
    experiment: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")
    ]  # a participant's folder
    start: Count  # how often the server was started for this experiment
    client: Count
    round: Count
    trained: Count  # the round whose state the client goes on from, 0 = none
    committed: Count  # the same for a server that has to start again
    settled: Count  # the last round that no server will ask for again
    evaluate: bool
    evaluate_globally: bool
    deadline: Annotated[float, Field(gt=0, allow_inf_nan=False)]  # seconds
    torch: Annotated[str, Field(max_length=40)]  # the version on the server
    settings: dict[str, Any]  # of the experiment; whoever uses them parses them
    fingerprint: str | None  # of the settings and data, where all participants can know them
    public: Annotated[str, Field(max_length=64)] | None = None  # digest of what all must have


@dataclass(frozen=True)
class _Answer:
    """What a participant answers, beside the payload."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    client_id: Count
    round: Count
    num_examples: Count
    metrics: Annotated[dict[Key, Finite], Few]
    seconds: Annotated[dict[Key, Seconds], Few]
    error: Annotated[str, Field(max_length=MAX_TEXT)] | None


_REQUEST = TypeAdapter(Request)
_ANSWER = TypeAdapter(_Answer)


def request(ask: Request, down: bytes | None) -> RecordDict:
    """The message that asks."""
    return pack(_REQUEST.dump_json(ask), down)


def read_request(content: RecordDict) -> tuple[Request, bytes | None]:
    """What the server asks, and the payload to train on; WireError when it is not understood."""
    head, down = unpack(content)
    return _parse(_REQUEST, head), down


def answer(reply: Reply) -> RecordDict:
    """The message that answers."""
    error = reply.error and reply.error[:MAX_TEXT]
    fields = asdict(replace(reply, up=None, error=error))
    del fields["up"], fields["invalid"], fields["wire_bytes"]
    return pack(_ANSWER.dump_json(_Answer(**fields)), reply.up)


def read_answer(content: RecordDict, job: Job) -> Reply:
    """What the participant of a job has answered; WireError when it is not an answer to it."""
    head, up = unpack(content)
    found = _parse(_ANSWER, head)
    if (found.client_id, found.round) != (job.client_id, job.round):
        if found.error is not None and up is None:  # it has not even understood the question
            return Reply(job.client_id, job.round, error=printable(found.error))
        raise WireError(f"an answer of client {found.client_id} in round {found.round}")
    if up is not None and job.down is None:
        raise WireError("an upload that was not asked for")
    if up is None and job.down is not None and found.error is None:
        raise WireError("neither an upload nor a reason")
    for name, score in found.metrics.items():
        if name in METRICS and not METRICS[name].possible(score):
            raise WireError(f"an impossible {name}")
    fields = {**asdict(found), "error": found.error and printable(found.error)}
    return Reply(**fields, up=up)


def wire_bytes(message: Message) -> int:
    """The bytes of a message with everything that Flower wraps around its content."""
    return sum(len(item.deflate()) for item in get_all_nested_objects(message).values())


def pack(head: bytes, body: bytes | None) -> RecordDict:
    """Return a message: JSON, and perhaps a payload."""
    content = RecordDict({_HEAD: ConfigRecord({"json": head})})
    if body is not None:
        array = Array(dtype="uint8", shape=(len(body),), stype=_FORMAT, data=body)
        content[_BODY] = ArrayRecord({_FORMAT: array})
    return content


def unpack(content: RecordDict) -> tuple[bytes, bytes | None]:
    """Return the JSON and the payload of a message; WireError when it is none."""
    record, body = content.get(_HEAD), content.get(_BODY)
    head = record.get("json") if isinstance(record, ConfigRecord) else None
    if not isinstance(head, bytes) or len(head) > MAX_HEAD:
        raise WireError("not a message of fedgh")
    if body is None:
        return head, None
    if not (isinstance(body, ArrayRecord) and set(body) == {_FORMAT}):
        raise WireError("not a payload of fedgh")
    return head, body[_FORMAT].data


def _parse(adapter: TypeAdapter[Any], text: bytes) -> Any:
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise WireError(f"not a readable message: {where}: {first['msg']}") from None
