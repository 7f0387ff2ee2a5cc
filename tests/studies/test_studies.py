"""The definitions of the studies: their runs, settings and published values."""

import pytest

from fedgh.choices import BudgetName
from fedgh.core.types import Task
from fedgh.errors import ConfigError
from fedgh.methods.paper_bytes import paper_bytes
from fedgh.studies.plan import changes, plan, select
from fedgh.studies.study import Setting, Study, budgets, studies, study

NAMES = {
    "as-published",
    *(
        "table-homo",
        "table-hetero",
        "table-hetero-long",
        "models",
        "curves-n10",
        "noniid",
        "participation",
    ),
    *("header-lr", "convergence", "cost", "ablation", "overlap", "pays", "poisoning"),
    "privacy",
    "public-data",
}
ALL_EIGHT = ["standalone", "fedavg", "fml", "fedkd", "lg_fedavg", "fd", "fedproto", "fedgh"]


def setting_of(study_name: str, name: str) -> Setting:
    return next(setting for setting in study(study_name).settings if setting.name == name)


def test_all_studies_are_found_and_those_of_the_paper_come_first() -> None:
    assert studies().keys() == NAMES
    beyond = ["ablation", "overlap", "pays", "poisoning", "privacy", "public-data"]
    assert list(studies())[-6:] == beyond
    with pytest.raises(ConfigError, match="did you mean 'table-hetero'"):
        study("table-heter")


@pytest.mark.parametrize("budget", ["smoke", "quick", "paper"])
@pytest.mark.parametrize("name", sorted(NAMES - {"models"}))
def test_every_run_can_be_planned(name: str, budget: BudgetName) -> None:
    wanted = study(name)
    trials = plan(wanted, budget, [0, 1])
    assert len(trials) == 2 * sum(len(wanted.methods_of(setting)) for setting in wanted.settings)
    assert len({trial.folder for trial in trials}) == len(trials)
    for trial in trials:
        rounds, local = trial.config.federation.rounds, trial.config.local
        if budget == "smoke":
            assert trial.config.data.name == "digits"
        elif budget == "quick" and name not in ("convergence", "poisoning"):
            epochs = 1 if name in ("header-lr", "noniid", "privacy") else 5
            sparse = trial.setting.startswith("as-published-n50")  # a fifth takes part in a round
            usual = (40 if name == "table-hetero-long" else 10, epochs)
            assert (rounds, local.epochs) == ((100, 2) if sparse else usual)
            assert local.batch_size == 64 or name in ("pays", "public-data")
        elif budget == "paper":
            assert rounds in (100, 500)


def test_settings_with_the_same_name_are_equal_in_all_studies() -> None:
    """Studies share the run folders of a setting by its name."""
    seen: dict[str, tuple[object, ...]] = {}
    for wanted in studies().values():
        for each in wanted.settings:
            content = (each.experiment, each.set, each.smoke, each.quick, each.tuned)
            assert seen.setdefault(each.name, content) == content, each.name


def test_runs_shared_with_the_budget_paper_have_equal_configurations() -> None:
    """With `paper_folder`, a setting uses the runs of another setting."""
    own = {
        trial.folder: trial.config
        for wanted in studies().values()
        if wanted.settings
        for trial in plan(wanted, "paper", [0])
        if trial.subfolder == trial.setting
    }
    shared = [
        trial
        for name in ("noniid", "privacy", "header-lr")
        for trial in plan(study(name), "paper", [0])
        if trial.subfolder != trial.setting and trial.folder in own
    ]
    assert {trial.setting for trial in shared} == {"cifar10-hetero-e1", "cifar100-hetero-e1"}
    assert all(own[trial.folder] == trial.config for trial in shared)


@pytest.mark.parametrize(("data", "classes", "held"), [("cifar10", 10, 2), ("cifar100", 100, 10)])
def test_published_costs_follow_from_the_methods(data: str, classes: int, held: int) -> None:
    """The paper's bytes per client and round, and in total, follow from the messages."""
    task = Task(classes, rep_dim=500, num_clients=10, rounds=1, seed=0)
    published = setting_of("table-hetero", f"{data}-hetero").published
    assert published.keys() == {*ALL_EIGHT} - {"fedavg"}
    for method, values in published.items():
        if not values.kb_per_client_round:
            continue
        kb = (paper_bytes(method, task, held) or 0) / 1024
        assert values.kb_per_client_round == pytest.approx(kb, abs=0.005)
        assert values.rounds_to_target is not None
        assert values.kb_to_target == pytest.approx(values.rounds_to_target * 10 * kb, rel=0.005)


