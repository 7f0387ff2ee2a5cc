import pytest

from fedgh.flower import engine


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait between polls or for clients: all are in this process."""
    monkeypatch.setattr(engine, "POLL", 0.0)
    monkeypatch.setattr(engine, "MIN_FIRST_ROUND", 0.0)
