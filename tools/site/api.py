"""The reference page of the Python interface; mkdocstrings inserts the docstrings."""

import inspect

import fedgh
import fedgh.flower
from fedgh.methods import api

HEAD = """# Python

These names are public: each change of them is listed in the changelog.
"""

PARTS = {
    "Train your own networks": ["Federation", "ClientSpec", "Pixels", "adapt"],
    "Use the trained networks": [
        "TrainedFederation",
        "trained.clients.TrainedClient",
        "trained.newcomer.join",
        "trained.newcomer.NewcomerResult",
        "write_report",
    ],
    "Run experiments": [
        "load",
        "prepare",
        "run",
        "resume",
        "Config",
        "Experiment",
        "Run",
        "Source",
    ],
    "Should we federate?": ["advise", "Advice"],
    "Follow and read a run": ["Callback", "RunFolder", "Round", "Summary", "FedghError"],
}
"""Names in the package `fedgh`, the most used first; those of its `__all__` and a few others."""


def page() -> str:
    """Return Markdown that names every public object."""
    flower = [f"fedgh.flower.{name}" for name in fedgh.flower.__all__]
    return "\n".join(
        [
            HEAD,
            *(_part(title, [f"fedgh.{name}" for name in names]) for title, names in PARTS.items()),
            _part("Clients of a Flower federation", flower),
            _part("Methods of your own", _for_methods()),
        ]
    )


def _for_methods() -> list[str]:
    """Return the other names of `fedgh`, and those that only `fedgh.methods.api` has."""
    above = {name for names in PARTS.values() for name in names}
    main = [name for name in fedgh.__all__ if name not in above and not name.startswith("__")]
    main.sort(key=lambda name: name != "Method")  # what the others are for
    names = [name for name in api.__all__ if name not in fedgh.__all__]
    shown = [name for name in names if _documented(getattr(api, name))]
    return [
        *(f"fedgh.{name}" for name in main),
        "fedgh.testing.check_method",
        *(f"fedgh.methods.api.{name}" for name in shown),
    ]


def _documented(value: object) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value)


def _part(title: str, names: list[str]) -> str:
    return f"## {title}\n\n" + "\n".join(f"::: {name}\n" for name in names)
