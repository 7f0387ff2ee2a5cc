"""The contents of the protocol's messages, as JSON that both sides validate."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fedgh.errors import first_mistake
from fedgh.secure.terms import MAX_CLIENTS, ProtocolError, Terms

T = TypeVar("T")
Client = Annotated[int, Field(ge=0, lt=2**31)]
Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Hex33 = Annotated[str, Field(pattern=r"^[0-9a-f]{66}$")]
ShortHex = Annotated[str, Field(pattern=r"^([0-9a-f]{2}){1,256}$")]  # a signature or ciphertext
AtMostAll = Field(max_length=MAX_CLIENTS)


class _Content:
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True)
class Invitation(_Content):
    """Server, keys: the clients that take part, and the digest of their download."""

    asked: Annotated[tuple[Client, ...], AtMostAll]
    download: Hex32


@dataclass(frozen=True)
class Advert(_Content):
    """Client, keys: its two public keys, signed with its registered key."""

    client: Client
    encryption: Hex32
    mask: Hex32
    signature: ShortHex

    def signed(self, terms: Terms) -> bytes:
        """Return the message that the client signs."""
        keys = bytes.fromhex(self.encryption + self.mask)
        return b"fedgh keys" + terms.digest + self.client.to_bytes(4, "big") + keys


@dataclass(frozen=True)
class Adverts(_Content):
    """Server, shares: the public keys of all clients that sent theirs."""

    adverts: Annotated[tuple[Advert, ...], AtMostAll]


@dataclass(frozen=True)
class Parcel(_Content):
    """Shares of one client for another one, encrypted for it."""

    sender: Client
    recipient: Client
    content: ShortHex


@dataclass(frozen=True)
class Parcels(_Content):
    """Client, shares: a parcel for each other client. Server, upload: the parcels for a client."""

    parcels: Annotated[tuple[Parcel, ...], AtMostAll]


@dataclass(frozen=True)
class Senders(_Content):
    """Server, consistency: the clients whose masked uploads the server has."""

    senders: Annotated[tuple[Client, ...], AtMostAll]

    def signed(self, terms: Terms) -> bytes:
        """Return the message that every sender signs."""
        numbers = b"".join(number.to_bytes(4, "big") for number in self.senders)
        return b"fedgh senders" + terms.digest + numbers


@dataclass(frozen=True)
class Endorsement(_Content):
    """Client, consistency: its signature of the list of senders that it was shown."""

    client: Client
    signature: ShortHex


@dataclass(frozen=True)
class Endorsements(_Content):
    """Server, unmask: the signatures of all senders that sent one."""

    endorsements: Annotated[tuple[Endorsement, ...], AtMostAll]


@dataclass(frozen=True)
class Share(_Content):
    """A share of a secret of a client."""

    client: Client
    value: Hex33


@dataclass(frozen=True)
class Unmasking(_Content):
    """Client, unmask: shares of the senders' seeds, and of the mask keys of all other clients."""

    seeds: Annotated[tuple[Share, ...], AtMostAll]
    keys: Annotated[tuple[Share, ...], AtMostAll]


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def dump(content: object) -> str:
    """Return content as JSON."""
    return _adapter(type(content)).dump_json(content).decode()


def load(kind: type[T], text: str) -> T:
    """Return the content of a message; raise ProtocolError if it is not valid."""
    try:
        loaded: T = _adapter(kind).validate_json(text)
    except ValidationError as error:
        raise ProtocolError(f"not a readable message: {first_mistake(error)}") from None
    return loaded


def by_client(items: tuple[T, ...], number: str = "client") -> dict[int, T]:
    """Return items by the number of their client; raise ProtocolError if one is there twice."""
    out = {getattr(item, number): item for item in items}
    if len(out) < len(items):
        raise ProtocolError("a client is listed twice")
    return out
