"""The key figures of a run: the worst value of each criterion that everyone asks for."""

from __future__ import annotations

from typing import Any

import pytest

from reports.facts.key_figures import WANTED, tiles

pytestmark = pytest.mark.cpu


def row(key: str, value: Any, **more: Any) -> dict[str, Any]:
    return {
        "criterion": key, "subject": "a", "value": value, "unit": "TFLOPS", "outcome": "PASS",
        "margin": None, "limit": ">= 605 (0.6 of ceiling 1008)", "worst": None, **more,
    }  # fmt: skip


def test_a_tile_is_the_worst_value_its_place_and_its_limit():
    (tile,) = tiles([
        row("gemm.bf16", 700.0, margin=0.15), row("gemm.bf16", 650.0, margin=0.07, subject="b"),
        row("gemm.bf16", None, subject="c"), row("gemm.other", 1.0),
    ])  # fmt: skip
    assert (tile.title, tile.value, tile.unit) == ("bf16, slowest GPU", "650", "TFLOPS")
    assert (tile.where, tile.limit, tile.outcome_text) == ("b", ">= 605", "pass")


def test_what_failed_is_worse_than_any_margin():
    def where(*rows: dict[str, Any]) -> str:
        (tile,) = tiles(rows)
        return tile.where

    failed = {"outcome": "FAIL", "subject": "b"}
    for margins in ((-0.5, 0.2), (None, None)):
        low, high = (row("gemm.bf16", 1.0, margin=m) for m in margins)
        assert where(low, {**high, **failed}) == "b"
    recorded = {"outcome": "RECORDED"}
    assert where(row("gemm.bf16", 9.0, **recorded),
                 row("gemm.bf16", 8.0, subject="b", **recorded)) == "b"  # fmt: skip
    assert where(row("gemm.bf16", 8.0, unit="us"),
                 row("gemm.bf16", 9.0, unit="us", subject="b")) == "b"  # fmt: skip


def test_the_place_is_the_node_of_the_worst_device_where_it_is_known():
    (tile,) = tiles([row("allreduce.node", 1.0, worst={"node": "n7"}, subject="cluster")])
    assert tile.where == "n7"
    (tile,) = tiles([row("allreduce.node", 1.0, worst={"node": None}, subject="cluster")])
    assert tile.where == "cluster"


def test_of_a_sweep_the_largest_size_counts():
    keys = ("allreduce.node.512MiB", "allreduce.node.1GiB", "allreduce.node.1KiB",
            "allreduce.node.errors")  # fmt: skip
    (tile,) = tiles([row(key, 1.0) for key in keys])
    assert (tile.criterion, tile.title) == ("allreduce.node.1GiB", "All-reduce in a node, 1GiB")
    (tile,) = tiles([row(key, 1.0) for key in ("allreduce.node.64KiB", "allreduce.node.32KiB")])
    assert tile.criterion == "allreduce.node.64KiB"


def test_a_value_that_is_only_recorded_has_no_limit():
    (tile,) = tiles([row("gemm.bf16", 1.0, outcome="RECORDED", limit="recorded")])
    assert (tile.limit, tile.outcome_text) == ("", "recorded")


def test_there_are_at_most_ten_the_most_asked_for_first():
    keys = [key for key, _ in WANTED]
    assert len(keys) > 10
    assert [t.criterion for t in tiles([row(key, 1.0) for key in keys[::-1]])] == keys[:10]
