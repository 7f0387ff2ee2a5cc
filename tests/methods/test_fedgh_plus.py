"""FedGH+: a header of all samples; fusion, forgetting, newcomers, privacy."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedgh.core import wire
from fedgh.core.batches import to_input
from fedgh.core.feature_header import gaussian
from fedgh.core.moments import Moments, in_steps
from fedgh.core.types import Client, Payload, Upload, part
from fedgh.errors import ConfigError, MethodError, RunError, WireError
from fedgh.methods.fedgh_plus import FedGHPlus
from fedgh.models.features import feature_map
from fedgh.runs.folder import RunFolder
from fedgh.trained.clients import TrainedFederation
from fedgh.trained.forget import forget
from fedgh.training import loop
from fedgh.training.callbacks import Callback
from fedgh.training.experiment import Experiment
from tests.support.rounds import recipient, shapes_of, uploads_of
from tests.support.runs import interrupted
from tests.support.states import states
from tests.support.tiny import numbers, quick

WORDS = ["method.name=fedgh_plus", "method.feature_dim=32", "federation.rounds=4"]


def federation(*overrides: str) -> Experiment:
    return quick(*WORDS, *overrides)


def server_of(run: RunFolder) -> Payload:
    return part(run.committed()[1], "server.")


def clients_of(run: RunFolder, clients: int = 5) -> list[Payload]:
    files = run.client_files(run.committed()[0])
    return [files.load(number) or {} for number in range(clients)]


def pooled(experiment: Experiment, clients: range) -> tuple[Tensor, Tensor]:
    """Return the header of the pooled samples of these clients."""
    task = experiment.task
    blueprint = experiment.blueprint()
    known = feature_map("auto", "", 32, task.input_shape, task.seed)
    data = [blueprint.make(number).data.train for number in clients]
    index = torch.cat([one.index for one in data])
    x = to_input(data[0].x[index]).double()
    moments = Moments.of(known(x), data[0].y[index], task.num_classes)
    counts = moments.counts[moments.classes].double()
    weight, bias = gaussian(moments.means, counts, moments.scatter, len(index), 0.5)
    return weight / 32**0.5, bias


def test_the_header_equals_that_of_the_pooled_samples(tmp_path: Path) -> None:
    experiment = federation()
    run = loop.run(experiment, tmp_path / "run")
    header = part(server_of(run), "header.")
    weight, bias = pooled(experiment, range(5))
    torch.testing.assert_close(header["weight"].double(), weight, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(header["bias"].double(), bias, rtol=1e-6, atol=1e-6)
    for client in clients_of(run):
        assert client["memory.weight"].equal(header["weight"])


def test_partition_order_and_participation_do_not_change_the_header(tmp_path: Path) -> None:
    """Clients that take part one after the other end with the header of all at once."""
    all_at_once = loop.run(federation("federation.rounds=2"), tmp_path / "all")
    some = federation("federation.participation=0.4", "federation.rounds=12")
    few_a_time = loop.run(some, tmp_path / "some")
    assert server_of(few_a_time)["given"].all()
    for name in ("header.weight", "header.bias", "sum.second"):
        assert server_of(few_a_time)[name].equal(server_of(all_at_once)[name])
    partitioned = federation(
        "federation.clients=3", "data.classes_per_client=4", "federation.rounds=2"
    )
    other = loop.run(partitioned, tmp_path / "dealt")  # other splits, so other training samples
    weight, _ = pooled(partitioned, range(3))
    torch.testing.assert_close(
        server_of(other)["header.weight"].double(), weight, rtol=1e-6, atol=1e-6
    )


def test_statistics_are_sent_once(tmp_path: Path) -> None:
    records = loop.run(federation(), tmp_path / "run").records()
    second = 4 * 32 * 33 // 2  # the triangle of the second moment
    table = 4 * 35
    classes = 2 * (4 + 4 + 4 * 32)  # label, count and sums
    assert records[0].bytes_up == 5 * (second + classes)
    assert records[0].bytes_down == 5 * (8 + 1)
    assert records[1].bytes_up == records[3].bytes_up == 5 * table
    header = 10 * (4 + 4 * 32 + 4)
    assert records[1].bytes_down == 5 * (9 + header)
    assert records[3].bytes_down == 5 * (9 + table)


def test_networks_train_as_in_standalone(tmp_path: Path) -> None:
    plus = loop.run(federation(), tmp_path / "plus")
    alone = loop.run(quick("method.name=standalone", "federation.rounds=4"), tmp_path / "alone")
    for one, other in zip(clients_of(plus), clients_of(alone), strict=True):
        assert all(one[name].equal(other[name]) for name in other if name.startswith("model."))


def test_own_statistics_share_nothing(tmp_path: Path) -> None:
    run = loop.run(federation("method.statistics=own"), tmp_path / "run")
    assert run.records()[-1].bytes_total == 0
    for client in clients_of(run):
        assert client["memory.classes"].tolist() == client["memory.own"].tolist()


def test_own_covariance_sends_means_and_counts(tmp_path: Path) -> None:
    run = loop.run(federation("method.covariance=own"), tmp_path / "run")
    assert run.records()[0].bytes_up == 5 * 2 * (4 + 4 + 4 * 32)
    shared = loop.run(federation(), tmp_path / "shared")
    weights = [client["memory.weight"] for client in clients_of(run)]
    assert not weights[0].equal(weights[1])  # each has its own covariance
    means = Moments(**part(server_of(shared), "sum.")).means
    torch.testing.assert_close(
        server_of(run)["header.means"].double(), means, rtol=0, atol=2 / 4096
    )


def test_fused_predictions_over_own_and_over_all_classes(tmp_path: Path) -> None:
    experiment = federation()
    run = loop.run(experiment, tmp_path / "run")
    client = experiment.blueprint().make(0)
    client.load(clients_of(run)[0])
    x = experiment.source.x[:50].float() / 127.5 - 1
    method = experiment.config.method
    own = client.memory["own"].tolist()
    client.model.eval()
    with torch.no_grad():
        assert set(method.logits(client, x).argmax(1).tolist()) <= set(own)
        everything = method.global_logits(client, x)
    assert not set(everything.argmax(1).tolist()) <= set(own)
    torch.testing.assert_close(everything.exp().sum(1), torch.ones(50))
    labels = experiment.source.y[:50]
    assert (everything.argmax(1) == labels).float().mean() > 0.6  # of ten classes; it has two


@pytest.mark.parametrize("words", [[], ["method.covariance=own"]])
def test_a_client_is_forgotten_exactly(words: list[str], tmp_path: Path) -> None:
    run = loop.run(federation(*words), tmp_path / "run")
    without = loop.run(federation(*words), tmp_path / "without")
    for folder in (run, without):
        forget(folder, 4, trust=True)
    never = _run_without(4, federation(*words), tmp_path / "never")
    forget(never, 4, trust=True)  # only makes all clients choose their weights again
    for name, tensor in server_of(never).items():
        if name not in ("version", "known"):  # number of headers so far
            assert server_of(run)[name].equal(tensor), name
    assert states(run) == states(without)
    for one, other in zip(clients_of(run)[:4], clients_of(never)[:4], strict=True):
        assert one.keys() == other.keys()
        assert all(one[name].equal(other[name]) for name in one)
    assert clients_of(run)[4] == {}
    assert all(4 not in means["clients"] for means in run.means().values())


def _run_without(client: int, experiment: Experiment, path: Path) -> RunFolder:
    """Return a run in which a client was removed before the first round."""

    class Stopping(Callback):
        def started(self, *_: object) -> None:
            raise RuntimeError("before the first round")

    with pytest.raises(RunError, match="the callback Stopping failed: RuntimeError: before"):
        loop.run(experiment, path, [Stopping()])
    forget(path, client, trust=True)
    return loop.resume(path)


def test_a_forgotten_client_is_not_selected_again(tmp_path: Path) -> None:
    run = _run_without(2, federation(), tmp_path / "run")
    for record in run.records():
        assert record.participants == [0, 1, 3, 4]
        assert record.excluded == [2]
        assert record.accuracies[2] is None
    assert forget(run, 2, trust=True).refreshed == 4  # a second time changes nothing
    with pytest.raises(ConfigError, match="no client 9; they are 0 to 4"):
        forget(run, 9, trust=True)
    other = loop.run(quick("federation.rounds=1"), tmp_path / "other")
    with pytest.raises(MethodError, match="fedgh cannot forget a client"):
        forget(other, 1, trust=True)


def upload_of(client: int, seed: int, samples: int = 9) -> Upload:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 32, generator=rng).double()
    sent = Moments.of(x, torch.arange(samples) % 3, 10)
    return Upload(client, 0, {**sent.payload(), "losses": torch.zeros(0, 35)})


def test_statistics_that_were_not_requested_are_ignored() -> None:
    experiment = federation()
    method, server = experiment.config.method, experiment.initial_server()
    once = method.server_update(server, uploads_of([upload_of(0, 1), upload_of(1, 2)]))
    twice = method.server_update(once, uploads_of([upload_of(0, 3)]))
    assert twice["sum.second"].equal(once["sum.second"])
    assert twice["version"] == once["version"]


def test_false_losses_of_one_client_do_not_determine_the_weights() -> None:
    experiment = federation()
    method, server = experiment.config.method, experiment.initial_server()
    honest_table = torch.linspace(1, 2, 35)[None]
    hostile_table = torch.full((1, 35), 20.0)
    hostile_table[0, -1] = 0
    tables = [honest_table] * 4 + [hostile_table]
    ups = [
        Upload(number, 0, upload_of(number, number).payload | {"losses": table})
        for number, table in enumerate(tables)
    ]
    down = method.broadcast(method.server_update(server, uploads_of(ups)), recipient(0))
    assert down["losses"].equal(honest_table)


def test_an_overconfident_header_is_scaled_down() -> None:
    """Classes with little variance have a covariance of almost zero."""
    experiment = federation()
    method, server = experiment.config.method, experiment.initial_server()
    spread = torch.randn(200, 32, generator=torch.Generator().manual_seed(0)).double() / 200
    x = torch.eye(32).double()[torch.arange(200) % 3] + spread
    payload = Moments.of(x, torch.arange(200) % 3, 10).payload() | {"losses": torch.zeros(0, 35)}
    method.check_upload(experiment.task, payload, 1000)
    header = part(method.server_update(server, uploads_of([Upload(0, 0, payload)])), "header.")
    norms = [float(header["weight"].norm(dim=1).max()), float(header["bias"].norm())]
    assert max(norms) == pytest.approx(500)
    z = in_steps(x[:3]).float() / 4096 * 32**0.5
    assert (z @ header["weight"].T + header["bias"]).argmax(1).tolist() == [0, 1, 2]


def test_too_large_statistics_are_rejected() -> None:
    with pytest.raises(MethodError, match=r"up to \d+ GiB of statistics"):
        federation("federation.clients=150", "method.feature_dim=4096")


def test_an_interrupted_forget_is_finished_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = loop.run(federation(), tmp_path / "straight")
    run = loop.run(federation(), tmp_path / "run")
    forget(straight, 4, trust=True)
    refresh, asked = FedGHPlus.refresh, []

    def failing(self: FedGHPlus, client: Client, down: Payload) -> Payload:
        asked.append(client.id)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return refresh(self, client, down)

    with monkeypatch.context() as patched:
        patched.setattr(FedGHPlus, "refresh", failing)
        with pytest.raises(KeyboardInterrupt):
            forget(run, 4, trust=True)
    words = "`fedgh forget` was interrupted.*: fedgh forget .* --client 4"
    with pytest.raises(RunError, match=words):
        loop.resume(run.path)
    with pytest.raises(RunError, match=words):
        _ = TrainedFederation.load(run.path, trust=True).checkpoint
    with pytest.raises(RunError, match=words):
        forget(run, 3, trust=True)
    forget(run, 4, trust=True)
    assert clients_of(run)[4] == {}
    for one, other in zip(clients_of(run)[:4], clients_of(straight)[:4], strict=True):
        assert all(one[name].equal(other[name]) for name in other)


def test_forget_drops_rounds_that_were_not_committed(tmp_path: Path) -> None:
    words = ["run.checkpoint_every=2", "federation.rounds=6"]
    interrupted(federation(*words), tmp_path / "run", after=3)
    forget(tmp_path / "run", 4, trust=True)
    resumed = loop.resume(tmp_path / "run")
    assert [record.round for record in resumed.records()] == list(range(1, 7))
    assert resumed.records()[-1].participants == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "words", [[], ["method.covariance=own"], ["method.statistics=own"], ["method.header=ridge"]]
)
def test_every_setting_gives_the_same_bits_in_workers(words: list[str], tmp_path: Path) -> None:
    serial = loop.run(federation(*words), tmp_path / "serial")
    workers = loop.run(federation(*words, "run.engine=workers"), tmp_path / "workers")
    assert numbers(serial) == numbers(workers)
    assert states(serial) == states(workers)


@pytest.mark.parametrize("words", [[], ["method.covariance=own"]])
@pytest.mark.parametrize("protects", ["sample", "client"])
def test_privacy_costs_one_release(words: list[str], protects: str, tmp_path: Path) -> None:
    experiment = federation(*words, f"privacy.protects={protects}", "privacy.epsilon=2")
    run = loop.run(experiment, tmp_path / "run")
    assert experiment.privacy is not None
    for record in run.records():
        assert record.epsilon == pytest.approx(2)
        assert record.failed == record.rejected == []
    assert run.records()[1].bytes_up == 0  # neither statistics again, nor losses
    gh = quick("federation.rounds=4", f"privacy.protects={protects}", "privacy.epsilon=2")
    assert gh.privacy is not None  # FedGH needs a release a round: twice the noise for four
    ratio = gh.privacy.noise_multiplier / experiment.privacy.noise_multiplier
    assert ratio == pytest.approx(2)


def test_a_private_client_that_is_asked_again_sends_the_same_numbers() -> None:
    experiment = federation("privacy.protects=sample")
    method, blueprint = experiment.config.method, experiment.blueprint()
    client = blueprint.make(0)
    server = experiment.initial_server()
    assert method.will_release(client)
    ups = []
    for number in (1, 2):  # the server lost the uploads of the first round
        client.round = number
        ups.append(method.client_update(client, method.broadcast(server, recipient(0))))
    assert not method.will_release(client)
    assert all(ups[0][name].equal(ups[1][name]) for name in ups[0])


def impossible_payload(change: str) -> Payload:
    x = torch.randn(9, 32, generator=torch.Generator().manual_seed(0)).double()
    payload = Moments.of(x, torch.arange(9) % 3, 10).payload()
    payload["losses"] = torch.zeros(0, 35)
    if change == "no digits":
        payload["second"] = payload["second"][:0]
    if change == "not positive":
        payload["second"] = -payload["second"]
    if change == "counts":
        payload["counts"] = payload["counts"] * 0 + 1
    if change == "many":
        payload["counts"] = payload["counts"] * 0 + 2**31 - 1
    if change == "long":
        payload["sums"] = payload["sums"] * 0 + 2**20
    return payload


@pytest.mark.parametrize("change", ["no digits", "not positive", "counts", "long", "many"])
def test_impossible_statistics_are_rejected(change: str) -> None:
    experiment = federation()
    method, task = experiment.config.method, experiment.task
    (spec,) = method.upload_specs(shapes_of(task))
    method.check_upload(task, impossible_payload("nothing"), 1000)
    payload = wire.read(wire.to_bytes(impossible_payload(change)), [spec], 1000)
    with pytest.raises(WireError):
        method.check_upload(task, payload, 1000)


def test_means_of_norm_above_one_are_rejected() -> None:
    experiment = federation("method.covariance=own")
    one = torch.zeros(1, 32)
    one[0, 0] = 1.1
    payload = {"classes": torch.tensor([1]).int(), "means": one, "counts": torch.tensor([2]).int()}
    with pytest.raises(WireError, match="'means' has a row of norm above 1"):
        experiment.config.method.check_upload(experiment.task, payload, 1000)


def test_a_client_with_another_feature_map_is_rejected(tmp_path: Path) -> None:
    experiment = federation()
    method = experiment.config.method
    client = experiment.blueprint().make(0)
    down = method.broadcast(experiment.initial_server(), recipient(0))
    down["map"] = down["map"] ^ 1
    expected = "the feature map of this client differs from the server's; use inputs of the same"
    with pytest.raises(ConfigError, match=expected):
        method.client_update(client, down)


def test_incompatible_settings_are_rejected() -> None:
    with pytest.raises(MethodError, match=r"needs method\.covariance = 'shared'"):
        federation("method.header=ridge", "method.covariance=own")
    with pytest.raises(
        MethodError, match=r"method\.features = 'conv': the width should be a multiple of 8"
    ):
        federation("method.features=conv", "method.feature_dim=12")
    assert FedGHPlus(statistics="own").shares == "nothing"


def test_a_client_with_a_class_unknown_to_the_header_predicts_with_its_network() -> None:
    experiment = federation()
    method, blueprint = experiment.config.method, experiment.blueprint()
    client = blueprint.make(0)
    server = experiment.initial_server()
    x = torch.randn(40, 32, generator=torch.Generator().manual_seed(0)).double()
    others = {**Moments.of(x, torch.arange(40) % 2 + 8, 10).payload(), "losses": torch.zeros(0, 35)}
    server = method.server_update(server, uploads_of([Upload(1, 0, others)]))
    client.round = 1
    up = method.client_update(client, method.broadcast(server, recipient(0)))
    assert "pair" not in client.memory
    assert len(up["losses"]) == 0
    inputs = client.data.test.x[:3].float()
    client.model.eval()
    assert method.logits(client, inputs).equal(client.model(inputs))
