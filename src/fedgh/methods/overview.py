"""Facts about each method, read from its declarations: for `fedgh list methods` and documents."""

from dataclasses import dataclass, fields
from typing import Literal

from fedgh.core.message import Sharing
from fedgh.core.method import FAMILIES, Method, PublicFor
from fedgh.methods import METHODS

Networks = Literal["any", "same extractor", "same network"]


@dataclass(frozen=True)
class MethodFacts:
    """A method as a reader of a list sees it; with its default settings."""

    name: str
    family: str
    about: str
    up: str
    down: str
    networks: Networks
    shares: Sharing
    public_for: PublicFor
    settings: dict[str, object]  # with their defaults

    @property
    def private(self) -> bool:
        """True if differential privacy can bound what uploads reveal."""
        return self.shares != "more"


def facts_of(kind: type[Method]) -> MethodFacts:
    """Return the facts about a method."""
    method = kind()
    networks: dict[str, Networks] = {
        "none": "any",
        "extractor": "same extractor",
        "network": "same network",
    }
    return MethodFacts(
        name=kind.name,
        family=method.family,
        about=method.about,
        up=method.up.text,
        down=method.down.text,
        networks=networks[method.same_part],
        shares=method.shares,
        public_for=method.public_for,
        settings={setting.name: getattr(method, setting.name) for setting in fields(kind)},
    )


def built_in_methods(
    *, different_networks: bool = False, private: bool = False, no_public_data: bool = False
) -> dict[str, list[MethodFacts]]:
    """Return the methods of the package by family; the arguments keep those that fit."""
    chosen = [
        facts
        for facts in map(facts_of, METHODS.values())
        if (facts.networks == "any" or not different_networks)
        and (facts.private or not private)
        and (facts.public_for == "none" or not no_public_data)
    ]
    families = {family: [f for f in chosen if f.family == family] for family in FAMILIES}
    return {family: members for family, members in families.items() if members}
