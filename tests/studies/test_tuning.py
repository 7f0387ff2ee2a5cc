"""Tuning several methods alike, and files with settings of each method."""

from dataclasses import fields
from pathlib import Path

import pytest

from fedgh.errors import ConfigError
from fedgh.studies.statistics import Row
from fedgh.studies.sweep import Trial, plan_comparison
from fedgh.studies.tuning import best_of_each, plan_search, ranked, read_settings, settings_toml
from tests.support.commands import SET, inside

TWO = "standalone,fedproto"
GRID = ["local.lr=0.01,0.1", "fedproto.lam=1,2"]


def labels(trials: list[Trial]) -> list[str]:
    return [trial.label for trial in trials]


def a_row(label: str, accuracy: float, validation_accuracy: float | None) -> Row:
    """A row with these numbers only."""
    known = {"label": label, "accuracy": accuracy, "validation_accuracy": validation_accuracy}
    return Row(**{field.name: known.get(field.name) for field in fields(Row)})  # type: ignore[arg-type]


def test_a_setting_of_one_method_is_searched_for_that_method_only() -> None:
    trials = plan_search("demo", ["local.lr=0.01,0.1", "fedproto.lam=1"], [0], methods=TWO)
    assert labels(trials) == [
        "standalone local.lr=0.01",
        "standalone local.lr=0.1",
        "fedproto local.lr=0.01 method.lam=1",
        "fedproto local.lr=0.1 method.lam=1",
    ]
    assert [trial.config.method_name for trial in trials] == ["standalone"] * 2 + ["fedproto"] * 2
    assert trials[3].config.local.lr == 0.1


def test_grids_of_different_size_are_refused_because_the_comparison_would_be_unfair() -> None:
    with pytest.raises(ConfigError, match=r"\(standalone 2, fedproto 4\); use --trials 2 to draw"):
        plan_search("demo", GRID, [0], methods=TWO)


def test_random_search_tries_as_many_points_for_each_method_and_shares_their_values() -> None:
    grid = ["local.lr=0.001..0.1", "local.batch_size=8..64", "fedproto.lam=0.1,1,10"]
    trials = plan_search("demo", grid, [0], methods=TWO, points=3)
    alone, proto = trials[:3], trials[3:]
    rates = [trial.config.local.lr for trial in trials]
    assert rates[:3] == rates[3:]
    assert all(0.001 <= rate <= 0.1 for rate in rates)
    assert all(8 <= trial.config.local.batch_size <= 64 for trial in alone)
    assert {trial.label.rpartition("=")[2] for trial in proto} == {"0.1", "1", "10"}
    again = plan_search("demo", grid, [0], methods=TWO, points=3)
    assert labels(again) == labels(trials), "a stopped search must find its runs again"


