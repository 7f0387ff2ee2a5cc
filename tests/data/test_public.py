"""Public data: disjoint from private data, determined by the seed, rejected if impossible."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgh import config
from fedgh.data.public import PublicData, draw, hold_out, publish
from fedgh.data.public import noise as random_inputs
from fedgh.data.sources import SOURCES, DataLocation, Source
from fedgh.errors import ConfigError, FedghError, MethodError
from fedgh.report.run_page import run_page
from fedgh.report.terminal import closing_lines
from fedgh.runs.read import name_runs
from fedgh.training import loop
from fedgh.training.experiment import prepare
from fedgh.trust import FOREIGN, ForeignError
from tests.support.public import CHORUS, DISTANT, LABELLED
from tests.support.tiny import quick

HELD_OUT = ["public.name=held-out", "public.samples=100"]
DEMO = "6f6d4c013bcee87130ee61a40b71a939"
"""The fingerprint of the demo before the section `[public]` existed."""


def rows(x: torch.Tensor) -> list[bytes]:
    return [row.numpy().tobytes() for row in x]


def test_held_out_samples_are_balanced_and_belong_to_no_client() -> None:
    experiment = quick(*HELD_OUT, f"method.name={LABELLED}")
    public = experiment.public
    assert public is not None
    assert public.y.bincount().tolist() == [10] * 10
    shown = set(rows(public.x))
    assert len(shown) == 100
    blueprint = experiment.blueprint()
    private = []
    for client in range(5):
        data = blueprint.make(client).data
        for part in (data.train, data.validation, data.test):
            private += rows(part.x[part.index])
    assert shown.isdisjoint(private)
    assert len(private) == len(experiment.source) - 100
    sample = blueprint.global_sample
    assert sample is not None
    assert shown.isdisjoint(rows(experiment.source.x[sample.order]))


@pytest.mark.parametrize("samples", [1, 9, 10, 13, 20])
def test_a_remainder_adds_one_sample_to_some_classes(samples: int) -> None:
    source = SOURCES["digits"](DataLocation())
    counts = source.y[hold_out(source, samples, 0)].bincount(minlength=10)
    assert int(counts.sum()) == samples
    assert int(counts.max() - counts.min()) <= 1


def test_duplicated_samples_are_not_held_out() -> None:
    x = torch.arange(12.0)[:, None]
    x[6:9] = x[:3]
    y = torch.tensor([0, 1, 0, 0, 0, 0, 0, 1, 0, 1, 1, 1])
    source = Source("twins", x, y, ("a", "b"))
    assert {float(v) for v in x[hold_out(source, 6, 0)]} == {3, 4, 5, 9, 10, 11}
    with pytest.raises(ConfigError, match="has 12 samples, of which 6 can be held out"):
        hold_out(source, 7, 0)
    with pytest.raises(ConfigError, match="has 0 samples, of which 0 can be held out"):
        hold_out(Source("empty", x[:0], y[:0], ("a", "b")), 1, 0)


def test_the_seed_determines_the_held_out_samples() -> None:
    source = SOURCES["digits"](DataLocation())
    apart = Source("other", torch.zeros(1, 1, 32, 32), torch.zeros(1), ("0",))
    for choose in (hold_out, partial(draw, private=[apart])):
        assert choose(source, 50, 1).tolist() == choose(source, 50, 1).tolist()
        assert choose(source, 50, 1).tolist() != choose(source, 50, 2).tolist()
    one, other = (quick(*HELD_OUT, f"federation.seed={seed}").fingerprint() for seed in (0, 1))
    assert one != other
    assert one == quick(*HELD_OUT).fingerprint()


def test_private_samples_are_the_same_with_all_methods() -> None:
    plain, chorus = quick(*HELD_OUT), quick(*HELD_OUT, f"method.name={CHORUS}")
    assert plain.partition.order.equal(chorus.partition.order)
    assert plain.public is not None
    assert chorus.public is not None
    assert plain.public.digest == chorus.public.digest
    assert plain.blueprint().public is None
    assert plain.task.public_size == 0
    assert chorus.task.public_size == 100


@pytest.mark.parametrize(("method", "hidden"), [(CHORUS, True), (LABELLED, False)])
def test_labels_are_hidden_unless_a_method_reads_them(method: str, hidden: bool) -> None:
    client = quick(*HELD_OUT, f"method.name={method}").blueprint().make(0)
    assert client.public is not None
    assert (client.public.labels == -1).all() == hidden
    assert (client.public.labels >= 0).all() != hidden


def test_all_clients_share_one_copy_of_public_data() -> None:
    blueprint = quick(*HELD_OUT, f"method.name={CHORUS}").blueprint()
    assert blueprint.public is not None
    seen = [blueprint.make(client).public for client in (0, 1)]
    for part in seen:
        assert part is not None
        assert part.x.data_ptr() == blueprint.public.x.data_ptr()
        assert part.index.data_ptr() == blueprint.public.examples().index.data_ptr()


def test_public_data_change_the_fingerprint_and_their_absence_does_not(tmp_path: Path) -> None:
    demo = config.load("demo")
    assert "public" not in demo.portable()
    assert prepare(demo).fingerprint() == DEMO
    assert prepare(config.load("demo", ["public.samples=9"])).fingerprint() == DEMO
    places = [f"public.dir={tmp_path}", "public.path=mine.npz"]
    assert prepare(config.load("demo", places)).fingerprint() == DEMO
    used = config.load("demo", [*HELD_OUT, *places])
    assert used.public.path == Path.cwd() / "mine.npz"
    assert used.portable()["public"] == {"name": "held-out", "samples": 100}


def npz(path: Path, x: np.ndarray, names: str = "0123456789") -> list[str]:
    """Write a file of images; return the settings that make them public."""
    np.savez(path, x=x, y=np.array([names[k % len(names)] for k in range(len(x))]))
    return ["public.name=npz", f"public.path={path}", "public.samples=20"]


def noise(n: int = 40, side: int = 32) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 256, (n, 1, side, side)).astype(np.uint8)


def test_public_samples_are_drawn_from_another_data_set(tmp_path: Path) -> None:
    x = noise()
    experiment = quick(*npz(tmp_path / "p.npz", x), f"method.name={LABELLED}")
    public = experiment.public
    assert public is not None
    assert public.name == "npz"
    assert set(rows(public.x)) <= set(rows(torch.from_numpy(x)))
    assert len(set(rows(public.x))) == 20
    assert len(experiment.partition.order) == len(experiment.source), "nothing was held out"
    assert experiment.fingerprint() != quick(f"method.name={LABELLED}", *HELD_OUT).fingerprint()
    assert quick(*npz(tmp_path / "p.npz", x)).public is None, "fedgh does not use them"


def test_other_public_data_give_another_fingerprint(tmp_path: Path) -> None:
    settings = [*npz(tmp_path / "p.npz", noise()), f"method.name={CHORUS}"]
    before = quick(*settings).fingerprint()
    npz(tmp_path / "p.npz", 255 - noise())
    assert quick(*settings).fingerprint() != before


def test_impossible_public_data_are_rejected(tmp_path: Path) -> None:
    file, chorus = tmp_path / "p.npz", f"method.name={CHORUS}"
    digits = SOURCES["digits"](DataLocation()).x.numpy()
    for settings, says in (
        ([], r"^chorus needs public data, but public.name = 'none'; .* 'held-out' holds"),
        (["public.name=nowhere"], r"^public.name: no data set 'nowhere'; did you mean 'none'"),
        (["public.name=private"], r"^public.name: no data set 'private'"),
        (["public.name=digits"], r"the private data set itself; public.name = 'held-out' holds"),
        (["public.name=npz"], r"^public.path: public.name = 'npz' needs it"),
        (["public.name=npz", f"public.path={tmp_path / 'no.npz'}"], r"^public.path: .* not exist"),
        (["public.name=image-folder", f"public.path={__file__}"], r"^public.path: .* should be a"),
        (["public.name=own"], r"^public.name = 'own': the data were given in Python"),
        (["public.name=held-out", "public.samples=0"], "public.samples: should be greater than or"),
        (["public.name=held-out", "public.samples=1790"], "has 1797 samples, of which 17.0 can be"),
        (
            [*npz(file, noise()), "public.samples=41"],
            r"^public.samples = 41: npz has 40 samples that are not also private; lower",
        ),
        (
            npz(tmp_path / "small.npz", noise(side=8)),
            r"inputs are \(1, 8, 8\) of uint8, those of the data \(1, 32, 32\) of uint8",
        ),
        (
            npz(tmp_path / "floats.npz", noise() / 255),
            r"inputs are \(1, 32, 32\) of float32, those of the data \(1, 32, 32\) of uint8",
        ),
        (
            npz(tmp_path / "twins.npz", np.concatenate([noise(17), digits[5:8]])),
            r"^public.samples = 20: npz has 17 samples that are not also private; lower",
        ),
        (
            [*npz(tmp_path / "classes.npz", noise(), "abcdefghij"), f"method.name={LABELLED}"],
            r"the classes of npz \(a, b, c, d, e, ...\) are not those of the data \(0, 1,",
        ),
    ):
        with pytest.raises(FedghError, match=says):
            quick(chorus, *settings)
    with pytest.raises(MethodError):
        quick(chorus)


def test_the_private_data_set_cannot_be_public(tmp_path: Path) -> None:
    settings = npz(tmp_path / "p.npz", noise())
    same = ["data.name=npz", f"data.path={tmp_path / 'p.npz'}", "data.partition=iid"]
    with pytest.raises(ConfigError, match="the private data set itself"):
        quick(*settings, *same, f"method.name={CHORUS}")
    npz(tmp_path / "data.npz", 255 - noise(60))
    other = [*same, f"data.path={tmp_path / 'data.npz'}"]
    assert quick(*settings, *other, f"method.name={CHORUS}").public is not None


def test_labels_count_as_bytes_only_if_they_are_read() -> None:
    source = SOURCES["digits"](DataLocation())
    hidden = publish(source, torch.arange(7), "p", labels=False)
    labelled = publish(source, torch.arange(7), "p", labels=True)
    assert hidden.nbytes == 7 * 1024
    assert labelled.nbytes == 7 * (1024 + 8)
    assert hidden.digest != labelled.digest
    assert isinstance(labelled, PublicData)


def test_labels_are_hidden_from_methods_that_do_not_declare_them(tmp_path: Path) -> None:
    """The contract of methods (`fedmd`) compares the bits of engines and of a resumed run."""
    settings = [*HELD_OUT, f"method.name={CHORUS}", "federation.rounds=1"]
    run = loop.run(quick(*settings), tmp_path / "run")
    assert run.records()[0].method_metrics["labels"] == -100


def test_the_summary_contains_the_bytes_of_public_data(tmp_path: Path) -> None:
    once = ["federation.rounds=1", *HELD_OUT]
    runs = {
        name: loop.run(quick(*once, f"method.name={name}"), tmp_path / name.rpartition(":")[2])
        for name in (CHORUS, DISTANT, "fedgh")
    }
    sizes = {name: run.summary().public_bytes_per_client for name, run in runs.items()}
    assert sizes == {CHORUS: 100 * 1024, DISTANT: None, "fedgh": None}
    assert "public_bytes" not in (runs["fedgh"].path / "summary.json").read_text()
    assert "public     data, once: 100.0 KB per client" in closing_lines(runs[CHORUS])
    assert "public" not in closing_lines(runs["fedgh"])
    for name, run in runs.items():
        page = run_page(name_runs([run.path]), lambda _: None)
        (costs,) = (section for section in page.sections if section.id == "costs")
        assert ("Chorus: 100.0 KB per client" in costs.text) == (name == CHORUS)


def test_an_untrusted_configuration_cannot_name_a_file_of_public_data() -> None:
    for key in ("dir", "path"):
        table = {"public": {"name": "npz", key: "/elsewhere/data.npz"}}
        with pytest.raises(ForeignError, match=rf"public\.{key} = '/elsewhere/data.npz' names"):
            config.parse(table, FOREIGN)
    with pytest.raises(ConfigError, match=r"public.samples asks for 100001, more than max-public"):
        config.parse({"public": {"name": "digits", "samples": 100_001}}, FOREIGN)
    config.parse({"public": {"samples": 100_001}}, FOREIGN)  # no public data are asked for


def test_noise_has_the_shape_and_type_of_the_data_and_depends_on_the_seed() -> None:
    words = ["public.name=noise", "public.samples=50", f"method.name={CHORUS}"]
    one, again, other = (quick(*words, f"federation.seed={seed}").public for seed in (0, 0, 1))
    assert one is not None
    assert again is not None
    assert other is not None
    data = quick().source
    assert one.x.shape[1:] == data.x.shape[1:]
    assert one.x.dtype == data.x.dtype == torch.uint8
    assert one.x.equal(again.x)
    assert not one.x.equal(other.x)
    assert one.y.unique().tolist() == [-1]
    assert abs(float(one.x.float().mean()) - 127.5) < 2
    table = Source("table", torch.ones(3, 4), torch.zeros(3), ("a",))
    assert abs(float(random_inputs(table, 1000, 0).x.std()) - 1) < 0.05


def test_noise_is_refused_where_it_cannot_be_made() -> None:
    with pytest.raises(MethodError, match="reads the labels of public data, but noise has none"):
        quick("public.name=noise", f"method.name={LABELLED}")
    secret = ["data.name=private", "data.classes=a,b", "data.shape=[5]", "model.extractors=mlp"]
    with pytest.raises(ConfigError, match="'noise' follows from data that are partitioned here"):
        quick(*secret, "public.name=noise", f"method.name={CHORUS}")
