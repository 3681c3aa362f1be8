"""The tests of a large fleet: one for the criteria of an area on a node, with all its verdicts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.errors import NotMeasured
from fixtures.plan.items import Item
from fixtures.plugin import node_tests as module
from fixtures.plugin.node_tests import NodeTest
from fixtures.plugin.state import SESSION_STATE
from fixtures.verdict.model import Outcome, Verdict
from tests.selftests.verdict.made import item, row_on

pytestmark = pytest.mark.cpu


def verdict(outcome: Outcome, criterion: str = "a", reason: str = "") -> Verdict:
    return row_on("n0", outcome, criterion=criterion, value=1.5, unit="GB/s", reason=reason)


@pytest.fixture
def set_up(monkeypatch):
    """A test of a node that obtains these verdicts."""

    def make(*verdicts: Verdict) -> NodeTest:
        monkeypatch.setattr(module, "verdicts_on", lambda state, planned: [*verdicts])
        test = object.__new__(NodeTest)
        test.user_properties, test.planned = [], []
        test.config = SimpleNamespace(stash={SESSION_STATE: None})  # type: ignore[assignment]
        test.setup()
        return test

    return make


def test_a_failure_fails_the_test_with_the_lines_of_the_bad(set_up):
    bad = [verdict(Outcome.FAIL, "b"), verdict(Outcome.NOT_MEASURED, "c")]
    test = set_up(verdict(Outcome.PASS), verdict(Outcome.WAIVED, "d"), *bad)
    with pytest.raises(AssertionError) as failed:
        test.runtest()
    assert str(failed.value).split("\n")[:2] == [v.line for v in bad]


def test_what_does_not_prevent_acceptance_passes(set_up):
    fine = (Outcome.PASS, Outcome.WAIVED, Outcome.RECORDED, Outcome.NOT_APPLICABLE)
    test = set_up(*(verdict(outcome, f"{outcome}") for outcome in fine))
    test.runtest()
    assert test.user_properties == [("recorded", "RECORDED: RECORDED 1.5 GB/s")]


def test_what_was_not_measured_is_an_error_with_its_lines(set_up):
    missing = verdict(Outcome.NOT_MEASURED, "b")
    with pytest.raises(NotMeasured) as error:
        set_up(verdict(Outcome.PASS), missing)
    assert str(error.value) == missing.line


def test_a_node_to_which_nothing_applies_is_skipped_with_each_reason_once(set_up):
    reasons = ("no NVLink", "no NVLink", "no NICs")
    with pytest.raises(pytest.skip.Exception, match=r"^no NVLink; no NICs$"):
        set_up(*(verdict(Outcome.NOT_APPLICABLE, reason=text) for text in reasons))


def test_above_16_subjects_a_test_stands_for_many():
    """One test per subject is what people can read; beyond it pytest itself costs the most."""
    items = [item("a", f"n{k}") for k in range(17)]
    assert module.is_large(items[:16]) is False
    assert module.is_large(items) is True


class Parent:
    """Stands in for the module that the functions were collected from."""


class Made(NodeTest):
    """A NodeTest that needs no session."""

    marks: list[Any]

    @classmethod
    def from_parent(cls, parent: Any, *, name: str) -> Any:  # type: ignore[override]
        made = object.__new__(cls)
        made.parent, made.name, made.path, made.marks = parent, name, "tests/test_x.py", []
        return made

    def add_marker(self, marker: Any, append: bool = True) -> None:
        self.marks.append(marker.mark)


def functions(parent: Any, by_criterion: dict[str, list[Item]], **marks: list[Any]) -> list[Any]:
    config = SimpleNamespace(stash={SESSION_STATE: SimpleNamespace(by_criterion=by_criterion)})
    always = [pytest.mark.criterion("x").mark, pytest.mark.parametrize("verdict", ["x"]).mark]
    return [
        SimpleNamespace(
            callspec=SimpleNamespace(params={"verdict": key}), parent=parent, config=config,
            iter_markers=lambda key=key: [*always, *marks.get(key, [])],
        )
        for key in by_criterion
    ]  # fmt: skip


def test_there_is_a_test_for_each_node_and_set_of_marks(monkeypatch):
    monkeypatch.setattr(module, "NodeTest", Made)
    monkeypatch.setattr(pytest, "Collector", Parent)
    parent = Parent()
    nodes = ("n0", "n1")
    by_criterion = {key: [item(key, node) for node in nodes] for key in ("a", "b", "c")}
    gpu = pytest.mark.gpu(reason="needs one").mark
    tests = module.node_tests(functions(parent, by_criterion, c=[gpu]))
    assert [test.name for test in tests] == ["[n0]", "[n1]", "gpu[n0]", "gpu[n1]"]
    assert [[i.key for i in test.planned] for test in tests[1:3]] == [
        [("a", "n1"), ("b", "n1")], [("c", "n0")]
    ]  # fmt: skip
    assert tests[2].marks == [gpu]
    assert tests[0].marks == []
    assert tests[0].extra_keyword_matches == {"a", "b"}
    assert tests[0].extra_keyword_matches is tests[1].extra_keyword_matches
    assert tests[0].reportinfo() == ("tests/test_x.py", None, "[n0]")
    # With one set of marks in a file there is nothing to tell apart.
    alone = module.node_tests(functions(parent, {"c": by_criterion["c"]}, c=[gpu]))
    assert [test.name for test in alone] == ["area[n0]", "area[n1]"]
