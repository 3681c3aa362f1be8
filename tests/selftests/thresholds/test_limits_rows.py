"""One row of a criterion's limits: what it may say, what it refers to, and what it comes to."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.errors import ConfigError
from fixtures.thresholds import limits
from fixtures.thresholds.contract import Contract
from fixtures.thresholds.limits import Limit, Value, choose, possible_facts
from tests.selftests.verdict.made import row

pytestmark = pytest.mark.cpu

ORDER = Contract(nodes=4, gpus_per_node=8, gpu_model="H200 SXM", shared_tb=200, driver="535.10")


VALUES: list[tuple[Any, Value, str]] = [
    (605, Value(605.0), "605"),
    (0.5, Value(0.5), "0.5"),
    ("0.60 of ceiling", Value(0.6, of_ceiling=True), "0.6 of ceiling"),
    ("0.8 of model", Value(0.8, of_model=True), "0.8 of model"),
    ("1 of cluster.shared_tb", Value(1.0, of_contract="shared_tb"), "1 of cluster.shared_tb"),
]


def test_a_number_or_a_fraction_is_read_and_written():
    for given, value, text in VALUES:
        assert limits._value(given) == value
        assert str(value) == text
        assert value.fraction is (" of " in text)
    for wrong, says in (
        ("605", "write 605"), ("1e3", "write 1000 or"), ("fast", "expected a number or"),
        (True, "expected a number or"), (None, "expected a number or"), ([1], "expected a number"),
        ("0.5 of cluster.shard_tb", "no field 'shard_tb'"), ("0.5 of nothing", "expected a num"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            limits._value(wrong)


def test_a_fraction_is_one_of_what_it_refers_to():
    assert Value(5).resolve(None) == 5
    assert Value(0.5, of_ceiling=True).resolve(100, None, 30) == 50
    assert Value(0.5, of_model=True).resolve(100, None, 30) == 15
    assert Value(0.5, of_contract="shared_tb").resolve(None, ORDER) == 100
    for value, arguments, says in (
        (Value(0.5, of_ceiling=True), (None, ORDER, 30), "has no ceiling"),
        (Value(0.5, of_model=True), (100, ORDER, None), "has no model"),
        (Value(0.5, of_contract="driver"), (100, ORDER), "cluster.driver is not a number"),
        (Value(0.5, of_contract="shared_tb"), (100, None), "cluster: is empty"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=says):
            value.resolve(*arguments)


def test_what_must_be_equal_is_plain_or_a_field_of_the_order():
    for value in ("default", 18, 0.5, True, "cluster.nodes"):
        assert limits._equals(value) == value
    for wrong, says in (("cluster.nods", "no field 'nods'"), (None, "expected text"), ([], "exp")):
        with pytest.raises(ValueError, match=says):
            limits._equals(wrong)


def test_bounds_have_two_ends_of_which_one_may_be_open():
    for given, bounds in (
        ([1, 2.5], (1, 2.5)), ([None, 5], (None, 5)), ([1, None], (1, None)), ([1, 1], (1, 1)),
    ):  # fmt: skip
        assert limits._bounds(given) == bounds
    for wrong, says in (
        ([None, None], "with null for an open end"), ([1], "with null"), ([1, 2, 3], "with null"),
        ((1, 2), "with null"), (["x", 1], "with null"), ([True, 1], "with null"),
        (["1e3", None], "write 1000"), ([2, 1], "low end 2 is above the high end 1"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            limits._bounds(wrong)


def test_a_row_has_one_kind_of_limit_and_a_source():
    for given, says in (
        ({"source": "x"}, "no limit; a row has exactly one"),
        ({"source": "x", "fail_below": 1, "equals": 1}, "has fail_below and equals"),
        ({"source": "x", "calibrate": True, "recorded": "y"}, "has calibrate and recorded"),
        ({"fail_below": 1}, "missing key 'source'"),
        ({"fail_above": 1}, "missing key 'source'"),
        ({"equals": 1}, "missing key 'source'"),
        ({"source": "x", "equals": 1, "expect": 1}, "expect does not go with equals"),
        ({"calibrate": True, "expect": 1}, "expect does not go with calibrate"),
    ):
        with pytest.raises(ValueError, match=says):
            Limit.model_validate(given)
    for fine in ({"calibrate": True}, {"recorded": "x"}, {"source": "x", "fail_above": 2,
                                                          "expect": 1}):  # fmt: skip
        assert Limit.model_validate(fine).source == fine.get("source")


ROWS: list[tuple[dict[str, Any], str, str]] = [
    # row, the field of the order that it refers to, how it compares
    ({"fail_below": 1}, "", ">="),
    ({"fail_above": 1}, "", "<="),
    ({"equals": "default"}, "", "=="),
    ({"equals": 5}, "", "=="),
    ({"equals": "cluster.nodes"}, "nodes", "=="),
    ({"fail_below": "0.9 of cluster.shared_tb"}, "shared_tb", ">="),
    ({"fail_above": "0.9 of cluster.shared_tb"}, "shared_tb", "<="),
    ({"calibrate": True}, "", ""),
    ({"recorded": "x"}, "", ""),
]


def test_a_row_says_what_it_refers_to_and_how_it_compares():
    for given, field, sign in ROWS:
        assert (row(**given).refers_to, row(**given).comparison) == (field, sign), given


def test_the_conditions_of_a_row_are_its_model_and_its_facts():
    full = row(fail_below=1, model="L40S", when={"size": {"min": "1GiB"}, "nvls": True})
    assert list(full.conditions()) == ["model", "size", "nvls"]
    assert full.text() == "model=L40S, size>=1GiB, nvls=true"
    assert row(fail_below=1).text() == "no conditions"
    full.conditions().clear()
    assert len(full.all_conditions) == 3
    assert full.unresolved({"model": "L40S", "size": 2**30}) == ["nvls"]
    assert full.unresolved({"model": "L40", "size": 2**30}) is None
    assert full.may_apply_at({"size": 2**30}) is True
    assert full.may_apply_at({"size": 2**20}) is False
    assert full.may_apply_at({}) is True


def test_a_row_comes_to_a_number_with_its_text():
    for given, kind, value, text in (
        ({"recorded": "why"}, "recorded", None, "recorded, not judged"),
        ({"calibrate": True}, "calibrate", None, "to be calibrated"),
        ({"equals": "default"}, "equals", "default", "= default"),
        ({"equals": "cluster.nodes"}, "equals", 4, "= 4"),
        ({"equals": "cluster.driver"}, "equals", "535.10", "= 535.10"),
        ({"equals": 0}, "equals", 0, "= 0"),
        ({"fail_below": 12345.678}, "below", 12345.678, ">= 12345.7"),
        ({"fail_above": 84}, "above", 84, "<= 84"),
        ({"fail_below": "0.5 of ceiling"}, "below", 50, ">= 50 (0.5 of ceiling 100)"),
        ({"fail_below": "0.5 of model"}, "below", 15, ">= 15 (0.5 of model 30)"),
        ({"fail_below": "0.5 of cluster.shared_tb"}, "below", 100,
         ">= 100 (0.5 of cluster.shared_tb)"),
    ):  # fmt: skip
        found = row(**given, loose="new").resolve(100, ORDER, 30)
        assert (found.kind, found.value, found.text, found.expect) == (kind, value, text, None)
        assert found.loose == "new"
        assert found.source == ("why" if kind == "recorded" else "x")
    expected = row(fail_below="0.5 of ceiling", expect="0.6 of ceiling").resolve(100, None)
    assert expected.expect == 60
    assert Limit.model_validate({"calibrate": True}).resolve(None, None).source == ""
    with pytest.raises(ConfigError, match="cluster: is empty"):
        row(equals="cluster.nodes").resolve(None, None)


def test_the_row_with_the_most_conditions_is_chosen():
    any_, eight = row(fail_below=1), row(fail_below=2, when={"gpus": 8})
    both = row(fail_below=3, when={"gpus": 8, "nodes": 1})
    rows = [any_, eight, both]
    assert choose("x", rows, {"gpus": 8, "nodes": 1}) is both
    assert choose("x", rows, {"gpus": 8, "nodes": 2}) is eight
    assert choose("x", rows, {"gpus": 4}) is any_
    with pytest.raises(limits.UnknownFact, match=r"x: with gpus=8 .* depends on nodes, which is"):
        choose("x", rows, {"gpus": 8})
    with pytest.raises(limits.UnknownFact, match="with no conditions the limit depends on gpus"):
        choose("x", [any_, eight], {})
    open_ = row(fail_below=4, when={"nvls": True})
    assert choose("x", [both, open_], {"gpus": 8, "nodes": 1}) is both, "it says more in any case"
    with pytest.raises(limits.UnknownFact, match="depends on nvls"):
        choose("x", [eight, open_], {"gpus": 8})
    with pytest.raises(ConfigError, match="equally specific for gpus=8") as tie:
        choose("x", [eight, row(fail_below=3, when={"gpus": {"min": 4}})], {"gpus": 8})
    assert not isinstance(tie.value, limits.NoLimit | limits.UnknownFact)
    for count, more in ((6, False), (7, True)):
        many = [row(fail_below=1, when={"gpus": k + 1}) for k in range(count)]
        with pytest.raises(limits.NoLimit, match="no limit for model=L40S, gpus=99") as none:
            choose("x", many, {"gpus": 99, "model": "L40S", "nodes": 3})
        assert ("; ..." in str(none.value)) is more
        assert "gpus=7" not in str(none.value)


def test_a_record_may_add_each_value_of_what_only_it_knows():
    nvls, ring = row(fail_below=1, when={"nvls": True}), row(fail_below=1, when={"algorithm": "r"})
    power = row(fail_below=1, when={"power_limit": "default"})
    assert list(possible_facts([row(fail_below=1)], {"a": 1})) == [{"a": 1}]
    assert list(possible_facts([nvls], {"a": 1})) == [{"a": 1, "nvls": v} for v in (True, False)]
    assert list(possible_facts([nvls], {"nvls": False})) == [{"nvls": False}]
    assert list(possible_facts([ring], {})) == [{}, {"algorithm": "r"}]
    assert list(possible_facts([power], {})) == [
        {"power_limit": "default"}, {"power_limit": "lowered"},
    ]  # fmt: skip
    assert len(list(possible_facts([nvls, ring, power, ring], {}))) == 8
