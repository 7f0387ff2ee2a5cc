"""A client's own model: `fedgh flower predict` and `export`, from the states that it keeps."""

import csv
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedgh import Pixels
from fedgh.core.types import Task
from fedgh.engines.host import ClientHost
from fedgh.errors import ConfigError, FedghError, RunError
from fedgh.flower import ClientSpec, NodeConfig, client, client_app, messages, models
from fedgh.flower.deployment import deployed, follow
from fedgh.flower.models import load_model
from fedgh.runs.folder import RunFolder
from fedgh.trained.clients import TrainedFederation
from fedgh.training import loop
from tests.flower.local import NETWORKS, LocalFederation
from tests.flower.real import federation as real_federation
from tests.flower.real import two
from tests.support.commands import inside
from tests.support.tiny import quick, tiny_shared

PRIVATE = ["data.name=private", "data.classes=cat,dog,owl", "federation.clients=3"]
SMALL = [*PRIVATE, "model.rep_dim=8", "federation.rounds=2", "local.lr=0.05"]
OWN = {"app": "tests.flower.test_models:own_app"}


class Vision(nn.Module):
    """A network with a classifier of another task, batch statistics and three channels."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 12, 3, stride=2), nn.BatchNorm2d(12), nn.ReLU())
        self.fc = nn.Linear(12, 100)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.features(x).mean((2, 3)))
        return out


def images(task: Task, node: NodeConfig) -> tuple[Tensor, Tensor]:
    """Return images of one channel with a bright stripe, whose position is the class."""
    rng = torch.Generator().manual_seed(int(node["client"]))
    y = torch.arange(60) % task.num_classes
    x = torch.randint(90, (60, 1, 8, 8), generator=rng)
    x[torch.arange(60), 0, 2 * y] += 150
    return x.to(torch.uint8), y


def make_client(task: Task, node: NodeConfig) -> ClientSpec:
    """Return a client with another way to adapt a network for each number."""
    data = images(task, node)
    if "more" in os.environ.get("FEDGH_TEST_DATA", ""):
        data = data[0].flip(0), data[1].flip(0)
    return (
        ClientSpec(Vision(), data, transform=Pixels(16)),
        ClientSpec(Vision(), data, transform=Pixels(8), layer="features", frozen=True),
        ClientSpec(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU()), data),
    )[int(node["client"])]


own_app = client_app(make_client)
other_app = ClientApp()


def client_folder(federation: Path, k: int, **settings: object) -> Path:
    """Return a client's folder with its node.conf."""
    folder = federation / "participants" / str(k)
    folder.mkdir(parents=True, exist_ok=True)
    own = {"client": k, "state": "../../states", "allow": NETWORKS, **settings}
    lines = [f"{key}={json.dumps(value)}\n" for key, value in own.items() if value is not None]
    (folder / "node.conf").write_text("".join(lines))
    return folder


