"""A run of two nodes with two H200 each, by a small contract."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fixtures.cluster.population import Population
from fixtures.plan.items import planned_list
from fixtures.records.run_directory import RunDirectory
from fixtures.run.run import Run
from tests.selftests.support import LIMITS, NONCE, load

PEOPLE = Population(
    origin="cluster", nodes=("worker0", "worker1"), gpus_per_node=2, gpu_model="H200 SXM"
)
RUN_ID = "20261120-120000-0000"
BEGAN = "1970-01-01T00:00:01+00:00"
"""Before the times of the records that support makes."""
AWAY = "not_applicable:\n  - {criteria: [allreduce.latency], when: {gpus: 2}, reason: too few}\n"
TEXT = re.sub(r"waivers:\n.*\n", "", LIMITS) + AWAY
"""Without a waiver, and with a criterion that is not applicable."""


def small_run(folder: Path, people: Population = PEOPLE, **more: Any) -> Run:
    """`select`: the keys of its scope; all else are fields of Run."""
    limits = more.pop("thresholds", None) or load(folder, TEXT)
    scope = more.pop("select", None)
    items = more.pop("items", None)
    items = planned_list(limits, people) if items is None else items
    run = Run(**{
        "directory": RunDirectory(folder / "run"), "id": RUN_ID, "nonce": NONCE,
        "thresholds": limits, "population": people, "items": items, "tier": "standard",
        "created": BEGAN, **more,
    })  # fmt: skip
    run.directory.records.mkdir(parents=True, exist_ok=True)
    run.directory.jobs.mkdir(exist_ok=True)
    if scope is not None:
        run.scope = [i for i in run.items if i.key in scope]
    return run
