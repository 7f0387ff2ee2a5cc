"""A client of the protocol: it answers each phase once, and in their order.

A repeated message gets the same answer, a different one in the same phase is refused: a server
with two answers to an unmasking could have both shares of a client, and two uploads with the same
masks reveal their difference. `Memory` has all that the client must keep between two messages.
"""

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from pydantic import ConfigDict

from fedgh.secure import shamir
from fedgh.secure.content import (
    Advert,
    Adverts,
    Endorsement,
    Endorsements,
    Invitation,
    Parcel,
    Parcels,
    Senders,
    Share,
    Unmasking,
    by_client,
    dump,
    load,
)
from fedgh.secure.primitives import (
    KEY_BYTES,
    Numbers,
    add_pair_mask,
    add_self_mask,
    agree,
    decrypt,
    encrypt,
    new_key,
    public_key,
)
from fedgh.secure.step import PHASES, Phase, Step
from fedgh.secure.terms import ProtocolError, Sign, Terms, Verify

_HEADER_BYTES = 8  # of a parcel: the numbers of its sender and its recipient


@dataclass(frozen=True)
class Answered:
    """A phase that the client has answered."""

    digest: str  # of the server's message
    answer: str


@dataclass(frozen=True, repr=False)  # a message or a log must not show the secrets
class Memory:
    """All that a client keeps between the messages of a round."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    terms: Terms
    answered: tuple[Answered, ...] = ()  # in the order of the phases
    # Secrets, as hexadecimal digits; deleted when the client has answered the last phase.
    encryption_key: str = ""
    mask_key: str = ""
    seed: str = ""
    own_shares: tuple[str, str] = ("", "")  # of its own mask key and seed
    adverts: tuple[Advert, ...] = ()
    parcels: tuple[Parcel, ...] = ()  # of the other clients whose masks it adds
    senders: tuple[int, ...] = ()


@dataclass
class MaskingClient:
    """A client in one round. Every method raises ProtocolError if the server breaks the rules."""

    number: int
    memory: Memory
    sign: Sign
    verify: Verify
    least: int = 0  # fewest clients of a sum that this client accepts
    _answers: dict[Phase, Callable[[str], str]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._answers = {
            "keys": self._keys,
            "shares": self._shares,
            "consistency": self._consistency,
            "unmask": self._unmask,
        }

    @property
    def terms(self) -> Terms:
        """The terms of the round."""
        return self.memory.terms

    def answer(self, step: Step) -> str:
        """Return the answer to a message of any phase but `upload`."""
        repeated = self._repeated(step)
        if repeated is not None:
            return repeated
        answer = self._answers[step.phase](step.content)
        self._note(step, answer)
        if step.phase == PHASES[-1]:
            self.memory = Memory(self.terms, self.memory.answered)
        return answer

    def masked(self, step: Step, numbers: Numbers) -> Numbers:
        """Return the numbers with the client's masks; possible once."""
        self.check_unmasked(step)
        parcels, terms = load(Parcels, step.content).parcels, self.terms
        adverts = by_client(self.memory.adverts)
        others = by_client(parcels, "sender")
        if any(parcel.recipient != self.number for parcel in parcels):
            raise ProtocolError("shares for another client")
        if not others.keys() <= adverts.keys() - {self.number}:
            raise ProtocolError("shares of a client without keys")
        self._check_enough(1 + len(others))
        seed, own_key = bytes.fromhex(self.memory.seed), bytes.fromhex(self.memory.mask_key)
        total = numbers.copy()
        add_self_mask(total, seed, terms.digest)
        for other in others:
            public = bytes.fromhex(adverts[other].mask)
            add_pair_mask(total, self.number, other, own_key, public, terms.digest)
        self.memory = replace(self.memory, parcels=parcels)
        self._note(step, "")
        return total

    def check_unmasked(self, step: Step) -> None:
        """Raise ProtocolError if the client has masked an upload of this round already."""
        if self._repeated(step) is not None:
            raise ProtocolError("this round's upload was masked already")

    def _repeated(self, step: Step) -> str | None:
        """Return the answer to the same message if there is one; check the order of phases."""
        position, done = PHASES.index(step.phase), self.memory.answered
        if position > len(done):
            raise ProtocolError(f"a message of phase {step.phase} comes too early")
        if position == len(done):
            return None
        if done[position].digest != _digest(step):
            raise ProtocolError(f"a second message of phase {step.phase}, with another content")
        return done[position].answer

    def _note(self, step: Step, answer: str) -> None:
        answered = (*self.memory.answered, Answered(_digest(step), answer))
        self.memory = replace(self.memory, answered=answered)

    def _keys(self, content: str) -> str:
        """Phase 0: return two new public keys, signed."""
        invitation = load(Invitation, content)
        self.terms.check()
        if (invitation.asked, invitation.download) != (self.terms.asked, self.terms.download):
            raise ProtocolError("other terms than those of the round")
        if self.number not in self.terms.asked:
            raise ProtocolError("this client is not in the list of clients")
        if self.terms.threshold < self.least:
            raise ProtocolError(
                f"a sum of {self.terms.threshold} clients is possible; this client wants at least "
                f"{self.least} (min-peers)"
            )
        private = [new_key(), new_key()]
        encryption, mask = (public_key(key).hex() for key in private)
        advert = Advert(self.number, encryption, mask, "")
        signature = self.sign(advert.signed(self.terms)).hex()
        self.memory = replace(
            self.memory, encryption_key=private[0].hex(), mask_key=private[1].hex()
        )
        return dump(replace(advert, signature=signature))

    def _shares(self, content: str) -> str:
        """Phase 1: verify all public keys, and return encrypted shares for their owners."""
        adverts = load(Adverts, content).adverts
        self._check_adverts(adverts)
        clients, terms = [advert.client for advert in adverts], self.terms
        seed = secrets.token_bytes(KEY_BYTES)
        key_shares, seed_shares = (
            {holder: _to_bytes(share) for holder, share in shares.items()}
            for shares in (
                shamir.split(bytes.fromhex(self.memory.mask_key), terms.threshold, clients),
                shamir.split(seed, terms.threshold, clients),
            )
        )
        parcels = [
            Parcel(
                self.number,
                advert.client,
                encrypt(
                    self._parcel_key(advert, self.number, advert.client),
                    _header(self.number, advert.client)
                    + key_shares[advert.client]
                    + seed_shares[advert.client],
                    terms.digest,
                ).hex(),
            )
            for advert in adverts
            if advert.client != self.number
        ]
        own = (key_shares[self.number].hex(), seed_shares[self.number].hex())
        self.memory = replace(self.memory, seed=seed.hex(), own_shares=own, adverts=adverts)
        return dump(Parcels(tuple(parcels)))

    def _check_adverts(self, adverts: tuple[Advert, ...]) -> None:
        known = by_client(adverts)
        if not known.keys() <= set(self.terms.asked):
            raise ProtocolError("keys of a client that was not asked")
        self._check_enough(len(known))
        own = known.get(self.number)
        keys = [bytes.fromhex(key) for key in (self.memory.encryption_key, self.memory.mask_key)]
        if own is None or [own.encryption, own.mask] != [public_key(key).hex() for key in keys]:
            raise ProtocolError("this client's own keys are missing or were replaced")
        if len({key for each in adverts for key in (each.encryption, each.mask)}) < 2 * len(known):
            raise ProtocolError("two public keys are equal")
        for advert in adverts:
            signature = bytes.fromhex(advert.signature)
            if not self.verify(advert.client, signature, advert.signed(self.terms)):
                raise ProtocolError(f"the keys of client {advert.client} are not signed by it")

    def _consistency(self, content: str) -> str:
        """Phase 3: sign the list of clients whose uploads the server has."""
        shown = load(Senders, content)
        senders = set(shown.senders)
        if list(shown.senders) != sorted(senders):
            raise ProtocolError("the list of senders is not ascending")
        if self.number not in senders or not senders <= self._masking():
            raise ProtocolError("the list of senders has other clients than those that may send")
        self._check_enough(len(senders))
        self.memory = replace(self.memory, senders=shown.senders)
        return dump(Endorsement(self.number, self.sign(shown.signed(self.terms)).hex()))

    def _unmask(self, content: str) -> str:
        """Phase 4: verify that enough senders have seen the same list, and return shares."""
        endorsements = load(Endorsements, content).endorsements
        signers, senders = by_client(endorsements), Senders(self.memory.senders)
        if not signers.keys() <= set(senders.senders):
            raise ProtocolError("a signature of a client that is not a sender")
        self._check_enough(len(signers))
        for each in endorsements:
            signature = bytes.fromhex(each.signature)
            if not self.verify(each.client, signature, senders.signed(self.terms)):
                raise ProtocolError(f"client {each.client} has not signed this list of senders")
        held = self._held_shares()
        lost = self._masking() - set(senders.senders)
        return dump(
            Unmasking(
                seeds=tuple(Share(client, held[client][1]) for client in senders.senders),
                keys=tuple(Share(client, held[client][0]) for client in sorted(lost)),
            )
        )

    def _masking(self) -> set[int]:
        """Return the clients whose masks this client has added, itself included."""
        return {self.number, *(parcel.sender for parcel in self.memory.parcels)}

    def _held_shares(self) -> dict[int, tuple[str, str]]:
        """Return the shares of each client's mask key and seed that this client holds."""
        adverts = by_client(self.memory.adverts)
        held = {self.number: self.memory.own_shares}
        for parcel in self.memory.parcels:
            key = self._parcel_key(adverts[parcel.sender], parcel.sender, self.number)
            try:
                plain = decrypt(key, bytes.fromhex(parcel.content), self.terms.digest)
            except ProtocolError:
                text = f"the shares of client {parcel.sender} cannot be decrypted"
                raise ProtocolError(text) from None
            header, rest = plain[:_HEADER_BYTES], plain[_HEADER_BYTES:]
            if header != _header(parcel.sender, self.number) or len(rest) != 2 * shamir.SHARE_BYTES:
                raise ProtocolError(f"the shares of client {parcel.sender} are not for this client")
            held[parcel.sender] = (
                rest[: shamir.SHARE_BYTES].hex(),
                rest[shamir.SHARE_BYTES :].hex(),
            )
        return held

    def _parcel_key(self, other: Advert, sender: int, recipient: int) -> bytes:
        """Return the key that encrypts the shares of one client for another."""
        private, public = self.memory.encryption_key, other.encryption
        purpose = f"shares of {sender} for {recipient}"
        return agree(bytes.fromhex(private), bytes.fromhex(public), purpose, self.terms.digest)

    def _check_enough(self, clients: int) -> None:
        if clients < self.terms.threshold:
            raise ProtocolError(f"{clients} clients are left; {self.terms.threshold} are needed")


def to_json(memory: Memory) -> str:
    """Return a client's memory as JSON; it contains secrets."""
    return dump(memory)


def from_json(text: str) -> Memory:
    """Return a client's memory from JSON; raise ProtocolError if it is not valid."""
    return load(Memory, text)


def _digest(step: Step) -> str:
    return hashlib.sha256(f"{step.phase} {step.content}".encode()).hexdigest()


def _header(sender: int, recipient: int) -> bytes:
    return sender.to_bytes(4, "big") + recipient.to_bytes(4, "big")


def _to_bytes(share: int) -> bytes:
    return share.to_bytes(shamir.SHARE_BYTES, "big")