def states_of(federation: Path, k: int) -> Path:
    """Return the folder in which a client keeps its only run."""
    (home,) = (federation / "states").glob(f"experiments/*/client-{k}")
    return home


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a federation after two rounds, in which each client has its own network."""
    path = tmp_path_factory.mktemp("trained") / "federation"
    LocalFederation(path, quick(*SMALL), settings=OWN).run()
    return path


@pytest.fixture
def trained(template: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return shutil.copytree(template, tmp_path / "federation")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "method",
    [
        ["method.name=fedgh"],
        ["method.name=fedgh_plus", "method.feature_dim=16"],
        ["method.name=fedproto", "method.predict=prototype"],
        ["method.name=fedmrl", *tiny_shared("fedmrl")],
    ],
    ids=lambda settings: settings[0],
)
def test_the_model_of_a_client_is_that_of_a_run_on_one_machine(
    method: list[str], tmp_path: Path
) -> None:
    experiment = quick(*method, "federation.rounds=2")
    federation = LocalFederation(tmp_path / "federation", experiment)
    federation.run()
    x = experiment.source.x[:40]
    for rounds in (1, 2):
        run = loop.run(quick(*method, f"federation.rounds={rounds}"), tmp_path / str(rounds))
        for k in (0, 1):
            expected = TrainedFederation(run).clients[k]
            found = load_model(client_folder(federation.path, k), newest=rounds == 2).trained
            assert found.logits(x).equal(expected.logits(x))
            assert (found.accuracy, found.network) == (expected.accuracy, expected.network)
            assert (found.class_names, found.classes) == (expected.class_names, expected.classes)
            assert found.loaded.round == rounds
    assert found.loaded.fingerprint == expected.loaded.fingerprint


@pytest.mark.usefixtures("impatient")
def test_predictions_are_those_of_the_live_model_in_the_federation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    live: dict[tuple[int, int], Tensor] = {}
    experiment = quick(*SMALL)
    x = torch.cat([images(experiment.task, {"client": k})[0][:5] for k in range(3)])

    class Watched(ClientHost):
        def save(self, round: int) -> None:
            super().save(round)
            ((number, own),) = self.clients.items()
            with torch.no_grad():
                own.model.eval()
                live[number, round] = own.model(x / 127.5 - 1)

    with monkeypatch.context() as patch:
        patch.setattr(client, "ClientHost", Watched)
        federation = LocalFederation(tmp_path / "federation", experiment, settings=OWN)
        federation.run()
    np.save(tmp_path / "x.npy", x.numpy())
    for number, newest in ((0, False), (1, False), (2, False), (0, True)):
        folder = client_folder(federation.path, number, **OWN)
        words = ["flower", "predict", str(folder), str(tmp_path / "x.npy")]
        words += ["--csv", str(tmp_path / "said.csv"), *(["--newest"] if newest else [])]
        assert inside(monkeypatch, *words) == 0
        with (tmp_path / "said.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        shares, labels = live[number, 2 if newest else 1].softmax(1).max(1)
        names = np.array(["cat", "dog", "owl"])
        assert [row["class"] for row in rows] == names[labels.numpy()].tolist()
        found = torch.tensor([float(row["probability"]) for row in rows])
        torch.testing.assert_close(found, shares)
        said = " ".join(capfd.readouterr().out.split())
        if newest:
            assert "after round 2: no request has confirmed that the server counted it" in said
        else:
            assert "after round 1: the server has counted it newer the state after round 2" in said
    assert not live[0, 1].equal(live[0, 2])


@pytest.mark.parametrize(
    ("kind", "number"),
    [("safetensors", 0), ("onnx", 1), *(("torch-export", number) for number in range(3))],
)
def test_a_client_exports_its_adapted_network(
    kind: str,
    number: int,
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if kind == "onnx":
        pytest.importorskip("onnxruntime")
    folder = client_folder(trained, number, **OWN)
    assert inside(monkeypatch, "flower", "export", str(folder), "--format", kind) == 0
    said = capfd.readouterr().out
    assert "of its test samples: logits differ by at most" in said
    assert "after round 1: the server has counted it" in said
    (file,) = (folder / "export").iterdir()
    endings = {"onnx": ".onnx", "torch-export": ".pt2", "safetensors": ".safetensors"}
    assert file.name == f"client-{number}{endings[kind]}"
    assert str(file) in said
    if kind != "torch-export":
        return
    texts = {"fedgh.json": ""}
    program = torch.export.load(file, extra_files=texts).module()
    model = load_model(folder).trained
    x = images(quick(*SMALL).task, {"client": number})[0][:7]
    torch.testing.assert_close(program(x), model.logits(x), rtol=1e-4, atol=1e-5)
    about = json.loads(texts["fedgh.json"])
    assert about["classes"] == about["held"] == ["cat", "dog", "owl"]
    assert about["network"] == ("Vision", "Vision", "Sequential")[number]
    assert (about["round"], about["input"]["shape"]) == (1, [1, 8, 8])
    assert about["run"].startswith("run-")
    (record, _) = RunFolder(trained / "run").records()
    assert about["accuracy"] == record.accuracies[number]


def test_a_model_can_be_used_after_the_clients_data_have_changed(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = client_folder(trained, 0, **OWN)
    x = images(quick(*SMALL).task, {"client": 0})[0]
    before = load_model(folder)
    monkeypatch.setenv("FEDGH_TEST_DATA", "more")
    after = load_model(folder)
    assert before.trained.accuracy is not None
    assert after.trained.accuracy is None, "its test samples may have been trained on"
    assert after.trained.logits(x).equal(before.trained.logits(x))
    assert inside(monkeypatch, "flower", "export", str(folder), "--format", "safetensors") == 0
    assert "random inputs (its data have changed since the training)" in capfd.readouterr().out


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("lost", "counted", "newest"), [(2, 1, 3), (3, 2, 3), (None, 2, 3)])
def test_a_state_whose_answer_came_too_late_is_not_used_unless_it_is_asked_for(
    lost: int | None, counted: int, newest: int, tmp_path: Path
) -> None:
    """After an answer that was lost the client continues from its last counted state."""
    federation = LocalFederation(
        tmp_path / "federation", quick(*SMALL, "federation.rounds=3"), settings=OWN
    )
    federation.grid.lost = {(0, lost)} if lost else set()
    run = federation.run()
    assert [bool(record.failed) for record in run.records()] == [n == lost for n in (1, 2, 3)]
    folder = client_folder(federation.path, 0, **OWN)
    assert load_model(folder).trained.loaded.round == counted
    assert load_model(folder, newest=True).trained.loaded.round == newest


def test_a_state_whose_answer_was_never_sent_is_not_used(trained: Path) -> None:
    """The client's process has ended between writing its state and its answer."""
    (states_of(trained, 0) / "answers" / "000002.safetensors").unlink()
    found = load_model(client_folder(trained, 0, **OWN), newest=True)
    assert found.trained.loaded.round == 1
    assert "newer" not in found.origin


