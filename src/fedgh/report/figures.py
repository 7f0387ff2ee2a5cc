"""Charts as files, for papers and slides."""

from pathlib import Path

import vl_convert

from fedgh.errors import ConfigError
from fedgh.files import make_folder, write_atomic
from fedgh.report.charts import AnyChart
from fedgh.report.page import Page
from fedgh.report.vega import themes

WIDTH = 640
"""Pixels of a chart that fills its container on a page."""

PADDING = 40
"""Pixels around a chart, because the font in which an .svg is displayed may be wider."""


def save(chart: AnyChart, path: Path) -> None:
    """Write a chart on white into a file; the suffix chooses the format: .svg, .png or .pdf.

    Raise ConfigError for another suffix.
    """
    spec = chart.to_dict()
    if spec.get("width") == "container":
        spec["width"] = WIDTH
    theme = {**themes()["light"], "background": "white", "padding": PADDING}
    if path.suffix == ".svg":
        content = vl_convert.vegalite_to_svg(spec, config=theme).encode()
    elif path.suffix == ".png":
        content = vl_convert.vegalite_to_png(spec, config=theme, scale=2)
    elif path.suffix == ".pdf":
        content = vl_convert.vegalite_to_pdf(spec, config=theme)
    else:
        raise ConfigError(f"{path}: unknown figure format; use .svg, .png or .pdf")
    write_atomic(path, content)


def save_all(page: Page, folder: Path, kind: str) -> list[Path]:
    """Write every chart of a page into a file named by its id; `kind` is svg, png or pdf.

    Images made of pixels are always .png. Return the paths.
    """
    make_folder(folder)
    paths = []
    for figure in page.figures():
        paths.append(folder / f"{figure.id}.{kind}")
        save(figure.chart, paths[-1])
    for image in page.images():
        paths.append(folder / f"{image.id}.png")
        write_atomic(paths[-1], image.png)
    return paths
