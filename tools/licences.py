"""The licences of the locked packages: each is one that we accept, and docs/licences.md says which.

`python -m tools.licences --write` writes that file, `make check` compares it.
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
    "MPL-2.0",  # its own files stay open; ours are not touched by it
}

CLASSIFIED = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Public Domain": "Public Domain",
    "Python Software Foundation License": "PSF-2.0",
}
"""The classifiers of the registry, in the words of SPDX."""

REVIEWED = {
    "asttokens": "Apache-2.0",
    "dp-accounting": "Apache-2.0",
    "protobuf": "BSD-3-Clause",
    "pysocks": "BSD-3-Clause",
    "ray": "Apache-2.0",
    "tqdm": "MPL-2.0 AND MIT",
    "transformers": "Apache-2.0",
}
"""Packages whose metadata do not say it in such words: somebody has read their licence."""


def licence(name: str, expression: str, classifiers: list[str], stated: str) -> str:
    """What a package says in its metadata, in the words of SPDX if possible."""
    if expression:
        return expression
    kinds = [text.rpartition(" :: ")[2] for text in classifiers]
    classified = [CLASSIFIED[kind] for kind in kinds if kind in CLASSIFIED]
    if classified:
        return " AND ".join(classified)  # perhaps a choice; all of them have to be accepted
    return stated if stated in ACCEPTED else REVIEWED.get(name, "unknown")


def accepted(expression: str) -> bool:
    """Whether we may use what is licensed so: one choice, all of whose parts are accepted."""
    choices = expression.split(" OR ")
    return any(all(part in ACCEPTED for part in choice.split(" AND ")) for choice in choices)


def installed(names: Iterable[str]) -> dict[str, str]:
    """The licence of each package that is installed here."""
    found = {}
    for name in names:
        try:
            about = metadata(name)
        except PackageNotFoundError:
            continue  # it is for another kind of machine
        expression, stated = about.get_all("License-Expression", []), about.get_all("License", [])
        classifiers = about.get_all("Classifier", [])
        found[name] = licence(name, "".join(expression), classifiers, "".join(stated))
    return found


def page(names: list[str], licences: dict[str, str]) -> str:
    """docs/licences.md."""
    head = (
        "# Licences\n\n"
        "fedgh is under the Apache License 2.0. What it, its extras and its development are\n"
        "installed with (`requirements.lock`) is under these licences, as the packages say\n"
        "themselves. `python -m tools.licences --write` writes this page; `make check` refuses\n"
        "licences that nobody has accepted.\n\n"
        "| package | licence |\n| --- | --- |\n"
    )
    rows = (_row(name, licences.get(name, "only for some machines")) for name in names)
    return head + "\n".join(rows) + "\n"


def _row(name: str, text: str) -> str:
    return f"| {name} | {text} |"


def problems(names: list[str], licences: dict[str, str], written: str) -> list[str]:
    """What has to be put right. A package that is not installed here needs only a row."""
    found = [
        f"{name}: '{text}' is not accepted; see tools/licences.py"
        for name, text in licences.items()
        if not accepted(text)
    ]
    there = [line for line in written.splitlines() if line.startswith("| ")][2:]
    named = [row.split(" | ")[0].removeprefix("| ") for row in there]
    if named != names or not {_row(*item) for item in licences.items()} <= set(there):
        found.append(f"docs/{PAGE.name} is out of date: python -m tools.licences --write")
    return found


def main() -> int:
    """Write the page, or check it."""
    names = locked(LOCK.read_text(encoding="utf-8"))
    licences = installed(names)
    if "--write" in sys.argv:
        PAGE.write_text(page(names, licences), encoding="utf-8")
    found = problems(names, licences, PAGE.read_text(encoding="utf-8"))
    for problem in found:
        print(problem)
    print(f"licences: {len(licences)} of {len(names)} packages are installed here")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
