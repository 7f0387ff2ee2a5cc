import pytest

from tests.fuzz.budget import INPUTS


def test_the_shares_of_all_fuzz_tests_add_up(request: pytest.FixtureRequest) -> None:
    """Each test checks its own share; the shares must add up to the requested number."""
    functions = [item for item in request.session.items if isinstance(item, pytest.Function)]
    wanted = sum(getattr(item.function, "wanted", 0) for item in functions)
    if not wanted:
        pytest.skip("the other tests were not selected")
    assert wanted >= INPUTS
