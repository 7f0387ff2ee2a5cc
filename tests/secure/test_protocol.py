"""The protocol: any drop-outs give the plain sum or a refusal; a server that lies is detected."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgh.secure.content import (
    Advert,
    Adverts,
    Endorsement,
    Endorsements,
    Parcels,
    Senders,
    Unmasking,
    dump,
    load,
)
from fedgh.secure.primitives import Numbers, add_pair_mask, add_self_mask, new_key, public_key
from fedgh.secure.shamir import Recovery
from fedgh.secure.signatures import sign
from fedgh.secure.step import PHASES, Phase, Step
from fedgh.secure.terms import MIN_CLIENTS, ProtocolError, threshold
from tests.support.secure import (
    PlayedRound,
    a_client,
    inputs_for,
    registered_key,
    some_terms,
)

LENGTH = 5


def plain_sum(inputs: dict[int, Numbers], clients: set[int]) -> list[int]:
    """Return the sum modulo 2**64, by Python's integers."""
    return [sum(int(inputs[k][i]) for k in clients) % 2**64 for i in range(LENGTH)]


@given(
    clients=st.integers(MIN_CLIENTS, 8),
    seed=st.integers(0, 2**32),
    lost=st.lists(st.tuples(st.sampled_from(PHASES), st.integers(0, 7)), max_size=4),
)
@settings(max_examples=40, deadline=None)
def test_any_drop_outs_give_the_plain_sum_of_the_senders_or_a_refusal(
    clients: int, seed: int, lost: list[tuple[Phase, int]]
) -> None:
    terms = some_terms(clients)
    inputs = inputs_for(terms, LENGTH, seed)
    absent = {phase: {2 * k for where, k in lost if where == phase} for phase in PHASES}
    stays = set(terms.asked)
    enough = True
    for phase in PHASES:
        stays -= absent[phase]
        enough &= len(stays) >= terms.threshold
        if phase == "upload":
            senders = set(stays)
    played = PlayedRound(inputs, terms, absent)
    if not enough:
        with pytest.raises(ProtocolError, match="are needed"):
            played.result()
        return
    assert played.result().tolist() == plain_sum(inputs, senders)


def test_the_threshold_is_more_than_two_thirds() -> None:
    for asked in range(MIN_CLIENTS, 1001):
        assert threshold(asked, MIN_CLIENTS) == min(
            t for t in range(asked + 1) if 3 * t > 2 * asked
        )
    assert threshold(10, 9) == 9


@pytest.mark.parametrize("colluding", range(1, 30))
def test_sums_of_2c_plus_1_clients_withstand_c_that_collude(colluding: int) -> None:
    """Two lists of senders cannot both be signed, whatever participants the server chooses.

    Both need t signatures; an honest client signs one list, those that collude sign both.
    """
    least = 2 * colluding + 1
    for asked in range(max(least, MIN_CLIENTS), 300):
        for minimum in {MIN_CLIENTS, least, asked}:
            t = threshold(asked, minimum)
            if least <= t <= asked:  # otherwise a client with min-peers = least refuses
                assert 2 * t > (asked - colluding) + 2 * colluding
                assert t - colluding > colluding, "so many others are in each sum"


def test_the_server_never_gets_both_shares_of_a_client() -> None:
    terms = some_terms(6)
    played = PlayedRound(inputs_for(terms), terms, {"upload": {4}})
    played.play()
    for (phase, _), answer in played.answers.items():
        if phase == "unmask":
            unmasking = load(Unmasking, answer)
            assert [share.client for share in unmasking.keys] == [4]
            assert [share.client for share in unmasking.seeds] == [0, 2, 6, 8, 10]


def test_a_client_forgets_its_secrets_after_its_last_answer() -> None:
    terms = some_terms(3)
    played = PlayedRound(inputs_for(terms), terms)
    played.play("consistency")
    memory = played.clients[0].memory
    assert memory.seed
    assert memory.mask_key
    for number, step in played.server.steps("unmask").items():
        played.ask("unmask", number, step)
    memory = played.clients[0].memory
    secrets = (memory.encryption_key, memory.mask_key, memory.seed, *memory.own_shares)
    assert secrets == ("",) * 5
    assert memory.parcels == ()


# A server that lies


