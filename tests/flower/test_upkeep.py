"""Months of a federation: backups that are restored, other versions, clients that leave or join."""

import shutil
from pathlib import Path

import pytest

from fedgh.errors import RunError
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from tests.flower.local import FIRST_NODE, LocalFederation
from tests.support.states import states
from tests.support.tiny import numbers, quick

pytestmark = pytest.mark.usefixtures("impatient")

CLIENTS = 2
TWO = ["federation.clients=2", "data.classes_per_client=5", "federation.participation=1"]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run of seven rounds that no failure has interrupted."""
    experiment = quick(*TWO, "federation.rounds=7")
    return loop.run(experiment, tmp_path_factory.mktemp("serial") / "run")


def federation(path: Path, *overrides: str) -> LocalFederation:
    return LocalFederation(path / "f", quick(*TWO, "federation.rounds=7", *overrides))


def run_until(federation: LocalFederation, round: int) -> Path:
    """Run until the end of `round`, then kill the server; return its run folder."""
    run = RunFolder(federation.path / "run")
    federation.grid.delivered = 0
    federation.grid.break_after = CLIENTS * (round - (run.committed()[0] if run.records() else 0))
    with pytest.raises(KeyboardInterrupt):
        federation.run()
    federation.grid.break_after = 2**62
    federation.grid.waiting.clear()
    assert len(run.records()) == round
    return run.path


def back_up(run: Path, name: str = "backup") -> Path:
    """Copy a run folder as docs/guides/operate.md says: first checkpoint/, then the rest."""
    backup = run.with_name(name)
    shutil.copytree(run / "checkpoint", backup / "checkpoint")
    shutil.copytree(run, backup, dirs_exist_ok=True, ignore=lambda *_: ["checkpoint"])
    return backup


def restore(backup: Path, run: Path) -> None:
    shutil.rmtree(run)
    shutil.copytree(backup, run)


def assert_same(federation: LocalFederation, straight: RunFolder) -> None:
    run = federation.run()
    assert numbers(run) == numbers(straight)
    server = states(run)["server.safetensors"]
    assert {**federation.states(), "server.safetensors": server} == states(straight)


def test_a_backup_that_is_one_round_older_than_the_clients_is_as_good_as_the_original(
    straight: RunFolder, tmp_path: Path
) -> None:
    made = federation(tmp_path)
    run = run_until(made, 2)
    backup = back_up(run)
    run_until(made, 3)
    restore(backup, run)
    assert_same(made, straight)


def test_an_older_backup_ends_with_an_error_and_needs_the_clients_copies(
    straight: RunFolder, tmp_path: Path
) -> None:
    made = federation(tmp_path)
    run = run_until(made, 2)
    backup = back_up(run)
    clients = shutil.copytree(made.path / "states", tmp_path / "states-of-clients")
    run_until(made, 5)
    restore(backup, run)
    with pytest.raises(RunError, match=r"all 2 participants failed.* after round 2 is not in its"):
        made.run()
    shutil.rmtree(made.path / "states")
    shutil.copytree(clients, made.path / "states")
    restore(backup, run)
    assert_same(made, straight)


def test_clients_keep_their_states_for_a_backup_until_the_next_checkpoint(
    straight: RunFolder, tmp_path: Path
) -> None:
    made = federation(tmp_path, "run.checkpoint_every=3")
    run = run_until(made, 3)
    backup = back_up(run)
    run_until(made, 6)
    restore(backup, run)
    assert_same(made, straight)


def test_a_copy_made_while_training_goes_on_can_be_restored(
    straight: RunFolder, tmp_path: Path
) -> None:
    """checkpoint/ is copied first, and rounds.jsonl a round later."""
    made = federation(tmp_path)
    run = run_until(made, 2)
    shutil.copytree(run / "checkpoint", tmp_path / "backup" / "checkpoint")
    run_until(made, 3)
    rest = shutil.ignore_patterns("checkpoint")
    shutil.copytree(run, tmp_path / "backup", dirs_exist_ok=True, ignore=rest)
    restore(tmp_path / "backup", run)
    assert_same(made, straight)


def test_a_copy_in_the_wrong_order_is_refused(tmp_path: Path) -> None:
    made = federation(tmp_path)
    run = run_until(made, 2)
    rest = shutil.ignore_patterns("checkpoint")
    backup = Path(shutil.copytree(run, tmp_path / "backup", ignore=rest))
    run_until(made, 3)
    shutil.copytree(run / "checkpoint", backup / "checkpoint")
    restore(backup, run)
    with pytest.raises(RunError, match=r"rounds\.jsonl"):
        made.run()


def test_a_client_with_an_older_copy_fails_until_it_has_its_newest_states(
    tmp_path: Path,
) -> None:
    made = federation(tmp_path)
    run_until(made, 2)
    home = made.client_folder(0)
    copy = shutil.copytree(home, tmp_path / "copy")
    run_until(made, 4)
    newest = shutil.copytree(home, tmp_path / "newest")
    shutil.rmtree(home)
    shutil.copytree(copy, home)
    run = run_until(made, 6)
    ((client, reason),) = [(p.client, p.reason) for p in RunFolder(run).records()[5].failed]
    assert client == 0
    assert "the state of client 0 after round 4 is not in its folder" in reason
    shutil.rmtree(home)
    shutil.copytree(newest, home)
    last = made.run().records()[-1]
    assert last.failed == []


def test_another_version_fails_until_it_is_the_same_again(
    straight: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = federation(tmp_path)
    run_until(made, 2)
    with monkeypatch.context() as patch:
        patch.setattr("fedgh.flower.client.__version__", "9.9.9")
        with pytest.raises(RunError, match=r"this client has 9\.9\.9; install the same version"):
            made.run()
    with monkeypatch.context() as patch:  # both are upgraded
        patch.setattr("fedgh.flower.client.__version__", "9.9.9")
        patch.setattr("fedgh.flower.engine.__version__", "9.9.9")
        assert_same(made, straight)


def test_a_client_that_left_fails_and_may_fall_below_the_quorum(tmp_path: Path) -> None:
    made = federation(tmp_path)
    run_until(made, 2)
    del made.grid.nodes[FIRST_NODE]
    records = made.run().records()
    assert [problem.reason for problem in records[4].failed] == ["not connected"]
    assert records[-1].answered == [1]

    strict = federation(tmp_path / "strict", "run.quorum=0.9")
    run_until(strict, 2)
    del strict.grid.nodes[FIRST_NODE]
    with pytest.raises(
        RunError, match=r"1 of 2 participants .* in 3 deadlines .* client 0: not connected"
    ):
        strict.run()
    assert len(RunFolder(strict.path / "run").records()) == 2


def test_a_client_that_was_planned_may_join_later(tmp_path: Path) -> None:
    made = federation(tmp_path)
    late = made.grid.nodes.pop(FIRST_NODE + 1)
    made.grid.break_after = 3
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert made.path.joinpath("run", "rounds.jsonl").read_text().count("not connected") == 3
    made.grid.break_after = 2**62
    made.grid.waiting.clear()
    made.grid.nodes[FIRST_NODE + 1] = late
    records = made.run().records()
    assert records[3].failed == []
    assert records[-1].accuracies[1] is not None
