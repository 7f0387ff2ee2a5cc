"""The server's side of the protocol: it passes messages on, and finally computes the masks' sum."""

from collections.abc import Callable, Iterable, Mapping, Sized

import numpy as np

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
    Numbers,
    add_pair_mask,
    add_self_mask,
    agree,
    new_key,
    public_key,
)
from fedgh.secure.shamir import Recovery
from fedgh.secure.step import Phase, Step
from fedgh.secure.terms import ProtocolError, Terms, Verify


class UnmaskingServer:
    """The server in one round.

    In each phase `steps` returns the messages to clients, and `add` takes an answer. Both raise
    ProtocolError: `steps` if too few clients are left, so that the round cannot continue; `add` for
    an answer that is not valid, whose client then counts as absent.
    """

    def __init__(self, terms: Terms, verify: Verify) -> None:
        self.terms = terms
        self._verify = verify
        self._adverts: dict[int, Advert] = {}
        self._parcels: dict[int, dict[int, Parcel]] = {}  # by sender and recipient
        self._senders: tuple[int, ...] = ()
        self._endorsements: dict[int, Endorsement] = {}
        self._unmaskings: dict[int, tuple[dict[int, int], dict[int, int]]] = {}
        self._steps: dict[Phase, Callable[[], dict[int, Step]]] = {
            "keys": self._invite,
            "shares": self._ask_for_shares,
            "upload": self._ask_for_uploads,
            "consistency": self._ask_for_consistency,
            "unmask": self._ask_for_unmasking,
        }
        self._adders: dict[Phase, Callable[[int, str], None]] = {
            "keys": self._add_keys,
            "shares": self._add_shares,
            "consistency": self._add_endorsement,
            "unmask": self._add_unmasking,
        }

    def steps(self, phase: Phase) -> dict[int, Step]:
        """Return the message of a phase to each client that is still there."""
        return self._steps[phase]()

    def add(self, phase: Phase, client: int, answer: str) -> None:
        """Take a client's answer to the message of a phase."""
        self._adders[phase](client, answer)

    def close_uploads(self, senders: Iterable[int]) -> None:
        """Take the clients whose masked uploads have arrived; those of others are not used."""
        self._senders = tuple(sorted(self._parcels.keys() & set(senders)))

    def masks(self, length: int) -> Numbers:
        """Return the sum of all masks in the senders' uploads; raise ProtocolError if it cannot."""
        self._check_enough(self._unmaskings, "sent shares to unmask the sum")
        terms = self.terms
        holders = sorted(self._unmaskings)[: terms.threshold]
        recovery = Recovery(holders)
        total = np.zeros(length, dtype=np.uint64)
        for sender in self._senders:
            shares = {holder: self._unmaskings[holder][0][sender] for holder in holders}
            add_self_mask(total, _recovered(recovery, shares, sender), terms.digest)
        for lost in sorted(self._parcels.keys() - set(self._senders)):
            shares = {holder: self._unmaskings[holder][1][lost] for holder in holders}
            key = _recovered(recovery, shares, lost)
            if public_key(key).hex() != self._adverts[lost].mask:
                raise ProtocolError(f"the shares of client {lost}'s key are false")
            for sender in self._senders:
                public = bytes.fromhex(self._adverts[sender].mask)
                add_pair_mask(total, sender, lost, key, public, terms.digest)
        return total

    def _invite(self) -> dict[int, Step]:
        self.terms.check()
        step = Step("keys", dump(Invitation(self.terms.asked, self.terms.download)))
        return dict.fromkeys(self.terms.asked, step)

    def _add_keys(self, client: int, answer: str) -> None:
        advert = load(Advert, answer)
        signature = bytes.fromhex(advert.signature)
        if advert.client != client or not self._verify(
            client, signature, advert.signed(self.terms)
        ):
            raise ProtocolError("its keys are not signed with its registered key")
        if not _usable(advert):  # the other clients would refuse them, and with them the round
            raise ProtocolError("its public keys cannot be used, or are equal")
        self._adverts[client] = advert

    def _ask_for_shares(self) -> dict[int, Step]:
        self._check_enough(self._adverts, "sent keys")
        adverts = tuple(self._adverts[client] for client in sorted(self._adverts))
        return dict.fromkeys(self._adverts, Step("shares", dump(Adverts(adverts))))

    def _add_shares(self, client: int, answer: str) -> None:
        parcels = by_client(load(Parcels, answer).parcels, "recipient")
        senders = {parcel.sender for parcel in parcels.values()}
        if parcels.keys() != self._adverts.keys() - {client} or senders != {client}:
            raise ProtocolError("its shares are not for all other clients")
        self._parcels[client] = parcels

    def _ask_for_uploads(self) -> dict[int, Step]:
        self._check_enough(self._parcels, "sent shares")
        return {
            client: Step(
                "upload",
                dump(
                    Parcels(
                        tuple(
                            self._parcels[sender][client]
                            for sender in sorted(self._parcels)
                            if sender != client
                        )
                    )
                ),
            )
            for client in self._parcels
        }

    def _ask_for_consistency(self) -> dict[int, Step]:
        self._check_enough(self._senders, "sent an upload")
        return dict.fromkeys(self._senders, Step("consistency", dump(Senders(self._senders))))

    def _add_endorsement(self, client: int, answer: str) -> None:
        endorsement = load(Endorsement, answer)
        signature, message = (
            bytes.fromhex(endorsement.signature),
            Senders(self._senders).signed(self.terms),
        )
        if endorsement.client != client or not self._verify(client, signature, message):
            raise ProtocolError("its list of senders is not signed with its registered key")
        self._endorsements[client] = endorsement

    def _ask_for_unmasking(self) -> dict[int, Step]:
        self._check_enough(self._endorsements, "signed the list of senders")
        signed = tuple(self._endorsements[client] for client in sorted(self._endorsements))
        return dict.fromkeys(self._endorsements, Step("unmask", dump(Endorsements(signed))))

    def _add_unmasking(self, client: int, answer: str) -> None:
        unmasking = load(Unmasking, answer)
        seeds, keys = _values(unmasking.seeds), _values(unmasking.keys)
        lost = self._parcels.keys() - set(self._senders)
        if seeds.keys() != set(self._senders) or keys.keys() != lost:
            raise ProtocolError("it sent shares of other clients than it was asked for")
        self._unmaskings[client] = (seeds, keys)

    def _check_enough(self, clients: Sized, have: str) -> None:
        count = len(clients)
        if count < self.terms.threshold:
            raise ProtocolError(
                f"{count} of {len(self.terms.asked)} clients {have}; {self.terms.threshold} are "
                "needed"
            )


def _usable(advert: Advert) -> bool:
    """Return True if a client's two public keys differ, and none is a point of low order."""
    keys = [bytes.fromhex(key) for key in (advert.encryption, advert.mask)]
    try:
        for key in keys:
            agree(new_key(), key, "trial", b"")
    except ProtocolError:
        return False
    return keys[0] != keys[1]


def _values(shares: tuple[Share, ...]) -> dict[int, int]:
    return {client: int(share.value, 16) for client, share in by_client(shares).items()}


def _recovered(recovery: Recovery, shares: Mapping[int, int], client: int) -> bytes:
    try:
        return recovery.secret(shares)
    except ValueError as error:
        raise ProtocolError(f"a secret of client {client} cannot be recovered: {error}") from None
