"""Copies between GPUs: rounds of pairs, rates of links, and who is named."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures.records.model import Measurement
from fixtures.verdict.model import Outcome
from fixtures.workloads.memory import p2p
from fixtures.workloads.timing.timing import Batches
from reports.exports.tables import nvbandwidth_tables
from tests.selftests import support
from tests.selftests.rank_job import TORCH, Job
from tests.selftests.workloads.memory.records_of_memory import (
    batches,
    host,
    judged,
    node,
    rate,
)

pytestmark = pytest.mark.cpu


@given(st.integers(0, 17))
def test_every_two_gpus_meet_once_and_nobody_is_in_two_pairs_at_once(gpus):
    rounds = p2p.round_robin(gpus)
    for pairs in rounds:
        met = [gpu for pair in pairs for gpu in pair]
        assert len(met) == len(set(met))
    every = sorted(pair for pairs in rounds for pair in pairs)
    assert every == list(itertools.combinations(range(gpus), 2))
    assert len(rounds) <= max(1, gpus)


def test_three_ranks_measure_every_link_in_both_directions(tmp_path):
    job = Job(tmp_path, per_node=3)
    job.add("p2p", ["write", "both", "errors"], size=1 << 20)
    assert job.run(warm=TORCH) == [0] * 3, job.output()
    record = job.record("p2p")
    wanted = sorted(itertools.permutations(range(3), 2))
    for metric, arrow in (("write", "->"), ("both", "<->")):
        points = record.points(metric, {})
        assert sorted((r.local_rank, m.at["to"]) for r, m in points) == wanted
        for rank, m in points:
            assert m.at["part"] == f"gpu{rank.local_rank}{arrow}gpu{m.at['to']}"
            assert min(m.samples) > 0
            assert m.checks["wrong"] == 0
    assert [m.value for _, m in record.points("errors", {})] == [0] * 3
    table = nvbandwidth_tables(record)
    assert len(table.splitlines()) == 2 * 5 + 1


def matrix(
    gpus: int = 4, slow: Mapping[tuple[int, int], float] = {}, metric: str = "write", **more: Any
) -> list[list[Measurement]]:
    """What each of the GPUs measured towards each other one; 395 GB/s unless `slow` says else."""
    return [
        [
            rate(metric, slow.get((a, b), 395.0), at={"to": b, "part": f"gpu{a}->gpu{b}"}, **more)
            for b in range(gpus)
            if a != b
        ]
        for a in range(gpus)
    ]


def test_a_healthy_matrix_passes_and_shows_its_slowest_link():
    verdict = judged("p2p.write", node("p2p", *matrix(slow={(2, 1): 394.0})))
    assert (verdict.outcome, verdict.value, verdict.ceiling) == (Outcome.PASS, 394.0, 450)
    assert verdict.worst["part"] == "gpu2->gpu1"
    assert verdict.devices == {"planned": 4, "measured": 4}


def test_a_slow_link_is_named_with_both_of_its_ends():
    verdict = judged("p2p.write", node("p2p", *matrix(slow={(0, 3): 200.0})))
    assert (verdict.outcome, verdict.worst["part"]) == (Outcome.FAIL, "gpu0->gpu3")
    assert verdict.line.startswith("worker0 gpu0->gpu3 p2p.write: 200 GB/s, limit >= 380")
    assert "only the link between gpu0 and gpu3 is slow" in verdict.next_step


def test_the_gpu_that_all_slow_links_have_in_common_is_named():
    slow = {(a, b): 190.0 + a for a in range(4) for b in range(4) if 2 in (a, b) and a != b}
    verdict = judged("p2p.write", node("p2p", *matrix(slow=slow)))
    assert verdict.outcome is Outcome.FAIL
    assert "gpu2 (GPU-worker0-2) is part of all 6 slow links" in verdict.next_step


def test_slow_links_without_a_gpu_in_common_are_said_to_be_so():
    verdict = judged("p2p.write", node("p2p", *matrix(slow={(0, 1): 100.0, (2, 3): 110.0})))
    assert "no GPU is part of all 2 slow links" in verdict.next_step


def test_a_link_below_its_siblings_is_an_outlier_with_its_name():
    verdict = judged("p2p.write", node("p2p", *matrix(slow={(3, 1): 382.0})))
    assert (verdict.outcome, verdict.worst["part"]) == (Outcome.FAIL, "gpu3->gpu1")
    assert verdict.reason.startswith("outlier: ")


def test_a_link_that_is_missing_or_doubled_is_not_measured():
    lacking = matrix()
    del lacking[1][2]
    verdict = judged("p2p.write", node("p2p", *lacking))
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason == "measured on 11 of 12 links; not from gpu1 to gpu3 of worker0"
    lacking[1].append(lacking[1][0])
    assert "not from gpu1 to gpu3" in judged("p2p.write", node("p2p", *lacking)).reason
    doubled = matrix()
    doubled[1].append(doubled[1][0])
    verdict = judged("p2p.write", node("p2p", *doubled))
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason == "the record holds 13 measurements of 12 links"


def test_both_ways_have_twice_the_ceiling():
    fast = dict.fromkeys(itertools.permutations(range(4), 2), 783.7)
    record = node("p2p", *matrix(slow=fast, metric="both"))
    verdict = judged("p2p.both", record)
    assert (verdict.outcome, verdict.ceiling) == (Outcome.PASS, 900)
    as_one_way = node("p2p", *matrix(slow=fast))
    assert "above the physical ceiling" in judged("p2p.write", as_one_way).reason


def test_tables_have_the_form_of_nvbandwidth():
    assert nvbandwidth_tables(node("p2p", *matrix(2, {(1, 0): 394.123}))).splitlines() == [
        "worker0: memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
        "           0         1",
        " 0       N/A    395.00",
        " 1    394.12       N/A",
    ]
    found = node("hostcopy", host("h2d", 55.43), host("h2d", 55.06))
    assert nvbandwidth_tables(found).splitlines() == [
        "worker0: memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
        "           0         1",
        " 0     55.43     55.06",
    ]
    assert nvbandwidth_tables(support.node_record(650, 655)) == ""


# --- how it is measured


class FakeSender:
    """Copies that take 1 s, of which those to GPU 2 leave three elements wrong."""

    def __init__(self, ranks: Any, size: int) -> None:
        self.ranks, self.size, self.closed = ranks, size, False
        self.wrong: dict[int, int] = {}
        self.staged = [2]
        self.asked: list[Any] = []
        FakeSender.last = self

    def rounds(self, metric: str, target: int | None, batch_s: float) -> list[Batches]:
        self.asked.append((metric, target))
        if target is None:
            return []
        self.wrong[target] = 3 if target == 2 else 0
        return [batches(1.0), batches(2.0)]

    def close(self) -> None:
        self.closed = True


FakeSender.last = None  # type: ignore[attr-defined]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(p2p, "Sender", FakeSender)

    def start(metrics: list[str], *, gpus: int = 3, gpu: int = 0, **how: Any) -> Any:
        ranks: Any = SimpleNamespace(
            on_gpu=how.pop("on_gpu", False), ranks_per_node=gpus, local_rank=gpu,
            gather_node=lambda medians: {k: [10.0, 20.0] for k in range(gpus)},
        )  # fmt: skip
        result = p2p.run(ranks, metrics, **how)
        sender: Any = FakeSender.last  # type: ignore[attr-defined]
        assert sender.closed
        return result.measurements, result.facts, sender.asked

    return start


def test_each_gpu_sends_to_every_other_and_waits_where_it_has_no_pair(started):
    found, facts, asked = started(["write", "errors"], size=10**9)
    assert sorted(t for m, t in asked if t is not None) == [1, 2]
    assert len(asked) == 6, "three rounds of two directions"
    writes = {m.at["to"]: m for m in found if m.metric == "write"}
    assert writes[1].samples == [1.0] * 4
    assert writes[1].rounds == [[0.5] * 4]
    assert (writes[1].at["part"], writes[1].checks["wrong"]) == ("gpu0->gpu1", 0.0)
    assert (writes[1].notes, len(writes[2].notes)) == ([], 1)
    assert "gpu0->gpu2 goes through the host" in writes[2].notes[0]
    errors = found[-1]
    assert (errors.metric, errors.value) == ("errors", 3)
    assert errors.notes == ["3 wrong from gpu0 to gpu2"]
    assert facts["through_host"] == [2]


def test_both_ways_are_the_sum_of_this_and_of_the_other_direction(started):
    found, _, asked = started(["both"], gpu=1, size=10**9)
    assert sorted(t for m, t in asked if t is not None) == [0, 2]
    assert {m for m, _ in asked} == {"both"}
    assert [m.metric for m in found] == ["both", "both"]
    assert found[0].samples == [11.0] * 4
    assert found[0].rounds == [[20.5] * 4]
    assert "gpu1<->gpu" in str(found[0].at["part"])
    metrics = [m for m, _ in started(["write", "both"])[2]]
    assert (metrics.count("write"), metrics.count("both")) == (6, 3)


def test_errors_alone_are_found_one_way(started):
    found, _, asked = started(["errors"])
    assert [m.metric for m in found] == ["errors"]
    assert {m for m, _ in asked} == {"write"}
    assert started(["errors"], gpus=1)[0] == [], "a GPU alone copies nothing"
    assert not [m for m in started(["write"])[0] if m.metric == "errors"]


@pytest.mark.parametrize(
    ("gpus", "how", "size", "batch_s"),
    [
        (3, {"on_gpu": True}, 2**30, 3.0 / (3 * 3 * 26)), (2, {}, 8 * 2**20, 3.0 / (3 * 26)),
        (1, {"size": 4}, 4, 3.0 / (3 * 26)), (9, {}, 8 * 2**20, 0.01),
    ],
)  # fmt: skip
def test_all_rounds_take_three_seconds_of_copies(gpus, how, size, batch_s, started):
    _, facts, _ = started(["write"], gpus=gpus, **how)
    assert (facts["size"], facts["batch_s"]) == (size, pytest.approx(batch_s))


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A sender on the CPU, and what it asks of the clock."""
    asked: dict[str, Any] = {}

    def warm(ranks: Any, launch: Any, seconds: float) -> float:
        launch()
        asked["warm"] = seconds
        return 0.004

    def together(ranks: Any, launch: Any, **how: Any) -> str:
        asked.update(how)
        return "batches"

    monkeypatch.setattr(p2p.timing, "warm", warm)
    monkeypatch.setattr(p2p.timing, "synchronize", lambda ranks: None)
    monkeypatch.setattr(p2p.timing, "measure_together", together)
    monkeypatch.setattr(p2p.timing, "take_no_part", lambda ranks: asked.update(part=False))
    made: Any = p2p.Sender(SimpleNamespace(device=torch.device("cpu"), rank=1), 4096)  # type: ignore[arg-type]
    made.clock = asked
    return made


