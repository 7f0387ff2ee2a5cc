"""Count the inputs of every fuzz test, and check that each test used its share."""

from collections.abc import Generator

import pytest

from tests.fuzz.budget import Tally


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Fail a test that used fewer inputs than its share."""
    before = Tally.seen
    result = yield
    seen = Tally.seen - before
    pyfuncitem.user_properties.append(("inputs", seen))
    assert seen >= getattr(pyfuncitem.function, "wanted", 0), f"only {seen} inputs: draw from more"
    return result
