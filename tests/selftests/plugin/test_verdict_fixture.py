"""A test's comparison is held against the limits; another one is an error of the suite."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import operator
import re
from collections.abc import Callable
from typing import Any

import pytest

from fixtures.errors import WrongComparison
from fixtures.paths import CHECKOUT
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
