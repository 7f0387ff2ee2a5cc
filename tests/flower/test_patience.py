"""A round with too few answers at its deadline is tried again, with the same result as in time."""

from pathlib import Path

import pytest
from flwr.app import Message

from fedgh.core.records import Problem
from fedgh.errors import RunError
from fedgh.flower.engine import MAX_TRIES
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from tests.flower.local import FIRST_NODE, LocalFederation, UnreliableGrid
from tests.support.states import states
from tests.support.tiny import numbers, quick

pytestmark = pytest.mark.usefixtures("impatient")

EVERYONE = range(5)


class SlowGrid(UnreliableGrid):
    """A grid that loses the first replies of some clients in some rounds."""

    losses: dict[tuple[int, int], int]  # client, round -> number of replies

    def _reply(self, name: str) -> Message | None:
        waited = name in self.waiting
        node = self.waiting.get(name)
        result = super()._reply(name)
        if not waited or result is None or node is None:
            return result
        key = (node - FIRST_NODE, int(result.metadata.group_id))
        left = self.losses.get(key, 0)
        self.losses[key] = left - 1
        return None if left > 0 else result


def slow(path: Path, losses: dict[tuple[int, int], int], *overrides: str) -> LocalFederation:
    federation = LocalFederation(path, quick("run.deadline=5", *overrides))
    grid = SlowGrid(federation.grid.nodes)
    grid.losses = dict(losses)
    federation.grid = grid
    return federation


def assert_same(federation: LocalFederation, run: RunFolder, straight: RunFolder) -> None:
    assert numbers(run) == numbers(straight)
    server = states(run)["server.safetensors"]
    assert {**federation.states(), "server.safetensors": server} == states(straight)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return loop.run(quick(), tmp_path_factory.mktemp("serial") / "run")


def test_one_late_round_of_everybody_does_not_change_the_result(
    straight: RunFolder, tmp_path: Path
) -> None:
    """The clients have trained: they answer the second request from their stored answers."""
    federation = slow(tmp_path, {(client, 2): 1 for client in EVERYONE})
    assert_same(federation, federation.run(), straight)


def test_the_last_deadline_is_early_enough(straight: RunFolder, tmp_path: Path) -> None:
    federation = slow(tmp_path, {(client, 1): MAX_TRIES - 1 for client in EVERYONE})
    assert_same(federation, federation.run(), straight)


def test_three_late_rounds_in_a_row_end_the_run_with_advice(
    straight: RunFolder, tmp_path: Path
) -> None:
    federation = slow(tmp_path, {(client, 3): MAX_TRIES for client in EVERYONE})
    with pytest.raises(RunError) as ended:
        federation.run()
    text = str(ended.value)
    assert "round 3: 0 of 5 participants have sent an upload, in 3 deadlines of 5 s" in text
    assert "client 0: no answer within 5 s" in text
    assert "run.deadline" in text
    assert "fedgh flower up" in text
    assert len(RunFolder(tmp_path / "run").records()) == 2
    assert_same(federation, federation.run(), straight)


def test_fewer_answers_than_the_quorum_are_tried_again(straight: RunFolder, tmp_path: Path) -> None:
    late = {(client, 2): 1 for client in (0, 3)}
    federation = slow(tmp_path, late, "run.quorum=0.8")
    assert_same(federation, federation.run(), straight)


def test_with_a_quorum_of_answers_the_round_does_not_wait_for_the_others(tmp_path: Path) -> None:
    federation = slow(tmp_path, {(4, 2): 1}, "run.quorum=0.8")
    records = federation.run().records()
    late = [Problem(client=4, reason="no answer within 5 s")]
    assert [record.failed for record in records] == [[], late, []]


def test_a_client_that_joins_during_the_round_counts_if_answers_are_too_few(
    tmp_path: Path,
) -> None:
    federation = slow(tmp_path, {}, "run.quorum=1.0", "federation.rounds=1")
    grid = federation.grid
    absent = grid.nodes.pop(FIRST_NODE + 2)
    looks = iter(range(1_000))

    class Joining(type(grid)):  # type: ignore[misc]
        def get_nodes(self) -> object:
            if next(looks) > 30 and FIRST_NODE + 2 not in self.nodes:
                self.nodes[FIRST_NODE + 2] = absent
            return super().get_nodes()

    grid.__class__ = Joining
    (record,) = federation.run().records()
    assert record.failed == []


def test_errors_of_all_clients_end_the_run_at_once(tmp_path: Path) -> None:
    federation = LocalFederation(
        tmp_path, quick("run.deadline=5", "model.extractors=tests.support.tiny:failing")
    )
    with pytest.raises(RunError, match="round 1: all 5 participants failed; client 0: ValueError"):
        federation.run()
    assert federation.grid.delivered == 5, "each was asked once"


def test_a_round_of_a_few_participants_is_not_tried_again(tmp_path: Path) -> None:
    """Without a quorum the next round has other participants."""
    few = "federation.participation=0.2"
    participants = [r.participants for r in loop.run(quick(few), tmp_path / "serial").records()]
    late = {(client, 2): 1 for client in participants[1]}
    federation = slow(tmp_path / "federation", late, few)
    assert [len(record.failed) for record in federation.run().records()] == [0, 1, 0]
