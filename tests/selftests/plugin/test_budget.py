"""--budget: tests whose jobs do not fit are deselected, and a test of a node keeps the rest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.errors import ConfigError
from fixtures.plan.items import Item
from fixtures.plugin import budget
from fixtures.plugin.node_tests import NodeTest
from fixtures.plugin.state import SESSION_STATE

pytestmark = pytest.mark.cpu


def item(workload: str) -> Item:
    return Item(
        criterion=f"c.{workload}", subject="n0", nodes=("n0",), workload=workload, placement="n0"
    )


def function(*planned: Item) -> Any:
    return SimpleNamespace(planned=[*planned])


@pytest.fixture
def session(monkeypatch) -> Any:
    """A session with a budget of 20 minutes, into which `slow` does not fit."""
    seen = SimpleNamespace(asked=[], deselected=[], refused=[], run=SimpleNamespace(budgeted=None))

    def fit(limit_s: Any, items: list[Item], *_: Any) -> Any:
        seen.asked.append((limit_s, items))
        return SimpleNamespace(left_out={"slow"})

    monkeypatch.setattr(budget, "fit_budget", fit)
    monkeypatch.setattr(budget, "planned_items", lambda found: found.planned)
    monkeypatch.setattr(budget, "refuse", lambda config, error: seen.refused.append(str(error)))
    state = SimpleNamespace(
        options=SimpleNamespace(budget="20m"), thresholds=None, population=None, run=seen.run
    )
    seen.state = state
    seen.config = SimpleNamespace(
        stash={SESSION_STATE: state},
        hook=SimpleNamespace(
            pytest_deselected=lambda *, items: seen.deselected.extend(items)
        ),
    )  # fmt: skip
    return seen


def test_what_does_not_fit_is_deselected(session):
    quick, slow, other = function(item("quick")), function(item("slow")), function()
    node = object.__new__(NodeTest)
    vars(node).update(planned=[item("quick"), item("slow")])
    slow_node = object.__new__(NodeTest)
    vars(slow_node).update(planned=[item("slow")])
    items = [quick, slow, other, node, slow_node]
    budget.pytest_collection_modifyitems(session.config, items)
    assert items == [quick, other, node]
    assert session.deselected == [slow, slow_node]
    assert node.planned == [item("quick")]
    ((_, asked),) = session.asked
    assert [i.workload for i in asked] == ["quick", "slow", "quick", "slow", "slow"]
    assert session.run.budgeted.left_out == {"slow"}


def test_without_a_budget_everything_stays(session):
    session.state.options.budget = None
    items = [function(item("slow"))]
    budget.pytest_collection_modifyitems(session.config, items)
    assert (len(items), session.asked, session.run.budgeted) == (1, [], None)


def test_where_all_fits_nothing_is_deselected_and_a_worker_has_no_run(session):
    items = [function(item("quick"))]
    session.state.run = None
    budget.pytest_collection_modifyitems(session.config, items)
    assert (len(items), session.deselected, session.run.budgeted) == (1, [], None)


def test_a_budget_that_is_none_ends_the_session(session, monkeypatch):
    def refuses(*_: Any) -> None:
        raise ConfigError("too short for anything")

    monkeypatch.setattr(budget, "fit_budget", refuses)
    items = [function(item("slow"))]
    budget.pytest_collection_modifyitems(session.config, items)
    assert session.refused == ["too short for anything"]
    assert len(items) == 1
