"""The contract that every method fulfils."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from fedgh.core import wire
from fedgh.core.low_rank import LEFT, RIGHT
from fedgh.core.method import Method
from fedgh.core.server import ServerResources
from fedgh.core.types import Payload, Recipient, Task, Upload
from fedgh.core.uploads import Uploads
from fedgh.methods import METHODS
from fedgh.methods.paper_bytes import paper_bytes
from fedgh.testing import check_method, check_runs
from fedgh.training import loop
from fedgh.training.experiment import Experiment
from tests.support.families import ONE_ARCHITECTURE, PUBLIC
from tests.support.rounds import shapes_of, uploads_of
from tests.support.tiny import quick

ALL = list(METHODS)

SHARED = ["method.shared=tests.support.tiny:noisy"]
WIDTHS = [f"tests.support.tiny:normed{width}" for width in ("", "@1/2", "@1/4")]
NESTED = [f"model.extractors={','.join(WIDTHS)}"]
SETTINGS = {
    "fedavg": ONE_ARCHITECTURE,
    "fedper": ONE_ARCHITECTURE,
    "fedrep": [*ONE_ARCHITECTURE, "method.header_epochs=2"],
    "fedbabu": [*ONE_ARCHITECTURE, "method.tune_epochs=1"],
    "fml": SHARED,
    "fedkd": SHARED,
    "fedgkt": ["method.hidden=16", "method.server_epochs=2"],
    "fedzkt": [
        *(
            "method.shared=tests.support.tiny:noisy",
            "model.extractors=tests.support.tiny:noisy,mlp",
        ),
        *("method.server_steps=2", "method.server_batch=4", "method.noise=4"),
    ],
    "fedmrl": [*SHARED, "method.shared_dim=8"],
    "fedgen": ["method.server_steps=5", "method.hidden=16", "method.alpha=0.1"],
    "fedtgp": ["method.server_epochs=5", "method.lam=0.1"],
    "fedgh_plus": ["method.feature_dim=32"],
    "heterofl": [*NESTED, "method.shared=tests.support.tiny:normed"],
    "fedrolex": [*NESTED, "method.shared=tests.support.tiny:normed"],
    "fjord": [*NESTED, f"method.widths={','.join(reversed(WIDTHS))}"],
    "fedmd": [*PUBLIC, "method.per_round=25", "method.pretrain_epochs=1"],
    "dsfl": [*PUBLIC, "method.per_round=25"],
    "cronus": [*PUBLIC, "method.per_round=25"],
    "cfd": [*PUBLIC, *SHARED, "method.server_steps=5", "method.restart=false"],
    "fedhenn": [*PUBLIC, "method.samples=20"],
    "fedgems": [*PUBLIC, *SHARED, "method.server_batch=8"],
    "fccl": [*PUBLIC, "method.per_round=25", "method.pretrain_epochs=1"],
    "feddf": [*PUBLIC, "method.server_steps=3", "method.server_batch=8"],
    "fedet": [*PUBLIC, *SHARED, "method.server_steps=3", "method.server_batch=8"],
    "fedkemf": [*PUBLIC, *SHARED, "method.server_steps=3", "method.server_batch=8"],
}


def federation(name: str, *overrides: str) -> Experiment:
    words = [f"method.name={name}", "federation.rounds=4", "federation.participation=0.6"]
    return quick(*words, *SETTINGS.get(name, []), *overrides)


def recipient(resources: ServerResources, client: int, last_round: int = 0) -> Recipient:
    """Return a recipient that has not sent an upload."""
    group, sizes = resources.architecture(client)
    return Recipient(client, None, last_round, group, sizes)


def same(a: Payload, b: Payload) -> bool:
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


@pytest.mark.parametrize("name", ALL)
def test_payloads_are_as_declared_and_nothing_received_is_changed(name: str) -> None:
    check_method(federation(name))


@pytest.mark.parametrize("name", ALL)
def test_a_round_without_uploads_leaves_the_server_usable(name: str) -> None:
    prepared = federation(name)
    method = prepared.config.method
    server = prepared.initial_server()
    resources, task = prepared.server_resources(), prepared.task
    none = Uploads([], task, 1, resources.device, resources.public, resources.network)
    again = method.server_update(server, none)
    to = recipient(resources, 0)
    assert same(method.broadcast(again, to), method.broadcast(server, to))


@pytest.mark.parametrize("name", ALL)
def test_every_engine_and_a_resumed_run_give_the_same_bits(name: str, tmp_path: Path) -> None:
    run = check_runs(federation(name), tmp_path)
    first, *_, last = (record.train_loss or 0 for record in run.records())
    assert last < first


@pytest.mark.parametrize("name", ALL)
def test_a_method_works_with_few_participants(name: str, tmp_path: Path) -> None:
    prepared = federation(name, "federation.clients=10", "federation.participation=0.3")
    run = loop.run(prepared, tmp_path / "run")
    for record in run.records():
        assert len(record.participants) == 3
        assert record.failed == record.rejected == []
    if name == "standalone":
        assert run.records()[-1].bytes_total == 0
    else:
        assert run.records()[-1].bytes_total > 0


@pytest.mark.parametrize("name", ALL)
def test_local_training_changes_the_extractor(name: str) -> None:
    """The private extractor is trained in every method."""
    prepared = federation(name)
    client = prepared.blueprint().make(0)
    client.round = 1
    before = client.state()
    method = prepared.config.method
    to = recipient(prepared.server_resources(), 0)
    method.client_update(client, method.broadcast(prepared.initial_server(), to))
    weights = [n for n in before if n.startswith("model.extractor") and n.endswith("weight")]
    assert all(not client.state()[name].equal(before[name]) for name in weights)


@pytest.mark.parametrize("name", ALL)
def test_numbers_of_samples_are_sent_only_if_the_method_weights_by_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = federation(name, "federation.rounds=1", "federation.participation=1.0")
    seen: list[int] = []
    original = type(prepared.config.method).server_update

    def spy(self: Method, server: Payload, uploads: Uploads) -> Payload:
        kept = list(uploads)
        seen.extend(upload.num_examples for upload in kept)
        return original(self, server, replace(uploads, accepted=kept))

    monkeypatch.setattr(type(prepared.config.method), "server_update", spy)
    loop.run(prepared, tmp_path / "run")
    weighted = METHODS[name].weighs_by_examples
    assert seen == ([client.train for client in prepared.clients()] if weighted else [0] * 5)


PAPER_BYTES = {  # as the paper counts: CIFAR-10 with 2 classes, CIFAR-100 with 10
    "standalone": (0, 0),
    "lg_fedavg": (40_080, 400_800),
    "fd": (160, 8_000),
    "fedproto": (8_000, 40_000),
    "fedgh": (24_008, 220_040),
    "fedavg": (None, None),
    "fml": (None, None),
    "fedkd": (None, None),
    "fedgh_plus": (None, None),
    "hfd": (None, None),
    "fedgkt": (None, None),
    "fedzkt": (None, None),
}
SENT_BYTES = {  # as sent, after every client has taken part: labels, counts and bias included
    "standalone": (0, 0),
    "lg_fedavg": (40_080, 400_800),
    "fedalt": (40_080, 400_800),
    "fedclassavg": (40_080, 400_800),
    "fd": (160 + 2 * 2 * 4, 8_000 + 2 * 10 * 4),
    "fedproto": (8_000 + 3 * 2 * 4, 40_000 + 3 * 10 * 4),
    "fedgh": (24_048, 220_440),
    # Of 300 public samples: logits or probabilities both ways, and a counter.
    **dict.fromkeys(("fedmd", "dsfl", "cronus", "fccl"), (24_004, 240_004)),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("setting", "num_classes", "local"), [(0, 10, 2), (1, 100, 10)])
def test_bytes_per_client_and_round_equal_counts_by_hand(
    name: str, setting: int, num_classes: int, local: int
) -> None:
    method = METHODS[name]()
    image = (3, 32, 32)
    task = Task(num_classes, 500, 2, rounds=9, seed=0, input_shape=image, public_size=300)
    assert paper_bytes(name, task, local) == PAPER_BYTES.get(name, (None, None))[setting]
    if name not in SENT_BYTES:
        return
    # Two clients with the same classes upload once; then count what goes down and up.
    server = method.init_server(task, [], torch.Generator())
    (spec,) = method.upload_specs(shapes_of(task))
    up: Payload = {
        field: torch.ones(
            [local if isinstance(dim, wire.Dim) else dim for dim in what.shape], dtype=what.dtype
        )
        for field, what in spec.items()
    }
    if "classes" in up:
        up["classes"] = torch.arange(local).int()
    server = method.server_update(server, uploads_of([Upload(k, 1, up) for k in range(2)], task))
    shown = torch.arange(num_classes) < local
    down = method.broadcast(server, Recipient(0, shown, last_round=1))
    assert wire.nbytes(up) + wire.nbytes(down) == SENT_BYTES[name][setting]


def test_fml_and_fedkd_send_only_the_shared_network() -> None:
    task = Task(10, 500, num_clients=2, rounds=9, seed=0, input_shape=(3, 32, 32))
    fml = METHODS["fml"]().init_server(task, [], torch.Generator())
    assert wire.nbytes(fml) == 4 * 670_058  # CNN-5
    (spec,) = METHODS["fedkd"]().upload_specs(shapes_of(task))
    factors = {name for name in spec if name.endswith((LEFT, RIGHT))}
    assert factors == {n + end for n in fml if n.endswith("weight") for end in (LEFT, RIGHT)}


def test_distillation_with_one_hot_targets_equals_cross_entropy() -> None:
    """FD's distance to a one-hot target is the ordinary cross-entropy."""
    from fedgh.methods.fd import distillation

    logits, y = torch.randn(7, 3), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    everything = torch.ones(3, dtype=torch.bool)
    torch.testing.assert_close(
        distillation(logits, y, torch.eye(3), everything), functional.cross_entropy(logits, y)
    )
