"""Damaged run folders: committed rounds are read as they were written, or refused."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from fedgh import config
from fedgh.audit import result as audit
from fedgh.audit.noise import NO_NOISE
from fedgh.core.types import Job, Reply
from fedgh.errors import FedghError
from fedgh.flower.current import CurrentFile
from fedgh.flower.session import Session
from fedgh.privacy.ledger import Ledger
from fedgh.report.means_chart import SPEC, Projection, project
from fedgh.runs.folder import RunFolder
from fedgh.runs.read import NamedRun
from fedgh.trained import confusion
from fedgh.trained.clients import TrainedFederation
from fedgh.training import loop
from fedgh.training.experiment import prepare
from fedgh.trust import OWN
from tests.fuzz import payloads
from tests.fuzz.budget import fuzz
from tests.fuzz.payloads import NAMES, tampered
from tests.fuzz.readers import ROUNDS, read_everything
from tests.fuzz.refusal import Refused, attempt
from tests.support.runs import interrupted
from tests.support.tiny import QUICK

AUDIT = audit.Audit(
    method="fedgh",
    client=0,
    round=ROUNDS,
    seed=0,
    classes=["0", "1"],
    sizes=[8, 8],
    auxiliary=20,
    networks=2,
    width=8,
    clip=1.0,
    delta=1e-5,
    sends_counts=False,
    protected=NO_NOISE,
    reconstructed=[],
    told=[],
    pictures={},
    seconds=1.5,
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, and one that crashed while it wrote the line of its last round."""
    root = tmp_path_factory.mktemp("folders")
    rng = np.random.default_rng(0)
    np.savez(root / "data.npz", x=rng.normal(size=(90, 4)), y=np.arange(90) % 3)
    data = ["data.name=npz", f"data.path={root / 'data.npz'}", "federation.clients=3"]
    experiment = prepare(
        config.load("demo", [*QUICK, *data, "model.extractors=tests.support.tiny:mlp"])
    )
    finished = loop.run(experiment, root / "finished")
    confusion.measure(finished, trust=OWN)
    Session("demo-1", 1, 7, finished.run_id).write(finished.path)
    current = CurrentFile(finished.path, finished.run_id)
    current.connected({0})
    current.begin([Job(k, 1, None, evaluate=True) for k in (0, 1)], 9.0, tries=1)
    current.ended(Reply(1, 1, error="away"), "late")
    current.close()
    audit.write(finished, AUDIT)
    interrupted(experiment, root / "crashed", after=ROUNDS - 1)
    with (root / "crashed" / "rounds.jsonl").open("ab") as file:
        file.write(lines(finished.path)[-1])
    return root


def lines(folder: Path) -> list[bytes]:
    return (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("run", ["finished", "crashed"])
def test_a_history_cut_off_at_any_byte_has_whole_rounds_or_none(
    run: str, folders: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(folders / run, tmp_path / "run")
    ends = np.cumsum([len(line) for line in lines(folder)])
    expected = RunFolder.open(folder).records()
    for end in range(ends[-1], -1, -1):
        os.truncate(folder / "rounds.jsonl", end)
        outcome = attempt(FedghError, RunFolder.open(folder).records)
        assert isinstance(outcome, Refused) or outcome == expected[: (ends - 1 <= end).sum()]


@fuzz(0.01, end=st.integers(0, 3_000), rest=st.binary(max_size=9))
def test_an_unfinished_last_line_of_the_history_is_ignored(
    folders: Path, end: int, rest: bytes
) -> None:
    folder = folders / "crashed"
    committed, last = b"".join(lines(folder)[: ROUNDS - 1]), lines(folders / "finished")[-1]
    (folder / "rounds.jsonl").write_bytes(committed + last[:end] + rest)
    done, _ = RunFolder.open(folder).rewind()
    assert done == ROUNDS - 1
    assert (folder / "rounds.jsonl").read_bytes() == committed


TEXTS = [
    *("config.toml", "data.json", "clients.json", "rounds.jsonl", "summary.json"),
    *("confusion.json", "audit.json", "flower.json", "current.json"),
]
VALUES: SearchStrategy[Any] = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1,
        10**30,
        1e300,
        float("nan"),
        float("inf"),
        "",
        "x\n",
        [],
        {},
        [[]],
        ["a"],
    ]
)
PIECES = [b"\xff", b"\0", b"[" * 5_000, b"1" * 5_000, b"NaN", b"1e999", b"{}", b"null", b"\n\n"]


@st.composite
def damages(draw: DrawFn) -> tuple[str, int, Any]:
    """Draw a file, a position in it, and the damage there."""
    what = st.one_of(
        st.sampled_from(["cut", "remove", "drop"]),
        st.sampled_from(PIECES),
        st.tuples(NAMES, VALUES),
    )
    return draw(st.sampled_from(TEXTS)), draw(st.integers(0, 2**16)), draw(what)


def damaged(content: bytes, seed: int, what: Any) -> bytes:
    """Return the content of a file after the damage."""
    start = seed % (len(content) + 1)
    if what == "cut":
        return content[:start]
    if what == "remove":
        return content[:start] + content[start + 1 + seed % 40 :]
    if isinstance(what, bytes):
        return content[:start] + what + content[start + seed % 9 :]
    try:
        parts = [json.loads(line) for line in content.splitlines()]
    except ValueError:
        try:
            parts = [json.loads(content)]
        except ValueError:
            return content[:start]
    return b"".join(json.dumps(_changed(part, seed, what)).encode() + b"\n" for part in parts)