@pytest.mark.parametrize(
    ("grid", "options", "problem"),
    [
        (["local.lr=0.1..1"], {}, "needs --trials, the number of points"),
        (["local.lr=1..0.1"], {"points": 2}, "0 < LOW < HIGH"),
        (["local.lr=0..1"], {"points": 2}, "0 < LOW < HIGH"),
        (["local.lr=a..b"], {"points": 2}, "0 < LOW < HIGH"),
        (["local.lr=0.1,0.2"], {"points": 3}, "only 2 different points"),
        (["method.lam=1,2"], {"methods": TWO}, r"has this setting, e.g. standalone\.lam"),
        (["fedproto.lam=1,2"], {"methods": TWO}, "no --grid has a setting of this method"),
        (["fedproto.lma=1,2"], {"methods": "fedproto"}, "lma"),
        (
            ["fedproto.lam=1", "fedproto.lam=2"],
            {"methods": "fedproto"},
            "this setting has a second --grid",
        ),
        (["local.lr=1,2"], {"methods": "fedprot"}, "did you mean 'fedproto'"),
        ([], {"methods": TWO}, "nothing to search"),
        (["local.lr=1"], {"methods": ","}, "--methods names no method"),
        (["local.lr=1"], {"methods": "fedproto:lam=1,fedproto:lam=2"}, "names fedproto twice"),
        (["fedproto.lam=1,2"], {"methods": "fedproto:lam=3"}, "in --methods and in --grid"),
        (["local.lr=1"], {"methods": "fedproto:name=fedgh"}, "method.name is no setting"),
        (["fedproto.name=fedgh,fd"], {"methods": "fedproto"}, "method.name is no setting"),
        (["data.samples=8,9"], {"methods": "fedproto"}, r"have the same \[data\]"),
        ([" local.lr=1", "local.lr =2"], {}, "has a second --grid"),
    ],
)
def test_a_search_that_cannot_be_planned_says_what_to_change(
    grid: list[str], options: dict[str, str | int], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        plan_search("demo", grid, [0], **options)  # type: ignore[arg-type]


def test_the_best_point_of_each_method_is_chosen_on_validation_data(tmp_path: Path) -> None:
    trials = plan_search("demo", ["local.lr=0.01,0.1", "fedproto.lam=1"], [0], methods=TWO)
    validation = [0.5, 0.7, None, 0.6]  # test accuracy rises in the other direction
    rows = [
        a_row(trial.label, 1 - k / 10, score)
        for k, (trial, score) in enumerate(zip(trials, validation, strict=True))
    ]
    table = ranked(rows)
    assert [row.label for row in table] == [trials[k].label for k in (1, 0, 3, 2)]
    best = best_of_each(table)
    file = tmp_path / "tuned.toml"
    file.write_text(settings_toml(best, trials))
    assert read_settings(file) == {
        "standalone": ["local.lr=0.1"],
        "fedproto": ["local.lr=0.1", "method.lam=1.0"],
    }


def test_a_comparison_uses_the_settings_of_each_method_and_labels_replace_them(
    tmp_path: Path,
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(
        "[fedproto]\nlocal.lr = 0.5\nmethod.lam = 3\n[fedgh]\nlocal.augment = ['flip', 'crop']\n"
    )
    settings = read_settings(file)
    methods = "standalone,fedproto,fedproto:lam=7,fedgh"
    trials = plan_comparison("demo", methods, [0], settings=settings)
    rates = [trial.config.local.lr for trial in trials]
    assert rates[1:3] == [0.5, 0.5]
    assert rates[0] == rates[3] != 0.5
    assert [getattr(trial.config.method, "lam", None) for trial in trials] == [None, 3, 7, None]
    assert trials[3].config.local.augment == ["flip", "crop"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[fedprot]\nlocal.lr = 1", "did you mean 'fedproto'"),
        ("fedproto = 3", r"\[fedproto\] should have lines section\.key = value"),
        ("[fedproto]\nlr = 1", r"\[fedproto\] should have lines section\.key = value"),
        ("[fedproto", "not valid TOML"),
        ("[fedproto]\nlocal.lr = {a = 1}", r"local\.lr is a table"),
        (f"[fedproto]\nlocal.lr = 0x{'f' * 6000}", r"local\.lr: Exceeds the limit"),
        ("[fedproto]\nfederation.rounds = 5", r"have the same \[federation\]; set it for all"),
    ],
)
def test_a_file_of_settings_with_a_mistake_is_refused(
    text: str, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        read_settings(file)


def test_a_file_of_settings_has_any_text_and_may_be_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "settings.toml", tmp_path / "link.toml"
    file.write_text("[fedgh_plus]\nmethod.weights = '\U0001f600 \"x\".npz'\n", encoding="utf-8")
    link.symlink_to(file)
    (trial,) = plan_comparison("demo", "fedgh_plus", [0], settings=read_settings(link))
    assert getattr(trial.config.method, "weights", None) == '\U0001f600 "x".npz'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("method.name = 'fedgh'", r"method\.name is no setting"),
        ("local.lr = 2020-01-01", r"local\.lr: should be a valid number"),
        (
            "local.lr = inf",
            r"local\.lr: should be a finite number|local\.lr: should be a valid number",
        ),
    ],
)
def test_a_setting_that_a_method_cannot_have_is_refused(
    text: str, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f"[fedproto]\n{text}\n")
    with pytest.raises(ConfigError, match=problem):
        plan_comparison("demo", "fedproto", [0], settings=read_settings(file))


@pytest.mark.parametrize(
    ("method", "grid", "setting"),
    [
        ("fedgh.methods:FedProto", "local.lr =0.1", "local.lr=0.1"),
        ("fedproto", " model.zoo=mlp", 'model.extractors=[\n    "mlp",\n]'),
    ],
)
@pytest.mark.filterwarnings("ignore:model.zoo was renamed")
def test_selected_settings_are_found_again_under_the_given_name_of_the_method(
    method: str, grid: str, setting: str, tmp_path: Path
) -> None:
    """Also with spaces around the key, and with an earlier name of the key."""
    (trial,) = plan_search("demo", [grid], [0], methods=method)
    best = best_of_each(ranked([a_row(trial.label, 0.5, 0.5)]))
    file = tmp_path / "tuned.toml"
    file.write_text(settings_toml(best, [trial]))
    assert read_settings(file) == {method: [setting]}


def test_without_methods_the_best_of_all_points_is_chosen() -> None:
    """Also if the method is one of the settings."""
    trials = plan_search("demo", ["method.name=standalone,fedproto"], [0])
    rows = [a_row(trial.label, 0.5, score) for trial, score in zip(trials, (0.1, 0.9), strict=True)]
    assert ranked(rows)[0].label == "method.name=fedproto"
    assert list(best_of_each(ranked(rows)).values()) == [rows[1]]


def test_values_stay_in_a_range_narrower_than_three_digits() -> None:
    (trial,) = plan_search("demo", ["local.lr=0.1234..0.1235"], [0], points=1)
    assert 0.1234 <= trial.config.local.lr <= 0.1235


def test_a_comparison_says_which_settings_it_does_not_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[fedproto]\nlocal.lr = 0.5\n")
    words = ["--methods", "standalone", "--settings", str(file), "--seeds", "0"]
    assert inside(monkeypatch, "compare", *SET, *words, "--out", str(tmp_path / "out")) == 0
    assert "not compared, so not used: fedproto" in capsys.readouterr().out


def test_tune_writes_a_file_that_compare_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = str(tmp_path / "tune" / "tuned.toml")
    words = ["--methods", TWO, "--grid", "local.lr=0.0001,0.05", "--out", str(tmp_path / "tune")]
    assert inside(monkeypatch, "tune", *SET, *words) == 0
    assert f"--methods {TWO} --settings {tuned}" in capsys.readouterr().out
    words = ["--methods", TWO, "--settings", tuned, "--seeds", "0", "--out", str(tmp_path)]
    assert inside(monkeypatch, "compare", *SET, *words) == 0
    assert "lr = 0.05" in (tmp_path / "fedproto-seed0" / "config.toml").read_text()
