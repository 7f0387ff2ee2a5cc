"""The Python interface, as a page: mkdocstrings fills it in from the docstrings."""

import fedgh
import fedgh.flower

HEAD = """# Python

What is named here is meant to be used, and changes only with a word in the changelog.
"""

FOR_METHODS = [
    *("fedgh.core.local.sgd_epochs", "fedgh.core.local.class_means"),
    *("fedgh.core.header.linear_header", "fedgh.core.header.header_spec"),
    *("fedgh.core.average.network_state", "fedgh.core.wire.Spec"),
]
"""What a method of your own is written with, beside what `fedgh` itself exports."""


TRAINED = [
    "fedgh.trained.clients.TrainedClient",
    "fedgh.trained.newcomer.join",
    "fedgh.trained.newcomer.Joined",
]
"""What `Trained.clients` has, and how somebody joins later."""


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
            _part("For methods of your own", FOR_METHODS),
        ]
    )


def _part(title: str, names: list[str]) -> str:
    return f"## {title}\n\n" + "\n".join(f"::: {name}\n" for name in names)
