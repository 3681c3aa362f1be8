"""Records of memory, host copies and GPU links, and jobs with a fault in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fixtures.records.model import Measurement, Record
from fixtures.run.judge_item import judge_item
from fixtures.thresholds import loader
from fixtures.verdict.model import Verdict
from fixtures.verdict.outliers import of_fleet, sibling_values
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.timing.timing import Batches
from tests.selftests import support
from tests.selftests.rank_job import TORCH, Job, rank_of

LIMITS = loader.load(support.SHIPPED)


def judged(key: str, found: Record, *, model: str = "H200 SXM") -> Verdict:
    """The verdict on a record of worker0 by the shipped limits, as a run of one node gives it."""
    people = support.population(1, len(found.ranks), model)
    item = support.item(key, LIMITS, people, "worker0")
    values = sibling_values(LIMITS.criteria[key], found, ["worker0"], "worker0")
    siblings = of_fleet(LIMITS.criteria[key], values, LIMITS)
    return judge_item(item, found, thresholds=LIMITS, population=people, siblings=siblings)


def node(workload: str, *measured: list[Measurement], **device: Any) -> Record:
    """A record of H200s in worker0: what each of them measured."""
    ranks = [
        support.rank(k, "worker0", *found, gpus=len(measured), **device)
        for k, found in enumerate(measured)
    ]
    return support.record(*ranks, workload=workload)


def rate(metric: str, gbps: float, **more: Any) -> Measurement:
    """A valid measurement at a steady rate, unless told otherwise."""
    checks = {
        "overlap": 0.99, "batches": 20.0, "wall_over_events": 1.0, "wrong": 0.0,
        "array_over_cache": 270.0, "pages_elsewhere": 0.0,
    }  # fmt: skip
    checks |= more.pop("checks", {})
    checks = {name: number for name, number in checks.items() if number is not None}
    return Measurement(metric=metric, unit="GB/s", samples=[gbps] * 20, checks=checks, **more)


def lone(tmp_path: Path) -> Ranks:
    """A rank on the CPU that has nobody to meet."""
    return rank_of(tmp_path, nodes=["worker0"])


def batches(seconds: float, count: int = 4, **more: Any) -> Batches:
    """So many batches of one launch that took as long as each other."""
    given = {"started": 0.0, "ended": [1.0], "launches": 1, "wall_over_marks": 1.0, **more}
    return Batches(seconds=[seconds] * count, inside=count, **given)


HEAD = """\
from fixtures.workloads.{area} import {name} as workload
WORKLOAD = workload.WORKLOAD
def run(ranks, metrics, **params):
    if ranks.rank == 1:
        plant()
    return workload.run(ranks, metrics, **params)
"""


def job_with(
    tmp_path: Path, name: str, plant: str, metrics: list[str], ranks: int, **params: Any
) -> Record:
    job = Job(tmp_path, per_node=ranks)
    (tmp_path / "planted.py").write_text(HEAD.format(area="memory", name=name) + plant)
    job.add("planted", metrics, **params)
    assert job.run(warm=TORCH) == [0] * ranks, job.output()
    return job.record("planted")


def host(metric: str, gbps: float, alone: float | None = 55.5, **checks: Any) -> list[Measurement]:
    conditions = {"pcie_gen": 5, "pcie_width": 16, "alone_gbps": alone}
    known = {name: fact for name, fact in conditions.items() if fact}
    return [rate(metric, gbps, conditions=known, checks=checks)]
