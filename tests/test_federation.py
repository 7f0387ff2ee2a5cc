"""The Python interface `Federation`: any networks, any data, all engines."""

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fedgh import ClientSpec, Federation, TrainedFederation
from fedgh.core.records import Round
from fedgh.errors import ConfigError, DataError, FedghError, RunError
from fedgh.methods.fedgh import FedGH
from fedgh.report.write import write_report
from fedgh.runs.folder import RunFolder
from tests.support.participants import CLASSES, net, pictures, points, three
from tests.support.public import Chorus, Labelled
from tests.support.states import states
from tests.support.tiny import numbers


def same_results(a: RunFolder, b: RunFolder) -> bool:
    return numbers(a) == numbers(b) and states(a) == states(b)


def test_clients_with_different_inputs_and_networks_learn_together() -> None:
    federation = Federation(three(), lr=0.1)
    assert federation.classes == CLASSES
    assert federation.config.model.rep_dim == 8, "the smallest width; the others are projected"
    trained = federation.run(rounds=8, progress=False)
    history = trained.history
    assert list(history["round"]) == list(range(1, 9))
    assert history["accuracy"].iloc[-1] > 0.8 > history["accuracy"].iloc[0]
    assert history["global_accuracy"].isna().all(), "their data are apart"
    assert "global_accuracy" not in trained.folder.summary().final
    assert history["bytes_up"].iloc[-1] == sum(4 * s * (8 + 1) for s in (3, 3, 2))
    north, west = trained.clients["north"], trained.clients["west"]
    x, y = points(4, seed=9)
    right = [said == CLASSES[label] for said, label in zip(north.predict(x), y, strict=True)]
    assert sum(right) / len(right) > 0.8
    assert west.predict(pictures()[0][:2]) == ["a", "c"]
    assert west.classes == ["a", "c"]
    assert [client.network for client in trained.clients] == ["Sequential"] * 3
    with pytest.raises(DataError, match=r"expected float32 \[n, 4\], got float32 \[90, 6\]"):
        north.predict(points(6)[0])


def test_a_run_is_reproducible_on_every_engine(tmp_path: Path) -> None:
    one = Federation(three()).run(2, out=tmp_path / "one", progress=False)
    again = Federation(three()).run(2, out=tmp_path / "again", progress=False)
    workers = Federation(three(), engine="workers").run(2, out=tmp_path / "w", progress=False)
    assert same_results(one.folder, again.folder)
    assert same_results(one.folder, workers.folder)


def test_a_stopped_program_resumes_its_run(tmp_path: Path) -> None:
    def stop(record: Round) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    straight = Federation(three()).run(4, out=tmp_path / "straight", progress=False)
    with pytest.raises(KeyboardInterrupt):
        Federation(three()).run(4, out=tmp_path / "run", callbacks=[stop], progress=False)
    rounds: list[int] = []
    resumed = Federation(three()).run(
        4, out=tmp_path / "run", callbacks=[lambda r: rounds.append(r.round)], progress=False
    )
    assert rounds == [2, 3, 4]
    assert same_results(straight.folder, resumed.folder)
    # A second start finds a finished run.
    assert Federation(three()).run(4, out=tmp_path / "run", progress=False).history.shape[0] == 4
    for other in (Federation(three(), lr=0.5), Federation([replace(three()[0], network=net(4))])):
        with pytest.raises(RunError, match="holds another run: its data, settings"):
            other.run(4, out=tmp_path / "run", progress=False)


def test_models_are_loaded_without_data(tmp_path: Path) -> None:
    trained = Federation(three(), lr=0.1).run(2, out=tmp_path / "run", progress=False)
    networks = [replace(one, data=None) for one in three()]
    again = TrainedFederation.load(tmp_path / "run", clients=networks)
    for x, before, after in zip(
        (points(4)[0], points(6)[0], pictures()[0]), trained.clients, again.clients, strict=True
    ):
        assert after.logits(x).equal(before.logits(x))
    assert again.history.equals(trained.history)
    assert not again.clients["west"].export(tmp_path / "west.pt2", "torch-export").own
    with pytest.raises(DataError, match=r"client 0.*the client has no data"):
        Federation(networks)
    for wrong in (None, networks[:2]):
        with pytest.raises(RunError, match=r"were given in Python; give all 3 again: Trained"):
            _ = TrainedFederation.load(tmp_path / "run", clients=wrong).clients[0].model
    other = [replace(networks[0], network=net(4, 9)), *networks[1:]]
    with pytest.raises(RunError, match="does not fit its current network"):
        _ = TrainedFederation.load(tmp_path / "run", clients=other).clients[0].model


