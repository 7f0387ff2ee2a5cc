"""The reference page of the Python interface; mkdocstrings inserts the docstrings."""

import inspect

import fedgh
import fedgh.flower
from fedgh.methods import api

HEAD = """# Python

These names are public: each change of them is listed in the changelog.
"""

TRAINED = [
    "fedgh.trained.clients.TrainedClient",
    "fedgh.trained.newcomer.join",
    "fedgh.trained.newcomer.NewcomerResult",
]
"""The type of `TrainedFederation.clients`, and the interface for newcomers."""


def page() -> str:
    """Return Markdown that names every public object."""
    main = [f"fedgh.{name}" for name in fedgh.__all__ if not name.startswith("__")]
    flower = [f"fedgh.flower.{name}" for name in fedgh.flower.__all__]
    return "\n".join(
        [
            HEAD,
            _part("fedgh", main),
            _part("Trained clients and newcomers", TRAINED),
            _part("fedgh.flower, for clients of a Flower federation", flower),
            _part("For methods of your own", _for_methods()),
        ]
    )


def _for_methods() -> list[str]:
    """Return the documented names of `fedgh.methods.api` that are not also names of `fedgh`."""
    names = [name for name in api.__all__ if name not in fedgh.__all__]
    shown = [name for name in names if _documented(getattr(api, name))]
    return [*(f"fedgh.methods.api.{name}" for name in shown), "fedgh.testing.check_method"]


def _documented(value: object) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value)


def _part(title: str, names: list[str]) -> str:
    return f"## {title}\n\n" + "\n".join(f"::: {name}\n" for name in names)
