"""The examples of the documentation do what their pages say."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fedgh import config
from fedgh.core.method import DERIVED, Method
from fedgh.methods import api
from fedgh.studies.sweep import plan_comparison, run_trials
from fedgh.testing import check_method
from fedgh.training import experiment, loop
from tests.docs.blocks import ROOT, blocks
from tests.docs.reader import Reader
from tests.support.tiny import QUICK

PAGE = "docs/add-a-method.md"
FILES = {block.file: block for block in blocks(PAGE) if block.file}


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    reader = Reader(tmp_path, monkeypatch)
    yield reader
    reader.leave()


def module(reader: Reader, name: str) -> ModuleType:
    reader.follow(FILES[f"{name}.py"])
    return importlib.import_module(name)


def test_the_method_of_the_guide_reduces_the_loss_and_can_be_compared(
    reader: Reader, tmp_path: Path
) -> None:
    module(reader, "fednova")
    name = "fednova:FedNova"
    settings = config.load("demo", [*QUICK, f"method.name={name}", "method.server_lr=0.5"])
    assert config.parse(settings.to_table()) == settings
    one = loop.run(experiment.prepare(settings), tmp_path / "one")
    first, *_, last = (record.train_loss or 0 for record in one.records())
    assert last < first
    trials = plan_comparison("demo", f"fedgh,{name}:server_lr=0.5", [0], QUICK)
    outcome = run_trials(trials, tmp_path / "two")
    assert outcome.runs[1][1].records()[-1].accuracy == one.records()[-1].accuracy


def test_the_test_of_the_guide_passes(reader: Reader, tmp_path: Path) -> None:
    module(reader, "fednova")
    tests: Any = module(reader, "test_fednova")
    tests.test_two_clients_by_hand()
    tests.test_a_round_without_uploads_changes_nothing()
    tests.test_the_contract(tmp_path / "runs")


def test_the_test_of_the_guide_fails_for_a_plain_mean(reader: Reader) -> None:
    fednova: Any = module(reader, "fednova")
    tests: Any = module(reader, "test_fednova")
    fednova.FedNova.server_update = lambda _, server, uploads: api.mean_by_examples(uploads, server)
    with pytest.raises(AssertionError):
        tests.test_two_clients_by_hand()


@pytest.mark.parametrize(
    ("name", "settings"),
    [("CosineProto", []), ("WeightedRep", ["model.extractors=mlp"]), ("AdamHeader", [])],
)
def test_the_other_methods_of_the_guide_pass_check_method(
    reader: Reader, name: str, settings: list[str]
) -> None:
    method: Any = module(reader, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    check_method(getattr(method, name)(), settings)


def test_the_loss_of_cosine_proto_equals_a_number_by_hand(reader: Reader) -> None:
    method: Any = module(reader, "cosine_proto")
    model = api.SplitModel(torch.nn.Identity(), torch.nn.Linear(2, 2))
    torch.nn.init.zeros_(model.header.weight)
    torch.nn.init.zeros_(model.header.bias)

    class Stub:
        pass

    client: Any = Stub()
    client.model = model
    x, y = torch.tensor([[3.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1])
    means, filled = torch.tensor([[0.0, 1.0], [5.0, 5.0]]), torch.tensor([True, False])
    loss = method.CosineProto(lam=10.0).loss(client, x, y, means, filled)
    # The first is orthogonal to its prototype, the second has none: 10 * (1 + 0) / 2.
    torch.testing.assert_close(loss, torch.tensor(2.0).log() + 5)


def table(heading: str) -> set[str]:
    """Return the names in the first column of the tables of a section."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.S | re.M)
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.M)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_the_guide_lists_all_names_of_the_method_interface() -> None:
    assert table("All names of `fedgh.methods.api`") == set(api.__all__)


def test_the_guide_lists_all_hooks_and_class_attributes() -> None:
    hooks = {name for name, value in vars(Method).items() if callable(value)}
    attributes = {name for name in Method.__annotations__ if not name.startswith("_")}
    named = {name for name in hooks | attributes if not name.startswith("_")} - set(DERIVED)
    assert table("Hooks and class attributes") == named
