"""Declarations: the tensors that follow from them, and what they share."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedgh.core import wire
from fedgh.core.message import Message, Shapes, Sharing
from fedgh.core.types import SplitModel, Task
from fedgh.errors import MethodError, WireError
from fedgh.methods import METHODS, api
from tests.support.rounds import shapes_of

TASK = Task(num_classes=3, rep_dim=4, num_clients=2, rounds=1, seed=0, public_size=5)


class Teacher(api.Method):
    """A method with a field and a shared network, for messages that depend on them."""

    up = down = api.NOTHING
    samples: int = 2

    def shared_network(self, task: Task) -> nn.Module:
        return nn.Linear(task.rep_dim, 2)

    def client_update(self, client: api.Client, down: api.Payload) -> api.Payload:
        raise NotImplementedError

    def server_update(self, server: api.Payload, uploads: api.Uploads) -> api.Payload:
        raise NotImplementedError


def network(width: int = 4) -> SplitModel:
    return SplitModel(
        nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width)), nn.Linear(width, 3)
    )


def sizes(message: Message, shapes: Shapes | None = None) -> list[dict[str, tuple[object, ...]]]:
    specs = message.specs(Teacher(), shapes or shapes_of(TASK, network()))
    return [
        {
            name: tuple(d.most if isinstance(d, wire.Dim) else d for d in field.shape)
            for name, field in spec.items()
        }
        for spec in specs
    ]


@pytest.mark.parametrize(
    ("message", "tensors"),
    [
        (api.NOTHING, {}),
        (api.HEADER, {"weight": (3, 4), "bias": (3,)}),
        (api.PerClass("representation"), {"classes": (3,), "means": (3, 4)}),
        (api.PerClass("output", counts=True), {"classes": (3,), "means": (3, 3), "counts": (3,)}),
        (api.PublicOutputs(), {"logits": (5, 3)}),
        (api.PublicOutputs("probabilities", samples="samples"), {"probabilities": (2, 3)}),
        (api.Network("shared"), {"weight": (2, 4), "bias": (2,)}),
        (api.Network("own", part="header"), {"weight": (3, 4), "bias": (3,)}),
        (api.Named("g.", api.Network("shared")), {"g.weight": (2, 4), "g.bias": (2,)}),
    ],
)
def test_tensors_follow_from_the_declaration(
    message: Message, tensors: dict[str, tuple[int, ...]]
) -> None:
    assert sizes(message) == [tensors]


def test_messages_with_the_own_network_have_the_shapes_of_each_client() -> None:
    for width in (4, 7):
        (spec,) = sizes(api.Network("own"), shapes_of(TASK, network(width)))
        assert spec["extractor.0.weight"] == (width, 6)
        assert spec["header.weight"] == (3, width)
        assert "extractor.1.num_batches_tracked" not in spec


def test_specs_of_combined_messages_and_of_alternatives() -> None:
    assert sizes(api.OneOf(api.NOTHING, api.HEADER)) == [{}, *sizes(api.HEADER)]
    both = api.PerClass("representation") + api.HEADER
    assert sizes(both) == [sizes(api.PerClass("representation"))[0] | sizes(api.HEADER)[0]]
    assert len(sizes(api.OneOf(api.NOTHING, api.HEADER) + api.PublicOutputs())) == 2


@pytest.mark.parametrize(
    ("message", "shares"),
    [
        (api.NOTHING, "nothing"),
        (api.PerClass("output"), "class means"),
        (api.PerClass("output") + api.NOTHING, "class means"),
        (api.PerClass("output") + api.HEADER, "more"),
        (api.OneOf(api.NOTHING, api.PerClass("output")), "more"),
        (api.HEADER, "more"),
        (api.LabelCounts(), "more"),
        (api.Network("own"), "more"),
        (api.PublicOutputs(), "more"),
        (api.PerSample("logits"), "more"),
        (api.Own(lambda *_: {}), "more"),
        (api.Named("a.", api.PerClass("output")), "more"),
    ],
)
def test_what_is_shared_follows_from_the_declaration(message: Message, shares: Sharing) -> None:
    assert message.shares == shares


def test_what_each_built_in_method_shares() -> None:
    shared = {name: kind().shares for name, kind in METHODS.items()}
    assert {name: shares for name, shares in shared.items() if shares != "more"} == {
        "standalone": "nothing",
        "fd": "class means",
        "fedproto": "class means",
        "fedtgp": "class means",
        "fedgh": "class means",
        "fedgh_plus": "moments",
    }
    travels = {name for name, kind in METHODS.items() if kind().up.holds_own_network}
    whole = {"fedavg", "fedper", "fedrep", "fedbabu", "fedzkt"}
    assert travels == {*whole, "heterofl", "fedrolex", "fjord", "feddf", "fedet"}


@pytest.mark.parametrize("message", [api.PerClass("output"), api.PublicOutputs("probabilities")])
def test_rows_of_probabilities_add_up_to_one(message: Message) -> None:
    name = "means" if isinstance(message, api.PerClass) else "probabilities"
    rows: Tensor = torch.randn(2, 3).softmax(1)
    others = {"classes": torch.arange(2).int()} if isinstance(message, api.PerClass) else {}
    message.check({name: rows, **others})
    with pytest.raises(WireError, match=f"'{name}' has a row whose sum differs from 1"):
        message.check({name: rows * 1.02, **others})


@pytest.mark.parametrize(("name", "now"), [("predict", "logits"), ("summarised", "averaged")])
def test_hooks_of_earlier_versions_are_rejected(name: str, now: str) -> None:
    with pytest.raises(TypeError, match=f"Old.{name} was renamed to {now}"):
        type("Old", (Teacher,), {name: lambda *_: None, "__module__": __name__})


@pytest.mark.parametrize("name", ["shares", "upload_specs", "download_specs"])
def test_a_method_cannot_define_what_follows_from_its_declaration(name: str) -> None:
    with pytest.raises(TypeError, match=f"Sly.{name} follows from the declarations"):
        type("Sly", (Teacher,), {name: None, "__module__": __name__})


def test_two_parts_with_one_name_need_a_prefix() -> None:
    twice = api.PerClass("representation") + api.PerClass("output")
    with pytest.raises(MethodError, match=r"tensors classes, means; give one of them a prefix"):
        sizes(twice)
    assert len(sizes(twice.parts[0] + api.Named("o.", twice.parts[1]))[0]) == 4  # type: ignore[attr-defined]


def test_each_form_of_a_message_is_checked() -> None:
    message = api.OneOf(api.NOTHING, api.PerClass("output"))
    message.check({})
    with pytest.raises(WireError, match="whose sum differs from 1"):
        message.check({"classes": torch.tensor([0]).int(), "means": torch.ones(1, 3)})
    probabilities = api.Named("p.", api.PublicOutputs("probabilities"))
    with pytest.raises(WireError, match="whose sum differs from 1"):
        probabilities.check({"p.probabilities": torch.ones(1, 3)})
    alike = api.OneOf(api.PerClass("output"), api.PerClass("representation"))
    with pytest.raises(
        MethodError, match="two forms of one message have tensors of the same names"
    ):
        sizes(alike)


def test_an_own_spec_may_use_the_network_only_if_it_declares_that() -> None:
    def spec(method: api.Method, shapes: Shapes) -> api.Spec:
        return api.network_spec(api.network_state(shapes.network()))

    with pytest.raises(MethodError, match=r"declare Own\(function, own_network=True\)"):
        sizes(api.Own(spec))
    declared = api.Own(spec, own_network=True)
    assert declared.holds_own_network
    assert "header.weight" in sizes(declared)[0]


@pytest.mark.parametrize("kind", [api.PerClass, api.PublicOutputs])
def test_a_misspelt_declaration_is_rejected(kind: Callable[[str], Message]) -> None:
    with pytest.raises(TypeError, match="'outputs': expected one of"):
        kind("outputs")


def test_outputs_of_public_samples_need_public_data() -> None:
    with pytest.raises(MethodError, match="sends outputs of 0 public samples; declare public_for"):
        sizes(api.PublicOutputs(samples="samples"), shapes_of(replace(TASK, public_size=0)))


def test_a_field_with_more_samples_than_there_are_means_all() -> None:
    task = replace(TASK, public_size=1)
    assert sizes(api.PublicOutputs(samples="samples"), shapes_of(task)) == [{"logits": (1, 3)}]


def test_the_norm_of_averaged_vectors_is_that_of_the_part_that_has_them() -> None:
    assert (api.PerClass("output") + api.NOTHING).max_norm == 1
    assert (api.NOTHING + api.NOTHING).max_norm == math.inf


def test_rows_for_each_sample() -> None:
    task = Task(4, 3, num_clients=1, rounds=1, seed=0, max_samples=6)
    (spec,) = api.PerSample("representations", "labels").specs(METHODS["fedgkt"](), shapes_of(task))
    honest = {
        "representations": torch.zeros(6, 3),
        "labels": torch.tensor([0, 1, 2, 3, 3, 3]).int(),
    }
    wire.check(honest, spec)
    for hostile, why in (
        ({"labels": honest["labels"] + 1}, "values above 3"),
        ({"labels": honest["labels"][:5]}, "has shape"),
        ({"representations": torch.zeros(7, 3), "labels": torch.zeros(7).int()}, "up to 6"),
    ):
        with pytest.raises(WireError, match=why):
            wire.check(honest | hostile, spec)
    with pytest.raises(TypeError, match="'inputs': expected one of representations, logits"):
        api.PerSample("inputs")  # type: ignore[arg-type]