def test_a_callback_can_stop_the_run(tmp_path: Path) -> None:
    federation = Federation(three())
    out = tmp_path / "run"
    trained = federation.run(9, out=out, callbacks=[lambda r: r.round == 2], progress=False)
    assert list(trained.history["round"]) == [1, 2]
    assert trained.clients[0].predict(points(4)[0][:1])[0] in CLASSES
    # The same program stops at the same round; without the callback it continues.
    again = federation.run(9, out=out, callbacks=[lambda r: r.round == 2], progress=False)
    assert list(again.history["round"]) == [1, 2]
    assert list(federation.run(9, out=out, progress=False).history["round"]) == list(range(1, 10))


def test_a_stop_between_checkpoints_keeps_the_last_round() -> None:
    rare = Federation(three(), settings={"run.checkpoint_every": 5})
    trained = rare.run(9, callbacks=[lambda r: r.round == 4], progress=False)
    assert trained.checkpoint.round == 4
    assert list(trained.history["round"]) == [1, 2, 3, 4]


def test_repr_shows_the_representation_of_each_network() -> None:
    words = repr(Federation(three())).splitlines()
    assert words[0] == "fedgh, 3 classes, representations of 8"
    assert words[1] == "  0 north: Sequential, the input of '1'"
    assert words[2] == "  1 south: Sequential, its output, projected from 12"


def test_images_are_predicted_in_the_form_of_the_training_data() -> None:
    x, names = pictures()
    last = x.permute(0, 2, 3, 1).contiguous()
    west = replace(three()[2], data=(last, names))
    trained = Federation([west], lr=0.1).run(4, progress=False)
    assert trained.clients["west"].predict(last[:2]) == ["a", "c"]


def test_without_out_no_files_remain() -> None:
    trained = Federation(three()).run(1, progress=False)
    path = trained.folder.path
    assert path.exists()
    client = trained.clients[0]
    del trained
    assert client.predict(points(4)[0][:1]), "who has a client still has its run"
    del client
    gc.collect()
    assert not path.exists()


def test_a_temporary_run_folder_is_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Federation(three()).run(1)
    assert "3 clients, their own networks, 1 rounds, seed 0\n" in capsys.readouterr().out
    Federation(three()).run(1, out=tmp_path / "run")
    assert "seed 0 -> " in capsys.readouterr().out


def test_settings_set_any_key_of_the_configuration() -> None:
    federation = Federation(
        three(),
        FedGH(server_lr=0.5),
        rep_dim=5,
        epochs=2,
        participation=0.5,
        settings={"privacy.protects": "client", "local.weight_decay": 0.1, "run.eval_every": 2},
    )
    config = federation.config
    assert isinstance(config.method, FedGH)
    assert (config.method.server_lr, config.local.epochs, config.local.weight_decay) == (
        0.5,
        2,
        0.1,
    )
    trained = federation.run(2, progress=False)
    spent = trained.folder.summary().privacy
    assert spent is not None
    assert spent.epsilon > 0


@pytest.mark.parametrize("method", ["standalone", "lg_fedavg", "fd", "fedproto"])
def test_federations_run_other_methods(method: str) -> None:
    assert len(Federation(three(), method).run(2, progress=False).history) == 2


def test_one_shared_network_needs_inputs_of_one_shape() -> None:
    with pytest.raises(FedghError, match="all clients need inputs of one shape"):
        Federation(three(), "fml", settings={"method.shared": "mlp"}).run(1, progress=False)
    alike = [ClientSpec(net(4, seed=k), points(4, seed=k)) for k in range(2)]
    federation = Federation(alike, "fml", settings={"method.shared": "mlp"})
    assert len(federation.run(1, progress=False).history) == 1


def test_a_frozen_network_does_not_change() -> None:
    network = net(4)
    frozen = [replace(three()[0], network=network, frozen=True), three()[1]]
    trained = Federation(frozen, rep_dim=6, lr=0.1).run(2, progress=False)
    state = trained.clients[0].model.extractor.state_dict()
    for name, tensor in network.state_dict().items():
        assert state[f"body.network.{name}"].equal(tensor)
    assert "projection.weight" in state


