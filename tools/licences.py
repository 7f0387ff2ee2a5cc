"""Check that the project accepts the licence of every locked package, and list them in a page.

`python -m tools.licences --write` writes docs/licences.md; `make check` compares it.
"""

import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from tools.lock import LOCK, locked

PAGE = Path(__file__).parent.parent / "docs" / "licences.md"

ACCEPTED = {
    *("0BSD", "BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC", "MIT", "MIT-0"),
    *("CNRI-Python", "MIT-CMU", "PSF-2.0", "Public Domain", "Zlib"),
    *("Apache-2.0", "Apache-2.0 WITH LLVM-exception"),
    "MPL-2.0",  # it applies to the package's own files, not to those of fedgh
}

SPDX_NAMES = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Public Domain": "Public Domain",
    "Python Software Foundation License": "PSF-2.0",
}
"""SPDX names of the classifiers of the package registry."""

REVIEWED = {
    "asttokens": "Apache-2.0",
    "dp-accounting": "Apache-2.0",
    "protobuf": "BSD-3-Clause",
    "pysocks": "BSD-3-Clause",
    "ray": "Apache-2.0",
    "tqdm": "MPL-2.0 AND MIT",
    "transformers": "Apache-2.0",
}
"""Licences of packages whose metadata name none in these forms; a maintainer has read them."""


def licence(name: str, expression: str, classifiers: list[str], stated: str) -> str:
    """Return the licence that a package's metadata declare, as SPDX names if possible."""
    if expression:
        return expression
    kinds = [text.rpartition(" :: ")[2] for text in classifiers]
    declared = [SPDX_NAMES[kind] for kind in kinds if kind in SPDX_NAMES]
    if declared:
        return " AND ".join(declared)  # it may be a choice, but then all of them must be accepted
    return stated if stated in ACCEPTED else REVIEWED.get(name, "unknown")


def accepted(expression: str) -> bool:
    """Return whether one of the alternatives (OR) has only accepted parts (AND)."""
    choices = expression.split(" OR ")
    return any(all(part in ACCEPTED for part in choice.split(" AND ")) for choice in choices)


def installed(names: Iterable[str]) -> dict[str, str]:
    """Return the licence of each of these packages that is installed here."""
    licences = {}
    for name in names:
        try:
            about = metadata(name)
        except PackageNotFoundError:
            continue  # it is only needed on other platforms
        expression, stated = about.get_all("License-Expression", []), about.get_all("License", [])
        classifiers = about.get_all("Classifier", [])
        licences[name] = licence(name, "".join(expression), classifiers, "".join(stated))
    return licences


def page(names: list[str], licences: dict[str, str]) -> str:
    """Return the text of docs/licences.md."""
    head = (
        "# Licences\n\n"
        "fedgh is under the Apache License 2.0. The packages that it, its extras and its\n"
        "development depend on (`requirements.lock`) declare these licences in their metadata.\n"
        "`python -m tools.licences --write` writes this page; `make check` fails on a licence\n"
        "that `tools/licences.py` does not accept.\n\n"
        "| package | licence |\n| --- | --- |\n"
    )
    rows = (_row(name, licences.get(name, "only for some platforms")) for name in names)
    return head + "\n".join(rows) + "\n"


def _row(name: str, text: str) -> str:
    return f"| {name} | {text} |"


def problems(names: list[str], licences: dict[str, str], written: str) -> list[str]:
    """Return the problems to correct. A package that is not installed here needs only a row."""
    messages = [
        f"{name}: '{text}' is not accepted; see tools/licences.py"
        for name, text in licences.items()
        if not accepted(text)
    ]
    rows = [line for line in written.splitlines() if line.startswith("| ")][2:]
    listed = [row.split(" | ")[0].removeprefix("| ") for row in rows]
    if listed != names or not {_row(*item) for item in licences.items()} <= set(rows):
        messages.append(f"docs/{PAGE.name} is out of date: python -m tools.licences --write")
    return messages


def main() -> int:
    """Write the page, or check it."""
    names = locked(LOCK.read_text(encoding="utf-8"))
    licences = installed(names)
    if "--write" in sys.argv:
        PAGE.write_text(page(names, licences), encoding="utf-8")
    messages = problems(names, licences, PAGE.read_text(encoding="utf-8"))
    for message in messages:
        print(message)
    print(f"licences: checked {len(licences)} of {len(names)} packages, those installed here")
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
