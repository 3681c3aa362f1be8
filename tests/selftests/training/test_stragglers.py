"""Who makes the others wait in training: measured between two ranks, judged, and named."""

from __future__ import annotations

import functools
import json
import random
import statistics
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.cluster.population import Population
from fixtures.plan.items import Item, planned_list
from fixtures.records.absence import Kind
from fixtures.records.files import read_lines
from fixtures.records.model import Measurement
from fixtures.run.judge_item import judge_item
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.model import Outcome, Verdict
from tests.selftests import straggler_ranks, support
from tests.selftests.support import SHIPPED

pytestmark = pytest.mark.cpu

STRATEGIES = straggler_ranks.STRATEGIES


# --- measured between two ranks


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stragglers")
    (out / "printed").write_text(straggler_ranks.start(out))
    return out


def results(run: Path) -> list[dict[str, Any]]:
    """The result line of each rank."""
    return [
        line
        for path in sorted(run.glob("jobs/*/rank*.jsonl"))
        for line in read_lines(path)
        if line["event"] == "result"
    ]


def pace_of(result: dict[str, Any]) -> Measurement:
    (measurement,) = result["measurements"]
    return Measurement.from_json(measurement)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_that_are_equally_fast_have_the_same_pace(strategy, runs):
    paces = [pace_of(result) for result in results(runs / f"{strategy}-healthy")]
    assert len(paces) == 2
    for pace in paces:
        assert (pace.metric, pace.unit, pace.rounds) == ("pace", "%", [])
        assert len(pace.samples) >= 5
        assert set(pace.samples) == {100.0}
        assert pace.notes == []


