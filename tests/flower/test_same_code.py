"""Clients with their own data give the same bits in one program and on Flower."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedgh import ClientSpec, Federation, Task, config
from fedgh.flower import NodeConfig, client_app
from fedgh.training import experiment
from tests.flower.local import LocalFederation
from tests.support.participants import CLASSES, net, three
from tests.support.states import client_states
from tests.support.tiny import numbers


def participants() -> list[ClientSpec]:
    """Return three clients whose networks need no projection.

    On Flower, a client would draw the weights of a projection from its secret.
    """
    north, south, west = three()
    return [north, replace(south, network=net(6)), west]


@pytest.mark.parametrize("method", ["fedgh", "fedproto"])
def test_one_program_and_flower_give_the_same_bits(method: str, tmp_path: Path) -> None:
    one_program = Federation(participants(), method, classes=CLASSES, rep_dim=8, lr=0.1)
    trained = one_program.run(3, out=tmp_path / "here", progress=False)

    def make_client(_: Task, node: NodeConfig) -> ClientSpec:
        return participants()[int(node["client"])]

    settings = ["data.name=private", f"data.classes={','.join(CLASSES)}", "federation.clients=3"]
    local = ["federation.rounds=3", "model.rep_dim=8", "local.lr=0.1", "federation.target=0.5"]
    loaded = config.load("demo", [f"method.name={method}", *settings, *local])
    same_local = loaded.model_copy(update={"local": one_program.config.local})
    federation = LocalFederation(
        tmp_path / "federation", experiment.prepare(same_local), [client_app(make_client)]
    )
    expected, records = numbers(trained.folder), numbers(federation.run())
    assert [r["accuracy_per_client"] for r in expected] == [
        r["accuracy_per_client"] for r in records
    ]
    assert [r["bytes_total"] for r in expected] == [r["bytes_total"] for r in records]
    assert client_states(trained.folder.checkpoint) == federation.states()