def test_a_report_is_written_and_a_model_exported(tmp_path: Path) -> None:
    trained = Federation(three()).run(2, out=tmp_path / "run", progress=False)
    page = write_report(trained)
    assert page == tmp_path / "run" / "report.html"
    assert "1 south" in page.read_text()
    assert (tmp_path / "run" / "confusion.json").exists()
    exported = trained.clients["west"].export(tmp_path / "west.pt2", "torch-export")
    assert exported.own
    assert exported.difference < 1e-5


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Federation([]), "at least one client"),
        (lambda: Federation(three()[0]), "needs a list"),  # type: ignore[arg-type]
        (lambda: Federation([(net(4), points(4))]), "client 0 is a tuple; write Cli"),  # type: ignore[list-item]
        (lambda: Federation(three(), FedGH), "expected a name or a method, e.g. FedGH"),  # type: ignore[arg-type]
        (lambda: ClientSpec(nn.Linear, points(4)), "expected a torch.nn.Module, got <class"),  # type: ignore[arg-type]
        (
            lambda: Federation([*three(), ClientSpec(net(4), points(4, n=2))]),
            "client 3: 2 samples; at least 3 are needed",
        ),
        (lambda: Federation([ClientSpec(net(5), points(4), name="x")]), r"client 0 \(x\): S"),
        (lambda: Federation([ClientSpec(net(4), (1, 2, 3))]), "client 0: data: expected inp"),
        (
            lambda: Federation(three(), classes=["a", "b"]),
            r"client 0 \(north\): .*class 'c' i",
        ),
        (lambda: Federation([three()[0], three()[0]]), "the name 'north' is taken or is a number"),
        (lambda: Federation(three(), "fedhg"), "no method 'fedhg'; did you mean 'fedgh'"),
        (lambda: Federation(three(), settings={"local.lrr": 1}), "did you mean 'lr'"),
        (lambda: Federation(three(), settings={"data.samples": 9}).run(1), "data.name = 'own'"),
        (lambda: Federation(three(), settings={"lr": 1}), "lr: no section 'lr'"),
        (lambda: Federation(three()).run(0), "rounds: should be greater than or equal to 1"),
        (lambda: Federation(three(), settings={"local.augment": ["flip"]}).run(1), "is for images"),
    ],
)
def test_mistakes_are_reported_with_the_client(make: Callable[[], Any], problem: str) -> None:
    with pytest.raises(FedghError, match=problem):
        make()


def test_the_type_of_an_error_is_kept() -> None:
    with pytest.raises(ConfigError):
        Federation([ClientSpec(net(5), points(4))])
    with pytest.raises(DataError):
        Federation([ClientSpec(net(4), (points(4)[0], [1]))])


def test_after_a_client_is_forgotten_the_models_are_read_again() -> None:
    some = [ClientSpec(net(4, seed=k), points(4, seed=k)) for k in range(3)]
    trained = Federation(some, "fedgh_plus").run(rounds=2, progress=False)
    before = trained.checkpoint.client(1).memory
    trained.forget(0)
    after = trained.checkpoint.client(1).memory
    changed = [name for name in before if not before[name].equal(after[name])]
    assert changed, "the header is another without the client"


def two() -> list[ClientSpec]:
    return [ClientSpec(net(4, seed=seed), points(4, seed=seed)) for seed in (1, 2)]


def test_public_data_are_given_like_those_of_a_client(tmp_path: Path) -> None:
    x, y = points(4, seed=9, n=30)
    federation = Federation(two(), Labelled(), public=(x, y))
    assert federation.config.public.name == "own"
    assert federation.config.public.samples == 30
    public = federation.experiment().public
    assert public is not None
    assert {tuple(row) for row in public.x.tolist()} == {tuple(row) for row in x.tolist()}
    assert public.y.bincount().tolist() == [10, 10, 10]
    run = federation.run(1, out=tmp_path / "run", progress=False).folder
    assert run.summary().public_bytes_per_client == 30 * (4 * 4 + 8)
    models = TrainedFederation.load(run.path, clients=two(), trust=True)
    assert len(models.clients[0].predict(x[:2])) == 2
    fewer = Federation(two(), Chorus(), public=(x, y), settings={"public.samples": 7})
    assert fewer.experiment().task.public_size == 7


def test_unsuitable_public_data_are_rejected() -> None:
    x, y = points(4, seed=9, n=30)
    for public, says in (
        (None, "chorus needs public data"),
        ("held-out", r"data.name = 'own': each client has its own"),
        ("digits", r"inputs are \(1, 32, 32\) of uint8, those of the data \(4,\) of float32"),
        ((x[:, :3], y), r"inputs are \(3,\) of float32, those of the data \(4,\)"),
        (points(4, seed=2), "own data has 0 samples that are not also private"),
        ((x[:1], y[:1]), r"public\.samples: should be greater than or equal to 2"),
        ((x, y[:3]), "^public: own data: 30 inputs and 3 labels"),
        ("nowhere/", r"^public: .*nowhere does not exist"),
    ):
        with pytest.raises(FedghError, match=says):
            Federation(two(), Chorus(), public=public).experiment()
    with pytest.raises(DataError, match=r"^public: .*class 'd' is not one of"):
        Federation(two(), Labelled(), public=(x, ["d"] * 30))
