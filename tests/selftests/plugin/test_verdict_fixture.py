"""A test's comparison is held against the limits; another one is an error of the suite."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import operator
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.errors import NotMeasured, WrongComparison
from fixtures.paths import CHECKOUT
from fixtures.plugin import verdict_fixture
from fixtures.plugin.state import SESSION_STATE
from fixtures.plugin.verdict_fixture import Agreed, Measured
from fixtures.thresholds import loader
from fixtures.verdict.model import Outcome, Verdict
from tests.selftests import support
from tests.selftests.sandboxes import copy_checkout

pytestmark = pytest.mark.cpu

SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
    ">": operator.gt, "<": operator.lt,
}  # fmt: skip
ORDER = {"nodes": 1, "gpus_per_node": 8, "gpu_model": "H200 SXM", "tenants": "several"}
CRITERIA = (
    loader.load(support.SHIPPED).criteria,
    loader.load_with_contract(support.SHIPPED, ORDER).criteria,
)
"""Without an order, and with one that changes what some criteria compare."""


def functions_by_key() -> dict[str, Callable[..., None]]:
    """Criterion -> its acceptance test."""
    found = {}
    for path in (CHECKOUT / "tests").glob("test_*.py"):
        for name, function in vars(importlib.import_module(f"tests.{path.stem}")).items():
            if name.startswith("test_"):
                for mark in function.pytestmark:
                    found |= dict.fromkeys(mark.args if mark.name == "criterion" else (), function)
    return found


def verdict(key: str, outcome: Outcome) -> Verdict:
    return Verdict(criterion=key, title="", subject="n0", outcome=outcome, value=1.0)


def fixture_of(name: str) -> Callable[..., Any]:
    """The function behind a fixture of pytest."""
    function: Callable[..., Any] = getattr(verdict_fixture, name)._get_wrapped_function()
    return function


@pytest.mark.parametrize(
    ("outcome", "raised", "properties"),
    [
        (Outcome.PASS, None, ["verdict"]), (Outcome.FAIL, None, ["verdict"]),
        (Outcome.NOT_MEASURED, NotMeasured, ["verdict"]),
        (Outcome.NOT_APPLICABLE, pytest.skip.Exception, ["verdict"]),
        (Outcome.WAIVED, pytest.xfail.Exception, ["verdict"]),
        (Outcome.RECORDED, None, ["verdict", "recorded"]),
    ],
)  # fmt: skip
def test_the_fixture_attaches_the_verdict_and_raises_what_is_no_result(
    monkeypatch, outcome, raised, properties
):
    stated = dataclasses.replace(verdict("gemm.bf16", outcome), reason="because")
    asked = []
    monkeypatch.setattr(
        verdict_fixture, "verdict_on", lambda state, item: asked.append((state, item)) or stated
    )
    request = SimpleNamespace(
        param="the item", node=SimpleNamespace(user_properties=[]),
        config=SimpleNamespace(stash={SESSION_STATE: "the state"}),
    )  # fmt: skip
    if raised is None:
        assert fixture_of("verdict")(request) is stated
    else:
        with pytest.raises(raised, match="because"):
            fixture_of("verdict")(request)
    assert asked == [("the state", "the item")]
    attached = dict(request.node.user_properties)
    assert list(attached) == properties
    assert Verdict.from_json(json.loads(attached["verdict"])) == stated
    if "recorded" in attached:
        assert attached["recorded"] == f"RECORDED {stated.measured}"


def test_a_comparison_is_the_judge_s_and_must_be_that_of_the_limits():
    for outcome, holds in (
        (Outcome.PASS, True), (Outcome.RECORDED, True), (Outcome.FAIL, False),
        (Outcome.NOT_MEASURED, False),
    ):  # fmt: skip
        stated = verdict("x", outcome)
        agreed = Agreed(stated)
        for sign in (">=", "<=", "=="):
            assert SIGNS[sign](Measured(stated, [sign]), agreed) is holds
            assert SIGNS[sign](Measured(stated, ()), agreed) is holds  # nothing was agreed
        for sign in ("!=", ">", "<", "=="):
            with pytest.raises(WrongComparison, match="want `measured >= agreed`"):
                SIGNS[sign](Measured(stated, [">="]), agreed)
        for sign in ("!=", ">", "<"):
            with pytest.raises(WrongComparison, match="want `measured == agreed`"):
                SIGNS[sign](Measured(stated, ["=="]), agreed)
            assert SIGNS[sign](Measured(stated, [sign]), agreed) is holds
    with pytest.raises(TypeError, match="compares with agreed only, not with 3"):
        assert Measured(stated, [">="]) >= 3


def test_what_is_compared_is_shown_with_its_unit():
    stated = dataclasses.replace(verdict("x", Outcome.PASS), unit="GB/s", limit=">= 80")
    assert repr(Measured(stated, ())) == "1.0 GB/s"
    assert repr(Agreed(stated)) == ">= 80 GB/s"


def test_the_limits_of_a_criterion_say_how_it_is_compared():
    stated = verdict("x", Outcome.PASS)
    criteria = {"x": SimpleNamespace(comparisons=["<="])}
    state = SimpleNamespace(thresholds=SimpleNamespace(criteria=criteria))
    request = SimpleNamespace(config=SimpleNamespace(stash={SESSION_STATE: state}))
    measured = fixture_of("measured")(request, stated)
    agreed = fixture_of("agreed")(stated)
    assert measured <= agreed
    with pytest.raises(WrongComparison):
        assert measured >= agreed


def test_the_comparison_of_every_test_is_that_of_its_criterion_and_every_other_is_refused():
    tests = functions_by_key()
    assert tests.keys() == CRITERIA[0].keys()
    directed = 0
    for key, function in tests.items():
        for criteria in CRITERIA:
            signs = criteria[key].comparisons
            assert len(signs) <= 1, f"{key}: limits compare in different ways: {signs}"
            directed += len(signs)
            for outcome in (Outcome.PASS, Outcome.RECORDED):
                stated = verdict(key, outcome)
                function(measured=Measured(stated, signs), agreed=Agreed(stated))
            failed = verdict(key, Outcome.FAIL)
            with pytest.raises(AssertionError):
                function(measured=Measured(failed, signs), agreed=Agreed(failed))
            for sign in SIGNS.keys() - (signs or {">=", "<=", "=="}):
                for outcome in (Outcome.PASS, Outcome.FAIL, Outcome.RECORDED):
                    stated = verdict(key, outcome)
                    with pytest.raises(WrongComparison) as refused:
                        SIGNS[sign](Measured(stated, signs), Agreed(stated))
                    said = str(refused.value)
                    assert f"{key}: its test asserts `measured {sign} agreed`" in said
                    assert all(f"`measured {right} agreed`" in said for right in signs)
    assert directed > len(tests), "most criteria have a direction"


def test_a_flipped_test_is_refused_whichever_it_is():
    """The test's own text, with another operator in it."""
    for key, function in functions_by_key().items():
        if not (signs := CRITERIA[0][key].comparisons):
            continue
        tree = ast.parse(inspect.getsource(function))
        (body,) = tree.body[0].body  # type: ignore[attr-defined]
        flipped = {"GtE": ast.LtE, "LtE": ast.GtE, "Eq": ast.GtE}
        body.test.ops = [flipped[type(body.test.ops[0]).__name__]()]
        code = compile(ast.unparse(body), key, "exec")
        stated = verdict(key, Outcome.PASS)
        with pytest.raises(WrongComparison, match=re.escape(key)):
            exec(code, {"measured": Measured(stated, signs), "agreed": Agreed(stated)})


def test_a_run_with_a_flipped_test_is_incomplete_and_accuses_no_node(tmp_path):
    checkout = tmp_path / "checkout"
    copy_checkout(checkout, selftests=False)
    path = checkout / "tests" / "test_training.py"
    text = path.read_text()
    at = text.index('"training_single.tokens"')
    path.write_text(text[:at] + text[at:].replace("measured >= agreed", "measured <= agreed", 1))
    run = support.run_pytest(
        "-m", "multinode", "--cluster", "replay", f"--from={support.DATA / 'h200-1x2-training'}",
        f"--run-dir={tmp_path / 'run'}", "-q", "-k", "training_single", checkout=checkout,
    )  # fmt: skip
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert (run.returncode, verdict["verdict"]) == (2, "INCOMPLETE"), run.stdout
    (row,) = [r for r in verdict["criteria"] if r["criterion"] == "training_single.tokens"]
    assert row["outcome"] == "NOT_MEASURED"
    assert (
        "the suite failed: training_single.tokens: its test asserts `measured <=" in row["reason"]
    )
    assert "want `measured >= agreed`" in run.stdout
    assert "Traceback" not in run.stdout
    assert (tmp_path / "run" / "bad-nodes.txt").read_text() == ""
