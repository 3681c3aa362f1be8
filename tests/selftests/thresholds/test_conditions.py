"""Conditions of limits: how they are read, when they hold, and how they are written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.thresholds import conditions
from fixtures.thresholds.conditions import (
    Conditions,
    Range,
    condition_text,
    parse_size,
    scalar_text,
    unresolved_conditions,
)
from fixtures.wording import format_size

pytestmark = pytest.mark.cpu

GIB = 2**30


@given(st.integers(1, 2**20), st.sampled_from(["KiB", "MiB", "GiB"]))
def test_sizes_survive_being_written(count, unit):
    size = parse_size(f"{count}{unit}")
    assert parse_size(format_size(size)) == size


def test_a_size_has_a_count_and_a_binary_unit():
    for text, size in (("1KiB", 1024), ("3 MiB", 3 * 2**20), ("2GiB", 2 * GIB)):
        assert parse_size(text) == size
    refused: tuple[Any, ...] = ("1GB", "1", "0GiB", "1.5GiB", "-1GiB", "1 gib", "", 1024, None)
    for text in refused:
        with pytest.raises(ValueError, match="expected a size like 256MiB"):
            parse_size(text)


def test_a_range_includes_its_ends_and_holds_numbers_alone():
    for limits, inside, outside in (
        (Range(2, 4), (2, 3, 4), (1, 5)),
        (Range(min=2), (2, 1000), (1,)),
        (Range(max=4), (4, 0), (5,)),
    ):
        assert all(limits.holds(value) is True for value in inside)
        assert not any(limits.holds(value) for value in outside)
    assert Range(min=1).holds(True) is False
    assert Range(min=1).holds("2") is False


READ: list[tuple[str, Any, Any]] = [
    # condition, as written, as read
    ("gpus", 8, 8),
    ("gpus", {"min": 4}, Range(4, None)),
    ("gpus", {"max": 4}, Range(None, 4)),
    ("gpus", {"min": 4, "max": 4}, Range(4, 4)),
    ("size", "1GiB", GIB),
    ("size", {"min": "1GiB", "max": "2GiB"}, Range(GIB, 2 * GIB)),
]
REFUSED: list[tuple[str, Any, str]] = [
    ("gpus", "8", "expected a whole number or"),
    ("gpus", 8.0, "expected a whole number or"),
    ("gpus", True, "expected a whole number or"),
    ("gpus", {}, "for min and max"),
    ("gpus", {"min": {"min": 1}}, "for min and max"),
    ("gpus", {"max": {"min": 1}}, "for min and max"),
    ("gpus", {"min": 5, "max": 4}, "min 5 is above max 4"),
    ("gpus", {"mn": 1}, "unknown key 'mn', did you mean 'min'"),
    ("size", 1024, "expected a size"),
]


def test_a_condition_is_a_value_or_a_range():
    for name, written, read in READ:
        assert Conditions.model_validate({name: written}).given() == {name: read}
    for name, written, says in REFUSED:
        with pytest.raises(ValueError, match=says):
            Conditions.model_validate({name: written})
    several = Conditions(nvls=False, gpus_per_node=8)
    assert several.all_given == {"gpus_per_node": 8, "nvls": False}
    several.given().clear()
    assert several.given() == {"gpus_per_node": 8, "nvls": False}, "a copy was cleared"


def test_models_are_one_or_several_known_ones():
    assert conditions._models("L40S") == ("L40S",)
    assert conditions._models(["L40S", "cpu"]) == ("L40S", "cpu")
    for wrong, says in (
        ([], "or a list of them"), (3, "or a list of them"), (["L40S", 3], "or a list of them"),
        (["L40S", "L40S"], "names a model twice"), ("L40X", "'L40X' is not known"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            conditions._models(wrong)


HELD: list[tuple[dict[str, Any], dict[str, Any], list[str] | None]] = [
    # conditions, facts, those on absent facts; None where one is false
    ({}, {}, []),
    ({"gpus": 8}, {"gpus": 8}, []),
    ({"gpus": 8}, {"gpus": 4}, None),
    ({"gpus": 8, "nodes": 1}, {}, ["gpus", "nodes"]),
    ({"gpus": 8, "nodes": 1}, {"nodes": 1}, ["gpus"]),
    ({"gpus": 8, "nodes": 1}, {"nodes": 2}, None),
    ({"gpus": Range(4, None)}, {"gpus": 4}, []),
    ({"gpus": Range(4, None)}, {"gpus": 3}, None),
    ({"model": ("A", "B")}, {"model": "B"}, []),
    ({"model": ("A", "B")}, {"model": "C"}, None),
    ({"nvls": True}, {"nvls": True}, []),
    ({"nvls": True}, {"nvls": 1}, None),
    ({"gpus": 1}, {"gpus": True}, None),
    ({"nvls": True}, {}, ["nvls"]),
    ({"algorithm": "ring"}, {}, None),
    ({"algorithm": "ring"}, {"algorithm": "ring"}, []),
    ({"cpu_bf16": "emulated"}, {}, None),
    ({"memory_owner": "system"}, {}, None),
    ({"domains": 1}, {}, None),
]


def test_conditions_hold_fail_or_wait_for_a_fact():
    for given_, facts, unresolved in HELD:
        assert unresolved_conditions(given_, facts) == unresolved, (given_, facts)


TEXTS: list[tuple[str, Any, str]] = [
    ("model", ("A", "B"), "model=A|B"),
    ("size", GIB, "size=1GiB"),
    ("size", Range(GIB, 2 * GIB), "size=1GiB..2GiB"),
    ("size", Range(GIB, None), "size>=1GiB"),
    ("gpus", Range(None, 4), "gpus<=4"),
    ("gpus", Range(4, None), "gpus>=4"),
    ("gpus", 1024, "gpus=1024"),
    ("nvls", True, "nvls=true"),
    ("size", "all", "size=all"),
    ("nic_gbps", 400.0, "nic_gbps=400"),
]


def test_a_condition_is_written_as_the_file_has_it():
    for name, value, text in TEXTS:
        assert condition_text(name, value) == text
    for scalar, text in ((False, "false"), (1 / 3, "0.333333"), (8, "8"), ("ring", "ring")):
        assert scalar_text(scalar) == text
