"""Fields of records, ranks and measurements: their types, and which ranks are where they belong."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fixtures.records.fields import (
    MEASUREMENT_FIELDS,
    OPTIONAL_FIELDS,
    check_fields,
    epoch_s,
    goes_back,
    has_exact_types,
    is_number,
    misplaced_ranks,
    refuse_not_finite,
)
from fixtures.records.files import RecordError

pytestmark = pytest.mark.cpu


def refusal(check: Any, *arguments: Any, **more: Any) -> str:
    """What a check says; "" where it lets its arguments pass."""
    try:
        check(*arguments, **more)
    except RecordError as error:
        return str(error)
    return ""


def test_a_flag_is_no_number():
    for value, number in ((1, True), (1.5, True), (True, False), ("1", False), (None, False)):
        assert is_number(value) is number


@pytest.mark.parametrize(
    ("times", "back"),
    [([1, 2, 3], False), ([1, 2, 0.5, 1.5], False), ([10, 12, 7.1, 9], False), ([10, 4], True),
     ([1, 2, 0.5, 1, 0.2], True), ([5, 4, 3, 2], True), ([1], False), ([], False)],
)  # fmt: skip
def test_a_clock_may_be_set_back_once_by_some_seconds(times, back):
    assert goes_back(times) is back


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [("1970-01-01T00:00:01+00:00", 1.0), ("1970-01-01T01:00:01+01:00", 1.0),
     ("1970-01-01T00:00:01", 1.0), ("2026", None), (None, None), ({}, None), ("9999999", None)],
)  # fmt: skip
def test_a_stamp_is_seconds_of_any_zone_and_anything_else_is_none(stamp, seconds):
    assert epoch_s(stamp) == seconds


def test_only_name_and_unit_of_a_measurement_must_be_there():
    assert set(MEASUREMENT_FIELDS) - OPTIONAL_FIELDS == {"metric", "unit"}
    least = {"metric": "bf16", "unit": "TFLOPS"}
    for data, exact in (
        (least, True),
        ({**least, "samples": [1.0], "value": None, "started": 1}, True),
        ({"metric": "bf16"}, False),
        ({"unit": "TFLOPS"}, False),
        ({**least, "other": 1}, False),
        ({**least, "samples": ()}, False),
        ({**least, "started": True}, False),
        ({**least, "metric": 3}, False),
    ):
        assert has_exact_types(data) is exact, data


TYPES = {"name": (str,), "count": (int,), "any": (str, int)}
FIELDS: list[tuple[Any, dict[str, Any], str]] = [
    # data, options of the check, what it says
    ({"name": "a", "count": 1, "any": 2}, {}, ""),
    ("text", {}, "a thing must be a JSON object, not 'text'"),
    ({"name": "a"}, {}, "thing lacks any, count"),
    ({"name": "a", "any": "b"}, {"optional": {"count"}}, ""),
    ({"any": "b"}, {"optional": {"count"}}, "thing lacks name"),
    ({"name": "a", "count": 1, "any": 2, "x": 3}, {}, "thing has unknown fields ['x']"),
    ({"name": "a", "count": 1, "any": 2, "x": 3}, {"reject_unknown": False}, ""),
    ({"name": 5, "count": 1, "any": 2}, {}, "thing: name is 5"),
    ({"name": "a", "count": True, "any": 2}, {}, "thing: count is True"),
    ({"name": "a", "count": 1, "any": True}, {}, ""),
    ({"name": "a", "count": "x" * 99, "any": 2}, {}, "thing: count is 'xxxxxxxxxx"),
]


def test_fields_have_their_types():
    for data, options, says in FIELDS:
        found = refusal(check_fields, "thing", data, TYPES, **options)
        assert (found == "") == (says == ""), (data, options, found)
        assert found.startswith(says)
        assert len(found) < 70


def test_a_number_is_finite_and_of_a_size_that_somebody_measured():
    fine = {"a": [1, 2.5, True, "inf", None], "b": {"c": -(2**1000)}, "d": 2**1000}
    assert refusal(refuse_not_finite, "", fine) == ""
    for data, says in (
        ({"a": [1, math.nan]}, "a[1]: nan is not finite"),
        ({"a": {"b": [math.inf]}}, "a.b[0]: inf is not finite"),
        (-math.inf, "rank: -inf is not finite"),
        ({"a": 2**1000 + 1}, "a: a number of 1001 bits"),
        ([-(2**1001)], "rank[0]: a number of 1002 bits"),
    ):
        path = "" if isinstance(data, dict) else "rank"
        assert refusal(refuse_not_finite, path, data) == says


def entries(*ranks: tuple[Any, str]) -> list[Any]:
    return [{"rank": number, "node": node} for number, node in ranks]


ONE, TWO = ["a"], ["a", "b"]
FULL = entries((0, "a"), (1, "a"), (2, "b"), (3, "b"))
PLACES: list[tuple[list[str], int, list[Any], Any]] = [
    # nodes, ranks that were started, entries, what is void, or what is refused
    (TWO, 4, FULL, {}),
    (ONE, 2, entries((0, "a"), (1, "a")), {}),
    (TWO, 4, FULL[:3], {"b": "1 of 2 ranks"}),
    (TWO, 4, FULL[:2], {"b": "0 of 2 ranks"}),
    (TWO, 4, entries((0, "a"), (1, "a"), (1, "b"), (3, "b")),
     {"a": "rank 1 is there 2 times", "b": "rank 1 is there 2 times"}),
    (TWO, 4, entries((0, "a"), (1, "a"), (2, "b"), (4, "b")), {"b": "rank 4 of 4"}),
    (TWO, 4, entries((-1, "a"), (1, "a"), (2, "b"), (3, "b")), {"a": "rank -1 of 4"}),
    (TWO, 4, entries((0, "a"), ("1", "a"), (2, "b"), (3, "b")), {"a": "rank 1 of 4"}),
    (TWO, 4, [*FULL[:3], {"node": "b"}], {"b": "1 of 2 ranks"}),
    (ONE, 2, entries((0, "a")), "ranks [0] are not the 2 that were started"),
    (ONE, 2, entries((1, "a"), (0, "a")), "ranks [1, 0] are not the 2"),
    (TWO, 4, [*FULL, {"rank": 4, "node": "c"}], "ranks of c, which is not among its nodes a, b"),
    (TWO, 4, entries((1, "a"), (0, "a"), (2, "b"), (3, "b")), "ranks [1, 0, 2, 3] are not the 4"),
    (["a", "b", "c"], 4, FULL, {"a": "2 of 1 rank", "b": "2 of 1 rank", "c": "0 of 1 rank"}),
]  # fmt: skip


def test_ranks_are_numbered_and_each_node_has_equally_many():
    for nodes, size, given, expected in PLACES:
        if isinstance(expected, str):
            assert expected in refusal(misplaced_ranks, nodes, size, given), given
        else:
            assert misplaced_ranks(nodes, size, given) == expected, given
    # All numbers are there, but not one of them on the second node.
    one_node = misplaced_ranks(TWO, 2, entries((0, "a"), (1, "a")))
    assert one_node == {"a": "2 of 1 rank", "b": "0 of 1 rank"}