@pytest.mark.parametrize("case", ["slowed", "accumulating"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_own_time_and_waiting_are_told_apart_by_step(strategy, case, runs):
    first, slowed = results(runs / f"{strategy}-{case}")
    for result, own, waiting, pace in ((first, 1.0, 0.1, 110.0), (slowed, 1.1, 0.0, 90.9091)):
        rounds = result["facts"]["runs"][-1]["own_steps"]
        assert len(rounds) == 3, "who seems slow is measured in further rounds"
        for r in rounds:
            assert r["own"] == pytest.approx([own] * len(r["own"]))
            assert r["waiting"] == pytest.approx([waiting] * len(r["own"]), abs=1e-9)
        measured = pace_of(result)
        assert {x for samples in (measured.samples, *measured.rounds) for x in samples} == {pace}
    (note,) = pace_of(slowed).notes
    assert "gpu1 takes 1100 ms for its part of a step and waits 0 ms, the others take 1000 ms" in (
        note
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_own_steps_write_no_checkpoint(strategy, runs):
    written = {p.name for p in (runs / f"{strategy}-checkpoints").rglob("*") if p.is_dir()}
    steps = {int("".join(c for c in name if c.isdigit())) for name in written}
    assert steps
    assert max(steps) == 12


def test_no_training_stays_in_memory_once_its_pace_is_known(runs):
    printed = (runs / "printed").read_text().splitlines()
    counts = [line.split()[-1] for line in printed if line.startswith("trainings in memory")]
    assert counts == ["0"] * len(STRATEGIES) * len(straggler_ranks.CASES) * 2


def test_collectives_are_those_of_torch_again_afterwards():
    import torch
    import torch.distributed as dist

    from training import reference_run, stragglers
    from training.strategies import Team

    team = Team(members=(0,), rank=0, device=torch.device("cpu"), group=None)
    training = reference_run.new_training(reference_run.settings_for("single"), team)
    before = {name: getattr(dist, name) for name in dir(dist)}

    def run_a_step() -> None:
        with stragglers.collectives_answered_here(training):
            assert dist.all_reduce is not before["all_reduce"]
            training.run(1)

    # A training without any collective: nobody can say that its ranks did not wait.
    with pytest.raises(stragglers.CommunicationMissed, match=r"torch .*: no collective of single"):
        run_a_step()
    assert {name: getattr(dist, name) for name in dir(dist)} == before


def test_an_answer_has_the_shard_of_this_rank_for_every_rank():
    import torch
    import torch.distributed as dist

    from training import reference_run, stragglers
    from training.strategies import Team

    team = Team(members=(0,), rank=0, device=torch.device("cpu"), group=None)
    training = reference_run.new_training(reference_run.settings_for("single"), team)
    with stragglers.collectives_answered_here(training):
        for name in (n for n in stragglers.GATHERS if hasattr(dist, n)):
            whole = torch.zeros(6)
            whole[2:4] = torch.tensor([1.0, 2.0])
            getattr(dist, name)(whole, whole[2:4], group=None)
            assert whole.tolist() == [1.0, 2.0] * 3
        for name in (n for n in stragglers.SCATTERS if hasattr(dist, n)):
            part = torch.zeros(2)
            getattr(dist, name)(output=part, input=torch.arange(6.0), group=None)
            assert part.tolist() == [0.0, 1.0]


def test_where_collectives_are_not_seen_the_row_says_why():
    why = "torch 9.9: no collective of ddp came by"
    gap = [support.absent(Kind.FAULT, "pace", why)]
    ranks = [replace(support.rank(k, "worker0", gpus=4), absent=gap) for k in range(4)]
    verdict = judged("training_ddp.pace", ranks, nodes=1)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert why in verdict.reason


# --- the fastest batch that fits, of the same two ranks


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_by_hand_the_fastest_batch_that_fits_everywhere_is_taken(strategy, runs):
    for result in results(runs / f"{strategy}-batches"):
        (run,) = result["facts"]["runs"]
        assert (run["batch"], run["steps"]) == (4, 12)
    printed = [line for line in (runs / "printed").read_text().splitlines() if "batch" in line]
    lines = [line for line in printed if line.startswith("batch")]
    # Tokens of 1, 2 and 4 sequences of 64, in the seconds that their steps take.
    assert lines[:5] == [
        "batch 1: 64 tokens/s per rank", "batch 2: 85 tokens/s per rank",
        "batch 4: 91 tokens/s per rank", "batch 8: out of memory",
        "batch 4 is the fastest that fits",
    ]  # fmt: skip
    assert lines[5:] == lines[:5], "DDP and FSDP say the same"


# --- judged


def pace(*rounds: float, steps: int = 10) -> Measurement:
    samples = [[value] * steps for value in rounds]
    return Measurement(
        metric="pace", unit="%", samples=samples[0], rounds=samples[1:], at={"preset": "1b"},
        checks={"steps": float(steps)},
    )  # fmt: skip


@functools.cache
def planned(key: str, nodes: int, gpus: int) -> tuple[Thresholds, Population, Item]:
    """The shipped limits, nodes of H200, and what is planned of a criterion on the first."""
    limits = loader.load(SHIPPED)
    people = support.population(nodes, gpus, "H200 SXM")
    return limits, people, next(i for i in planned_list(limits, people) if i.criterion == key)


def judged(key: str, ranks: list[Any], *, nodes: int) -> Verdict:
    limits, people, item = planned(key, nodes, len(ranks) // nodes)
    workload = limits.criteria[key].workload
    found = support.record(*ranks, workload=workload, placement=item.placement)
    return judge_item(item, found, thresholds=limits, population=people)


def verdict_on(key: str, paces: list[Measurement], *, nodes: int = 1) -> Verdict:
    gpus = len(paces) // nodes
    ranks = [support.rank(k, f"worker{k // gpus}", m, gpus=gpus) for k, m in enumerate(paces)]
    return judged(key, ranks, nodes=nodes)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_rank_that_makes_the_others_wait_is_named(strategy):
    others = [pace(100.2, 99.9, 100.0)] * 3
    verdict = verdict_on(
        f"training_{strategy}.pace", [*others[:2], pace(90.9, 91.2, 90.7), others[2]]
    )
    assert verdict.outcome is Outcome.FAIL
    assert verdict.worst is not None
    assert (verdict.worst["node"], verdict.worst["gpu"]) == ("worker0", 2)
    assert verdict.worst["uuid"]
    assert verdict.worst["uuid"] in verdict.next_step


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_over_all_nodes_one_gpu_is_named_too(strategy):
    paces = [pace(100.0)] * 8
    paces[5] = pace(90.9, 90.9, 90.9)
    verdict = verdict_on(f"training_{strategy}.cluster.pace", paces, nodes=2)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.worst is not None
    assert (verdict.worst["node"], verdict.worst["gpu"]) == ("worker1", 1)
    assert verdict.worst["uuid"] in verdict.next_step


RECORDED = json.loads((support.DATA / "pace-h100.json").read_text())
"""Trainings on four H100 in pairs (tests/tools/stragglers_gpu.py of commit 0ba87eb): what was
slowed, and each rank's median pace of every round. With a neighbour, GPU 0 is the slowed one; with
a late host thread, GPU 1."""


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_as_recorded_on_h100_the_slowed_rank_is_named_and_nobody_else(number):
    run = RECORDED[number]
    verdict = verdict_on(
        f"training_{run['strategy']}.pace", [pace(*rounds) for rounds in run["paces"]]
    )
    # Where the host bounds the steps, the neighbour took up to 10 % of what the GPU had to spare.
    little = (run["preset"], run["condition"], run["strategy"]) == ("160m", "neighbour", "fsdp")
    if run["condition"] == "healthy":
        assert verdict.outcome is Outcome.PASS
    elif little:
        assert verdict.outcome is not Outcome.FAIL
    else:
        assert verdict.outcome is Outcome.FAIL
        assert verdict.worst is not None
        assert verdict.worst["gpu"] == (1 if run["condition"] == "host" else 0)


def test_every_rank_begins_a_step_with_an_empty_queue(monkeypatch):
    """Else the rank that waits queues work meanwhile, and seems fast by that."""
    import torch

    from training import stragglers

    log: list[str] = []

    class Event:
        def __init__(self, **given: Any) -> None:
            self.name = ""

        def record(self) -> None:
            self.name = f"event {sum(x.startswith('record') for x in log)}"
            log.append(f"record {self.name}")

        def synchronize(self) -> None:
            log.append(f"wait {self.name}")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    team: Any = SimpleNamespace(device=torch.device("cuda"), group=None)
    marks = stragglers.StepMarks(team, lambda: log.append("meet"))
    for _ in range(2):
        log.clear()
        marks.mark()
        assert log == ["record event 0", "meet", "record event 1", "wait event 1"]


def test_who_is_slow_in_one_round_only_is_not_accused():
    verdict = verdict_on("training_ddp.pace", [pace(100.0), pace(90.0, 99.0, 99.5)])
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.worst is None
    assert verdict.reason.startswith("unstable: worker0 gpu1 measured 90, 99, 99.5")


def test_too_few_own_steps_are_not_judged():
    verdict = verdict_on("training_ddp.pace", [pace(100.0), pace(90.0, steps=4)])
    assert verdict.outcome is Outcome.NOT_MEASURED


DEVICE_SIGMA, STEP_SIGMA = 0.004, 0.01
"""Relative differences of equal GPUs (H200: within 0.8 %), and of the steps of one."""


def measured_by_chance(seed: int, slowdowns: list[float]) -> list[Measurement]:
    """The pace of each rank, over three rounds of ten own steps."""
    from training.stragglers import Round, time_of_others

    chance = random.Random(seed)
    lasting = [slowdown * chance.gauss(1, DEVICE_SIGMA) for slowdown in slowdowns]
    paces: list[list[list[float]]] = [[] for _ in slowdowns]
    for _ in range(3):
        own = [[t * chance.gauss(1, STEP_SIGMA) for _ in range(10)] for t in lasting]
        medians = [statistics.median(steps) for steps in own]
        for k, steps in enumerate(own):
            one = Round(own=steps, waiting=[], reference=time_of_others(medians, k))
            paces[k].append(one.pace)
    return [
        Measurement(
            metric="pace", unit="%", samples=rounds[0], rounds=rounds[1:], checks={"steps": 10.0}
        )
        for rounds in paces
    ]


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("slowed_by", [0.0, 0.1])
def test_of_twenty_runs_the_slowed_rank_is_named_and_nobody_else(ranks, slowed_by):
    named: list[int | None] = []
    for seed in range(20):
        measured = measured_by_chance(seed, [1.0 + slowed_by] + [1.0] * (ranks - 1))
        verdict = verdict_on("training_fsdp.pace", measured)
        failed = verdict.outcome is Outcome.FAIL and verdict.worst is not None
        named.append(verdict.worst["gpu"] if failed and verdict.worst else None)
    assert named == [0 if slowed_by else None] * 20
