"""Functions that format numbers and lists of names for people."""

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
    """Return the first MAX_NAMES names; if there are more, followed by the number of all."""
    more = f", ... ({len(names)})" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
