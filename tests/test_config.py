from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fedgh import config
from fedgh.core.method import Method
from fedgh.errors import ConfigError
from fedgh.methods import METHODS
from fedgh.methods.fedgh import FedGH
from fedgh.methods.standalone import Standalone
from fedgh.trust import FOREIGN


@pytest.mark.parametrize("name", config.experiments())
def test_named_experiments_are_unchanged_after_writing_and_reading(
    name: str, tmp_path: Path
) -> None:
    first = config.load(name)
    (tmp_path / "copy.toml").write_text(first.to_toml())
    assert config.load(tmp_path / "copy.toml") == first


def test_named_experiments_are_listed() -> None:
    names = ["demo", "cifar10-hetero", "cifar10-homo", "cifar100-hetero", "cifar100-homo"]
    assert list(config.experiments()) == names
    assert config.load("cifar100-hetero").data.classes_per_client == 10


def test_overrides_replace_values() -> None:
    settings = config.load(
        "demo",
        [
            "federation.rounds=3",
            "local.lr=1",
            "local.augment=flip,crop",
            "model.extractors=['cnn1']",
            "method.server_batch=client",
            "data.path=~/mine.npz",
            "public.path=~/theirs.npz",
            "public.dir=there",
            "run.global_accuracy=every",
        ],
        data_dir=Path("here"),
    )
    assert settings.federation.rounds == 3
    assert settings.local.lr == 1.0
    assert settings.local.augment == ["flip", "crop"]
    assert settings.model.extractors == ["cnn1"]
    assert settings.method == FedGH(server_batch="client")
    assert settings.data.path == Path.home() / "mine.npz"
    assert settings.data.dir == Path.cwd() / "here"
    assert settings.public.path == Path.home() / "theirs.npz"
    assert settings.public.dir == Path.cwd() / "there"


def test_unused_settings_do_not_change_the_fingerprint() -> None:
    assert "samples" not in config.load("demo").portable()["data"]
    assert config.load("demo", ["data.samples=9"]).portable()["data"]["samples"] == 9


def test_the_order_of_overrides_does_not_matter(tmp_path: Path) -> None:
    settings = config.load("demo", ["method.reset_header=true", "method.name=standalone"])
    assert settings.method == Standalone(reset_header=True)
    (tmp_path / "mine.toml").write_text("[method]\nserver_lr = 0.5\n")
    settings = config.load(tmp_path / "mine.toml", ["method.name=fedgh"])
    assert settings.method == FedGH(server_lr=0.5)


def test_a_data_dir_may_contain_special_characters() -> None:
    odd = Path("/a b/'\"\\\t")
    assert config.load("demo", data_dir=odd).data.dir == odd


