"""The studies of the package: what they ask for, and whether their published values add up."""

import pytest

from fedgh.choices import BudgetName
from fedgh.core.types import Task
from fedgh.errors import ConfigError
from fedgh.methods.paper_bytes import paper_bytes
from fedgh.studies.plan import changes, narrowed, plan
from fedgh.studies.study import Case, Study, budgets, studies, study

NAMES = {
    *("table-homo", "table-hetero", "models", "curves-n10", "noniid", "participation"),
    *("header-lr", "convergence", "cost", "ablation", "overlap", "pays", "poisoning"),
    "privacy",
}
ALL_EIGHT = ["standalone", "fedavg", "fml", "fedkd", "lg_fedavg", "fd", "fedproto", "fedgh"]


def case(name: str, of: str) -> Case:
    return next(case for case in study(of).cases if case.name == name)


def test_all_are_there() -> None:
    assert studies().keys() == NAMES
    beyond = ["ablation", "overlap", "pays", "poisoning", "privacy"]
    assert list(studies())[-5:] == beyond
    with pytest.raises(ConfigError, match="did you mean 'table-hetero'"):
        study("table-heter")


@pytest.mark.parametrize("budget", ["smoke", "quick", "paper"])
@pytest.mark.parametrize("name", sorted(NAMES - {"models"}))
def test_every_run_can_be_planned(name: str, budget: BudgetName) -> None:
    wanted = study(name)
    trials = plan(wanted, budget, [0, 1])
    assert len(trials) == 2 * sum(len(wanted.methods_of(case)) for case in wanted.cases)
    assert len({trial.folder for trial in trials}) == len(trials)
    for trial in trials:
        rounds, local = trial.config.federation.rounds, trial.config.local
        if budget == "smoke":
            assert trial.config.data.name == "digits"
        elif budget == "quick" and name not in ("convergence", "poisoning"):
            epochs = 1 if name in ("header-lr", "noniid", "privacy") else 5
            assert (rounds, local.epochs) == (10, epochs)
            assert local.batch_size == 64 or name == "pays"
        elif budget == "paper":
            assert rounds in (100, 500)


def test_a_shared_name_is_a_shared_setting() -> None:
    """Runs lie in folders by case, so that two studies may use the same ones."""
    seen: dict[str, tuple[object, ...]] = {}
    for wanted in studies().values():
        for each in wanted.cases:
            what = (each.experiment, each.set, each.smoke, each.quick, each.tuned)
            assert seen.setdefault(each.name, what) == what, each.name


def test_runs_that_are_anothers_at_paper_are_the_same() -> None:
    """Where no budget makes them shorter, so that nobody trains them twice."""
    at_paper = {
        trial.folder: trial.config
        for wanted in studies().values()
        if wanted.cases
        for trial in plan(wanted, "paper", [0])
        if trial.home == trial.place
    }
    shared = [
        trial
        for name in ("noniid", "privacy", "header-lr")
        for trial in plan(study(name), "paper", [0])
        if trial.home != trial.place and trial.folder in at_paper
    ]
    assert {trial.place for trial in shared} == {"cifar10-hetero-e1", "cifar100-hetero-e1"}
    assert all(at_paper[trial.folder] == trial.config for trial in shared)


@pytest.mark.parametrize(("data", "classes", "held"), [("cifar10", 10, 2), ("cifar100", 100, 10)])
def test_published_costs_follow_from_the_methods(data: str, classes: int, held: int) -> None:
    """The paper's bytes per client and round, and its totals, can be worked out."""
    task = Task(classes, rep_dim=500, num_clients=10, rounds=1, seed=0)
    published = case(f"{data}-hetero", "table-hetero").published
    assert published.keys() == {*ALL_EIGHT} - {"fedavg"}
    for method, values in published.items():
        if not values.kb_per_client_round:
            continue
        kb = (paper_bytes(method, task, held) or 0) / 1024
        assert values.kb_per_client_round == pytest.approx(kb, abs=0.005)
        assert values.rounds_to_target is not None
        assert values.kb_to_target == pytest.approx(values.rounds_to_target * 10 * kb, rel=0.005)


