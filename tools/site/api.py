"""The Python interface, as a page: mkdocstrings fills it in from the docstrings."""

import inspect

import fedgh
import fedgh.flower
from fedgh.methods import api

HEAD = """# Python

What is named here is meant to be used, and changes only with a word in the changelog.
"""

TRAINED = [
    "fedgh.trained.clients.TrainedClient",
    "fedgh.trained.newcomer.join",
    "fedgh.trained.newcomer.NewcomerResult",
]
"""What `TrainedFederation.clients` has, and how somebody joins later."""


def page() -> str:
    """Markdown that names every public object."""
    ours = [f"fedgh.{name}" for name in fedgh.__all__ if not name.startswith("__")]
    flower = [f"fedgh.flower.{name}" for name in fedgh.flower.__all__]
    return "\n".join(
        [
            HEAD,
            _part("fedgh", ours),
            _part("Trained clients and newcomers", TRAINED),
            _part("fedgh.flower, for participants", flower),
            _part("For methods of your own", _for_methods()),
        ]
    )


def _for_methods() -> list[str]:
    """What has a docstring in `fedgh.methods.api`, and is not on the page as a name of `fedgh`."""
    names = [name for name in api.__all__ if name not in fedgh.__all__]
    shown = [name for name in names if _documented(getattr(api, name))]
    return [*(f"fedgh.methods.api.{name}" for name in shown), "fedgh.testing.check_method"]


def _documented(found: object) -> bool:
    return inspect.isclass(found) or inspect.isfunction(found) or inspect.ismodule(found)


def _part(title: str, names: list[str]) -> str:
    return f"## {title}\n\n" + "\n".join(f"::: {name}\n" for name in names)
