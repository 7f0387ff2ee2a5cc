"""FedRolex: windows that roll on by one unit in every round with uploads."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from fedgh.core.average import network_state
from fedgh.core.subnet import CoordinateMean, cut, sizes_of
from fedgh.core.types import Client, Payload, Recipient, SplitModel, Task, Upload
from fedgh.core.uploads import Uploads
from fedgh.methods.fedrolex import FedRolex
from fedgh.models import extractor, split_model
from fedgh.training import loop
from tests.support.tiny import quick

TASK = Task(num_classes=3, rep_dim=4, num_clients=3, rounds=9, seed=0, input_shape=(6,))
METHOD = FedRolex(shared="mlp")


def network(name: str) -> SplitModel:
    return split_model(extractor(name), TASK)


def server() -> Payload:
    return METHOD.init_server(TASK, [network("mlp"), network("mlp@1/2")], torch.Generator())


def at(clock: int) -> Payload:
    return server() | {"clock": torch.tensor([clock], dtype=torch.int32)}


def down(state: Payload, name: str) -> Payload:
    return METHOD.broadcast(state, Recipient(0, sizes=sizes_of(network_state(network(name)))))


def units(whole: int, part: int, shift: int) -> list[int]:
    (window,) = cut({"b": (whole,)}, {"b": (part,)}, shift)["b"]
    numbers: list[int] = torch.arange(whole)[window].tolist()
    return numbers


def test_windows_by_hand() -> None:
    rolled = [units(5, 2, shift) for shift in range(6)]
    assert rolled == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 0], [0, 1]]
    assert [units(3, 3, shift) for shift in range(4)] == [[0, 1, 2]] * 4


def test_columns_of_a_flattened_channel_stay_together() -> None:
    """Two channels of three pixels, one kept, shift 1: columns 3, 4, 5."""
    whole = {"conv": (2, 1, 3, 3), "dense": (7, 6)}
    part = {"conv": (1, 1, 3, 3), "dense": (7, 3)}
    assert torch.arange(6)[cut(whole, part, 1)["dense"][1]].tolist() == [3, 4, 5]


def test_means_in_a_window_by_hand() -> None:
    whole, old = {"b": (3,)}, {"b": torch.tensor([7.0, 8.0, 9.0])}
    everything, one = cut(whole, whole, 1), cut(whole, {"b": (1,)}, 1)
    both, alone = CoordinateMean(whole), CoordinateMean(whole)
    both.add({"b": torch.tensor([1.0, 2.0, 3.0])}, everything, 1)
    for mean in (both, alone):
        mean.add({"b": torch.tensor([6.0])}, one, 1)
    assert both.value(old)["b"].tolist() == [1, 4, 3]
    assert alone.value(old)["b"].tolist() == [7, 6, 9]


def test_the_download_is_the_window_of_the_clock() -> None:
    for clock in (0, 5, 40):
        state = at(clock)
        rows = [(clock + unit) % 64 for unit in range(32)]
        sent = down(state, "mlp@1/2")
        assert sent["extractor.1.weight"].equal(state["extractor.1.weight"][rows])
        assert sent["extractor.3.weight"].equal(state["extractor.3.weight"][:, rows])
        assert "clock" not in sent
        whole = down(state, "mlp")
        assert all(whole[name].equal(state[name]) for name in whole)


def test_an_upload_goes_back_to_where_its_download_came_from() -> None:
    state = at(40)
    moved = {name: tensor + 1 for name, tensor in down(state, "mlp@1/2").items()}
    upload = Upload(0, 0, {**moved, "classes": torch.arange(3, dtype=torch.int32)})
    after = METHOD.server_update(state, Uploads([upload], TASK, 1))
    rows = [(40 + unit) % 64 for unit in range(32)]
    others = [unit for unit in range(64) if unit not in rows]
    bias, before = after["extractor.1.bias"], state["extractor.1.bias"]
    assert_close(bias[rows], before[rows] + 1)
    assert bias[others].equal(before[others])
    assert after["clock"].tolist() == [41]


def test_the_clock_counts_rounds_with_uploads() -> None:
    state = at(3)
    assert METHOD.server_update(state, Uploads([], TASK, 1)) is state


def test_a_client_of_half_width_has_each_unit_half_of_the_time() -> None:
    seen = torch.zeros(64, dtype=torch.int64)
    for clock in range(64):
        seen[units(64, 32, clock)] += 1
    assert seen.unique().tolist() == [32]


def test_clients_keep_their_last_window_and_a_newcomer_gets_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 0, of half the width, joins in round 2 and misses round 3."""
    layer, given, sent = "extractor.1.weight", dict[int, Payload](), dict[int, Tensor]()
    broadcast, update = FedRolex.broadcast, FedRolex.client_update

    def record_download(self: FedRolex, server: Payload, to: Recipient) -> Payload:
        down = broadcast(self, server, to)
        given[to.id] = {"clock": server["clock"], "whole": server[layer], "part": down[layer]}
        return down

    def record_upload(self: FedRolex, client: Client, down: Payload) -> Payload:
        up = update(self, client, down)
        sent[client.id] = up[layer]
        return up

    monkeypatch.setattr(FedRolex, "broadcast", record_download)
    monkeypatch.setattr(FedRolex, "client_update", record_upload)
    words = ["method.name=fedrolex", "method.shared=mlp", "method.scale=false"]
    words += ["model.extractors=mlp@1/2,mlp,mlp@1/4", "federation.participation=0.4"]
    run = loop.run(quick(*words, "federation.rounds=3"), tmp_path / "run")
    records = run.records()
    assert [record.participants for record in records] == [[2, 3], [0, 2], [2, 3]]
    assert [record.failed + record.rejected for record in records] == [[]] * 3
    clocks = {client: int(down["clock"]) for client, down in given.items()}
    assert clocks == {0: 1, 2: 2, 3: 2}
    for client, down in given.items():
        rows = [clocks[client] + unit for unit in range({0: 32, 2: 16, 3: 32}[client])]
        assert down["part"].equal(down["whole"][rows])
        state = run.client_files(3).load(client)
        assert state is not None
        assert state[f"model.{layer}"].equal(sent[client])


def test_with_whole_networks_only_it_is_heterofl() -> None:
    states = []
    for clock in (0, 7):
        sent = {n: t + 1 for n, t in down(at(clock), "mlp").items()}
        upload = Upload(0, 0, {**sent, "classes": torch.arange(3, dtype=torch.int32)})
        after = METHOD.server_update(at(clock), Uploads([upload], replace(TASK), 1))
        states.append({name: tensor for name, tensor in after.items() if name != "clock"})
    assert all(states[0][name].equal(states[1][name]) for name in states[0])
