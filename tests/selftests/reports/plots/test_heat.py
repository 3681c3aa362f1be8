"""The maps of GPUs and criteria, and of nodes by rack."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from reports.plots import heat

pytestmark = pytest.mark.cpu


def row(key: str, subject: str, limit: str = ">= 100", outcome: str = "PASS") -> dict[str, Any]:
    return {"criterion": key, "subject": subject, "limit": limit, "outcome": outcome}


def map_of(values: Mapping[str, list[tuple[str, float]]], criteria: list[Any]) -> Any:
    return heat.heat_map(SimpleNamespace(by_criterion=values), criteria)


def gpus(count: int, value: float = 105.0) -> list[tuple[str, float]]:
    return [(f"a gpu{k}", value) for k in range(count)]


def test_a_cell_is_the_margin_on_the_side_that_is_good():
    values = [*gpus(1), ("a gpu1", 90.0)]
    for limit, texts in ((">= 100", ["+5 %", "-10 %"]), ("<= 100", ["-5 %", "+10 %"])):
        found = map_of({"x": values}, [row("x", "a", limit)])
        assert [(name, cells[0].text) for name, cells in found.rows] == [
            ("a gpu0", texts[0]), ("a gpu1", texts[1]),
        ]  # fmt: skip


def test_colours_and_texts_by_margin():
    for margin, style, text in (
        (-0.001, "bad", "-0 %"), (0.0, "near", "+0 %"), (0.029, "near", "+3 %"),
        (0.03, "ok", "+3 %"), (0.099, "ok", "+10 %"), (0.1, "good", "+10 %"),
        (9.99, "good", "+999 %"), (10.0, "good", "11 x"), (1.1, "good", "+110 %"),
    ):  # fmt: skip
        cell = heat._cell(margin)
        assert (cell.style, cell.text) == (style, text)


def test_only_what_is_of_a_gpu_and_has_a_limit_is_on_the_map():
    values = {
        "y": [*gpus(2), ("a nic0", 1.0), ("b gpu0", 1.0)], "x": gpus(1), "zero": gpus(2),
        "none": gpus(2), "half": gpus(1),
    }  # fmt: skip
    found = map_of(values, [row("x", "a"), row("y", "a"), row("zero", "a", ">= 0"),
                            row("none", "a", ""), row("half", "a", ">= 0.5")])  # fmt: skip
    assert list(found.columns) == ["y", "x", "half"]
    assert [name for name, _ in found.rows] == ["a gpu0", "a gpu1"]
    assert [cell is None for cell in found.rows[1][1]] == [False, True, True]


def test_the_map_is_of_2_to_64_gpus_and_at_most_14_criteria():
    for count, there in ((1, False), (2, True), (64, True), (65, False)):
        assert (map_of({"x": gpus(count)}, [row("x", "a")]) is not None) is there
    keys = [f"x{k}" for k in range(15)]
    found = map_of({key: gpus(2) for key in keys}, [row(key, "a") for key in keys])
    assert list(found.columns) == keys[:14]


def test_gpus_are_in_the_order_of_their_numbers():
    found = map_of({"x": [("a gpu10", 101.0), ("a gpu9", 101.0)]}, [row("x", "a")])
    assert [name for name, _ in found.rows] == ["a gpu9", "a gpu10"]


def test_a_rack_is_32_nodes_by_name_with_the_worst_outcome_of_each():
    nodes = [f"n{k}" for k in range(33)]
    criteria = [
        row("x", "n0", outcome="PASS"), row("y", "n0", outcome="FAIL"),
        row("z", "n0", outcome="WAIVED"), row("x", "n1", outcome="PASS"),
        row("x", "n32", outcome="NOT_APPLICABLE"),
    ]  # fmt: skip
    first, second = heat.racks(criteria, nodes[::-1])
    assert (first.title, second.title) == ("n0 to n31", "n32")
    assert list(first.cells[:3]) == [("n0", "fail"), ("n1", "pass"), ("n2", "not_measured")]
    assert first.text == "1 failed, 30 not measured, 1 passed"
    assert second.text == "1 not applicable"
    (both,) = heat.racks([], ["b", "a"])
    assert both.title == "a to b"