def test_the_homogeneous_table_has_all_published_values() -> None:
    settings = study("table-homo").settings
    assert len(settings) == 6
    known = [v.accuracy for each in settings for v in each.published.values() if v.accuracy]
    assert len(known) == 6 * 7 + 1  # FD has one number only
    assert all(list(each.published) == ALL_EIGHT for each in settings)
    # The claim of the paper about its table: FedGH is best everywhere.
    for each in settings:
        best = max(each.published.items(), key=lambda item: item[1].accuracy or 0)
        assert best[0] == "fedgh"
    participants = [
        (t.config.federation.clients * t.config.federation.participation)
        for t in plan(study("table-homo"), "paper", [0])
    ]
    assert participants == [10] * len(participants)


def test_in_the_study_overlap_ten_clients_have_each_class() -> None:
    (trial, *_) = plan(study("overlap"), "quick", [0])
    clients_per_class = trial.config.federation.clients * trial.config.data.classes_per_client / 10
    assert (clients_per_class, trial.config.federation.participation) == (10, 1.0)


def test_pays_has_all_settings_and_its_claims_match_them() -> None:
    wanted = study("pays")
    titles = [each.title.split(", ") for each in wanted.settings]
    assert all(len(parts) == 3 for parts in titles)  # the charts need three parts
    assert len({each.title for each in wanted.settings}) == len(wanted.settings) == 2 * 3 * 3 + 3
    for each in wanted.settings:
        few = each.title.endswith((" 50 samples", " 200 samples"))
        assert len(wanted.methods_of(each)) == (10 if few else 5)
        assert bool(each.tuned) == each.name.startswith("pays-")
    matched = [sum(map(lead.applies_to, wanted.settings)) for lead in wanted.leads]
    assert matched == [12, 12, 21, 1]


def test_the_configurations_of_pays_agree_with_the_titles() -> None:
    for trial in plan(study("pays"), "quick", [0]):
        if trial.setting.startswith("pays-"):
            (title,) = (s.title for s in study("pays").settings if s.name == trial.setting)
            data = trial.config.data
            assert title.endswith(f", {data.samples} samples")
            partition_named = f", {data.classes_per_client} of " in title
            assert partition_named or "Dirichlet 0.3" in title
            assert (data.partition == "dirichlet") == ("Dirichlet" in title)
            assert trial.config.federation.clients == 20


def test_the_changes_of_a_budget_are_listed() -> None:
    wanted = study("table-homo")
    assert changes(wanted, "paper") == []
    quick = changes(wanted, "quick")
    assert "federation.rounds 100 → 10" in quick
    assert "local.epochs 10 → 5" in quick
    (networks,) = (text for text in quick if text.startswith("model.extractors"))
    assert networks.startswith("model.extractors ['resnet18'] → ['resnet18@1/8'] (cifar100-homo, ")
    assert "local.lr 0.01 → 0.5" in changes(wanted, "paper", ["local.lr=0.5"])
    many = changes(study("participation"), "smoke")
    assert "data.name cifar10 → digits (cifar10-hetero-n100-c10, cifar10-hetero-n100-c30, " in (
        ", ".join(many)
    )
    part = {"settings": study("privacy").settings[:8], "methods": ["fedgh"]}
    nearly_all = study("privacy").model_copy(update=part)
    frozen = changes(nearly_all, "paper", ["method.server_lr=0"])
    assert frozen == ["method.server_lr 0.01 → 0.0 (in 7 of 8 settings)"]
    # A section that is no longer used is listed, too.
    turned_off = ", ".join(changes(study("as-published"), "smoke"))
    assert "published.split True → False (as-published-n10-split, " in turned_off
    assert budgets().keys() == {"smoke", "quick", "paper"}


def test_settings_and_methods_of_a_study_are_selected_by_name_or_pattern() -> None:
    part = select(study("table-hetero"), ["fedgh", "cifar10-hetero"])
    assert ([s.name for s in part.settings], part.methods) == (["cifar10-hetero"], ["fedgh"])
    half = select(study("table-hetero"), ["cifar10-hetero"])
    assert half.methods == [*ALL_EIGHT, "fedgh_plus"]
    pattern = select(study("table-hetero"), ["cifar100-*", "fed*"])
    assert {s.experiment for s in pattern.settings} == {"cifar100-hetero"}
    assert pattern.methods == ["fedavg", "fedkd", "fedproto", "fedgh", "fedgh_plus"]
    with pytest.raises(ConfigError, match="did you mean 'fedproto'"):
        select(study("table-hetero"), ["fedprot"])


def test_an_unknown_key_in_a_definition_is_an_error() -> None:
    with pytest.raises(ValueError, match="extra"):
        Study.model_validate({"title": "", "source": "", "about": "", "claims": []})
