"""What the pytest processes of a session share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.plugin import state as module
from fixtures.plugin.state import SESSION_STATE, SessionState
from fixtures.records.run_directory import RunDirectory
from fixtures.run.options import RunOptions
from tests.selftests import support
from tests.selftests.verdict.made import item

pytestmark = pytest.mark.cpu


@pytest.fixture
def state(tmp_path) -> Any:
    return SessionState(
        options=RunOptions(), thresholds=support.load(tmp_path), population=support.population(),
        items=[item("a", "n0"), item("b", "n0"), item("a", "n1")],
        directory=RunDirectory(tmp_path), nonce="x",
    )  # fmt: skip


def test_items_are_found_by_their_criterion(state):
    found = {key: [i.subject for i in items] for key, items in state.by_criterion.items()}
    assert found == {"a": ["n0", "n1"], "b": ["n0"]}


def test_the_owner_asks_its_run_and_a_worker_what_it_was_given(state):
    first, second = state.items[:2]
    assert state.admits(first) is True  # a new run, in a worker
    state.admitted = {first.key}
    assert [state.admits(i) for i in (first, second)] == [True, False]
    state.run = SimpleNamespace(admits=lambda i: i is second)
    assert [state.admits(i) for i in (first, second)] == [False, True]


def test_the_state_is_kept_with_the_configuration(state):
    config: Any = SimpleNamespace(stash={SESSION_STATE: state})
    assert module.state_of(config) is state
    assert module.is_worker(config) is False
    config.workerinput = {}
    assert module.is_worker(config) is True


def test_the_parameter_of_a_test_stands_in_brackets():
    assert module.parameter_id("t.py::test[gemm.bf16-n0]") == "gemm.bf16-n0"
    assert module.parameter_id("t.py::test") == "t.py::test"