def test_the_homogeneous_table_is_whole() -> None:
    cases = study("table-homo").cases
    assert len(cases) == 6
    known = [v.accuracy for each in cases for v in each.published.values() if v.accuracy]
    assert len(known) == 6 * 7 + 1  # FD has one number only
    assert all(list(each.published) == ALL_EIGHT for each in cases)
    # What the paper says of its own table: FedGH is first everywhere.
    for each in cases:
        best = max(each.published.items(), key=lambda item: item[1].accuracy or 0)
        assert best[0] == "fedgh"
    participants = [
        (t.config.federation.clients * t.config.federation.participation)
        for t in plan(study("table-homo"), "paper", [0])
    ]
    assert participants == [10] * len(participants)


def test_in_overlap_every_class_has_ten_owners() -> None:
    (trial, *_) = plan(study("overlap"), "quick", [0])
    owners = trial.config.federation.clients * trial.config.data.classes_per_client / 10
    assert (owners, trial.config.federation.participation) == (10, 1.0)


def test_pays_has_every_setting_it_speaks_of() -> None:
    wanted = study("pays")
    places = [each.title.split(", ") for each in wanted.cases]
    assert all(len(parts) == 3 for parts in places)  # as the charts take them apart
    assert len({each.title for each in wanted.cases}) == len(wanted.cases) == 2 * 3 * 3 + 3
    for each in wanted.cases:
        few = each.title.endswith((" 50 samples", " 200 samples"))
        assert len(wanted.methods_of(each)) == (10 if few else 5)
        assert bool(each.tuned) == each.name.startswith("pays-")
    spoken_of = [sum(map(lead.speaks_of, wanted.cases)) for lead in wanted.leads]
    assert spoken_of == [12, 12, 21, 1]


def test_the_samples_of_pays_are_those_of_the_title() -> None:
    for trial in plan(study("pays"), "quick", [0]):
        if trial.place.startswith("pays-"):
            (title,) = (c.title for c in study("pays").cases if c.name == trial.place)
            data = trial.config.data
            assert title.endswith(f", {data.samples} samples")
            dealt = f", {data.classes_per_client} of " in title or "Dirichlet 0.3" in title
            assert dealt
            assert (data.partition == "dirichlet") == ("Dirichlet" in title)
            assert trial.config.federation.clients == 20


def test_what_a_budget_changes_is_said() -> None:
    wanted = study("table-homo")
    assert changes(wanted, "paper") == []
    said = changes(wanted, "quick")
    assert "federation.rounds 100 → 10" in said
    assert "local.epochs 10 → 5" in said
    (networks,) = (text for text in said if text.startswith("model.extractors"))
    assert networks.startswith("model.extractors ['resnet18'] → ['cnn1'] (cifar100-homo, ")
    assert "local.lr 0.01 → 0.5" in changes(wanted, "paper", ["local.lr=0.5"])
    many = changes(study("participation"), "smoke")
    assert "data.name cifar10 → digits (cifar10-hetero-n100-c10, cifar10-hetero-n100-c30, " in (
        ", ".join(many)
    )
    nearly_all = study("privacy").model_copy(update={"cases": study("privacy").cases[:8]})
    frozen = changes(nearly_all, "paper", ["method.server_lr=0"])
    assert frozen == ["method.server_lr 0.01 → 0.0 (in 7 of 8 settings)"]
    assert budgets().keys() == {"smoke", "quick", "paper"}


def test_a_part_of_a_study() -> None:
    part = narrowed(study("table-hetero"), ["fedgh", "cifar10-hetero"])
    assert ([c.name for c in part.cases], part.methods) == (["cifar10-hetero"], ["fedgh"])
    half = narrowed(study("table-hetero"), ["cifar10-hetero"])
    assert half.methods == ALL_EIGHT
    pattern = narrowed(study("table-hetero"), ["cifar100-*", "fed*"])
    assert {c.experiment for c in pattern.cases} == {"cifar100-hetero"}
    assert pattern.methods == ["fedavg", "fedkd", "fedproto", "fedgh"]
    with pytest.raises(ConfigError, match="did you mean 'fedproto'"):
        narrowed(study("table-hetero"), ["fedprot"])


def test_an_unknown_key_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="extra"):
        Study.model_validate({"title": "", "source": "", "about": "", "claims": []})
