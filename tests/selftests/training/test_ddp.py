"""DistributedDataParallel: its parts, its correctness and its figures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.model import Measurement
from fixtures.workloads.nccl import nccl_log
from tests.selftests.training.one_rank import a_rank, a_team, a_timed_run
from training import batch_search, ddp, reference_run, strategies
from training import run as training_run
from training.settings import Settings

pytestmark = pytest.mark.cpu


def test_a_part_has_the_passes_and_sequences_of_the_whole():
    whole = Settings(batch=2, global_batch=32, checkpoint="somewhere", resume=True)
    part = ddp.settings_of_part(whole, 4, 1)
    assert (part.passes_per_step(1), part.batch, part.global_batch) == (4, 2, 8)
    assert (part.checkpoint, part.resume) == ("", False)
    assert ddp.settings_of_part(Settings(batch=2), 4, 2).passes_per_step(2) == 1


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the workload on nothing; returns its metrics, its runs, and what it did."""
    log: dict[str, Any] = {}

    def fit(ranks: Any, settings: Any, overrides: Any, *given: Any) -> Any:
        log["fit"] = given
        return settings

    def scaling(ranks: Any, team: Any, settings: Any, metrics: Any) -> Any:
        return [a_timed_run()], {"efficiency": [90.0], "efficiency_slowest": [80.0]}

    monkeypatch.setattr(training_run, "fit_to_memory", fit)
    monkeypatch.setattr(ddp, "scaling_runs", scaling)
    monkeypatch.setattr(ddp, "network_notes", lambda ranks, team: ["network"])
    monkeypatch.setattr(training_run, "facts", lambda ranks, runs, show: {"runs": len(runs)})
    monkeypatch.setattr(strategies, "one_team", lambda ranks: a_team(2))
    monkeypatch.setattr(batch_search, "by_hand", lambda ranks, team, given, *more, show: given)
    checked = Measurement(metric="replicas", unit="ranks", value=0)
    monkeypatch.setattr(ddp, "_correctness", lambda ranks, team, metrics: [checked])

    def start(metrics: list[str], **how: Any) -> Any:
        result = ddp.run(a_rank(world_size=2), metrics, **how)
        return {m.metric: m for m in result.measurements}, result.facts["runs"], log

    return start


