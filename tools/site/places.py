"""Paths of the repository's files in the site.

Links in the documents are written for the repository; in the site, pages and the files that they
link to may have other paths.
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
    "examples/three-sites/README.md": "project/three-sites.md",
}
"""Pages outside docs/, with their paths in the site."""


def in_site(path: str) -> str:
    """Return the path in the site of a file of the repository."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path.startswith("docs/"):
        inside = path.removeprefix("docs/")
        return inside.removesuffix(".ipynb") + ".md" if inside.endswith(".ipynb") else inside
    return f"files/{path}"


def in_repository(uri: str, notebooks: Container[str]) -> str:
    """Return the file from which a page is made; `notebooks` are the pages made from notebooks."""
    outside = {page: path for path, page in OUTSIDE.items()}
    if uri in outside:
        return outside[uri]
    return f"docs/{uri.removesuffix('.md')}.ipynb" if uri in notebooks else f"docs/{uri}"


def linked(path: str, text: str) -> set[str]:
    """Return the files of the repository that a page links to."""
    return {normpath(join(dirname(path), target)) for target in links.paths(text)}


def moved(path: str, uri: str, text: str) -> str:
    """Return the text of the file `path` with links that work on its page `uri` in the site."""

    def new(target: str) -> str:
        return relpath(in_site(normpath(join(dirname(path), target))), dirname(uri) or ".")

    return links.replaced(text, new)
