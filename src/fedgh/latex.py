"""Text as LaTeX that every engine compiles without further packages."""

import re
import unicodedata

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{char: f"\\{char}" for char in "{}$&%#_"},
    **{char: f"${char}$" for char in "<>|"},
    **{char: f"{{{char}}}" for char in "[]*"},  # after \\ they would be its argument or its star
    '"': "''",
    "±": r"$\pm$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "·": r"$\cdot$",
    "\N{MINUS SIGN}": "$-$",
    "→": r"$\rightarrow$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "\N{EN DASH}": r"\textendash{}",
    "—": r"\textemdash{}",
    "…": r"\ldots{}",
    "†": r"\textdagger{}",
    "Δ": r"$\Delta$",
    **{
        char: f"$\\{name}$"
        for char, name in {
            "\N{GREEK SMALL LETTER ALPHA}": "alpha",
            "δ": "delta",
            "ε": "varepsilon",
            "λ": "lambda",
            "\N{GREEK SMALL LETTER SIGMA}": "sigma",
            "ψ": "psi",
        }.items()
    },
    **{char: f"$_{number}$" for number, char in enumerate("₀₁₂")},
    "²": "$^2$",
}
"""Characters that LaTeX does not print as they are."""

_PRINTED_BELOW = 0x180
"""Letters below this code point (of Latin alphabets) are printed by every engine."""


def escape(text: str) -> str:
    """Return text that LaTeX prints as it is; a character that it cannot print becomes '?'."""
    # Two or three hyphens would become a dash.
    return re.sub("-(?=-)", "-{}", "".join(map(_escaped, text)))


def _escaped(char: str) -> str:
    if char in _SPECIAL:
        return _SPECIAL[char]
    if char.isspace():
        return " "
    if char.isascii():
        return char if char.isprintable() else "?"
    letter = unicodedata.category(char).startswith("L")
    return char if letter and ord(char) < _PRINTED_BELOW else "?"
