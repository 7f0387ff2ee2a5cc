"""Studies: what is compared, the numbers that the FedGH paper published, and claims to check.

Each study is a TOML file in `definitions/`: a grid of settings and methods. A setting that two
studies share by name is run once. A budget (`budgets.toml`) adapts the runs to a machine.
"""

import tomllib
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedgh.choices import BudgetName
from fedgh.errors import ConfigError, unknown

TYPICAL_SEEDS = (2, 3, 6, 7, 9)
"""Seeds of a study that names none: the first five whose partition of CIFAR-10 among ten clients
has a linear accuracy in the middle half of those of seeds 0 to 99 (`fedgh partition`)."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PaperNumbers(_Strict):
    """The numbers that the paper prints for a method in a setting; None where it prints a dash."""

    accuracy: float | None = None  # percent
    kb_per_client_round: float | None = None  # 1 KB = 1024 B
    rounds_to_target: int | None = None
    kb_to_target: float | None = None


class Setting(_Strict):
    """A setting of a study: a named experiment with some overrides."""

    name: str  # also the name of the folder of its runs
    paper_folder: str | None = None  # with the budget paper, share the runs of this setting
    title: str
    experiment: str
    set: list[str] = []  # overrides, such as local.lr=0.1
    base: str | None = None  # the setting that this one differs from in one respect
    x: float | None = None  # position on the study's axis; without one, a horizontal line
    smoke: list[str] = []  # overrides with this budget, in addition to those of the budget
    quick: list[str] = []
    tuned: list[str] = []  # overrides chosen on validation data; they apply with every budget
    methods: list[str] = []  # methods of the study that run in this setting; empty: all
    published: dict[str, PaperNumbers] = {}

    def folder(self, budget: BudgetName) -> str:
        """Return the name of the folder of its runs."""
        return self.paper_folder if budget == "paper" and self.paper_folder else self.name

    def overrides(self, budget: BudgetName) -> list[str]:
        """Return all overrides of the experiment with this budget."""
        own = {"smoke": self.smoke, "quick": self.quick, "paper": []}[budget]
        return [*self.set, *budgets()[budget].set, *own, *self.tuned]


class Claim(_Strict):
    """A statement that the runs confirm or not: one method is highest, or some do not differ."""

    text: str
    highest: str | None = None
    over: list[str] = []  # methods it is compared with; empty: all others
    alike: list[str] = []

    @model_validator(mode="after")
    def _check_kind(self) -> "Claim":
        if (self.highest is None) != bool(self.alike) or (self.over and self.alike):
            raise ValueError("a claim has either `highest`, with an optional `over`, or `alike`")
        return self


class Lead(_Strict):
    """A statement about the lead of one method over others in some or all settings."""

    text: str
    of: str  # method
    over: list[str] = []  # methods it is compared with; empty: all others
    settings: list[str] = []  # names, or patterns such as *-m50; empty: all
    where: Literal["own", "all"] = "own"  # accuracy on own test data, or global accuracy
    points: float | None = None  # minimum lead in points
    errors: float | None = None  # the lead must exceed this many standard errors

    @model_validator(mode="after")
    def _check_minimum(self) -> "Lead":
        if self.points is None and self.errors is None:
            raise ValueError("a lead has `points`, `errors` or both")
        return self

    def applies_to(self, setting: Setting) -> bool:
        """Return whether the statement is about this setting."""
        return not self.settings or any(
            fnmatchcase(setting.name, pattern) for pattern in self.settings
        )


class Structure(_Strict):
    """A network, and its size as the paper prints it."""

    extractor: str
    printed_mb: float


class Study(_Strict):
    """A grid of settings and methods, and the kind of its tables and charts."""

    title: str
    source: str  # where in the paper
    about: str
    kind: Literal[
        "accuracy", "models", "convergence", "cost", "poisoning", "pays", "as-published"
    ] = "accuracy"
    seeds: list[int] = list(TYPICAL_SEEDS)  # of a reproduction that names none
    methods: list[str] = []
    axis: str | None = None  # title of the axis of `x`, if the settings differ in a number
    scale: Literal["linear", "log"] = "linear"  # of that axis
    settings: list[Setting] = Field([], alias="setting")
    claims: list[Claim] = Field([], alias="claim")
    leads: list[Lead] = Field([], alias="lead")
    structures: list[Structure] = Field([], alias="structure")

    @model_validator(mode="before")
    @classmethod
    def _add_shared_overrides(cls, table: dict[str, Any]) -> dict[str, Any]:
        """Add the overrides `set` and `quick` of the study to each of its settings."""
        shared = {key: table.get(key, []) for key in ("set", "quick")}
        settings = [
            setting | {key: [*values, *setting.get(key, [])] for key, values in shared.items()}
            for setting in table.get("setting", [])
        ]
        rest = {key: value for key, value in table.items() if key not in ("setting", *shared)}
        return rest | ({"setting": settings} if settings else {})

    @model_validator(mode="after")
    def _check_methods_of_settings(self) -> "Study":
        for setting in self.settings:
            if unknown_ := [method for method in setting.methods if method not in self.methods]:
                raise ValueError(f"{setting.name}: {unknown_[0]} is not a method of the study")
        return self

    @model_validator(mode="after")
    def _check_leads(self) -> "Study":
        for lead in self.leads:
            settings = [setting for setting in self.settings if lead.applies_to(setting)]
            methods = {lead.of, *lead.over}
            if not settings or any(not methods <= {*self.methods_of(each)} for each in settings):
                raise ValueError(
                    f"'{lead.text}': it matches no setting, or one without all of its methods"
                )
        return self

    def full_title(self, setting: Setting) -> str:
        """Return the title of a setting after that of its base; titles alone may be the same."""
        bases = [base.title for base in self.settings if base.name == setting.base]
        return ": ".join([*bases, setting.title])

    def methods_of(self, setting: Setting) -> list[str]:
        """Return the methods that run in a setting, in the order of the study."""
        return [
            method for method in self.methods if not setting.methods or method in setting.methods
        ]


class Budget(_Strict):
    """The overrides that adapt a study to a machine."""

    about: str
    set: list[str]


@cache
def studies() -> dict[str, Study]:
    """Return all studies by name, those of the paper first."""
    folder = resources.files("fedgh.studies") / "definitions"
    by_name = {
        item.name.removesuffix(".toml"): Study.model_validate(
            tomllib.loads(item.read_text("utf-8"))
        )
        for item in sorted(folder.iterdir(), key=lambda item: item.name)
        if item.name.endswith(".toml")
    }
    return dict(sorted(by_name.items(), key=lambda item: item[1].source.startswith("beyond")))


def study(name: str) -> Study:
    """Return the study of this name; raise ConfigError if there is none."""
    known = studies()
    if name not in known:
        raise ConfigError(unknown("study", name, known))
    return known[name]


@cache
def budgets() -> dict[str, Budget]:
    """Return the budgets by name."""
    text = (resources.files("fedgh.studies") / "budgets.toml").read_text("utf-8")
    return {name: Budget.model_validate(table) for name, table in tomllib.loads(text).items()}