def adverts_with(step: Step, change: Advert) -> Step:
    adverts = load(Adverts, step.content).adverts
    changed = tuple(change if each.client == change.client else each for each in adverts)
    return Step("shares", dump(Adverts(changed)))


def until(phase: Phase, clients: int = 4) -> PlayedRound:
    """Return a round before this phase."""
    terms = some_terms(clients)
    played = PlayedRound(inputs_for(terms), terms)
    if phase != PHASES[0]:
        played.play(PHASES[PHASES.index(phase) - 1])
    if phase == "consistency":
        played.server.close_uploads(played.uploads)
    return played


def refused(played: PlayedRound, phase: Phase, number: int, step: Step, why: str) -> None:
    """Check that a client refuses a message, and still answers the honest one."""
    before = played.clients[number].memory
    with pytest.raises(ProtocolError, match=why):
        played.ask(phase, number, step)
    assert played.clients[number].memory == before
    played.ask(phase, number, played.server.steps(phase)[number])


def test_replaced_keys_are_detected() -> None:
    """The server in the middle: it shows client 0 keys of its own as those of client 2."""
    played = until("shares")
    step = played.server.steps("shares")[0]
    own = [public_key(new_key()).hex() for _ in range(2)]
    honest = load(Adverts, step.content).adverts[1]
    middle = replace(honest, encryption=own[0], mask=own[1])
    why = "keys of client 2 are not signed by it"
    refused(played, "shares", 0, adverts_with(step, middle), why)


def test_keys_of_an_earlier_round_are_detected() -> None:
    earlier, played = until("shares"), None
    terms = some_terms(4, round=2)
    played = PlayedRound(inputs_for(terms), terms)
    played.play("keys")
    old = load(Adverts, earlier.server.steps("shares")[0].content).adverts[1]
    step = adverts_with(played.server.steps("shares")[0], old)
    refused(played, "shares", 0, step, "not signed by it")


@pytest.mark.parametrize("change", ["own", "stranger", "fewer", "twice", "equal"])
def test_other_lists_of_keys_are_detected(change: str) -> None:
    played = until("shares")
    step = played.server.steps("shares")[0]
    adverts = load(Adverts, step.content).adverts
    lists = {
        "own": ((replace(adverts[0], mask=adverts[0].encryption), *adverts[1:]), "own keys"),
        "stranger": ((*adverts, replace(adverts[0], client=99)), "not asked"),
        "fewer": (adverts[:2], "2 clients are left; 3 are needed"),
        "twice": ((*adverts, adverts[1]), "listed twice"),
        "equal": ((*adverts[:3], replace(adverts[2], client=6)), "two public keys are equal"),
    }
    changed, why = lists[change]
    refused(played, "shares", 0, Step("shares", dump(Adverts(changed))), why)


def test_another_encoding_of_a_key_does_not_cancel_masks() -> None:
    """Client 4 advertises the mask key of client 0, with the highest bit set, which X25519 ignores.

    Client 2 adds a mask for client 0 and subtracts one for client 4: they must differ.
    """
    played = until("keys", clients=3)
    for number, step in played.server.steps("keys").items():
        answer = load(Advert, played.clients[number].answer(step))
        if number == 4:
            key = bytearray.fromhex(load(Advert, played.answers["keys", 0]).mask)
            key[-1] |= 0x80
            answer = replace(answer, mask=key.hex())
            signature = sign(registered_key(4), answer.signed(played.terms)).hex()
            answer = replace(answer, signature=signature)
        played.answers["keys", number] = dump(answer)
        played.server.add("keys", number, dump(answer))
    # Client 4 breaks the rules; what it sends as shares matters to nobody before the unmasking.
    steps = played.server.steps("shares")
    for number in (0, 2):
        played.ask("shares", number, steps[number])
    sent = load(Parcels, played.answers["shares", 0]).parcels
    parcels = (sent[0], replace(sent[0], sender=4))
    client = played.clients[2]
    upload = client.masked(Step("upload", dump(Parcels(parcels))), played.inputs[2])
    own = np.zeros(LENGTH, dtype=np.uint64)
    add_self_mask(own, bytes.fromhex(client.memory.seed), played.terms.digest)
    assert not np.any(upload - own == played.inputs[2]), "the server would know its upload"


