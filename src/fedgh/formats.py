"""Short texts of numbers and names."""

MAX_NAMES = 6


def human_bytes(count: float) -> str:
    """1536 -> '1.5 KB', with 1 KB = 1024 B as in the paper."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def percent(share: float | None) -> str:
    """0.5 -> '50.0%'; a score nobody has taken is a dash."""
    return "-" if share is None else f"{100 * share:.1f}%"


def few(names: list[str]) -> str:
    """The first of these names, and how many they are if those are not all."""
    more = f", ... ({len(names)})" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
