"""Rounds of the server with an engine whose replies the test defines."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from fedgh.core import wire
from fedgh.core.message import Own
from fedgh.core.method import Method
from fedgh.core.records import Problem, Round
from fedgh.core.server import Server
from fedgh.core.types import Client, GlobalRounds, Job, Payload, Recipient, Reply, Task
from fedgh.core.uploads import Uploads
from fedgh.errors import RunError
from tests.support.scripted import METRICS, Scripted


class Sum(Method):
    """A method whose server adds up the uploads."""

    up = Own(lambda *_: {"value": wire.Field(torch.float32, (1,))})
    down = Own(lambda *_: {"total": wire.Field(torch.float32, (1,))})

    def client_update(self, client: Client, down: Payload) -> Payload:
        raise NotImplementedError

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        return {"total": server["total"] + sum(upload.payload["value"] for upload in uploads)}


def federation(engine: Scripted, clients: int = 4, **settings: float | str) -> Server:
    task = Task(2, 2, clients, rounds=10, seed=0)
    state = Server.initial_state(task, {"total": torch.zeros(1)})
    return Server(task, Sum(), engine, state, **settings)  # type: ignore[arg-type]


def test_uploads_reach_the_server_and_bytes_add_up() -> None:
    fed = federation(Scripted())
    record = fed.round(1)
    assert fed.server["total"].item() == 4
    assert (record.bytes_up, record.bytes_down, record.bytes_total) == (16, 16, 32)
    assert fed.round(2).bytes_total == 64
    assert record.accuracy == 0.5
    assert record.per_client["accuracy"] == [0.5] * 4


class Parted(Sum):
    """A method whose downloads are new dictionaries of the same tensors, but for client 2."""

    def broadcast(self, server: Payload, to: Recipient) -> Payload:
        return {"total": server["total"] + 1 if to.id == 2 else server["total"]}


def test_a_download_is_serialised_once_for_the_clients_that_get_the_same_tensors() -> None:
    task, engine = Task(2, 2, 4, rounds=10, seed=0), Scripted()
    Server(task, Parted(), engine, Server.initial_state(task, {"total": torch.ones(1)})).round(1)
    first, second, third, _ = downs = [job.down for job in engine.jobs]
    assert first is second
    values = [float(wire.from_bytes(down or b"")["total"]) for down in downs]
    assert values == [1, 1, 2, 1]
    assert third is not first


def test_a_failed_client_is_recorded_and_the_round_goes_on() -> None:
    def answer(job: Job) -> Reply:
        if job.client_id == 1:
            return Reply(1, job.round, error="ValueError: no")
        return Scripted.usual(job)

    fed = federation(Scripted(answer))
    record = fed.round(1)
    assert record.failed == [Problem(client=1, reason="ValueError: no")]
    assert fed.server["total"].item() == 3
    assert record.per_client["accuracy"] == [0.5, None, 0.5, 0.5]
    assert record.accuracy == 0.5


def test_an_upload_that_is_not_as_declared_never_reaches_the_method() -> None:
    def answer(job: Job) -> Reply:
        if job.client_id == 2:
            return Scripted.usual(job, value=float("nan"))
        if job.client_id == 3:
            return Reply(3, job.round, 1, b"garbage")
        return Scripted.usual(job)

    fed = federation(Scripted(answer))
    record = fed.round(1)
    assert [(r.client, r.reason[:20]) for r in record.rejected] == [
        (2, "'value' has values t"),
        (3, "not a readable messa"),
    ]
    assert fed.server["total"].item() == 2


def test_metrics_of_a_rejected_client_are_ignored() -> None:
    def answer(job: Job) -> Reply:
        usual = Scripted.usual(job)
        if job.client_id != 2:
            return replace(usual, metrics=usual.metrics | {"train_loss": 1.0})
        false_metrics = dict.fromkeys((*METRICS, "train_loss", "anything"), 1e9)
        return replace(usual, up=b"garbage", metrics=false_metrics, seconds={"train": 1e9})

    fed = federation(Scripted(answer))
    record = fed.round(1)
    assert (record.accuracy, record.train_loss, record.method_metrics) == (0.5, 1.0, {})
    assert record.per_client["accuracy"] == [0.5, 0.5, None, 0.5]
    assert record.seconds["train"] == 0
    assert fed.state()["trained"].tolist() == [1, 1, 0, 1], "as if it had not been selected"


def test_each_invalid_upload_is_a_strike_and_does_not_count_as_training() -> None:
    def answer(job: Job) -> Reply:
        usual = Scripted.usual(job)
        if job.client_id != 2 or job.down is None:
            return usual
        if job.trained:
            return Reply(2, job.round, error="the state of client 2 is not in its folder")
        return replace(usual, up=b"garbage")

    fed = federation(Scripted(answer), strikes=3)
    records = [fed.round(number) for number in range(1, 6)]
    assert [[r.client for r in record.rejected] for record in records] == [*([2], [2], [2], [], [])]
    assert all(record.failed == [] for record in records)
    assert [record.excluded for record in records] == [[], [], [2], [2], [2]]


def test_a_round_that_makes_the_server_state_too_large_is_discarded() -> None:
    def answer(job: Job) -> Reply:
        return Scripted.usual(job, value=3.0 if job.round in (2, 4, 5, 6) else 1.0)

    fed = federation(Scripted(answer), max_norm=10.0)
    discarded = [fed.round(number).discarded for number in (1, 2, 3)]
    assert discarded == [None, "the server's 'total' would have a row of norm 16", None]
    assert fed.server["total"].item() == 8
    fed.round(4)
    fed.round(5)
    with pytest.raises(RunError, match=r"norm 20, for the 3rd time in a row; lower the server's"):
        fed.round(6)


def test_a_client_is_excluded_after_three_rejected_uploads() -> None:
    def answer(job: Job) -> Reply:
        if job.client_id == 2:
            return Scripted.usual(job, value=float("inf"))
        return Scripted.usual(job)

    engine = Scripted(answer)
    fed = federation(engine, strikes=3)
    records = [fed.round(number) for number in (1, 2, 3, 4, 5)]
    assert [record.participants for record in records] == 3 * [[0, 1, 2, 3]] + 2 * [[0, 1, 3]]
    assert [record.excluded for record in records] == [[], [], [2], [2], [2]]
    assert [len(record.rejected) for record in records] == [1, 1, 1, 0, 0]
    # Its metrics do not count any more, and it is not evaluated.
    assert records[2].per_client["accuracy"] == [0.5, 0.5, None, 0.5]
    assert {job.client_id for job in engine.jobs if job.round > 3} == {0, 1, 3}

    kept = Server(fed.task, Sum(), engine, fed.state(), strikes=3)
    assert kept.participants(6) == [0, 1, 3]
    pardoned = Server(fed.task, Sum(), engine, fed.state(), strikes=4)
    assert pardoned.participants(6) == [0, 1, 2, 3]


def test_another_client_is_selected_instead_of_an_excluded_one() -> None:
    fed = federation(Scripted(), clients=10, participation=0.3, strikes=1)
    before = [fed.participants(number) for number in range(1, 50)]
    fed.strikes[4] = 1
    after = [fed.participants(number) for number in range(1, 50)]
    for old, new in zip(before, after, strict=True):
        assert len(new) == 3
        assert 4 not in new
        assert set(old) - {4} <= set(new)


def test_a_run_with_all_clients_excluded_ends() -> None:
    fed = federation(Scripted(), strikes=1)
    fed.strikes[:] = 1
    with pytest.raises(RunError, match="no client is left to select"):
        fed.round(1)


def test_invalid_replies_count_as_rejected() -> None:
    def answer(job: Job) -> Reply:
        if job.client_id == 1:
            return Reply(1, job.round, invalid="an answer of client 0 in round 1")
        return Scripted.usual(job)

    fed = federation(Scripted(answer), strikes=1)
    record = fed.round(1)
    assert record.rejected == [Problem(client=1, reason="an answer of client 0 in round 1")]
    assert record.excluded == [1]


def test_a_weight_without_samples_is_rejected() -> None:
    class WeightedSum(Sum):
        weighs_by_examples = True

    def answer(job: Job) -> Reply:
        return replace(Scripted.usual(job), num_examples=-5 if job.client_id == 1 else 3)

    fed = federation(Scripted(answer))
    fed.method = WeightedSum()
    assert fed.round(1).rejected == [
        Problem(client=1, reason="the upload has a weight of -5 samples")
    ]


def test_an_upload_with_a_large_norm_is_rejected() -> None:
    fed = federation(
        Scripted(lambda job: Scripted.usual(job, value=(1.0, 2.0, 3.0, 101.0)[job.client_id])),
        max_norm=100,
    )
    record = fed.round(1)
    assert [item.client for item in record.rejected] == [3]
    assert fed.server["total"].item() == 6


def test_metrics_of_the_method_are_averaged_over_the_clients_that_report_them() -> None:
    def answer(job: Job) -> Reply:
        own = {0: {"depth": 1.0, "train_loss": 5.0}, 2: {"width": 7.0, "depth": 4.0}}
        usual = Scripted.usual(job)
        return replace(usual, metrics={**usual.metrics, **own.get(job.client_id, {})})

    record = federation(Scripted(answer)).round(1)
    assert record.method_metrics == {"depth": 2.5, "width": 7.0}
    assert record.train_loss == 5.0
    assert federation(Scripted()).round(1).method_metrics == {}


def test_server_seconds_do_not_include_the_engine() -> None:
    class Slow(Scripted):
        def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
            time.sleep(0.3)  # before the first reply can be evaluated for
            return super().run(jobs)

    seconds = federation(Slow()).round(1).seconds
    assert seconds["server"] < 0.2
    assert seconds["total"] > 0.3


def test_the_run_ends_if_all_clients_fail() -> None:
    fed = federation(Scripted(lambda job: Reply(job.client_id, job.round, error="down")))
    with pytest.raises(RunError, match="all 4 participants failed; client 0: down"):
        fed.round(1)


def test_the_run_continues_if_all_of_a_few_participants_fail_once() -> None:
    def answer(job: Job) -> Reply:
        if job.down is not None:
            return Reply(job.client_id, job.round, error="down")
        return Scripted.usual(job)

    fed = federation(Scripted(answer), participation=0.25)
    assert fed.round(1).failed[0].client == fed.participants(1)[0]
    fed.round(2)
    restored = Server(fed.task, Sum(), fed.engine, fed.state(), participation=0.25)
    with pytest.raises(RunError, match="3rd time in a row"):
        restored.round(3)


def test_the_run_ends_if_no_client_can_be_evaluated() -> None:
    def answer(job: Job) -> Reply:
        return replace(Scripted.usual(job), metrics={}, error="ValueError: no logits")

    with pytest.raises(RunError, match="no client could be evaluated"):
        federation(Scripted(answer)).round(1)


def test_the_run_ends_if_the_server_state_is_not_finite() -> None:
    fed = federation(Scripted(lambda job: Scripted.usual(job, value=3e38)))
    with pytest.raises(RunError, match="'total' is no longer finite"):
        fed.round(1)


def test_the_server_stores_the_last_training_round_of_each_client() -> None:
    fed = federation(Scripted(), clients=10, participation=0.2)
    fed.round(1)
    fed.round(2)
    trained = fed.state()["trained"]
    for client in range(10):
        expected = max((n for n in (1, 2) if client in fed.participants(n)), default=0)
        assert trained[client] == expected


def test_participants_are_a_new_random_sample_in_client_order() -> None:
    fed = federation(Scripted(), clients=100, participation=0.1)
    samples = [fed.participants(number) for number in range(1, 200)]
    assert all(len(set(s)) == 10 and s == sorted(s) for s in samples)
    assert samples[0] != samples[1]
    counts = torch.tensor([c for s in samples for c in s]).bincount(minlength=100)
    assert counts.min() > 5  # every client is selected sometimes
    assert federation(Scripted(), clients=3, participation=0.01).participants(1) != []


def test_clients_that_are_not_selected_keep_their_scores() -> None:
    engine = Scripted()
    fed = federation(engine, clients=10, participation=0.3)
    fed.round(1)
    # The first evaluation includes all clients; only participants train.
    assert sorted(job.client_id for job in engine.jobs) == list(range(10))
    assert [job.client_id for job in engine.jobs if job.down is not None] == fed.participants(1)
    record = fed.round(2)
    assert [job.client_id for job in engine.jobs] == fed.participants(2)
    assert record.per_client["accuracy"] == [0.5] * 10


def test_clients_that_trained_between_evaluations_are_evaluated_later() -> None:
    engine = Scripted()
    fed = federation(engine, clients=10, participation=0.2, eval_every=3)
    trained = set()
    for number in (1, 2):
        record = fed.round(number)
        assert (record.accuracy, record.accuracies) == (None, [])
        assert not any(job.evaluate for job in engine.jobs)
    fed.round(3)
    assert {job.client_id for job in engine.jobs} == set(range(10))
    for number in (4, 5, 6):
        trained |= set(fed.participants(number))
        fed.round(number)
    assert {job.client_id for job in engine.jobs if job.evaluate} == trained


def test_the_last_round_is_always_evaluated() -> None:
    fed = federation(Scripted(), eval_every=7)
    assert fed.round(9).accuracy is None
    assert fed.round(10).accuracy == 0.5


def test_a_server_restored_from_its_state_continues_equally() -> None:
    first = federation(Scripted(), participation=0.5, eval_every=2)
    first.round(1)
    second = Server(first.task, Sum(), Scripted(), first.state(), participation=0.5, eval_every=2)
    a, b = first.round(2), second.round(2)
    assert a.model_copy(update={"seconds": b.seconds}) == b
    assert first.server["total"].equal(second.server["total"])


def test_global_accuracy_is_that_of_the_current_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five clients, three rounds; client 4 never takes part, client 3 only in the first."""
    participants_of = {1: [0, 3], 2: [0, 1], 3: [1, 2]}
    monkeypatch.setattr(Server, "participants", lambda _, number: participants_of[number])

    def answer(job: Job) -> Reply:
        score = {"global_accuracy": job.round / 10} if job.evaluate_globally else {}
        usual = Scripted.usual(job)
        return replace(usual, metrics=usual.metrics | score)

    def run_rounds(when: GlobalRounds) -> tuple[list[Round], list[list[int]]]:
        engine, records, evaluated = Scripted(answer), [], []
        task = Task(2, 2, 5, rounds=3, seed=0)
        state = Server.initial_state(task, {"total": torch.zeros(1)})
        for number in (1, 2, 3):  # each with a new server that continues from the last state
            fed = Server(task, Sum(), engine, state, global_rounds=when)
            records.append(fed.round(number))
            evaluated.append([job.client_id for job in engine.jobs if job.evaluate_globally])
            state = fed.state()
        return records, evaluated

    def scores(records: list[Round]) -> list[list[float | None] | None]:
        return [record.per_client["global_accuracy"] for record in records]

    records, evaluated = run_rounds("last")
    assert evaluated == [[], [], [1, 2, 0, 3]]
    assert scores(records) == [None, None, [0.3, 0.3, 0.3, 0.3, None]]
    assert [record.scores["global_accuracy"] for record in records] == [
        None,
        None,
        pytest.approx(0.3),
    ]

    records, evaluated = run_rounds("every")
    assert evaluated == [[0, 3], [0, 1], [1, 2]], (
        "a client with an unchanged model is not evaluated again"
    )
    assert scores(records) == [
        [0.1, None, None, 0.1, None],
        [0.2, 0.2, None, 0.1, None],
        [0.2, 0.3, 0.3, 0.1, None],
    ]
    assert records[2].scores["global_accuracy"] == pytest.approx(0.9 / 4)

    records, evaluated = run_rounds("never")
    assert evaluated == [[], [], []]
    assert not any("global" in key for record in records for key in record)