@pytest.mark.parametrize("change", ["another's", "fewer", "stranger"])
def test_other_lists_of_shares_are_detected(change: str) -> None:
    played = until("upload")
    steps = played.server.steps("upload")
    parcels = load(Parcels, steps[0].content).parcels
    lists = {
        "another's": (load(Parcels, steps[2].content).parcels, "shares for another client"),
        "fewer": (parcels[:1], "2 clients are left"),
        "stranger": ((*parcels, replace(parcels[0], sender=98)), "without keys"),
    }
    changed, why = lists[change]
    refused(played, "upload", 0, Step("upload", dump(Parcels(changed))), why)


def test_replayed_shares_of_another_round_give_nothing_away() -> None:
    """The client finds that they are not for this round before it sends any share."""
    old, played = until("upload"), until("upload")
    steps = played.server.steps("upload")
    replayed = load(Parcels, old.server.steps("upload")[0].content)
    for number, step in steps.items():
        played.ask("upload", number, replace(step, content=dump(replayed)) if number == 0 else step)
    played.server.close_uploads(played.uploads)
    for number, step in played.server.steps("consistency").items():
        played.ask("consistency", number, step)
    with pytest.raises(ProtocolError, match="shares of client 2 cannot be decrypted"):
        played.ask("unmask", 0, played.server.steps("unmask")[0])


def test_different_lists_of_senders_are_detected() -> None:
    """The server tells client 0 that client 6 has dropped out, to get both of its shares."""
    played = until("consistency")
    steps = played.server.steps("consistency")
    shorter = Step("consistency", dump(Senders((0, 2, 4))))
    for number, step in steps.items():
        client = played.clients[number]
        played.answers["consistency", number] = client.answer(shorter if number == 0 else step)
    everyone = tuple(
        load(Endorsement, played.answers["consistency", number]) for number in (0, 2, 4, 6)
    )
    for number in (2, 4, 6):
        with pytest.raises(ProtocolError, match="client 0 has not signed this list"):
            played.clients[number].answer(Step("unmask", dump(Endorsements(everyone))))
    with pytest.raises(ProtocolError, match="a signature of a client that is not a sender"):
        played.clients[0].answer(Step("unmask", dump(Endorsements(everyone))))
    with pytest.raises(ProtocolError, match="1 clients are left; 3 are needed"):
        played.clients[0].answer(Step("unmask", dump(Endorsements(everyone[:1]))))


@pytest.mark.parametrize(
    ("senders", "why"),
    [
        ((0, 2), "2 clients are left"),
        ((2, 4, 6), "other clients than those that may send"),
        ((0, 2, 4, 98), "other clients than those that may send"),
        ((2, 0, 4), "not ascending"),
        ((0, 2, 4, 4), "not ascending"),
    ],
)
def test_impossible_lists_of_senders_are_refused(senders: tuple[int, ...], why: str) -> None:
    step = Step("consistency", dump(Senders(senders)))
    refused(until("consistency"), "consistency", 0, step, why)


@pytest.mark.parametrize("phase", PHASES)
def test_a_client_answers_each_phase_once(phase: Phase) -> None:
    """The same message gets the same answer; another one is refused, as is a phase too early."""
    played = until(phase)
    steps = played.server.steps(phase)
    for later in PHASES[PHASES.index(phase) + 1 :]:
        with pytest.raises(ProtocolError, match="comes too early"):
            played.clients[0].answer(Step(later, "{}"))
    played.ask(phase, 0, steps[0])
    if phase == "upload":
        with pytest.raises(ProtocolError, match="masked already"):
            played.ask(phase, 0, steps[0])
    else:
        first = played.answers[phase, 0]
        assert played.clients[0].answer(steps[0]) == first
    other = replace(steps[0], content=steps[0].content + " ")
    with pytest.raises(ProtocolError, match="a second message of phase"):
        played.ask(phase, 0, other)


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"asked": 1}', "\0", '{"x": 1}'])
@pytest.mark.parametrize("phase", PHASES)
def test_a_message_that_is_not_valid_is_refused(phase: Phase, content: str) -> None:
    step = Step(phase, content)
    refused(until(phase), phase, 0, step, "not a readable message")


