"""The load on the whole fabric: who sends to whom in each round, and what is reported of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fixtures.permutations.named_leaves import ports_of
from fixtures.permutations.schedule import RESTS, schedule
from fixtures.workloads.fabric import permutations
from fixtures.workloads.fabric.permutations import DECIDED_LATER
from tests.selftests.rank_job import TORCH, Job, rank_of

pytestmark = pytest.mark.cpu

NODES = ("worker0", "worker1", "worker2", "worker3")
LEAVES = {"worker0": "a", "worker1": "a", "worker2": "b", "worker3": "b"}
METRICS = ["errors", "steadiness", "ports", "coverage"]
WRONG = """\
from fixtures.workloads.fabric import permutations as workload
WORKLOAD = workload.WORKLOAD
def run(ranks, metrics, **params):
    honest = workload._Load._exchange
    def exchange(self, to, sender, words=None):
        honest(self, to, sender, words)
        if ranks.rank == 1:
            self.received[-1] += 1
    workload._Load._exchange = exchange
    return workload.run(ranks, metrics, **params)
"""


def a_job(root, workload="permutations", **params):
    job = Job(root, nodes=[*NODES])
    job.spec["wiring_order"] = {"leaves": LEAVES}
    job.add(workload, METRICS, seconds=1.5, **params)
    assert job.run(slurm=True, warm=TORCH) == [0] * 4, job.output()
    return job.record(workload)


def test_every_rank_has_a_rate_of_each_round_in_which_it_sends(tmp_path):
    found = a_job(tmp_path)
    stated = found.ranks[0].facts["schedule"]
    assert stated["leaves"] == LEAVES
    assert (stated["first"], stated["by_rail"]) == (0, False)
    ports = ports_of(stated["nodes"], stated["rails"], stated["leaves"], by_rail=False)
    rounds = len(stated["started"])
    assert 0 < rounds <= stated["planned"]
    assert len(stated["seconds"]) == rounds
    targets = schedule(ports, stated["seed"], 0, rounds)
    for rank in found.ranks:
        busy = sum(t[rank.rank] != RESTS or rank.rank in t for t in targets)
        (rates,) = [m.samples for m in rank.measurements if m.metric == "rate"]
        assert len(rates) == busy
        assert all(rate > 0 for rate in rates)
        assert [m.value for m in rank.measurements if m.metric == "errors"] == [0]
        assert [m for m in rank.measurements if m.metric == "busbw"]


def test_what_all_rounds_show_is_not_decided_by_a_rank(tmp_path):
    found = a_job(tmp_path)
    for rank in found.ranks:
        undecided = {a.metric for a in rank.absent if a.why == permutations.UNDECIDED}
        assert undecided == {"ports", "coverage"}
        assert not [m for m in rank.measurements if m.metric in DECIDED_LATER]


def test_words_that_arrive_changed_are_counted_where_they_arrive(tmp_path):
    (tmp_path / "planted.py").write_text(WRONG)
    found = a_job(tmp_path, "planted")
    wrong = [m.value for rank in found.ranks for m in rank.measurements if m.metric == "errors"]
    assert wrong[1] > 0
    assert wrong[0] == wrong[2] == wrong[3] == 0


def test_the_steadiness_is_that_of_the_slowest_window_and_none_of_too_few():
    assert permutations._steadiness([[10.0, 5.0, 10.0], [10.0, 5.0, 12.0]]) == 50.0
    assert permutations._steadiness([[10.0, 5.0], [10.0, 5.0]]) == 0.0


def test_the_counters_of_a_nodes_links_are_read_by_its_first_rank(tmp_path, monkeypatch):
    port = tmp_path / "mlx5_0" / "ports" / "1"
    (port / "counters").mkdir(parents=True)
    (port / "counters" / "link_downed").write_text("7\n")
    (port / "counters" / "link_error_recovery").write_text("N/A\n")
    found = SimpleNamespace(ports=lambda root: {"mlx5_0": port})
    monkeypatch.setattr(permutations.nics, "of_node", lambda spec, root: found)
    first, other = rank_of(tmp_path, 0, per_node=2), rank_of(tmp_path, 1, per_node=2)
    before = permutations.link_counts(first, tmp_path)
    assert before == {"mlx5_0": {"link_downed": 7}}
    assert permutations.link_counts(other, tmp_path) == {}
    assert permutations._rise({"link_downed": 9, "new": 3}, before["mlx5_0"]) == {"link_downed": 2}
    assert permutations._rise({"link_downed": 0}, before["mlx5_0"]) == {}


@pytest.mark.parametrize("due", [permutations.ROUND, permutations.WINDOW, permutations.STOP])
@pytest.mark.parametrize("rank", [0, 1])
def test_what_comes_next_is_what_the_first_rank_says(tmp_path, monkeypatch, rank, due):
    """All take the largest: the others say the least that there is."""
    import torch
    import torch.distributed as dist

    flag = torch.zeros(1, dtype=torch.int32)
    reduced = []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, op: reduced.append((tensor, op)))
    load = permutations._Load(rank_of(tmp_path, rank, per_node=2), permutations.ON_CPU, 0, [])
    load.flag = flag
    assert load._meet(due) == (due if rank == 0 else permutations.ROUND)
    assert reduced == [(flag, dist.ReduceOp.MAX)]
    assert min(permutations.ROUND, permutations.WINDOW, permutations.STOP) == permutations.ROUND
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, op: tensor.fill_(due))
    assert load._meet() == due


def test_a_round_lasts_until_all_ranks_met_after_it(tmp_path, monkeypatch):
    import torch
    import torch.distributed as dist

    monkeypatch.setattr(dist, "all_reduce", lambda tensor, op: None)
    monkeypatch.setattr(permutations.time, "time", lambda: 107.5)
    load = permutations._Load(rank_of(tmp_path, 0), permutations.ON_CPU, 0, [])
    load.flag = torch.zeros(1, dtype=torch.int32)
    load._meet()
    assert load.seconds == []
    load.started.append(100.0)
    load._meet()
    load._meet()
    assert load.seconds == [7.5]
