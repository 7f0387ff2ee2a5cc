"""Reading of requirements.lock."""

import re
from pathlib import Path

LOCK = Path(__file__).parent.parent / "requirements.lock"


def locked(text: str) -> list[str]:
    """Return the sorted names of the packages in a lock file, in normalised form."""
    lines = (line.strip() for line in text.splitlines())
    names = (line.partition("==")[0] for line in lines if line and not line.startswith("#"))
    return sorted(re.sub(r"[-_.]+", "-", name).lower() for name in names)
