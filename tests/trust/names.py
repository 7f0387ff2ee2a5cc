"""All fields of a configuration that can have text, and malicious texts for them."""

from collections.abc import Iterator
from typing import Any

from fedgh.config import Config
from fedgh.core.names import Names, declarations
from fedgh.methods import METHODS

SECTIONS: dict[str, type[Any]] = {
    name: type(getattr(Config(), name)) for name in Config.model_fields if name != "method"
}


def texts() -> Iterator[tuple[str, str, str, Names | None]]:
    """Yield every field that can have text: method, section, key, declaration."""
    for section, kind in SECTIONS.items():
        for key, names in declarations(kind).items():
            yield "fedgh", section, key, names
    for method, kind in METHODS.items():
        for key, names in declarations(kind).items():
            yield method, "method", key, names
        yield method, "method", "name", Names.METHOD


HOSTILE = {
    Names.METHOD: ["elsewhere_evil:Method", "os:getcwd"],
    Names.NETWORK: [
        *("elsewhere_evil:make", "transformers//elsewhere_evil", "timm/hf-hub:elsewhere_evil"),
        *("torchvision/elsewhere_evil", "fedgh.__main__:main"),
    ],
    Names.PATH: ["/elsewhere_evil/data.npz"],
    Names.MACHINE: ["elsewhere-evil.invalid:6379", "auto"],
    Names.CALLBACK: ["elsewhere_evil:log", "wandb"],
}


CASES = sorted(
    {
        (method, section, key, value)
        for method, section, key, names in texts()
        if names in HOSTILE and method in ("fedgh", "fml", "fedkd")
        for value in HOSTILE[names]
    }
)


FIRST_OF_EACH_KIND = [
    case
    for case in CASES
    if case[2] == "shared" or case[3] in [values[0] for values in HOSTILE.values()]
]


def evil_events(seen: list[str]) -> list[str]:
    """Return the audit events that concern a malicious name."""
    return [what for what in seen if "elsewhere_evil" in what or "elsewhere-evil" in what]
