"""Any configuration gives an experiment or a ConfigError with a reason."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import example
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from fedgh import config
from fedgh.config import Config
from fedgh.errors import ConfigError, FedghError
from fedgh.methods import METHODS
from fedgh.models import is_packaged
from fedgh.training.experiment import prepare
from fedgh.trust import FOREIGN
from tests.fuzz.budget import fuzz
from tests.fuzz.payloads import tampered
from tests.fuzz.refusal import Refused, attempt
from tests.support.public import CHORUS
from tests.trust.watch import RECORDER

DEMO = config.load("demo").to_table()
KEYS = sorted({key for section in DEMO.values() for key in section} | {"dir", "path", "target"})
WORDS = [
    *("", "digits", "fedgh", "fedavg", "fd", "cnn1", "mlp", "iid", "cpu", "flip", "a,b", "flip,,"),
    *("../x", "~nobody-is-called-this/x", "a:b", ":", "os.path:join", "fedgh.methods:METHODS"),
    *("n" * 2_000, "\n", "\0", "ü", "\x1b[2J", "cnn1@1/2", "mlp@2", "a:b@1/2"),
]
NUMBERS = [0, 1, 2, 5, -1, 2**31, 2**63 - 1, 2**63, 2**64, 10**30, 1e308, 5e-324, 0.5, 1.0]
VALUES: SearchStrategy[Any] = st.recursive(
    st.sampled_from([*NUMBERS, *WORDS, True, float("nan"), float("inf")]) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=2)
    ),
    max_leaves=5,
)


@st.composite
def tables(draw: DrawFn) -> dict[str, Any]:
    """Draw the table of the demo with some changes, valid or not."""
    table: dict[str, Any] = {name: dict(section) for name, section in DEMO.items()}
    for _ in range(draw(st.integers(0, 4))):
        name = draw(st.sampled_from([*DEMO, "modle", "__class__", ""]))
        section = table.setdefault(name, {})
        match draw(st.sampled_from(["key", "key", "key", "drop", "section"])):
            case "key" if isinstance(section, dict):
                key = draw(st.sampled_from([*(sorted(section) or KEYS), *KEYS, "epoch", ""]))
                section[key] = draw(VALUES)
            case "drop":
                del table[name]
            case _:
                table[name] = draw(VALUES)
    return table


def has_only_full_lines(why: str) -> bool:
    """Return true if no line of an error is empty."""
    return all(line.strip() for line in why.split("\n"))


def assert_valid_or_refused(outcome: Config | Refused) -> None:
    """Check that an experiment is equal after writing and reading, or an error has a reason."""
    if isinstance(outcome, Refused):
        assert has_only_full_lines(outcome.why)
    else:
        assert config.parse(tomllib.loads(outcome.to_toml())) == outcome


@fuzz(0.06, table=tables())
def test_a_table_is_refused_or_an_experiment_that_toml_preserves(table: dict[str, Any]) -> None:
    assert_valid_or_refused(attempt(ConfigError, lambda: config.parse(table)))


TOML = tomli_w.dumps(DEMO).encode()
PIECES = [
    *(
        "[data]",
        "[[data]]",
        "[a.b]",
        "[federation]",
        "a.b",
        "=",
        '"',
        "'''",
        "{",
        "}",
        "[",
        "]",
        ",",
    ),
    *("#", "1", "1e999", "nan", "0x", "true", "1979-05-27", "07:32:00", "\\u0000", "\\", "=\n"),
]
DEEP = ["[" * 3_000, "{a=" * 3_000, "1" * 5_000, '"~nobody-is-called-this/x"', "1979-05-27", "nan"]
LINES = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=6).map(" ".join),
    st.tuples(st.sampled_from([*KEYS, "a." * 3_000 + "a"]), st.sampled_from([*DEEP, *PIECES])).map(
        " = ".join
    ),
    st.sampled_from([f"[{name}]" for name in DEMO]),
)
FILES = st.one_of(
    tampered(TOML),
    st.binary(max_size=60),
    st.lists(LINES, max_size=6).map("\n".join).map(str.encode),
    tables().map(tomli_w.dumps).map(str.encode),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("configs")


PARTS = st.tuples(
    st.sampled_from(["a.", '"a".', "a . ", "[a", "[a.", "[[a.", "a={a.", "{a=", "[", "[[", "a=[{"]),
    st.integers(1, 120_000),
    st.sampled_from(["a", "a = 1", "a]", "a]]\nb = 1", "\n", " = "]),
)
"""Texts that are repeated, up to a number of bytes, and what follows."""


@example(lines=[("a.", 120_000, "a = 1")])  # parsing takes minutes unless refused
@fuzz(0.02, lines=st.lists(PARTS, min_size=1, max_size=3))
def test_a_key_of_very_many_parts_is_parsed_quickly(
    folder: Path, lines: list[tuple[str, int, str]]
) -> None:
    file = folder / "experiment.toml"
    file.write_text("\n".join(part * (size // len(part)) + end for part, size, end in lines))
    assert_valid_or_refused(attempt(ConfigError, lambda: config.load_run(file, trust=FOREIGN)))


@fuzz(0.04, table=tables())
def test_a_table_from_a_remote_party_imports_nothing(table: dict[str, Any]) -> None:
    with RECORDER.recording() as events:
        outcome = attempt(ConfigError, lambda: config.parse(table, FOREIGN))
    assert [what for what in events if what.startswith(("import", "open", "socket"))] == []
    if isinstance(outcome, Config):
        assert outcome.data.dir is outcome.data.path is None
        assert outcome.public.dir is outcome.public.path is None
        assert outcome.method_name in METHODS
        assert all(map(is_packaged, outcome.model.extractors))


@example(content=b"[data]\nname = " + b"[" * 3_000)
@example(content=b"[data]\nname = " + b"{a=" * 3_000)
@example(content=b"a." * 3_000 + b"a = 1")
@example(content=b"[federation]\nseed = " + b"1" * 5_000)
@example(content=b"[data]\ndir = '~nobody-is-called-this/x'")
@fuzz(0.04, content=FILES)
def test_a_file_is_an_experiment_or_refused(folder: Path, content: bytes) -> None:
    file = folder / "experiment.toml"
    file.write_bytes(content)
    assert_valid_or_refused(attempt(ConfigError, lambda: config.load(file)))


OVERRIDES = st.one_of(
    st.tuples(
        st.sampled_from([*DEMO, "x", ""]),
        st.sampled_from([*KEYS, "name", "x", ""]),
        st.sampled_from([*map(str, NUMBERS), *WORDS, *PIECES, *DEEP]) | st.text(max_size=9),
    ).map(lambda parts: "{}.{}={}".format(*parts)),
    st.text(max_size=12),
)


@fuzz(0.04, overrides=st.lists(OVERRIDES, min_size=1, max_size=3))
def test_overrides_are_applied_or_refused(overrides: list[str]) -> None:
    assert_valid_or_refused(attempt(ConfigError, lambda: config.load("demo", overrides)))


HUGE = st.sampled_from([1, 2, 3, 7, 2**31, 2**32, 2**62, 2**63, 2**64, 10**30])
TINY = st.sampled_from([5e-324, 1e-300, 1e-9, 0.01, 0.5, 1.0, 1e9, 1e300])
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "federation.seed": HUGE,
        "federation.rounds": HUGE,
        "federation.clients": HUGE,
        "data.classes_per_client": HUGE,
        "data.alpha": TINY,
        "data.samples": HUGE,
        "data.partition": st.sampled_from(["classes", "dirichlet", "iid"]),
        "public.name": st.sampled_from(["none", "held-out", "digits", "npz", "own"]),
        "public.samples": HUGE,
        "model.rep_dim": st.sampled_from([1, 4, 2**62, 2**63, 2**64, 10**30]),
        "model.extractors": st.sampled_from(
            ["mlp", "cnn5", "tests.support.tiny:wrong_width", "os:getcwd", "x"]
        ),
        "method.name": st.sampled_from(["fedgh", "fedavg", "fml", "fedkd", "fd", CHORUS]),
        "local.batch_size": HUGE,
        "local.augment": st.sampled_from(["flip", ""]),
        "run.global_accuracy": st.sampled_from(["true", "false", "last", "every", "never"]),
    },
)


@pytest.fixture(scope="module")
def table_of_numbers(folder: Path) -> Path:
    file = folder / "numbers.npz"
    np.savez(file, x=np.arange(120.0).reshape(40, 3), y=np.arange(40) % 4)
    return file


@example(chosen={"federation.rounds": 2**64, "method.name": "fedkd"})
@fuzz(0.02, chosen=SETTINGS)
def test_an_experiment_is_prepared_or_refused(
    table_of_numbers: Path, chosen: dict[str, object]
) -> None:
    usual = ["model.extractors=mlp", "model.rep_dim=4", "federation.clients=2", "data.name=npz"]
    overrides = [*usual, f"data.path={table_of_numbers}", *(f"{k}={v}" for k, v in chosen.items())]
    if chosen.get("method.name") in ("fml", "fedkd"):
        overrides.append("method.shared=mlp")
    prepared = attempt(FedghError, lambda: prepare(config.load("demo", overrides)))
    if isinstance(prepared, Refused):
        assert has_only_full_lines(prepared.why)
        return
    assert len(prepared.fingerprint()) == 32
    assert sum(row.train for row in prepared.clients()) > 0
