"""The evaluation of a fine-tuning: grades of answers, and how they are judged."""

from __future__ import annotations

import pytest

from fixtures.verdict.model import Outcome
from tests.selftests.finetuning_cases import CALL, judged
from training.finetune import evaluate

pytestmark = pytest.mark.cpu


# --- grades of answers

OTHER_NAME = CALL.replace('"f"', '"g"')
OTHER_CITY = CALL.replace("Oslo", "Lima")
OTHER_ORDER = CALL.replace('"city": "Oslo", "n": 2', '"n": 2, "city": "Oslo"')


@pytest.mark.parametrize(
    ("said", "grades"),
    [
        (CALL, "parses function arguments exact"),
        (f" {CALL} ", "parses function arguments exact"),
        (OTHER_ORDER, "parses function arguments"),
        (OTHER_CITY, "parses function"),
        (OTHER_NAME, "parses"),
        (CALL[:-3], ""),
        ("I cannot do that.", ""),
    ],
)
def test_an_answer_gets_the_grades_that_it_deserves(said, grades):
    found = evaluate.Answer(CALL, said).grades()
    assert " ".join(name for name, given in found.items() if given) == grades


def test_wrong_function_names_are_red(limits):
    """Fault: a third of the answers calls another function."""
    answers = [evaluate.Answer(CALL, OTHER_NAME if k % 3 == 0 else CALL) for k in range(30)]
    rates = evaluate.grade_rates(answers)
    assert judged(limits, "finetune.parses", rates["parses"]).ok
    verdict = judged(limits, "finetune.function", rates["function"])
    assert verdict.outcome is Outcome.FAIL
    assert verdict.value == pytest.approx(100 * 2 / 3)
    wrong = [evaluate.Answer(CALL, OTHER_CITY)] * 2 + [evaluate.Answer(CALL, CALL)]
    for name in ("arguments", "exact"):
        verdict = judged(limits, f"finetune.{name}", evaluate.grade_rates(wrong)[name])
        assert verdict.outcome is Outcome.FAIL
    with pytest.raises(ValueError, match="nothing to evaluate"):
        evaluate.grade_rates([])


@pytest.mark.parametrize("key", ["parses", "function", "arguments", "exact", "loss", "speedup"])
def test_what_was_not_measured_never_passes(limits, key):
    assert judged(limits, f"finetune.{key}", None).outcome is Outcome.NOT_MEASURED
