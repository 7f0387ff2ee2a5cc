import pytest

from tests.fuzz.budget import INPUTS


def test_the_shares_of_all_tests_add_up(request: pytest.FixtureRequest) -> None:
    """Each test makes sure of its own share; together they are at least what was asked for."""
    functions = [item for item in request.session.items if isinstance(item, pytest.Function)]
    wanted = sum(getattr(item.function, "wanted", 0) for item in functions)
    if not wanted:
        pytest.skip("the other tests were not selected")
    assert wanted >= INPUTS
