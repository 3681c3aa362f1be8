"""An absence as JSON, what it is about, and metrics of which a rank reports nothing."""

from __future__ import annotations

import pytest

from fixtures.records.absence import Absence, Kind, of_metrics, silent_metrics
from fixtures.records.files import RecordError

pytestmark = pytest.mark.cpu

GAP = Absence(metric="rate", kind=Kind.FAULT, why="GpuIsLost", at={"size": 8})


def test_an_absence_is_read_as_it_was_written():
    assert Absence.from_json(GAP.to_json()) == GAP
    plain = Absence(metric="rate", kind=Kind.GUEST, why="too old")
    assert plain.to_json() == {"metric": "rate", "kind": "refused by a guest", "why": "too old"}
    assert Absence.from_json(plain.to_json()) == plain


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"kind": "no such"}, "'no such' is not a kind"), ({"kind": 3}, "kind is 3"),
        ({"why": None}, "why is None"), ({"at": {"size": [8]}}, r"\[8\] is not a value"),
        ({"at": []}, r"at is \[\]"), ({"more": 1}, r"unknown fields \['more'\]"),
    ],
)  # fmt: skip
def test_what_is_no_absence_is_refused(change, what):
    with pytest.raises(RecordError, match=what):
        Absence.from_json(GAP.to_json() | change)
    with pytest.raises(RecordError, match="must be a JSON object"):
        Absence.from_json("rate")


def test_an_absence_is_about_its_metric_and_its_point():
    for metric, at, about in (
        ("rate", {"size": 8}, True), ("rate", {"size": 16}, False), ("other", {"size": 8}, False),
        ("rate", {"size": 8, "to": 1}, True), ("rate", {}, True),
    ):  # fmt: skip
        assert GAP.concerns(metric, at) is about
    every = Absence(metric="", kind=Kind.FAULT, why="x")
    assert every.concerns("rate", {})
    assert every.concerns("other", {"size": 8})
    no_time = Absence(metric="rate", kind=Kind.NO_TIME, why="slow", at={"size": 8})
    assert no_time.concerns("rate", {"size": 8})
    assert not no_time.concerns("rate", {}), "what asks for no size does not owe this one"


def test_a_metric_without_value_and_reason_is_an_error_of_the_suite():
    said = of_metrics(Kind.NOT_THERE, {"b": "no port"})
    (silent,) = silent_metrics(["a", "b", "c"], ["a"], said)
    assert (silent.metric, silent.kind) == ("c", Kind.SILENT)
    assert "error of the suite" in silent.why
    assert silent_metrics(["a"], [], [Absence(metric="", kind=Kind.FAULT, why="x")]) == []
