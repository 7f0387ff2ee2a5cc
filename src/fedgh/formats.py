"""Functions that format numbers and lists of names for people."""

from collections.abc import Iterable

MAX_NAMES = 6
"""Maximum number of names that `few` lists."""


def human_bytes(count: float) -> str:
    """Return a size with its unit: 1536 becomes '1.5 KB'; 1 KB is 1024 B, as in the FedGH paper."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def percent(share: float | None) -> str:
    """Return a share in percent: 0.5 becomes '50.0%', None (not measured) becomes '-'."""
    return "-" if share is None else f"{100 * share:.1f}%"


def few(names: list[str]) -> str:
    """Return the first MAX_NAMES names; if there are more, followed by the number of all.

    Names that contain commas, such as 'fedgh, seed 0', are separated by semicolons.
    """
    separator = "; " if any(", " in name for name in names) else ", "
    more = f"{separator}... ({len(names)})" if len(names) > MAX_NAMES else ""
    return separator.join(names[:MAX_NAMES]) + more


def by_note(notes: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the labels of each note; the arguments are pairs of a label and a note."""
    labels: dict[str, list[str]] = {}
    for label, note in notes:
        labels.setdefault(note, []).append(label)
    return labels


def notes_of(notes: Iterable[tuple[str, str]]) -> list[str]:
    """Return lines 'labels: note'; a note that several labels share is in one line."""
    return [f"{few(labels)}: {note}" for note, labels in by_note(notes).items()]
