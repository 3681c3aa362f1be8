"""What is collected: a test per planned criterion and subject, and none that judges nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.plan.items import Item
from fixtures.plugin import collection
from fixtures.plugin.collection import USAGE_ERROR, UsageErrorItem, selects
from fixtures.plugin.node_tests import MAX_SEPARATE_TESTS, NodeTest
from fixtures.plugin.state import SESSION_STATE
from tests.selftests.verdict.made import item

pytestmark = pytest.mark.cpu

ROOT = Path("/suite")


# --- the self-tests


def config(marks: str = "", **options: Any) -> Any:
    given = {"cluster": "auto", **options}
    return SimpleNamespace(
        rootpath=ROOT, option=SimpleNamespace(markexpr=marks), getoption=given.get
    )


def test_self_tests_are_read_where_they_may_be_meant():
    selftests = ROOT / "tests" / "selftests"
    for given, unread in (
        (config(), None), (config("cpu"), None), (config("cpu and not slow"), None),
        (config("cpu and slow"), None), (config("slow"), None), (config("not gpu"), None),
        (config("multinode"), True), (config("not cpu"), True), (config("cpu and multinode"), True),
        (config("cpu or"), None), (config(cluster="replay"), True), (config(plan=True), True),
        (config(resume="RUN"), True), (config(from_run="RUN"), True), (config(drills="x"), True),
        (config("cpu", cluster="replay"), None),
    ):  # fmt: skip
        found = collection.pytest_ignore_collect(selftests, given)
        assert found is unread, (given.option.markexpr, found)
        assert collection.pytest_ignore_collect(ROOT / "tests", given) is None


def test_an_expression_of_marks_selects_as_pytest_does():
    for expression, marks, selected in (
        ("a", {"a"}, True), ("a", {"b"}, False), ("a and b", {"a"}, False),
        ("a and b", {"a", "b"}, True), ("a or b", {"b"}, True), ("a or b", set(), False),
        ("not a", {"a"}, False), (" not (a or b) ", {"c"}, True), ("a(k=1)", {"a"}, True),
        ("a(k=1)", {"k"}, False),
    ):  # fmt: skip
        assert selects(expression, marks) is selected, expression
    for expression in ("a b", "a < b", "1", "a.b"):
        with pytest.raises(SyntaxError):
            selects(expression, {"a"})


# --- parameters


def parameters(planned: dict[str, list[Item]], *keys: str, fixtures: str = "verdict") -> list[Any]:
    made: list[Any] = []
    marker = SimpleNamespace(args=keys) if keys else None
    state = SimpleNamespace(by_criterion=planned)
    collection.pytest_generate_tests(
        SimpleNamespace(
            definition=SimpleNamespace(get_closest_marker=lambda name: marker),
            fixturenames=[fixtures], config=SimpleNamespace(stash={SESSION_STATE: state}),
            parametrize=lambda name, items, *, ids, indirect: made.append((items, ids)),
        )  # type: ignore[arg-type]
    )  # fmt: skip
    return made


def test_each_planned_subject_has_a_parameter():
    items = [item("a", "n0"), item("a", "n1")]
    assert parameters({"a": items}, "a") == [(items, ["a-n0", "a-n1"])]
    two = {"a": items, "b": [item("b")]}
    assert parameters(two, "a", "b") == [([*items, *two["b"]], ["a-n0", "a-n1", "b-n0"])]
    assert parameters({}, "a") == [(["a"], ["a-not-in-this-tier"])]
    assert parameters({"a": items}) == []
    assert parameters({"a": items}, "a", fixtures="tmp_path") == []


def test_a_large_criterion_has_a_placeholder():
    many = [item("a", f"n{k}") for k in range(MAX_SEPARATE_TESTS + 1)]
    assert parameters({"a": many}, "a") == [(["a"], ["a-a-test-a-node-and-area"])]
    assert len(parameters({"a": many[:-1]}, "a")[0][0]) == MAX_SEPARATE_TESTS


# --- what stays


def function(
    planned: Item | str | None = None, *keys: str, name: str = "test[x]", path: str = "tests/t.py",
    marks: tuple[str, ...] = (), fixtures: tuple[str, ...] = ("verdict",),
) -> Any:  # fmt: skip
    """A collected test: of an item, or, as a text, one whose criterion is not planned."""
    keys = keys or ((planned.criterion,) if isinstance(planned, Item) else ())
    marked = {"criterion": SimpleNamespace(args=keys)} if keys else {}
    marked |= {mark: SimpleNamespace(args=()) for mark in marks}
    return SimpleNamespace(
        name=name, nodeid=f"{path}::{name}", path=ROOT / path, fixturenames=fixtures,
        get_closest_marker=marked.get,
        callspec=None if planned is None else SimpleNamespace(params={"verdict": planned}),
    )  # fmt: skip


@pytest.fixture
def session() -> Any:
    deselected: list[Any] = []
    state = SimpleNamespace(
        options=SimpleNamespace(cluster="auto", allow_destructive=False),
        thresholds=SimpleNamespace(
            criteria={
                "a": SimpleNamespace(tier="standard"), "d": SimpleNamespace(tier="destructive")
            }
        ),
        admits=lambda planned: planned.subject != "elsewhere",
    )  # fmt: skip
    return SimpleNamespace(
        state=state, deselected=deselected, rootpath=ROOT, stash={SESSION_STATE: state},
        hook=SimpleNamespace(pytest_deselected=lambda *, items: deselected.extend(items)),
    )  # fmt: skip


def kept(session: Any, *tests: Any) -> list[Any]:
    session.deselected.clear()
    items = [*tests]
    collection.pytest_collection_modifyitems(session, items)
    assert {*map(id, items)} | {*map(id, session.deselected)} == {*map(id, tests)}
    return items


def test_planned_tests_stay_and_others_go(session):
    planned, unplanned = function(item()), function("a", "a")
    elsewhere, mine = function(item("a", "elsewhere")), function(path="tests/selftests/t.py")
    assert kept(session, planned, unplanned, elsewhere, mine) == [planned, mine]
    outside = function(path="mine/t.py")
    assert kept(session, outside) == [outside]
    session.state.options.cluster = "replay"
    assert kept(session, planned, mine) == [planned]


def test_destructive_tests_need_to_be_allowed_or_planned_as_such(session):
    of_tier = function(item("d"), marks=("destructive",))
    of_mark = function(item("a"), marks=("destructive",))
    assert kept(session, of_tier, of_mark) == [of_tier]
    session.state.options.allow_destructive = True
    assert kept(session, of_tier, of_mark) == [of_tier, of_mark]


def test_a_placeholder_stays_until_its_area_stands_for_it(session):
    name = "test[a-a-test-a-node-and-area]"
    placeholder = function("a", "a", name=name)
    assert kept(session, placeholder) == [placeholder]
    assert kept(session, function("a", "a", name=name, marks=("destructive",))) == []


@pytest.mark.parametrize(
    ("test", "said"),
    [
        (function(path="tests/t.py"), "has no criterion: mark it"),
        (function(item("aa")), r"no criterion 'aa', did you mean 'a'"),
        (function(item(), fixtures=("tmp_path",)), "judges nothing: take the fixtures"),
    ],
)
def test_a_test_that_judges_nothing_ends_the_session(session, test, said):
    with pytest.raises(pytest.UsageError, match=said):
        kept(session, test)
    session.workerinput = {}
    kept(session, test)
    assert session.stash[USAGE_ERROR]


def test_a_replay_knows_no_criterion_that_came_later(session, monkeypatch):
    later = function("later.one", "later.one")
    monkeypatch.setattr(collection, "is_shipped", lambda key: key == "later.one")
    with pytest.raises(pytest.UsageError, match="no criterion 'later"):
        kept(session, later)
    session.state.options.cluster = "replay"
    assert kept(session, later) == []
    with pytest.raises(pytest.UsageError, match="no criterion 'mistyped'"):
        kept(session, function("mistyped", "mistyped"))


def test_a_worker_reports_the_mistake_instead_of_its_tests(monkeypatch):
    session: Any = SimpleNamespace(config=SimpleNamespace(stash={}), items=["t"])
    collection.pytest_collection_finish(session)
    assert session.items == ["t"]
    made = []
    monkeypatch.setattr(
        UsageErrorItem, "from_parent",
        lambda parent, *, name, nodeid: made.append(nodeid) or "the mistake",
    )  # fmt: skip
    session.config.stash[USAGE_ERROR] = "no criterion"
    collection.pytest_collection_finish(session)
    assert session.items == ["the mistake"]
    assert made == ["usage error: no criterion"]


# --- a large fleet


class Function(pytest.Function):
    """A collected function that needs no session."""

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def from_parent(cls, parent: Any, **more: Any) -> Any:
        raise NotImplementedError


def placeholder(name: str) -> Any:
    made = object.__new__(Function)
    made.name = made._nodeid = name  # by which pytest compares
    return made


def node_test(*planned: Item) -> Any:
    made = object.__new__(NodeTest)
    made.planned, made._nodeid = [*planned], f"node-{id(planned)}"
    return made


def test_tests_of_nodes_take_the_place_of_placeholders(session, monkeypatch):
    full = node_test(item("a"), item("a", "elsewhere"))
    empty = node_test(item("a", "elsewhere"))
    asked = []
    monkeypatch.setattr(
        collection, "node_tests", lambda tests: asked.append(tests) or [full, empty]
    )
    one, other = placeholder("test[a-a-test-a-node-and-area]"), placeholder("test[a-n0]")
    items = [one, other]
    collection._add_node_tests(session, items)
    assert items == [full, other]
    assert [i.subject for i in full.planned] == ["n0"]
    assert asked == [[one]]
    items = [other]
    collection._add_node_tests(session, items)
    assert (items, len(asked)) == ([other], 1)
    session.workerinput = {}
    with pytest.raises(pytest.UsageError, match="-n: above 16 nodes"):
        collection._add_node_tests(session, [one])


def test_what_a_test_was_made_for():
    planned = item()
    assert collection.planned_items(function(planned)) == [planned]
    assert collection.planned_items(function("a", "a")) == []
    assert collection.planned_items(function()) == []
    assert collection.planned_items(SimpleNamespace()) == []  # type: ignore[arg-type]
    assert collection.planned_items(node_test(planned, planned)) == [planned, planned]
