"""Messages between the server and a client: one record of JSON, and one array for a payload.

Neither side trusts the other: every field is validated, and nothing is executed. The array holds
the payload as safetensors. It is separate from the JSON so that Flower, which identifies objects by
their content, stores and sends a payload only once if it is the same for all participants.
"""

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fedgh.core.metrics import METRICS
from fedgh.core.types import Job, Reply
from fedgh.errors import MAX_TEXT, WireError, first_mistake, printable
from fedgh.flower._flwr import get_all_nested_objects
from fedgh.secure.step import Step

_JSON, _PAYLOAD, _FORMAT = "fedgh", "payload", "safetensors"  # names of records in a message

Count = Annotated[int, Field(ge=0, le=2**53)]
Finite = Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)]  # sums stay finite too
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Key = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,39}$")]
Few = Field(max_length=16)

MAX_JSON = 2**20
"""Maximum number of bytes of JSON in a message; the settings of an experiment take thousands."""


@dataclass(frozen=True)
class Request:
    """A request of the server, without the payload."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    version: str  # of fedgh; another version could compute something else
    # Name of the experiment; determines the client's folder.
    experiment: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]
    start: Count  # number of the server's start; every start has a higher one
    client: Count
    round: Count
    trained: Count  # round whose state the client continues from, 0 = none
    committed: Count  # `trained` as it would be if the server had to start again
    settled: Count  # last round that no server will request again
    evaluate: bool
    evaluate_globally: bool
    deadline: Annotated[float, Field(gt=0, allow_inf_nan=False)]  # seconds
    torch: Annotated[str, Field(max_length=40)]  # version on the server
    settings: dict[str, Any]  # of the experiment; not validated here, see client.parse_settings
    fingerprint: str | None  # of settings and data; None if clients have their own data
    public: Annotated[str, Field(max_length=64)] | None = None  # digest of the public data
    secure: Step | None = None  # a message of secure aggregation


@dataclass(frozen=True)
class _Answer:
    """The answer of a client, without the payload."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    client_id: Count
    round: Count
    num_examples: Count
    metrics: Annotated[dict[Key, Finite], Few]
    seconds: Annotated[dict[Key, Seconds], Few]
    error: Annotated[str, Field(max_length=MAX_TEXT)] | None


_REQUEST = TypeAdapter(Request)
_ANSWER = TypeAdapter(_Answer)


def dump_request(request: Request) -> bytes:
    """Return a request as JSON."""
    return _REQUEST.dump_json(request)


def parse_request(text: bytes) -> Request:
    """Return the request in a JSON text; raise WireError if it is not valid."""
    request: Request = _parse(_REQUEST, text)
    return request


def pack_request(request: Request, down: bytes | None) -> RecordDict:
    """Return the content of a message with a request and, for training, the download."""
    return pack(dump_request(request), down)


def read_request(content: RecordDict) -> tuple[Request, bytes | None]:
    """Return the request and the download of a message; raise WireError if it is not valid."""
    text, down = unpack(content)
    return parse_request(text), down


def pack_answer(reply: Reply) -> RecordDict:
    """Return the content of a message with a client's reply."""
    error = reply.error and reply.error[:MAX_TEXT]
    fields = asdict(replace(reply, up=None, error=error))
    del fields["up"], fields["invalid"], fields["wire_bytes"]
    return pack(_ANSWER.dump_json(_Answer(**fields)), reply.up)


def read_answer(content: RecordDict, job: Job) -> Reply:
    """Return the reply to a job; raise WireError if the message is not a valid answer to it."""
    text, up = unpack(content)
    answer = _parse(_ANSWER, text)
    if (answer.client_id, answer.round) != (job.client_id, job.round):
        if answer.error is not None and up is None:  # the client could not read the request
            return Reply(job.client_id, job.round, error=printable(answer.error))
        raise WireError(f"an answer of client {answer.client_id} in round {answer.round}")
    if up is not None and job.down is None and job.secure is None:
        raise WireError("an upload that was not requested")
    if up is None and job.down is not None and answer.error is None:
        raise WireError("neither an upload nor an error")
    for name, value in answer.metrics.items():
        if name in METRICS and not METRICS[name].possible(value):
            raise WireError(f"an impossible value of {name}")
    fields = {**asdict(answer), "error": answer.error and printable(answer.error)}
    return Reply(**fields, up=up)


def wire_bytes(message: Message) -> int:
    """Return the bytes of a message, with everything that Flower adds to its content."""
    return sum(len(item.deflate()) for item in get_all_nested_objects(message).values())


def pack(text: bytes, payload: bytes | None) -> RecordDict:
    """Return the content of a message with JSON and, unless None, a payload."""
    content = RecordDict({_JSON: ConfigRecord({"json": text})})
    if payload is not None:
        array = Array(dtype="uint8", shape=(len(payload),), stype=_FORMAT, data=payload)
        content[_PAYLOAD] = ArrayRecord({_FORMAT: array})
    return content


def unpack(content: RecordDict) -> tuple[bytes, bytes | None]:
    """Return the JSON and the payload of a message; raise WireError if it has another structure."""
    json_record, payload = content.get(_JSON), content.get(_PAYLOAD)
    text = json_record.get("json") if isinstance(json_record, ConfigRecord) else None
    if not isinstance(text, bytes) or len(text) > MAX_JSON:
        raise WireError("not a message of fedgh")
    if payload is None:
        return text, None
    if not (isinstance(payload, ArrayRecord) and set(payload) == {_FORMAT}):
        raise WireError("not a payload of fedgh")
    return text, payload[_FORMAT].data


def _parse(adapter: TypeAdapter[Any], text: bytes) -> Any:
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        raise WireError(f"not a readable message: {first_mistake(error)}") from None
