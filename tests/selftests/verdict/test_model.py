"""A verdict as text and as a row of verdict.json."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from fixtures.verdict import model
from fixtures.verdict.model import Outcome, Verdict
from tests.selftests.verdict.made import verdict

pytestmark = pytest.mark.cpu

GPU = {"node": "worker0", "gpu": 1, "uuid": "GPU-1", "value": 541}

LINES: list[tuple[dict[str, Any], str]] = [
    ({"value": 5}, "worker0 own.rate: 5 GB/s"),
    ({"worst": GPU, "value": 541.0, "limit": ">= 605", "margin": -0.106},
     "worker0 gpu1 own.rate: 541 GB/s, limit >= 605 (-11 %)"),
    ({"worst": {**GPU, "part": "mlx5_0"}, "value": 5, "limit": "<= 0"},
     "worker0 mlx5_0 own.rate: 5 GB/s, limit <= 0"),
    ({"value": 5, "limit": "recorded, not judged", "margin": 0.5},
     "worker0 own.rate: 5 GB/s, recorded, not judged"),
    ({"reason": "no record", "notes": ["first", "", "second"]},
     "worker0 own.rate: not measured; no record; first; second"),
    ({"job": "42", "record": "x.json", "next_step": "look"},
     "worker0 own.rate: not measured\n  job 42, records/x.json; next: look"),
    ({"record": "x.json"}, "worker0 own.rate: not measured\n  records/x.json"),
    ({"next_step": "look"}, "worker0 own.rate: not measured\n  next: look"),
]  # fmt: skip


def test_a_verdict_is_one_line_and_one_for_evidence_and_next_step():
    for given, line in LINES:
        assert verdict(**given).line == line


def test_a_value_is_shown_with_its_unit():
    for given, text in (
        ({}, "not measured"),
        ({"value": 3}, "3 GB/s"),
        ({"outcome": Outcome.PASS}, "None GB/s"),
        ({"value": 1234.567}, "1235 GB/s"),
        ({"value": "H200 SXM"}, "H200 SXM"),
        ({"value": 3, "unit": ""}, "3"),
    ):
        assert verdict(**given).measured == text


def test_only_a_pass_is_fine():
    for outcome in Outcome:
        assert verdict(outcome=outcome).ok is (outcome is Outcome.PASS)


FULL = verdict(
    outcome=Outcome.FAIL, value=541, worst=GPU, notes=["a note"], cause_nodes=["worker0"],
    limit=">= 605", devices={"planned": 2, "measured": 1},
)  # fmt: skip


def test_a_verdict_survives_being_written():
    for given in (FULL, verdict()):
        row = given.to_json()
        assert row["outcome"] == given.outcome.value
        assert type(row["outcome"]) is str
        again = Verdict.from_json(row)
        assert again == given
        assert again.outcome is given.outcome
        assert pickle.loads(pickle.dumps(given)) == given
        assert Verdict.of_row(dict(row)) == given
        assert Verdict.of_row(dict(row)).outcome is given.outcome


def test_a_row_of_an_earlier_run_may_have_a_code_and_lack_what_is_new():
    row = FULL.to_json()
    old = {k: v for k, v in row.items() if k != "cause_nodes"} | {"id": "A1"}
    for read in (Verdict.from_json, Verdict.of_row):
        found = read(dict(old))
        assert (found.outcome, found.cause_nodes, found.value) == (Outcome.FAIL, [], 541)
        with pytest.raises(TypeError):
            read(row | {"other": 1})
        with pytest.raises(TypeError):
            read({k: v for k, v in row.items() if k != "title"})


class Row(dict[str, Any]):
    """A mapping that is not a plain dict."""


def test_a_row_that_is_no_plain_dict_is_read_with_a_copy():
    row = Row(FULL.to_json())
    assert Verdict.of_row(row) == FULL
    assert row["outcome"] == "FAIL", "the row was not changed"
    plain = FULL.to_json()
    assert Verdict.of_row(plain).__dict__ is plain


def test_read_verdicts_share_what_is_equal():
    rows = [FULL.to_json(), verdict().to_json(), verdict().to_json()]
    for row in rows:
        row["devices"] = dict(row["devices"])
        row["title"] = "".join(("a t", "itle"))
    first, second, third = map(Verdict.from_json, rows)
    assert second.devices is third.devices
    assert second.devices == {"planned": 2, "measured": 0}
    assert first.devices == {"planned": 2, "measured": 1}
    assert first.title is second.title
    assert second.notes is third.notes
    assert second.notes is second.cause_nodes
    assert first.worst == GPU
    assert isinstance(first.outcome, Outcome)
    again = Verdict.from_json({**rows[0], "worst": dict(GPU)})
    assert again.worst == first.worst
    assert again.worst is not first.worst, "the device is each verdict's own"


def test_the_deciding_device_is_a_gpu_or_a_part():
    for worst, part, device in (
        (GPU, "gpu1", "gpu1 GPU-1"), ({"part": "all GPUs", "gpu": None}, "all GPUs", "all GPUs"),
        ({"part": "the node", "gpu": None}, "", ""), ({"gpu": None, "uuid": "GPU-1"}, "", "GPU-1"),
        (None, "", ""), ({}, "", ""),
    ):  # fmt: skip
        assert (model.part_of(worst), model.device_of(worst)) == (part, device)
