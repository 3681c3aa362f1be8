"""Ports of a rail-optimized fabric, those of one leaf's nodes compared with each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.workloads.wiring import wiring, wiring_rails

pytestmark = pytest.mark.cpu


def test_ports_are_held_against_the_rails_of_their_own_leaf(monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []

    def held(latencies: Any, ports: Any, planned: Any, where: str, leaves: int) -> Any:
        asked.append((ports, planned, where, leaves, sorted(latencies.values())))
        return where

    monkeypatch.setattr(wiring, "held_against_plan", held)
    monkeypatch.setattr(wiring, "merged", list)
    a0, a1, b0 = wiring.port("a", 0), wiring.port("a", 1), wiring.port("b", 0)
    said = [["a", 0, {a1: 2.0}], ["a", 1, {}], ["b", 0, {}]]
    assert wiring_rails.rails(said, {"a": "leaf0"}) == ["leaf0", "all nodes"]
    assert asked == [
        ([a0, a1], {a0: "leaf0 rail0", a1: "leaf0 rail1"}, "leaf0", 2, [2.0]),
        ([b0], {b0: "rail0"}, "all nodes", 2, []),
    ]  # fmt: skip
    asked.clear()
    wiring_rails.rails([["a", 0, {}]], {})
    assert asked[0][2:4] == ("all nodes", 1)


def test_every_rank_measures_and_reports_its_rail(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        wiring.planned_leaves, "where", lambda _: (["a", "b"], [0, 0], {"a": "leaf0"})
    )
    monkeypatch.setattr(wiring_rails.wiring_rounds, "of_rails", lambda *given: [given])
    seen: list[Any] = []

    def measure(ranks: Any, places: Any, rounds: Any, budget_s: float) -> Any:
        seen.append((places, rounds, budget_s))
        return {1: 2.5}, 1

    monkeypatch.setattr(wiring, "measure", measure)
    monkeypatch.setattr(wiring, "report", lambda *given: given[1:])
    ranks: Any = SimpleNamespace(
        ranks_per_node=1, node="a", local_rank=0, agree=lambda item, choose: item
    )
    key, latencies, answer, made, planned, leaf_of, root = wiring_rails.run(
        ranks, ["rail"], budget_s=3, root="/x"
    )  # type: ignore[misc]
    assert seen == [({0: "a 0", 1: "b 0"}, [(["a", "b"], {"a": "leaf0"}, 1)], 3)]
    assert (key, latencies, made, planned) == ("rail", {wiring.port("b", 0): 2.5}, 1, 1)
    assert answer == ["a", 0, latencies]
    assert (leaf_of, str(root)) == ({"a": "leaf0"}, "/x")
