import pytest

from fedgh.flower import engine


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process nobody is far away."""
    monkeypatch.setattr(engine, "POLL", 0.0)
    monkeypatch.setattr(engine, "MIN_FIRST_ROUND", 0.0)
