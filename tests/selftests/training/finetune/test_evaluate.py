"""The evaluation of a fine-tuning: grades of answers, and how they are judged."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from fixtures.verdict.model import Outcome
from tests.selftests.finetuning_cases import CALL, ROW, judged
from training.finetune import evaluate, glaive, settings
from training.finetune.settings import InputError

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


# --- answers


class Replies:
    """A model and its tokenizer in one: the reply to any prompt is `yes`."""

    eos_token, eos_token_id, pad_token_id = "<end>", 1, 0

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def parameters(self) -> Any:
        return iter([torch.zeros(1)])

    def eval(self) -> None:
        pass

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any:
        return {"input_ids": [2] * len(text)}

    def generate(self, *, input_ids: Any, attention_mask: Any, **how: Any) -> Any:
        self.batches.append((input_ids, attention_mask, how["max_new_tokens"]))
        return input_ids

    def batch_decode(self, ids: Any, **how: Any) -> list[str]:
        return [" yes "] * len(ids)


def test_calls_are_answered_sixteen_at_a_time_and_padded_on_the_left():
    short, long = glaive.parse(ROW), glaive.parse({**ROW, "system": "SYSTEM: " + "x" * 50})
    model = Replies()
    found = evaluate.generate_answers(model, model, [long] + [short] * 19)
    assert [len(ids) for ids, _, _ in model.batches] == [16, 4]
    assert (len(found), {a.text for a in found}) == (20, {"yes"})
    assert {a.expected for a in found} == {CALL}
    ids, mask, most = model.batches[1]
    assert ids[0, 0] == 0, "the shorter prompts come first in the batch"
    assert (ids[3, 0], mask[0, 0], mask[0, -1]) == (2, 0, 1)
    assert most == len(CALL) + len(CALL) // 2
    longer = {**ROW, "chat": ROW["chat"].replace("Oslo", "O" * 400)}
    evaluate.generate_answers(model, model, [glaive.parse(longer)])
    assert model.batches[-1][2] == 200


def test_the_settings_of_a_final_are_read_again(tmp_path):
    wanted = settings.load(settings.find("small"))
    (tmp_path / "settings.json").write_text(json.dumps(wanted.to_json()))
    assert evaluate.settings_of(tmp_path) == wanted
    for text in ("{", "{}", '{"name": "x", "model": {"nothing": 1}}'):
        (tmp_path / "settings.json").write_text(text)
        with pytest.raises(InputError, match=r"is not the final/ of a training"):
            evaluate.settings_of(tmp_path)