def test_another_method_starts_from_its_own_defaults() -> None:
    settings = config.load("demo", ["method.name=standalone", "method.reset_header=true"])
    assert settings.method == Standalone(reset_header=True)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("federation.cliets=5", "federation.cliets: no key 'cliets'; did you mean 'clients'?"),
        ("federatoin.clients=5", "federatoin: no section 'federatoin'; did you mean 'federation'?"),
        ("local.epoch=5", "local.epoch: no key 'epoch'; did you mean 'epochs'?"),
        ("method.server_rl=1", "method.server_rl: no key 'server_rl'; did you mean 'server_lr'?"),
        ("method.name=fedhg", "method.name: no method 'fedhg'; did you mean 'fedgh'?"),
        ("data.name=cifar", "data.name: no data set 'cifar'; did you mean 'cifar1"),
        ("public.name=held_out", "public.name: no data set 'held_out'; did you mean 'held-out'?"),
        ("public.samples=0", "public.samples: should be greater than or equal to 2, got 0"),
        ("data.partition=random", "data.partition: should be 'classes', 'dirichlet' or 'iid'"),
        ("federation.clients=ten", "federation.clients: should be a valid integer, got 'ten'"),
        ("federation.clients='5'", "federation.clients: should be a valid integer, got '5'"),
        ("federation.clients=2.5", "federation.clients: should be a valid integer"),
        ("federation.clients=true", "federation.clients: should be a valid integer"),
        ("federation.clients=0", "federation.clients: should be greater than or equal to 1"),
        ("federation.participation=1.5", "federation.participation: should be less than or equal"),
        ("federation.participation=0", "federation.participation: should be greater than 0"),
        ("local.lr=nan", "local.lr: should be a finite number"),
        ("local.lr=inf", "local.lr: should be a finite number"),
        ("local.lr=-1", "local.lr: should be greater than 0"),
        ("local.augment=spin", "local.augment.0: should be 'flip', 'crop' or 'erase'"),
        ("method.server_batch=all", "method.server_batch: should be 'pair' or 'client'"),
        ("model.extractors=[]", "model.extractors: should have at least 1 item, got []"),
        ("methods.name=fd", "methods: no section 'methods'; did you mean 'method'?"),
        ("data.samples=2", "data.samples: should be greater than or equal to 3, got 2"),
        ("run.global_accuracy=1", "run.global_accuracy: should be 'last', 'every' or 'never'"),
        ("run.engine=cluster", "run.engine: should be 'serial', 'workers' or 'ray'"),
        ("epochs=5", "expected section.key=value"),
        ("local.epochs", "expected section.key=value"),
    ],
)
def test_a_mistake_is_reported_in_one_line_with_a_suggestion(override: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        config.load("demo", [override])
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_all_mistakes_are_reported_together() -> None:
    with pytest.raises(ConfigError) as error:
        config.load("demo", ["local.lr=-1", "method.x=1", "run.y=2"])
    assert len(str(error.value).splitlines()) == 3


@pytest.mark.parametrize(
    "table", [{"federation": 5}, {"method": "fedgh"}, {"method": {"name": ["a"]}}, {"local": []}]
)
def test_tables_of_wrong_types_are_rejected(table: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        config.parse(table)


class Unfinished(Method):
    """A method without updates."""


def test_objects_that_are_not_methods_are_rejected() -> None:
    for name, says in (
        (
            "tests.test_config:Unfinished",
            "does not define client_update, server_update, up, down",
        ),
        ("tests.test_config:Path", "not a subclass"),
        ("tests.test_config:Nothing", "cannot import"),
        ("nowhere:Nothing", "cannot import"),
    ):
        with pytest.raises(ConfigError, match=says):
            config.load("demo", [f"method.name={name}"])


def test_files_that_are_not_experiments_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'demo'"):
        config.load("dmeo")
    with pytest.raises(ConfigError, match="no experiment or file"):
        config.load(tmp_path)
    (tmp_path / "bad.toml").write_text("[federation\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        config.load(tmp_path / "bad.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load(tmp_path / "binary.toml")


def test_old_key_names_are_accepted_with_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "old.toml"
    file.write_text('[model]\nzoo = ["cnn5"]\n')
    with pytest.warns(FutureWarning, match=r"model\.zoo was renamed to model\.extractors"):
        assert config.load(file).model.extractors == ["cnn5"]
    with pytest.warns(FutureWarning, match=r"run\.largest_norm was renamed to run\.max_norm"):
        assert config.load("demo", ["run.largest_norm=7"]).run.max_norm == 7


def test_a_key_with_its_old_and_its_new_name_is_rejected() -> None:
    with pytest.raises(ConfigError, match="no key 'zoo'"):
        config.parse({"model": {"zoo": ["cnn5"], "extractors": ["cnn1"]}})


def test_the_rename_of_extractors_does_not_change_fingerprints() -> None:
    demo = config.load("demo")
    assert set(demo.hashed()["model"]) == {"zoo", "rep_dim"}
    assert set(demo.portable()["model"]) == {"extractors", "rep_dim"}


ON_CLIENTS = [
    (name, field.name)
    for name, method in METHODS.items()
    for field in fields(method)
    if type(field.default) is int and not field.name.startswith("server_")
]


@pytest.mark.parametrize(("name", "key"), ON_CLIENTS)
def test_every_number_of_a_method_that_clients_use_is_limited(name: str, key: str) -> None:
    """A server could make a client allocate any memory, or train for ever."""
    table = config.load("demo", [f"method.name={name}"]).to_table()
    table["method"][key] = 2**31 - 1
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        config.parse(table, FOREIGN)


@pytest.mark.parametrize("key", ["local.lr", "method.server_epochs"])
def test_a_number_of_thousands_of_digits_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="a number is too large"):
        config.load("demo", [f"{key}=0x{'f' * 6000}"])
