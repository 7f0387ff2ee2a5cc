import time

import pytest

from fedgh.flower import engine


class Clock:
    """A clock that a pause of the server puts forward, without a wait."""

    def __init__(self) -> None:
        self.skipped = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.skipped

    def sleep(self, seconds: float) -> None:
        self.skipped += seconds


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the server's pauses: all clients are in this process and answer at once or never."""
    monkeypatch.setattr(engine, "time", Clock())
    monkeypatch.setattr(engine, "MIN_FIRST_ROUND", 0.0)
