"""What the command line asks for: read once, with the defaults of RunOptions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.plugin import option_list, options
from fixtures.run.options import RunOptions

pytestmark = pytest.mark.cpu


def test_options_are_read_once_and_lists_cannot_change():
    asked = []
    given = {"budget": "20m", "calibrate_with": ["a", "b"], "plan": True}

    def getoption(name: str) -> Any:
        asked.append(name)
        return given.get(name)

    config: Any = SimpleNamespace(stash={}, getoption=getoption)
    found = options.options_of(config)
    assert found == RunOptions(budget="20m", calibrate_with=("a", "b"), plan=True)
    count = len(asked)
    given["budget"] = "30m"
    assert options.options_of(config) is found
    assert len(asked) == count


def test_the_options_are_those_of_the_list(monkeypatch):
    added = []
    monkeypatch.setattr(option_list, "add_options", added.append)
    options.pytest_addoption("the parser")
    assert added == ["the parser"]
