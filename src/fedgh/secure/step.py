"""The phases of the protocol, and a message of the server in one of them."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from pydantic import ConfigDict

Phase = Literal["keys", "shares", "upload", "consistency", "unmask"]
"""The rounds 0 to 4 of the paper: AdvertiseKeys, ShareKeys, MaskedInputCollection,
ConsistencyCheck, Unmasking."""

PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True)
class Step:
    """The server's message to a client in a phase; its content is JSON (see `content`)."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    phase: Phase
    content: str
