"""FedGEMS: fusion and losses by hand, the server's epoch written out, questions and answers."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedgh.core import questions, wire
from fedgh.core.average import network_state
from fedgh.core.types import Client, Payload, Recipient
from fedgh.core.uploads import Uploads
from fedgh.errors import ConfigError, MethodError
from fedgh.methods.fedgems import FedGEMS
from fedgh.models import shared_model
from fedgh.training import loop
from tests.support.families import PUBLIC as HELD_OUT
from tests.support.public_client import PUBLIC, TASK, public_client, sent
from tests.support.rounds import shapes_of
from tests.support.tiny import quick, tiny_shared

METHOD = FedGEMS(shared="tests.support.tiny:mlp", server_batch=10)
Y = torch.arange(10) % 3
LABELLED = replace(PUBLIC, y=Y)


def start(method: FedGEMS = METHOD) -> Payload:
    return method.init_server(TASK, [], torch.Generator())


def told(*payloads: Tensor, round: int = 1) -> Uploads:
    return replace(
        sent([{"logits": each} for each in payloads], round=round), public_examples=LABELLED
    )


def a_member(**local: Any) -> Client:
    return replace(public_client(**local), public_examples=LABELLED)


def test_the_fusion_by_hand() -> None:
    """Clients with p = (.8, .2), (.6, .4) are right, one is wrong and has no weight.

    Their inverse entropies are 1.99839 and 1.48586, of which the weights are the softmax.
    """
    answers = torch.tensor([[[math.log(4), 0.0]], [[math.log(1.5), 0.0]], [[0.0, 1.0]]])
    fused, some = questions.fused(answers, torch.tensor([0]))
    weights = 0.62540 * math.log(4) + 0.37460 * math.log(1.5)
    assert weights == pytest.approx(1.01888, abs=1e-4)
    assert_close(fused, torch.tensor([[1.01888, 0.0]]), atol=1e-4, rtol=0)
    first = (fused[0, 0].item() - math.log(1.5)) / (math.log(4) - math.log(1.5))
    assert first == pytest.approx(0.62540, abs=1e-5)
    assert math.log(first / (1 - first)) == pytest.approx(1.99839 - 1.48586, abs=2e-5)
    assert some.tolist() == [True]
    nobody, some = questions.fused(answers, torch.tensor([1]))
    assert_close(nobody, torch.tensor([[0.0, 1.0]]))
    none, some = questions.fused(answers[:2], torch.tensor([1]))
    assert none.tolist() == [[0, 0]]
    assert some.tolist() == [False]


def test_the_loss_by_hand() -> None:
    out, y = torch.zeros(1, 2), torch.tensor([0])
    teacher = torch.tensor([[1.01888, 0.0]])
    value = FedGEMS().loss(out, y, teacher, taught=True)
    assert value.item() == pytest.approx(0.54853, abs=1e-5)
    divergence = FedGEMS(epsilon=0.0).loss(out, y, teacher, taught=True)
    assert divergence.item() == pytest.approx(0.11467, abs=1e-5)
    assert FedGEMS().loss(out, y, teacher, taught=False).item() == pytest.approx(math.log(2))
    alone = replace(METHOD, epsilon=1.0).loss(out, y, teacher, taught=True)
    assert alone.item() == pytest.approx(math.log(2))  # the control: labels alone


@pytest.mark.parametrize("selective", [True, False])
def test_the_server_s_epoch_written_out(selective: bool) -> None:
    method = replace(METHOD, selective=selective)
    torch.manual_seed(1)
    said = torch.randn(2, 10, 3)
    server = start(method)
    after = method.server_update(server, told(*said))

    network = shared_model(METHOD.shared, TASK).train()
    adam = torch.optim.Adam(network.parameters(), lr=0.001, weight_decay=1e-4)
    out = network(PUBLIC.x)
    right = out.argmax(1) == Y
    losses = []
    for i in range(10):
        label = cross_entropy(out[i : i + 1], Y[i : i + 1])
        target: Tensor | None = None
        if not selective:
            target = said[:, i].mean(0)
        elif not right[i]:
            good = [k for k in range(2) if int(said[k, i].argmax()) == int(Y[i])]
            if good:
                p = said[good, i].softmax(1)
                h = -(p * p.log()).sum(1).clamp(min=1e-3)
                weight = (1 / h.abs()).softmax(0)
                target = (weight[:, None] * said[good, i]).sum(0)
        if target is None:
            losses.append(label)
        else:
            q = target.softmax(0)
            kl = (q * (q.log() - out[i].log_softmax(0))).sum()
            losses.append(0.75 * label + 0.25 * kl)
    torch.stack(losses).mean().backward()
    adam.step()
    expected = network_state(network)
    found = {n.removeprefix("network."): t for n, t in after.items() if n.startswith("network.")}
    assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert_close(after["logits"], network.eval()(PUBLIC.x).detach())
    now_right = after["logits"].argmax(1) == Y
    if selective:
        assert after["filled"].equal(right)
        assert_close(after["pool"][right], out[right].detach())
        assert after["wanted"].tolist() == (~(right | now_right)).nonzero().flatten().tolist()
    else:
        assert after["wanted"].tolist() == list(range(10))


def test_questions_are_answered_in_order() -> None:
    client = a_member()
    down = {"wanted": torch.tensor([7, 2], dtype=torch.int32)}
    up = METHOD.client_update(client, down)
    assert_close(up["logits"], client.model.eval()(PUBLIC.x[[7, 2]]).detach())
    empty = METHOD.client_update(a_member(), {"wanted": torch.zeros(0, dtype=torch.int32)})
    assert empty["logits"].shape == (0, 3)


def test_an_answer_of_another_size_is_left_out() -> None:
    server = start()
    uploads = told(torch.randn(10, 3), torch.randn(4, 3))
    METHOD.server_update(server, uploads)
    assert uploads.metrics["wrong_answers"] == 1
    assert METHOD.server_update(server, told(torch.randn(4, 3))) is server
    assert METHOD.server_update(server, told()) is server


def test_what_crosses_and_what_never_does() -> None:
    shapes = shapes_of(TASK)
    after = METHOD.server_update(start(), told(torch.randn(10, 3)))
    down = METHOD.broadcast(after, Recipient(2))  # a newcomer gets what all get
    assert down.keys() == {"wanted", "logits"}
    wire.read(wire.to_bytes(down), METHOD.download_specs(shapes))
    up = METHOD.client_update(a_member(), down)
    wire.read(wire.to_bytes(up), METHOD.upload_specs(shapes))
    assert METHOD.broadcast(start(), Recipient(0)).keys() == {"wanted"}


def test_a_client_s_public_step_written_out() -> None:
    client, twin = a_member(lr=0.5, batch_size=10), a_member()
    down = {"wanted": torch.zeros(0, dtype=torch.int32), "logits": torch.randn(10, 3)}
    loss = METHOD.loss(twin.model(PUBLIC.x), Y, down["logits"], taught=True)
    METHOD.client_update(client, down)
    assert client.metrics["public_loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_what_cannot_be_run_is_refused_before_anything_runs() -> None:
    with pytest.raises(MethodError, match="fedgems needs public data"):
        quick("method.name=fedgems")
    with pytest.raises(MethodError, match="reads the labels of public data, but noise has none"):
        quick("method.name=fedgems", "public.name=noise")
    with pytest.raises(ConfigError, match=r"method\.epsilon"):
        quick("method.name=fedgems", *HELD_OUT, "method.epsilon=2")


def test_a_run_asks_less_and_less(tmp_path: Path) -> None:
    words = ["method.name=fedgems", "method.server_batch=4", *tiny_shared("fedgems", "mlp")]
    run = loop.run(quick(*words, "federation.rounds=4"), tmp_path / "run")
    bytes_up = [record.bytes_up for record in run.records()]
    assert bytes_up[-1] < bytes_up[0]
    assert [record.failed + record.rejected for record in run.records()] == [[]] * 4
