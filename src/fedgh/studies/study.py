"""A study: what the paper (or a question about it) compares, and what it published.

Each is a TOML file in `studies/`. A study is a grid of settings ("cases") and methods; a case that
two studies share by name is run once. A budget says how much of it a machine can afford.
"""

import tomllib
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedgh.choices import BudgetName
from fedgh.errors import ConfigError, unknown


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Published(_Strict):
    """What the paper prints for one method in one setting; None where it prints a dash."""

    accuracy: float | None = None  # percent
    kb_per_client_round: float | None = None  # 1 KB = 1024 B
    rounds_to_target: int | None = None
    kb_to_target: float | None = None


class Case(_Strict):
    """One setting: an experiment of the package with some changes."""

    name: str  # of the folder of its runs
    at_paper: str | None = None  # whose runs they are where no budget makes them shorter
    title: str
    experiment: str
    set: list[str] = []
    x: float | None = None  # its place on the study's axis; one without is a line across
    smoke: list[str] = []  # what these budgets change here beside what they change everywhere
    quick: list[str] = []
    tuned: list[str] = []  # chosen for it on validation data: holds with every budget
    methods: list[str] = []  # those of the study that are run here; else all of them
    published: dict[str, Published] = {}

    def folder(self, budget: BudgetName) -> str:
        """Where its runs lie."""
        return self.at_paper if budget == "paper" and self.at_paper else self.name

    def at(self, budget: BudgetName) -> list[str]:
        """What this case changes when it is run with that budget."""
        own = {"smoke": self.smoke, "quick": self.quick, "paper": []}[budget]
        return [*self.set, *budgets()[budget].set, *own, *self.tuned]


class Claim(_Strict):
    """A statement that the runs may bear out or not: one line is highest, or some are alike."""

    text: str
    highest: str | None = None
    over: list[str] = []  # its rivals; else all others
    alike: list[str] = []

    @model_validator(mode="after")
    def _one_of_both(self) -> "Claim":
        if (self.highest is None) != bool(self.alike) or (self.over and self.alike):
            raise ValueError("a claim has either `highest`, perhaps `over` some, or `alike`")
        return self


class Lead(_Strict):
    """A statement about how far one method is ahead of others, in every setting it speaks of."""

    text: str
    of: str
    over: list[str] = []  # its rivals; else all others
    cases: list[str] = []  # names, or patterns such as *-m50; else all of them
    where: Literal["own", "all"] = "own"  # on the own test data, or over all classes
    points: float | None = None  # it is ahead by at least so many
    errors: float | None = None  # it is ahead by more than so many standard errors

    @model_validator(mode="after")
    def _says_how_far(self) -> "Lead":
        if self.points is None and self.errors is None:
            raise ValueError("a lead has `points`, `errors` or both")
        return self

    def speaks_of(self, case: Case) -> bool:
        """Whether it is judged in that setting."""
        return not self.cases or any(fnmatchcase(case.name, pattern) for pattern in self.cases)


class Structure(_Strict):
    """A row of the table of networks."""

    extractor: str
    printed_mb: float


class Study(_Strict):
    """A grid of cases and methods, and how its result is looked at."""

    title: str
    source: str  # where in the paper
    about: str
    kind: Literal["accuracy", "models", "convergence", "cost", "poisoning", "pays"] = "accuracy"
    methods: list[str] = []
    axis: str | None = None  # what the cases differ in, when that is a number
    scale: Literal["linear", "log"] = "linear"  # of that axis
    cases: list[Case] = Field([], alias="case")
    claims: list[Claim] = Field([], alias="claim")
    leads: list[Lead] = Field([], alias="lead")
    structures: list[Structure] = Field([], alias="structure")

    @model_validator(mode="before")
    @classmethod
    def _what_all_cases_share(cls, table: dict[str, Any]) -> dict[str, Any]:
        """`set` and `quick` of a study hold for every case."""
        shared = {key: table.get(key, []) for key in ("set", "quick")}
        cases = [
            case | {key: [*words, *case.get(key, [])] for key, words in shared.items()}
            for case in table.get("case", [])
        ]
        rest = {key: value for key, value in table.items() if key not in ("case", *shared)}
        return rest | ({"case": cases} if cases else {})

    @model_validator(mode="after")
    def _cases_choose_among_the_methods(self) -> "Study":
        for case in self.cases:
            if strange := [method for method in case.methods if method not in self.methods]:
                raise ValueError(f"{case.name}: {strange[0]} is no method of the study")
        return self

    @model_validator(mode="after")
    def _leads_are_over_what_is_run(self) -> "Study":
        for lead in self.leads:
            cases = [case for case in self.cases if lead.speaks_of(case)]
            named = {lead.of, *lead.over}
            if not cases or any(not named <= {*self.methods_of(case)} for case in cases):
                raise ValueError(f"'{lead.text}': no such settings, or not with these methods")
        return self

    def methods_of(self, case: Case) -> list[str]:
        """The methods that are run in that setting, in the order of the study."""
        return [method for method in self.methods if not case.methods or method in case.methods]


class Budget(_Strict):
    """How much is computed, and what that changes."""

    about: str
    set: list[str]


@cache
def studies() -> dict[str, Study]:
    """All studies by name, those of the paper first."""
    folder = resources.files("fedgh.studies") / "definitions"
    found = {
        item.name.removesuffix(".toml"): Study.model_validate(
            tomllib.loads(item.read_text("utf-8"))
        )
        for item in sorted(folder.iterdir(), key=lambda item: item.name)
        if item.name.endswith(".toml")
    }
    return dict(sorted(found.items(), key=lambda item: item[1].source.startswith("beyond")))


def study(name: str) -> Study:
    """The study of that name."""
    known = studies()
    if name not in known:
        raise ConfigError(unknown("study", name, known))
    return known[name]


@cache
def budgets() -> dict[str, Budget]:
    """The budgets by name."""
    text = (resources.files("fedgh.studies") / "budgets.toml").read_text("utf-8")
    return {name: Budget.model_validate(table) for name, table in tomllib.loads(text).items()}
