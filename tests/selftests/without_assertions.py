"""`-p tests.selftests.without_assertions`: the body of no test does anything, as by Python's -O."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    return True