@pytest.mark.usefixtures("impatient")
def test_after_one_round_only_an_unconfirmed_state_is_here(tmp_path: Path) -> None:
    experiment = quick(*SMALL, "federation.rounds=1")
    federation = LocalFederation(tmp_path / "federation", experiment, settings=OWN)
    federation.run()
    folder = client_folder(federation.path, 0, **OWN)
    with pytest.raises(RunError, match=r"has confirmed no state yet \(--newest uses that of round"):
        load_model(folder)
    assert load_model(folder, newest=True).trained.loaded.round == 1


def test_the_newest_run_is_used_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    federation = LocalFederation(tmp_path / "federation", quick(*SMALL), settings=OWN)
    for out in ("run", "run-2", "other"):
        federation.run(out)
    folder = client_folder(federation.path, 0, **OWN)
    homes = {
        (home / "name.txt").read_text().rpartition("-")[0]: home
        for home in (federation.path / "states").glob("experiments/*/client-0")
    }
    for age, home in enumerate([homes["other"], homes["run"], homes["run-2"]]):
        os.utime(home / "turn.json", (2e9 - age, 2e9 - age))

    def name(run: str | None) -> str:
        return load_model(folder, run).trained.loaded.fingerprint.rpartition("-")[0]

    assert [name(run) for run in (None, "run-2", "oth")] == ["other", "run-2", "other"]
    assert re.search(
        r"older +--run NAME uses another run: run-\w+, run-2-\w+$", load_model(folder).origin
    )
    for wrong, problem in (("run", "names several runs"), ("nowhere", "names no run of this")):
        words = ["flower", "export", str(folder), "--format", "onnx", "--run", wrong]
        assert inside(monkeypatch, *words) == 2
        error = capfd.readouterr().err
        assert f"error: --run {wrong} {problem}" in error
        assert re.search(
            r"run-2-\w+, last request 20\d\d-\d\d-\d\d \d\d:\d\d, trained up to round 2", error
        )


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)


def no_client(task: Task, node: NodeConfig) -> ClientSpec:
    raise FileNotFoundError("patients.csv")


def smaller_client(task: Task, node: NodeConfig) -> ClientSpec:
    data = images(task, node)
    return ClientSpec(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 8)), data
    )


failing_app, smaller_app = client_app(no_client), client_app(smaller_client)