def test_a_new_upload_invalidates_the_global_accuracy() -> None:
    def answer(job: Job) -> Reply:
        usual = Scripted.usual(job)
        if job.client_id == 1 and job.round == 2:  # it trains, but cannot be evaluated
            return replace(usual, metrics={}, error="ValueError: no")
        if job.client_id == 2 and job.round == 2:
            return replace(usual, up=b"garbage", metrics={"global_accuracy": 0.9})
        if job.client_id == 3:  # it never trains
            return Reply(3, job.round, metrics={"global_accuracy": 0.9}, error="ValueError: no")
        return replace(usual, metrics=usual.metrics | {"global_accuracy": 0.5})

    fed = federation(Scripted(answer), global_rounds="every")
    assert fed.round(1).per_client["global_accuracy"] == [0.5, 0.5, 0.5, None]
    record = fed.round(2)
    assert record.per_client["global_accuracy"] == [0.5, None, None, None]
    assert record.per_client["accuracy"] == [0.5, 0.5, 0.5, None], (
        "own accuracy keeps the last value"
    )
    assert record.method_metrics == {}


def test_excluded_clients_have_no_global_accuracy() -> None:
    def answer(job: Job) -> Reply:
        usual = Scripted.usual(job)
        scored = replace(usual, metrics=usual.metrics | {"global_accuracy": 0.5})
        return replace(usual, up=b"garbage") if (job.client_id, job.round) == (1, 2) else scored

    fed = federation(Scripted(answer), global_rounds="every", strikes=1)
    assert fed.round(1).per_client["global_accuracy"] == [0.5] * 4
    assert fed.round(2).per_client["global_accuracy"] == [0.5, None, 0.5, 0.5]
    assert fed.round(3).per_client["global_accuracy"] == [0.5, None, 0.5, 0.5]


def test_global_accuracies_of_an_old_state_are_not_used() -> None:
    engine = Scripted()
    fed = federation(engine, global_rounds="last")
    fed.round(1)
    state = fed.state() | {"scores.global_accuracy": torch.full((4,), 0.9)}
    del state["global_accuracy"]
    task = Task(2, 2, 4, rounds=2, seed=0)
    fed = Server(task, Sum(), engine, state, participation=0.5, global_rounds="last")
    assert fed.round(2).per_client["global_accuracy"] == [None] * 4
    assert all(job.evaluate_globally for job in engine.jobs)
    assert len(engine.jobs) == 4
