"""The client's side of secure aggregation on Flower: its state between messages, and its peers.

A new process handles every message, so the state of the protocol is in a file of the client's
folder, `secure.json`. It is on disk before an answer is sent, readable by its owner only, and has
no secret any more after the last message of a round. `masked.json` has the last rounds in which the
client masked an upload: it warns of sums whose difference would reveal one. A client verifies the
other clients' keys with the public keys in its folder `peers`, never with keys that the server
sends.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import ValidationError

from fedgh.config import SecureSection
from fedgh.core import wire
from fedgh.core.sums import NUMBERS
from fedgh.core.types import Reply
from fedgh.engines.host import Blueprint
from fedgh.engines.masked import masked_upload
from fedgh.errors import ConfigError, RunError
from fedgh.files import read_bytes, write_atomic
from fedgh.flower.bound import Bound, NodeConfig, PublicError
from fedgh.flower.keys import load_public_key, read_private_key
from fedgh.flower.messages import Request
from fedgh.secure.client import MaskingClient, Memory, from_json, to_json
from fedgh.secure.content import Invitation, load
from fedgh.secure.signatures import is_signed, sign
from fedgh.secure.step import Step
from fedgh.secure.terms import ProtocolError, Terms, digest_of, digest_of_bytes

logger = logging.getLogger(__name__)

MAX_HISTORY = 1000
"""Maximum size in bytes of masked.json, which holds two numbers."""

MAX_MEMORY = 2**26
"""Maximum size in bytes of secure.json: keys and shares of a thousand clients take a few MB."""


def settings_digest(settings: object, fingerprint: str | None, public: str | None) -> str:
    """Return the digest of what all clients of a round must have received from the server."""
    return digest_of([settings, fingerprint, public])


@dataclass(frozen=True)
class MaskedRound:
    """A client's part in the secure aggregation of the round that a request is about."""

    request: Request
    folder: Path
    bound: Bound
    node: NodeConfig

    def answer(self, step: Step) -> Reply:
        """Return the answer to a message without an upload."""
        client = self._begin(step) if step.phase == "keys" else self._continue()
        text = client.answer(step)
        self._store(client)
        request = self.request
        return Reply(request.client, request.round, up=text.encode())

    def masking(self, blueprint: Blueprint, down: bytes) -> Callable[[Reply], Reply]:
        """Return the function that masks the upload in a reply, or that leaves it as it is.

        Raise PublicError or ProtocolError if the client sends no such upload.
        """
        step = self.request.secure
        if (step is None) != (blueprint.scale is None):
            raise PublicError("the server's settings and messages differ about secure aggregation")
        if step is None:
            if self.bound.min_peers is not None and blueprint.method.shares != "nothing":
                raise PublicError(
                    "this client sends only masked uploads (min-peers); the operator can set "
                    "secure.enabled"
                )
            return lambda reply: reply
        client = self._continue()
        client.check_unmasked(step)
        agreed = client.terms.settings, client.terms.download
        if (self._settings(), digest_of_bytes(down)) != agreed:
            raise PublicError("settings or download are not those that all clients have agreed on")
        return partial(self._mask, step, blueprint.method.releases_once)

    def _mask(self, step: Step, releases_once: bool, reply: Reply) -> Reply:
        """Return the reply with a masked upload; the masks can never be used again."""
        assert reply.up is not None
        client = self._continue()
        up = masked_upload(client, step, reply.up)
        release = releases_once and bool(wire.from_bytes(reply.up)[NUMBERS].any())
        self._note(release)
        self._store(client)
        return replace(reply, up=up)

    def _note(self, release: bool) -> None:
        """Note that an upload was masked; warn if one that belongs into one sum is in another."""
        before, now = self._history, self.request.round
        if release and before["release"]:
            logger.warning(
                "the server asks in round %d for statistics that it has asked for in round %d, and "
                "says that it has no sum of them; the difference of two sums can reveal them",
                *(now, before["release"]),
            )
        after = {"upload": now, "release": now if release else before["release"]}
        write_atomic(self._history_file, json.dumps(after).encode())

    @property
    def _history_file(self) -> Path:
        return self.folder / "masked.json"

    @property
    def _history(self) -> dict[str, int]:
        """The last rounds with a masked upload, and with statistics in it; 0 for none."""
        if not self._history_file.exists():
            return {"upload": 0, "release": 0}
        rounds: dict[str, int] = json.loads(read_bytes(self._history_file, MAX_HISTORY))
        return rounds

    @property
    def _file(self) -> Path:
        return self.folder / "secure.json"

    def _begin(self, step: Step) -> MaskingClient:
        """Return the client at the start of the round; its state if it has started before."""
        if self._file.exists():
            memory = self._read()
            if self._is_current(memory.terms):
                return self._client(memory)
        request, invitation = self.request, load(Invitation, step.content)
        last = self._history["upload"]
        if last > request.trained or last >= request.round:
            logger.warning(
                "round %d is added up again: the server says that it has lost this client's "
                "upload; the difference of two sums can reveal single uploads",
                min(last, request.round),
            )
        terms = Terms(
            experiment=request.experiment,
            start=request.start,
            round=request.round,
            settings=self._settings(),
            download=invitation.download,
            asked=invitation.asked,
            minimum=self._section().min_clients,
        )
        return self._client(Memory(terms))

    def _continue(self) -> MaskingClient:
        """Return the client in the state after its last answer in this round."""
        memory = self._read() if self._file.exists() else None
        if memory is None or not self._is_current(memory.terms):
            raise PublicError("secure aggregation: this client has no keys of this round")
        return self._client(memory)

    def _is_current(self, terms: Terms) -> bool:
        request = self.request
        return (terms.experiment, terms.start, terms.round) == (
            request.experiment,
            request.start,
            request.round,
        )

    def _client(self, memory: Memory) -> MaskingClient:
        peers = Peers(Path(str(self.node.get("peers", "peers"))))
        key = Path(str(self.node.get("key", "key")))
        return MaskingClient(
            self.request.client,
            memory,
            lambda message: sign(read_private_key(key), message),
            peers.verify,
            least=self.bound.min_peers or 0,
        )

    def _settings(self) -> str:
        request = self.request
        return settings_digest(request.settings, request.fingerprint, request.public)

    def _section(self) -> SecureSection:
        try:
            return SecureSection.model_validate(self.request.settings.get("secure", {}))
        except ValidationError:
            raise PublicError("the server's settings of secure aggregation are not valid") from None

    def _read(self) -> Memory:
        try:
            return from_json(read_bytes(self._file, MAX_MEMORY).decode())
        except (OSError, ValueError, ProtocolError) as error:
            raise RunError(f"{self._file} cannot be read ({error}); delete it") from None

    def _store(self, client: MaskingClient) -> None:
        write_atomic(self._file, to_json(client.memory).encode(), 0o600)


@dataclass(frozen=True)
class Peers:
    """The public keys of all clients, which the operator and the clients have exchanged."""

    folder: Path

    def verify(self, client: int, signature: bytes, message: bytes) -> bool:
        """Return True if this client has signed the message; raise PublicError without its key."""
        return is_signed(self._key(client), signature, message)

    def _key(self, client: int) -> ec.EllipticCurvePublicKey:
        path = self.folder / f"{client}.pub"
        try:
            return load_public_key(path)
        except ConfigError:
            raise PublicError(
                f"this client has no public key of client {client} ({client}.pub in its folder of "
                "peers)"
            ) from None