def test_a_client_accepts_no_smaller_sum_than_its_own_minimum() -> None:
    terms = some_terms(6)
    assert terms.threshold == 5
    step = PlayedRound(inputs_for(terms), terms).server.steps("keys")[0]
    a_client(0, terms, least=5).answer(step)
    with pytest.raises(ProtocolError, match=r"a sum of 5 clients is possible; .* at least 6"):
        a_client(0, terms, least=6).answer(step)


@pytest.mark.parametrize(("clients", "minimum"), [(2, 3), (2, 2), (4, 5)])
def test_a_round_of_too_few_clients_is_refused(clients: int, minimum: int) -> None:
    with pytest.raises(ProtocolError, match="a sum needs"):
        some_terms(clients, minimum=minimum).check()


# Clients that lie


def test_a_client_with_an_unsigned_key_drops_out() -> None:
    played = until("keys")
    for number, step in played.server.steps("keys").items():
        answer = load(Advert, played.clients[number].answer(step))
        if number == 2:
            answer = replace(answer, mask=public_key(new_key()).hex())
            with pytest.raises(ProtocolError, match="not signed with its registered key"):
                played.server.add("keys", number, dump(answer))
        else:
            played.server.add("keys", number, dump(answer))
    assert sorted(played.server.steps("shares")) == [0, 4, 6]


LOW_ORDER = (bytes(32), (1).to_bytes(32, "little"))
"""Points with which every agreed key would be zero."""


@pytest.mark.parametrize("change", ["mask of low order", "encryption of low order", "equal"])
def test_a_client_with_unusable_keys_drops_out_and_the_others_go_on(change: str) -> None:
    """The keys are signed; the others refuse such keys, so none of them could go on."""
    played = until("keys")
    for number, step in played.server.steps("keys").items():
        answer = load(Advert, played.clients[number].answer(step))
        if number != 2:
            played.server.add("keys", number, dump(answer))
            continue
        bad = {
            "equal": replace(answer, mask=answer.encryption),
            "mask of low order": replace(answer, mask=LOW_ORDER[0].hex()),
            "encryption of low order": replace(answer, encryption=LOW_ORDER[1].hex()),
        }[change]
        signature = sign(registered_key(2), bad.signed(played.terms)).hex()
        with pytest.raises(ProtocolError, match=r"cannot be used|are equal"):
            played.server.add("keys", 2, dump(replace(bad, signature=signature)))
    for phase in PHASES[1:]:
        if phase == "consistency":
            played.server.close_uploads(played.uploads)
        for number, step in played.server.steps(phase).items():
            played.ask(phase, number, step)
    assert played.total().tolist() == plain_sum(dict(played.inputs), {0, 4, 6})


def test_false_shares_of_a_key_end_the_round() -> None:
    terms = some_terms(4)
    played = PlayedRound(inputs_for(terms), terms, {"upload": {6}})
    played.play("consistency")
    for number, step in played.server.steps("unmask").items():
        answer = load(Unmasking, played.clients[number].answer(step))
        if number == 0:
            answer = replace(answer, keys=(replace(answer.keys[0], value="1" * 66),))
        played.server.add("unmask", number, dump(answer))
    with pytest.raises(ProtocolError, match=r"false|cannot be recovered"):
        played.total()


def test_shares_of_other_clients_are_not_taken() -> None:
    played = until("unmask")
    step = played.server.steps("unmask")[0]
    answer = load(Unmasking, played.clients[0].answer(step))
    with pytest.raises(ProtocolError, match="other clients than it was asked for"):
        played.server.add("unmask", 0, dump(replace(answer, keys=answer.seeds[:1])))


# What the server sees


def chi_square(uploads: list[Numbers]) -> float:
    """Return the chi-square statistic of all bytes against the uniform distribution."""
    counts = np.bincount(np.concatenate([u.view(np.uint8) for u in uploads]), minlength=256)
    expected = counts.sum() / 256
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("value", [0, 1, 2**64 - 1])
def test_a_masked_upload_looks_like_noise_whatever_it_contains(value: int) -> None:
    """255 degrees of freedom: mean 255, standard deviation 22.6; the bounds are five of these."""
    terms = some_terms(3)
    inputs = {k: np.full(20_000, value, dtype=np.uint64) for k in terms.asked}
    played = PlayedRound(inputs, terms)
    played.play("upload")
    for upload in played.uploads.values():
        assert 142 < chi_square([upload]) < 368
    assert chi_square([inputs[0]]) > 1e6, "the test can tell an unmasked upload from noise"


