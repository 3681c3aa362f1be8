"""The workload on wiring on one rank: whose messages it measures, and what its node reports."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.absence import Kind
from fixtures.workloads.wiring import wiring
from tests.selftests.support import whys

pytestmark = pytest.mark.cpu


def a_rank(rank: int = 0, node: str = "a", local_rank: int = 0, **more: Any) -> Any:
    """A rank that is alone: what it says is what all say."""
    return SimpleNamespace(**{
        "rank": rank, "node": node, "local_rank": local_rank, "leads_node": local_rank == 0,
        "spec": {}, "agree": lambda item, choose: choose([item]), "gather": lambda item: [item],
        "gather_node": lambda item: [item], **more,
    })  # fmt: skip


# --- what is measured


def test_a_rank_exchanges_messages_with_those_of_its_index(monkeypatch):
    asked: list[Any] = []

    def measure(ranks: Any, place_of: Any, rounds: Any, budget_s: float) -> Any:
        asked.append((place_of, rounds, budget_s))
        return {3: 2.0}, 1

    monkeypatch.setattr(
        wiring.planned_leaves,
        "where",
        lambda ranks: (["a", "a", "b", "b"], [0, 1, 0, 1], {"a": "l0"}),
    )
    monkeypatch.setattr(wiring, "measure", measure)
    found = wiring.run(a_rank(1, local_rank=1), ["leaf"])
    assert asked == [({1: "a", 3: "b"}, [[("a", "b")]], wiring.BUDGET_S)]
    assert found.facts == {"latency_us": {"b gpu1": 2.0}}
    assert found.measurements == []
    first = wiring.run(a_rank(0), ["leaf"], budget_s=1.0)
    assert first.facts["rounds"] == {"made": 1, "of": 1}
    assert first.facts["planned"] == {"a": "l0"}
    # The rounds end before the time that the job's plan gives the whole workload.
    assert wiring.WORKLOAD.seconds > wiring.BUDGET_S


@pytest.mark.parametrize(
    ("seconds", "made"), [(0.0, 20), (0.25, 20), (0.5, 16), (1.0, 8), (9.0, 8)]
)
def test_rounds_go_on_until_their_time_is_over(monkeypatch, seconds, made):
    """The ranks look at the clock before every eighth round."""
    clock = SimpleNamespace(now=0.0)
    closed: list[bool] = []

    class Messages:
        def __init__(self, ranks: Any, members: Any) -> None:
            assert members == [4, 7]

        def latency_us(self, peer: int) -> float:
            clock.now += seconds
            return 5.0 - clock.now

        def close(self) -> None:
            closed.append(True)

    monkeypatch.setattr(wiring, "SmallMessages", Messages)
    monkeypatch.setattr(wiring.time, "monotonic", lambda: clock.now)
    rounds = [[("a", "b")]] * 20
    found = wiring.measure(a_rank(4), {4: "a", 7: "b"}, rounds, 5.0)
    # 16 rounds of 0.25 s take 4 s; 16 of 0.5 s take 8 s.
    assert found == ({7: 5.0 - seconds * made}, made)
    assert closed == [True]
    rests = wiring.measure(a_rank(4), {4: "a", 7: "b"}, [[("b", "c")]], 5.0 + clock.now)
    assert rests == ({}, 1)


# --- what a node reports


def test_a_node_says_why_its_ports_are_not_all_confirmed():
    answer = {"misplaced": {"a gpu0": "is on l1"}, "unsure": {"a gpu1": "few", "a gpu2": "far"}}
    assert wiring.of_node(["a gpu0", "b gpu0"], answer) == ({"a gpu0": "is on l1"}, "")
    assert wiring.of_node(["a gpu1"], answer) == ({}, "few"), "the same of all"
    assert wiring.of_node(["a gpu1", "a gpu2"], answer) == ({}, "a gpu1: few")
    assert wiring.of_node(["a gpu2", "b gpu0"], answer) == ({}, "a gpu2: far"), "of one of two"


@pytest.mark.parametrize(
    ("answer", "value", "why", "part"),
    [
        ({"misplaced": {}, "unsure": {}}, 0, None, {}),
        ({"misplaced": {}, "unsure": {"a gpu0": "few"}}, None, "a gpu0: few", None),
        ({"misplaced": {"a gpu0": "is on l1"}, "unsure": {}}, 1, None, {"part": "gpu0"}),
        ({"misplaced": {"a gpu0": "is on l1"}, "unsure": {"a gpu1": "few"}}, 1, None,
         {"part": "gpu0"}),
    ],
    ids=["confirmed", "unsure", "misplaced", "misplaced and unsure"],
)  # fmt: skip
def test_a_misplaced_port_is_reported_also_beside_one_that_is_unsure(
    monkeypatch, answer, value, why, part
):
    monkeypatch.setattr(wiring.rail_ports, "of_node", lambda spec, root: {"gpu0": ["mlx5_4"]})
    own = [["a gpu0", 3], ["a gpu1", 2]]
    groups = {**answer, "groups": ["g"]}
    found = wiring.report(
        a_rank(gather_node=lambda item: own), "leaf", {"b gpu0": 1.23456}, groups, 2, 3, {"a": "l"},
        Path("/"),
    )  # fmt: skip
    assert found.facts["latency_us"] == {"b gpu0": 1.235}
    assert (found.facts["groups"], found.facts["planned"]) == (["g"], {"a": "l"})
    assert found.facts["rounds"] == {"made": 2, "of": 3}
    assert whys(found, Kind.NOT_THERE) == ({"leaf": why} if why else {})
    assert [m.value for m in found.measurements] == ([] if value is None else [value])
    for m in found.measurements:
        assert (m.at, m.checks) == (part, {"pairs": 2.0})
        assert m.notes[-1] == "each of 2 ports compared with 2 others"
        assert m.notes[:-1] == ["is on l1 (NIC mlx5_4)"] * value
    for rank, local_rank in ((1, 1), (8, 0)):
        other = wiring.report(
            a_rank(rank, local_rank=local_rank, gather_node=lambda item: own), "leaf", {}, groups,
            2, 3, {}, Path("/"),
        )  # fmt: skip
        assert "groups" not in other.facts, "of the first rank of the job alone"
        assert ("rounds" in other.facts) == (local_rank == 0)


def test_a_port_is_named_with_its_nic_where_that_is_known():
    line = "n0 gpu1 is on leaf2, planned on leaf1"
    assert wiring._with_nic(line, "n0 gpu1", {"gpu1": ["mlx5_2"]}) == f"{line} (NIC mlx5_2)"
    assert wiring._with_nic(line, "n0 gpu1", {}) == line
