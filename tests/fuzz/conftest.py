"""Inputs are counted where they are used, so that the number at the end is a true one."""

from collections.abc import Generator

import pytest

from tests.fuzz.budget import Tally


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """A test that ran out of new inputs has not done its share."""
    before = Tally.seen
    result = yield
    seen = Tally.seen - before
    pyfuncitem.user_properties.append(("inputs", seen))
    assert seen >= getattr(pyfuncitem.function, "wanted", 0), f"only {seen} inputs: draw from more"
    return result