def test_masks_are_new_in_every_round() -> None:
    uploads = []
    for _ in range(2):
        terms = some_terms(3)
        played = PlayedRound({k: np.zeros(1000, dtype=np.uint64) for k in terms.asked}, terms)
        played.play("upload")
        uploads += list(played.uploads.values())
    same = reduce(lambda a, b: a | set(b.tolist()), uploads, set[int]())
    assert len(same) == 6000


def test_no_sum_of_fewer_than_all_senders_is_free_of_masks() -> None:
    """Sums of some uploads are noise, too, with all masks that the server has learned removed."""
    terms = some_terms(4)
    played = PlayedRound({k: np.zeros(20_000, dtype=np.uint64) for k in terms.asked}, terms)
    played.play()
    assert not played.total().any()
    part = played.uploads[0] + played.uploads[2] + played.uploads[4]
    assert 142 < chi_square([part]) < 368
    assert 142 < chi_square([part - played.server.masks(20_000)]) < 368


def test_an_upload_whose_client_was_declared_lost_stays_masked() -> None:
    """The server says that client 6 has dropped out, although it has its upload.

    It learns the key of all pair masks in this upload, but never the seed of the other mask.
    """
    terms, length = some_terms(4), 20_000
    played = PlayedRound({k: np.zeros(length, dtype=np.uint64) for k in terms.asked}, terms)
    played.play("upload")
    kept = played.uploads.pop(6)
    played.server.close_uploads(played.uploads)
    for phase in PHASES[3:]:
        for number, step in played.server.steps(phase).items():
            played.ask(phase, number, step)
    assert not played.total().any()
    shares = {k: load(Unmasking, played.answers["unmask", k]).keys[0] for k in (0, 2, 4)}
    key = Recovery([0, 2, 4]).secret({k: int(share.value, 16) for k, share in shares.items()})
    adverts = {k: load(Advert, played.answers["keys", k]) for k in terms.asked}
    assert public_key(key).hex() == adverts[6].mask
    for other in (0, 2, 4):
        public = bytes.fromhex(adverts[other].mask)
        add_pair_mask(kept, other, 6, key, public, terms.digest)  # what `other` adds, 6 subtracts
    assert 142 < chi_square([kept]) < 368
    seed = bytes.fromhex(played.clients[6].memory.seed)
    only = np.zeros(length, dtype=np.uint64)
    add_self_mask(only, seed, terms.digest)
    assert kept.tolist() == only.tolist(), "only this mask is left"


# Messages that are valid JSON, and of a remote party


def spoiled(text: str, draw: Callable[[st.SearchStrategy[Any]], Any]) -> str:
    """Return JSON with one value at any depth replaced by another one."""
    root = [json.loads(text)]
    place: Any = root
    key: Any = 0
    while place[key] and isinstance(place[key], list | dict) and draw(st.integers(0, 3)):
        place = place[key]
        key = draw(st.sampled_from(range(len(place)) if isinstance(place, list) else list(place)))
    replaced = place[key]
    place[key] = draw(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text()
        | st.just([])
        | st.just([replaced])
        | st.just("0" * len(replaced) if isinstance(replaced, str) else -1)
    )
    return json.dumps(root[0])


@pytest.mark.parametrize("phase", PHASES)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_any_message_is_answered_or_refused(phase: Phase, data: st.DataObject) -> None:
    """No other exception is raised, by a client or by the server."""
    played = until(phase, clients=3)
    step = played.server.steps(phase)[0]
    with suppress(ProtocolError):
        played.ask(phase, 0, replace(step, content=spoiled(step.content, data.draw)))
    if phase == "upload":
        return
    answer = played.clients[2].answer(played.server.steps(phase)[2])
    with suppress(ProtocolError):
        played.server.add(phase, 2, spoiled(answer, data.draw))
        if phase == "unmask":
            for number in (0, 4):
                played.ask(phase, number, played.server.steps(phase)[number])
            played.total()