def _changed(value: Any, seed: int, what: Any) -> Any:
    """Return the value with one change somewhere in it."""
    if not value or not isinstance(value, dict | list):
        return value if what == "drop" else what[1]
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = keys[seed % len(keys)]
    out = value.copy()
    if what == "drop":
        del out[key]
    elif seed % 3 and isinstance(value[key], dict | list):
        out[key] = _changed(value[key], seed // 3, what)
    elif seed % 5 == 0 and isinstance(out, dict):
        out[what[0]] = what[1]
    else:
        out[key] = what[1]
    return out


@contextmanager
def with_content(file: Path, content: bytes) -> Iterator[None]:
    """Replace the content of a file for the duration of the block."""
    before = file.read_bytes()
    file.write_bytes(content)
    try:
        yield
    finally:
        file.write_bytes(before)


@fuzz(0.06, damage=damages())
def test_a_damaged_folder_is_read_or_refused(folders: Path, damage: tuple[str, int, Any]) -> None:
    name, seed, what = damage
    file = folders / "finished" / name
    with with_content(file, damaged(file.read_bytes(), seed, what)):
        read_everything(folders / "finished")


@fuzz(0.01, damage=damages())
def test_the_models_of_a_damaged_folder_are_loaded_or_refused(
    folders: Path, damage: tuple[str, int, Any]
) -> None:
    name, seed, what = damage
    file = folders / "crashed" / name
    if not file.exists():
        return

    def use() -> list[str]:
        trained = TrainedFederation.load(folders / "crashed", trust=True)
        assert len(trained.history) >= ROUNDS - 1
        return trained.clients[0].predict(np.zeros((2, 4)))

    with with_content(file, damaged(file.read_bytes(), seed, what)):
        outcome = attempt(FedghError, use)
    assert len(outcome) == 2 if isinstance(outcome, list) else "\n" not in outcome.why


@st.composite
def states(draw: DrawFn, content: bytes) -> bytes:
    """Draw a file of tensors, damaged like a message."""
    return draw(tampered(content) | payloads.with_false_header(content) | st.binary(max_size=60))


@fuzz(0.03, data=st.data())
def test_a_damaged_checkpoint_is_loaded_or_refused(folders: Path, data: st.DataObject) -> None:
    file = folders / "finished" / "checkpoint" / "server.safetensors"
    run = RunFolder.open(folders / "finished")
    round, state = run.committed()
    with with_content(file, data.draw(states(file.read_bytes()))):
        outcome = attempt(FedghError, run.committed)
    if isinstance(outcome, Refused):
        assert str(file) in outcome.why or "rounds.jsonl" in outcome.why
    else:
        assert outcome[0] == round
        assert outcome[1].keys() == state.keys()
        assert all(outcome[1][name].nan_to_num().equal(state[name].nan_to_num()) for name in state)


@fuzz(0.02, data=st.data())
def test_damaged_class_means_are_projected_or_refused(folders: Path, data: st.DataObject) -> None:
    file = next((folders / "finished" / "means").iterdir())
    run = NamedRun("run", RunFolder(folders / "finished"))
    with with_content(file, data.draw(payloads.messages(SPEC) | states(file.read_bytes()))):
        outcome = attempt(FedghError, lambda: project(run))
    if isinstance(outcome, Projection):
        assert all(np.isfinite([row["x"], row["y"]]).all() for row in outcome.rows)


ANY = st.sampled_from([*TEXTS[:4], "checkpoint/server.safetensors", "checkpoint/clients"])


@fuzz(0.005, name=ANY, data=st.data())
def test_a_damaged_run_is_resumed_or_refused(
    folders: Path, tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    folder = shutil.copytree(folders / "crashed", tmp_path_factory.mktemp("resumed") / "run")
    file = folder / name
    if name.endswith("clients"):
        (file,) = folder.glob(f"{name}-*.round-{ROUNDS - 1:06}.states")
    content = file.read_bytes()
    if file.suffix in (".safetensors", ".states"):
        file.write_bytes(data.draw(states(content)))
    else:
        _, seed, what = data.draw(damages())
        file.write_bytes(damaged(content, seed, what))
    run = attempt(FedghError, lambda: loop.resume(folder))
    if isinstance(run, RunFolder):
        assert [record.round for record in run.records()] == [1, 2, 3]


LEDGER = b'{"releases": 3, "spent": 0.5}'
LEDGERS = st.one_of(
    tampered(LEDGER),
    st.tuples(VALUES, VALUES).map(
        lambda pair: json.dumps({"releases": pair[0], "spent": pair[1]}).encode()
    ),
    st.sampled_from(PIECES),
)


@example(content=b"{}")
@fuzz(0.005, content=LEDGERS)
def test_a_damaged_ledger_is_refused_or_counts_a_release(folders: Path, content: bytes) -> None:
    pytest.importorskip("dp_accounting")
    path = folders / "ledger.json"
    path.write_bytes(content)
    outcome = attempt(FedghError, lambda: Ledger(path, max_epsilon=5.0, delta=1e-5).spend(1.0))
    if isinstance(outcome, Refused):
        assert path.read_bytes() == content
        assert "\n" not in outcome.why
    else:
        before, after = json.loads(content), json.loads(path.read_bytes())
        assert after["releases"] == before["releases"] + 1
        assert after["spent"] == before["spent"] + 1
