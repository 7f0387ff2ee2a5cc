"""Tables as LaTeX: digits, marks, special characters; LaTeX itself compiles them if it is here."""

import re
import shutil
import string
import subprocess
from pathlib import Path

import pytest

from fedgh.latex import escape
from fedgh.tables import Cell, Column, Measured, Sheet

PDFLATEX = shutil.which("pdflatex")

HOSTILE = [
    string.punctuation,
    r"\input{/etc/passwd} \\ & %",
    "[bracket",
    "*star",
    "a--b---c",
    "é ü ß 漢字 \u202e \x00 σ² ± → \N{MINUS SIGN} †",
]
"""Texts that end a cell, a row or the table unless they are escaped."""


@pytest.mark.parametrize(
    ("mean", "std", "shown"),
    [
        (98.18, 0.78, "98.2 ± 0.8"),
        (97.994, 1.11, "98.0 ± 1.1"),
        (19.53, 0.18, "19.53 ± 0.18"),
        (19.53, 0.0031, "19.53 ± 0.00"),
        (61.2, 0.96, "61.2 ± 1.0"),
        (61.2, 12.3, "61 ± 12"),
        (61.26, 4.5, "61 ± 4"),
        (100.0, 0.0, "100.00 ± 0.00"),
        (50.0, None, "50.00"),
    ],
)
def test_a_mean_has_the_digits_that_its_deviation_warrants(
    mean: float, std: float | None, shown: str
) -> None:
    assert Column("").show(Measured(mean, std)) == shown


def test_the_best_mean_is_bold_and_a_mark_is_an_exponent() -> None:
    cell = Measured(98.18, 0.78, best=True, marks="*†")
    assert Column("").latex(cell) == r"$\mathbf{98.2} \pm 0.8^{*\dagger}$"
    assert Column("").markdown(cell) == r"**98.2 ± 0.8\*†**"
    assert Column("").show(cell) == "98.2 ± 0.8*†"
    assert Column("").latex(Measured(98.18)) == "$98.18$"
    assert Column("", signed=True).latex(-0.5) == "$-$0.50"


def test_csv_has_the_deviations_in_a_column_of_their_own() -> None:
    sheet = Sheet("", "", [Column("a"), Column("b")], [["x", Measured(1 / 3, 0.25)], ["y", None]])
    assert sheet.csv() == 'a,b,"b, std"\nx,0.3333333333333333,0.25\ny,,\n'


def test_special_characters_are_escaped() -> None:
    assert escape("fedgh:server_lr=0 & 5%") == r"fedgh:server\_lr=0 \& 5\%"
    assert escape("\\") == r"\textbackslash{}"
    assert escape("a--b---c----d") == "a-{}-b-{}-{}-c-{}-{}-{}-d"
    assert escape("漢\x00") == "??"
    assert escape("[*]\n") == "{[}{*}{]} "


def table() -> Sheet:
    columns = [Column("a_b %"), Column("accuracy, %"), Column("p", 3)]
    cell = Measured(98.18, 0.78, best=True, marks="*†")
    rows: list[list[Cell]] = [[text, cell, -0.5] for text in HOSTILE]
    return Sheet("a/b c", "Tab_le & 1%", columns, rows, "note_ 5% & more: \\end{table}")


def test_every_row_has_a_cell_for_each_column() -> None:
    lines = table().latex().splitlines()
    rows = [line for line in lines if line.endswith(r" \\")]
    assert len(rows) == 1 + len(HOSTILE)
    for row in rows:
        assert len(re.findall(r"(?<!\\)&", row)) == 2
        assert not re.search(r"(?<!\\)%", row)
    assert [line.strip() for line in lines if line.strip().startswith(r"\begin")] == [
        r"\begin{table}",
        r"\begin{tabular}{@{}lrr@{}}",
    ]
    assert r"\label{tab:a-b-c}" in "".join(lines)


def compiled(sheet: Sheet, folder: Path) -> str:
    """Compile a document with the table; return what LaTeX prints."""
    document = rf"""\documentclass{{article}}
\usepackage{{booktabs,graphicx}}
\begin{{document}}
{sheet.latex()}
\end{{document}}
"""
    (folder / "paper.tex").write_text(document, encoding="utf-8")
    done = subprocess.run(
        [PDFLATEX or "", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"],
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert (folder / "paper.pdf").read_bytes().startswith(b"%PDF")
    return done.stdout


@pytest.mark.skipif(PDFLATEX is None, reason="needs pdflatex")
def test_latex_compiles_the_table(tmp_path: Path) -> None:
    compiled(table(), tmp_path)


@pytest.mark.skipif(PDFLATEX is None, reason="needs pdflatex")
def test_the_widest_table_of_a_comparison_fits_on_a_page(tmp_path: Path) -> None:
    titles = ("method", "difference", "from", "to", "pairs", "p", "p, Holm", "seeds", "p seeds")
    columns = [*map(Column, titles), Column("p seeds, Holm")]
    cells = [
        "fedgh_plus",
        "+25.88",
        "+4.89",
        "+46.87",
        "30",
        "0.0002",
        "0.0006",
        "3",
        *["0.2500"] * 2,
    ]
    assert "Overfull" not in compiled(Sheet("", "Differences", columns, [cells]), tmp_path)


@pytest.mark.skipif(PDFLATEX is None, reason="needs pdflatex")
def test_a_table_with_long_names_is_scaled_to_the_width_of_the_text(tmp_path: Path) -> None:
    columns = [Column("setting"), Column("claim"), Column("accuracy, %")]
    names = ["CIFAR-100, five networks, N = 10, C = 100%", "FedGH has the highest accuracy " * 3]
    assert "Overfull" not in compiled(Sheet("t", "Title", columns, [[*names, 98.2]]), tmp_path)