def test_a_window_has_26_batches_of_which_20_must_be_common(sender):
    assert sender.measure(2, 0.01) == "batches"
    assert (sender.clock["warm"], sender.clock["minimum"]) == (0.02, 20)
    assert sender.clock["batch_s"] == pytest.approx(0.012)
    assert sender.clock["window_s"] == pytest.approx(26 * 0.012)
    assert sender.wrong == {2: 0}
    assert "part" not in sender.clock
    assert sender.measure(None, 0.01) is None
    assert sender.clock["part"] is False


def test_elements_that_come_back_wrong_are_added_up(sender, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "copy_", lambda self, source, **how: self)
    sender.measure(2, 0.01)
    sender.measure(2, 0.01)
    assert sender.wrong[2] == 2 * int((sender.source != 0).sum())


def test_only_who_has_a_target_keeps_busy(sender):
    sender.keep_busy(None, 5.0)
    assert "warm" not in sender.clock
    sender.keep_busy(1, 5.0)
    assert sender.clock["warm"] == 5.0


@pytest.mark.parametrize(("metric", "rate"), [("write", 1.0), ("both", 2.0)])
def test_rounds_are_judged_by_the_sum_of_the_directions(metric, rate, sender, monkeypatch):
    def measure(ranks: Any, name: str, *, rates: Any, **how: Any) -> Any:
        return rates(batches(4096 / 1e9))

    monkeypatch.setattr(p2p.repeat_rounds, "measure_batches", measure)
    assert sender.rounds(metric, 1, 0.01) == pytest.approx([rate] * 4)


def test_a_gpu_without_peer_access_is_noted_once(sender, monkeypatch):
    assert sender._device(1) == torch.device("cpu")
    emptied: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda own, other: other.index != 2)
    sender.close()
    assert emptied == []
    sender.ranks.device = torch.device("cuda", 0)
    for target in (1, 2, 2):
        assert sender._device(target) == torch.device("cuda", target)
    assert sender.staged == [2]
    sender.source = None
    sender.close()
    assert emptied == [1]