def test_what_is_asked_for_is_measured(started):
    found, runs, log = started(["replicas", "tokens", "efficiency"])
    assert (list(found), runs) == (["replicas", "tokens", "efficiency"], 1)
    assert (found["efficiency"].samples, found["efficiency"].notes) == ([90.0], ["network"])
    # 65,536 tokens per GPU: one pass of eight sequences, or more of fewer where memory is short.
    assert log["fit"] == (2, (8, 4, 2, 1), 65536)
    for metrics, names, count in (
        (["replicas"], ["replicas"], 0), (["fall"], ["fall"], 1), (["gemm"], [], 1),
    ):  # fmt: skip
        found, runs, _ = started(metrics)
        assert (list(found), runs) == (names, count)
    assert started(["replicas"], checks=False)[:2] == ({}, 0)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What scaling_runs() times: team, settings, and whether own steps are trained."""
    log: list[Any] = []

    def run(ranks: Any, team: Any, settings: Any, *, own_steps: bool = False) -> Any:
        log.append((team.size, settings.strategy, own_steps))
        return f"run {len(log)}"

    monkeypatch.setattr(training_run, "timed_run", run)
    monkeypatch.setattr(training_run, "fits", lambda ranks, settings, size: settings.batch < 9)
    monkeypatch.setattr(training_run, "efficiency", lambda *given: ([90.0], [80.0]))
    monkeypatch.setattr(strategies, "one_team_per_node", lambda ranks: a_team(2))
    monkeypatch.setattr(
        strategies, "one_team_per_rank", lambda ranks, make_groups: a_team(group=make_groups)
    )
    return log


@pytest.mark.parametrize(
    ("metrics", "team", "nodes", "strategy", "batch", "expected"),
    [
        (["efficiency"], 4, 1, "ddp", 2, [(1, "single", False), (4, "ddp", False)]),
        (["efficiency_slowest"], 3, 1, "fsdp", 2, [(1, "fsdp", False), (3, "fsdp", False)]),
        (["efficiency", "pace"], 4, 2, "ddp", 2, [(2, "ddp", False), (4, "ddp", True)]),
        (["pace"], 4, 1, "ddp", 2, [(4, "ddp", True)]),
        (["tokens"], 4, 1, "ddp", 2, [(4, "ddp", False)]),
        (["efficiency"], 1, 1, "ddp", 2, [(1, "ddp", False)]),
        (["efficiency", "pace"], 4, 1, "ddp", 16, [(4, "ddp", True)]),  # no part fits
    ],
)
def test_the_parts_are_timed_before_the_whole(
    metrics, team, nodes, strategy, batch, expected, timed
):
    settings = Settings(strategy=strategy, batch=batch)
    ranks = a_rank(nodes=["n"] * nodes)
    runs, efficiencies = ddp.scaling_runs(ranks, a_team(team), settings, metrics)
    assert timed == expected
    assert runs == [f"run {k + 1}" for k in range(len(expected))]
    both = {"efficiency": [90.0], "efficiency_slowest": [80.0]}
    assert efficiencies == (both if len(expected) == 2 else {})


@pytest.mark.parametrize(
    ("team", "nodes", "transport", "notes"),
    [
        (2, 1, "NVLink", ["network in the node: NVLink"]),
        (3, 2, "IB", ["network between the nodes: IB"]),
        (2, 3, None, []), (1, 1, "NVLink", []),
    ],
)  # fmt: skip
def test_the_transport_of_the_gradients_is_noted(team, nodes, transport, notes, monkeypatch):
    found = {"transport": transport} if transport else {"channels": 2}
    monkeypatch.setattr(nccl_log, "conditions", lambda ranks, members: (found, None))
    assert ddp.network_notes(a_rank(nodes=["n"] * nodes), a_team(team)) == notes


def test_replicas_curves_and_accumulation_are_compared(monkeypatch):
    curves = {"single": [1.0, 4.0], "ddp": [1.0, 5.0]}
    training = SimpleNamespace(
        run=lambda: SimpleNamespace(losses=[1.0, 2.0]),
        batch_loader=SimpleNamespace(seen_samples=[0]),
    )
    monkeypatch.setattr(reference_run, "new_training", lambda settings, team: training)
    monkeypatch.setattr(reference_run, "parameter_digest", lambda training: "own")
    monkeypatch.setattr(reference_run, "losses", lambda settings, team: curves[settings.strategy])
    monkeypatch.setattr(strategies, "one_team_per_rank", lambda ranks: a_team())
    monkeypatch.setattr(ddp, "misplaced", lambda ranks, team: 0)
    for most, wrong in (("own", 0), ("other", 1)):
        monkeypatch.setattr(reference_run, "majority", lambda ranks, digest, most=most: most)
        found = {m.metric: m for m in ddp._correctness(a_rank(), a_team(2), ["replicas"])}
        assert list(found) == ["ranks", "replicas", "curve", "coverage"]
        assert (found["replicas"].value, len(found["replicas"].notes)) == (wrong, wrong)
        assert found["curve"].value == 50.0
    found = {m.metric: m for m in ddp._correctness(a_rank(), a_team(2), ["accumulation"])}
    assert (found["accumulation"].value, found["accumulation"].unit) == (150.0, "%")


def test_samples_that_were_not_seen_once_are_counted_and_the_first_is_named():
    found = ddp.coverage(a_rank(gather=lambda own: [own, [0, 3, 3]]), [1, 4], 6)
    assert (found.metric, found.unit, found.value) == ("coverage", "samples", 3)
    assert found.notes == ["sample 2 was seen 0 times"]
    assert ddp.coverage(a_rank(gather=lambda own: [own, [0]]), [1], 2).notes == []
    thrice = ddp.coverage(a_rank(gather=lambda own: [own] * 3), [0], 1)
    assert (thrice.value, thrice.notes) == (1, ["sample 0 was seen 3 times"])


PLACED = {
    "own": 1, "world": 4, "sum": 6, "devices": ["a", "b"], "rank": 1, "world_size": 4,
    "nodes": ["n", "m"], "ranks_per_node": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "value"),
    [
        ({}, 0), ({"own": 2}, 1), ({"world": 8}, 1), ({"sum": 5}, 1), ({"devices": ["b", "b"]}, 1),
        ({"devices": ["a", "b", "c"]}, 1), ({"nodes": ["n"]}, 1), ({"rank": 3}, 1),
        ({"world_size": 2}, 1),
    ],
)  # fmt: skip
def test_a_rank_that_is_not_where_the_job_has_put_it_is_counted(wrong, value, monkeypatch):
    import torch.distributed as dist

    found: dict[str, Any] = {**PLACED, **wrong}

    def all_reduce(total: Any, group: Any) -> None:
        total.fill_(found["sum"])

    monkeypatch.setattr(dist, "get_rank", lambda group: found["own"])
    monkeypatch.setattr(dist, "get_world_size", lambda group: found["world"])
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    ranks = a_rank(
        rank=found["rank"], local_rank=1, world_size=found["world_size"], nodes=found["nodes"],
        ranks_per_node=found["ranks_per_node"], gather_node=lambda own: found["devices"],
    )  # fmt: skip
    assert ddp.misplaced(ranks, a_team(4, group="g")) == value
