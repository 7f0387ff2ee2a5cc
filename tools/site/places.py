"""Where the files of the repository are in the site.

Links are written as they work in the repository; pages and what they link to may move in the site.
"""

from collections.abc import Container
from posixpath import dirname, join, normpath, relpath

from tools.site import links

OUTSIDE = {
    "README.md": "project/readme.md",
    "SECURITY.md": "project/security.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "examples/hospital/README.md": "project/hospital.md",
}
"""Pages that lie outside docs/, and where they are in the site."""


def in_site(path: str) -> str:
    """The place of a file of the repository."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path.startswith("docs/"):
        inside = path.removeprefix("docs/")
        return inside.removesuffix(".ipynb") + ".md" if inside.endswith(".ipynb") else inside
    return f"files/{path}"


def in_repository(uri: str, notebooks: Container[str]) -> str:
    """The file behind a page of the site; `notebooks` are the pages that are made from one."""
    outside = {place: path for path, place in OUTSIDE.items()}
    if uri in outside:
        return outside[uri]
    return f"docs/{uri.removesuffix('.md')}.ipynb" if uri in notebooks else f"docs/{uri}"


def linked(path: str, text: str) -> set[str]:
    """The files of the repository that a page links to."""
    return {normpath(join(dirname(path), target)) for target in links.paths(text)}


def moved(path: str, uri: str, text: str) -> str:
    """A page whose links work in the site: that of the file `path`, shown at `uri`."""

    def new(target: str) -> str:
        return relpath(in_site(normpath(join(dirname(path), target))), dirname(uri) or ".")

    return links.replaced(text, new)
