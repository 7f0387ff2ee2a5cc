"""Functions that MkDocs calls while it builds the site (`hooks` in mkdocs.yml).

They add pages from outside docs/, the reference and the notebooks in memory, without writing files,
and translate links. Of docs/results, the site has only files that a page shows or links to, so run
folders are not published.
"""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.site import api, commands, notebook, settings
from tools.site.places import OUTSIDE, in_repository, in_site, linked, moved

GENERATED = {
    "reference/commands.md": commands.page,
    "reference/configuration.md": settings.page,
    "reference/python.md": api.page,
}
ASSETS = Path(__file__).parent / "assets"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add every page of docs/results to the navigation."""
    docs = Path(config.docs_dir)
    pages = sorted(path.relative_to(docs).as_posix() for path in docs.glob("results/**/*.md"))
    entries = config.nav or []
    results = next(entry["Results"] for entry in entries if "Results" in entry)
    results += _entries(docs, [path for path in pages if path not in results])
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add files from outside docs/, and remove results that no page links to."""
    root, docs = Path(config.config_file_path).parent, Path(config.docs_dir)
    for path, uri in OUTSIDE.items():
        files.append(File.generated(config, uri, abs_src_path=str(root / path)))
    for uri, page in GENERATED.items():
        files.append(File.generated(config, uri, content=page()))
    for asset in sorted(ASSETS.iterdir()):
        files.append(File.generated(config, f"assets/{asset.name}", abs_src_path=str(asset)))
    for uri, source in _notebooks(docs).items():
        files.append(File.generated(config, uri, content=notebook.page(source)))
    wanted = _linked(files, docs)
    for file in list(files):
        is_result = file.src_uri.startswith("results/") and not file.is_documentation_page()
        if is_result and f"docs/{file.src_uri}" not in wanted:
            files.remove(file)
    for path in sorted(wanted):
        uri = in_site(path)
        if (root / path).is_file() and uri.startswith("files/"):
            files.append(File.generated(config, uri, abs_src_path=str(root / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Translate the links of a page, and add a link to the notebook from which it is made."""
    uri, docs = page.file.src_uri, Path(config.docs_dir)
    if uri in GENERATED:
        return markdown
    text = moved(_source(uri, docs), uri, markdown)
    notebook_file = _notebooks(docs).get(uri)
    if notebook_file is None:
        return text
    return f"{text}\n[This page as a notebook]({notebook_file.name})\n"


def _entries(docs: Path, pages: list[str]) -> list[dict[str, str]]:
    """Return a navigation entry for each page; equal headings are extended by the file's name."""
    by_heading: dict[str, list[Path]] = {}
    for path in map(Path, pages):
        heading = (docs / path).read_text(encoding="utf-8").partition("\n")[0]
        by_heading.setdefault(heading.removeprefix("# "), []).append(path)
    entries = []
    for heading, alike in by_heading.items():
        known = min((path.stem for path in alike), key=len)
        for path in alike:
            more = path.stem.removeprefix(known).replace("-", " ").strip()
            entries.append({f"{heading}: {more}" if more else heading: path.as_posix()})
    return entries


def _linked(files: Files, docs: Path) -> set[str]:
    """Return the files of the repository that at least one page links to."""
    pages = [file for file in files.documentation_pages() if file.src_uri not in GENERATED]
    return {
        path for file in pages for path in linked(_source(file.src_uri, docs), file.content_string)
    }


def _source(uri: str, docs: Path) -> str:
    return in_repository(uri, _notebooks(docs))


def _notebooks(docs: Path) -> dict[str, Path]:
    """Return the pages that are made from notebooks, each with its notebook."""
    files = sorted(docs.glob("notebooks/*.ipynb"))
    return {path.with_suffix(".md").relative_to(docs).as_posix(): path for path in files}
