"""One probe per node: scale, who looks at whom, and which members remain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.workloads.filesystem import filesystem_team
from fixtures.workloads.filesystem.filesystem_probe import ProbeError
from fixtures.workloads.filesystem.filesystem_team import RankTeam, Scale

pytestmark = pytest.mark.cpu


def ranks(**more: Any) -> Any:
    given = {
        "demonstration": False, "on_gpu": True, "ranks_per_node": 8, "node": "n0",
        "nodes": ["n0", "n1", "n2"], "leads_node": True,
    }  # fmt: skip
    return SimpleNamespace(**{**given, **more})


def test_a_demonstration_is_small_and_a_cluster_is_measured_within_a_minute():
    real = Scale.of(ranks())
    assert (real.hang_s, real.shard_bytes, real.rounds, real.seconds) == (30, 1 << 30, 5, 5)
    assert (Scale.of(ranks(ranks_per_node=16)).streams, real.streams) == (8, 8)
    assert Scale.of(ranks(ranks_per_node=4)).streams == 4
    for nodes, seconds in ((12, 5), (30, 2), (100, 1)):
        assert Scale.of(ranks(nodes=[""] * nodes)).seconds == seconds
    for more in ({"demonstration": True}, {"on_gpu": False}):
        small = Scale.of(ranks(**more))
        assert (small.hang_s, small.shard_bytes, small.streams) == (8, 8 << 20, 2)
    assert Scale.of(ranks(on_gpu=False, ranks_per_node=1)).streams == 1


class Child:
    """A probe that answers, or fails, as a test says."""

    def __init__(self, **limits: Any) -> None:
        self.limits, self.asked, self.abandoned = limits, [], False
        self.error: ProbeError | None = None

    def ask(self, operation: str, **arguments: Any) -> Any:
        self.asked.append(operation)
        if self.error:
            raise self.error
        return f"{operation} done"

    def abandon(self) -> None:
        self.abandoned = True


def team(monkeypatch: pytest.MonkeyPatch, **more: Any) -> RankTeam:
    monkeypatch.setattr(filesystem_team, "Probe", Child)
    return RankTeam(ranks(**more), Scale.of(ranks()))


def test_a_node_looks_at_those_after_it_in_a_ring(monkeypatch: pytest.MonkeyPatch):
    one = team(monkeypatch)
    assert [one.peers(n) for n in ("n0", "n1", "n9")] == [["n1", "n2"], ["n2", "n0"], []]
    assert one.observers("n0") == ["n1", "n2"]
    many = team(monkeypatch, nodes=[f"n{k}" for k in range(12)])
    assert many.peers("n9") == ["n10", "n11", *(f"n{k}" for k in range(6))]
    assert many.observers("n9") == [f"n{k}" for k in range(1, 9)]
    one.exclude(["n1"])
    assert one.peers("n0") == ["n2"]


def test_only_the_first_rank_of_a_member_works(monkeypatch: pytest.MonkeyPatch):
    with team(monkeypatch) as one:
        probe: Any = one._probe
        assert probe.limits == {"hang_s": 30, "limit_s": 90}
        assert one.is_active
        assert one.ask("put") == "put done"
        one.exclude(["n0"])
        assert not one.is_active
        assert one.ask("put") is None
    assert probe.abandoned
    with team(monkeypatch, leads_node=False) as other:
        assert other._probe is None
        assert not other.is_active
        assert other.ask("put") is None
    unopened = team(monkeypatch)
    assert unopened.ask("put") is None


def test_a_node_whose_probe_failed_is_not_asked_again(monkeypatch: pytest.MonkeyPatch):
    for kind, removes in (("failed", True), ("hung", False), ("lost", False)):
        with team(monkeypatch) as one:
            probe: Any = one._probe
            probe.error = ProbeError(kind, "why", 5)
            assert one.ask("put") is None
            assert one.ask("see") is None
            assert probe.asked == ["put"]
            assert one._own_error == {"kind": kind, "text": "why", "errno": 5}
            one.remove_work_folder("/w")
            assert ("remove" in probe.asked) is removes
    with team(monkeypatch) as fine:
        fine.remove_work_folder("/w")
        assert fine._probe.asked == ["remove"]  # type: ignore[union-attr]
    team(monkeypatch).remove_work_folder("/w")


def test_members_with_an_error_fall_out_and_the_others_results_count(
    monkeypatch: pytest.MonkeyPatch,
):
    error = {"kind": "hung"}
    answers = [["n0", 1, None], None, ["n1", 2, error], ["n2", None, None], ["n9", 4, None]]
    items: list[Any] = []

    def gather(item: Any) -> Any:
        items.append(item)
        return answers

    with team(monkeypatch, gather=gather) as one:
        assert one.ask_all("put") == {"n0": 1, "n2": None}
        assert (one.members, one.errors) == (["n0", "n2"], {"n1": error})
        assert one.gather_results() == {"n0": 1, "n2": None}
    assert items == [["n0", "put done", None], ["n0", None, None]]
    with team(monkeypatch, gather=gather, leads_node=False) as other:
        other.gather_results("x")
    assert items[-1] is None