@pytest.mark.parametrize(
    ("settings", "change", "problem"),
    [
        ({"app": "nowhere:app"}, None, r"node.conf: app: cannot import 'nowhere:app': ModuleNot"),
        (
            {"app": "tests.flower.test_models:other_app"},
            None,
            "was not made by fedgh.flower.client",
        ),
        ({"app": "tests.flower.test_models:failing_app"}, None, r"FileNotFoundError: patients.csv"),
        ({"app": "tests.flower.test_models:smaller_app"}, None, "does not fit its current network"),
        ({"app": None}, None, "name your app in node.conf"),
        ({"client": 7}, None, "has no run of client 7; take part first: fedgh flower join"),
        ({"client": "x"}, None, "client='x' is not the number of a client"),
        ({"max-epsilom": 1}, None, "did you mean max-epsilon"),
        (
            {},
            lambda home: damage(min(home.glob("*.states"))),
            "round-000001.states.* cannot be read",
        ),
        ({}, lambda home: min(home.glob("*.states")).unlink(), "lacks the state after round 1"),
        ({}, lambda home: (home / "request.json").write_text("{}"), "request.json cannot be read"),
        ({}, lambda home: (home / "request.json").unlink(), "settings are not stored"),
        ({}, lambda home: (home / "name.txt").write_text("x"), "request.json is of another run"),
        ({}, lambda home: (home / "turn.json").unlink(), "turn.json.*put it back from a copy"),
    ],
)
def test_an_error_says_what_is_wrong(
    settings: dict[str, Any],
    change: Callable[[Path], object] | None,
    problem: str,
    trained: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if change is not None:
        change(states_of(trained, 0))
    with pytest.raises(FedghError, match=problem) as error:
        load_model(client_folder(trained, 0, **{**OWN, **settings}))
    assert "\n" not in str(error.value)
    assert caplog.text == ""


def test_the_app_may_be_a_file_in_the_clients_folder(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = client_folder(trained, 0, app="a_file_of_the_client:app")
    (folder / "a_file_of_the_client.py").write_text(
        "from tests.flower.test_models import own_app as app\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = Path.cwd()
    assert load_model(folder).trained.loaded.round == 1
    assert Path.cwd() == before
    del sys.modules["a_file_of_the_client"]


def test_a_folder_that_is_not_that_of_a_client_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"not the folder of a client .* participants/K"):
        load_model(tmp_path)


def test_a_model_is_loaded_again_if_a_request_comes_meanwhile(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node may train at the same time, and then it deletes states that are not needed."""
    folder, home = client_folder(trained, 0, **OWN), states_of(trained, 0)
    load, times = models._load, 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal times
        times += 1
        if times == 1:
            min(home.glob("*.states")).unlink()
            request = json.loads((home / "request.json").read_text())
            next_request = {**request, "round": 3, "trained": 2}
            (home / "request.json").write_text(json.dumps(next_request))
        return load(*arguments)

    monkeypatch.setattr(models, "_load", interrupted)
    assert load_model(folder).trained.loaded.round == 2


@pytest.mark.usefixtures("impatient")
def test_a_request_that_the_client_refuses_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = LocalFederation(tmp_path / "federation", quick(*SMALL), settings=OWN)
    pack_request = messages.pack_request

    def other_settings(request: messages.Request, down: bytes | None) -> RecordDict:
        if request.round == 2:
            request = replace(
                request, settings={**request.settings, "method": {"name": "no:where"}}
            )
        return pack_request(request, down)

    monkeypatch.setattr(messages, "pack_request", other_settings)
    with pytest.raises(RunError, match="no:where' is not part of fedgh"):
        federation.run()
    stored = json.loads((federation.client_folder(0) / "request.json").read_text())
    assert (stored["round"], stored["settings"]["method"]["name"]) == (1, "fedgh")
    assert (
        load_model(client_folder(federation.path, 0, **OWN), newest=True).trained.loaded.round == 1
    )


@pytest.mark.faults
@pytest.mark.xdist_group("deployment")
@pytest.mark.timeout(600)
def test_the_models_of_a_real_federation_are_those_of_a_run_on_one_machine(tmp_path: Path) -> None:
    experiment = two("federation.rounds=2")
    folder = real_federation(tmp_path / "federation", experiment)
    out = tmp_path / "run"
    with deployed(folder, 2, print) as running:
        follow(running, running.train(out), out, lambda _: None)
    x = experiment.source.x[:100]
    for rounds in (1, 2):
        run = loop.run(two(f"federation.rounds={rounds}"), tmp_path / f"serial-{rounds}")
        for k in (0, 1):
            found = load_model(folder.participant(k), newest=rounds == 2).trained
            assert found.loaded.round == rounds
            assert found.logits(x).equal(TrainedFederation(run).clients[k].logits(x))
