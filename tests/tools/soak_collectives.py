"""`make soak`: is a collective found that is wrong now and then?

python -m tests.tools.soak_collectives [--runs 100]

Two ranks on this host; the all-reduce of one of them is wrong in 10 % or 1 % of its calls, by a
random generator with a fixed seed. A run is one size of the sweep with as many checked calls as it
has on GPUs: 44, or 299. The exit status is 0 where as many runs found it as a right program finds
in all but one of 500 cases (binomial): 96 of 100, and 89 of 100.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.selftests.rank_job import TORCH, Job

MODULE = '''
"""Runs of an all-reduce that is wrong now and then, on rank 1."""
import random
from dataclasses import replace
from fixtures.records.model import Measurement, Result
from fixtures.workloads.collectives import allreduce
from fixtures.workloads.nccl import checked_calls, collective_ops
from fixtures.workloads.collectives import operation_buffers

WORKLOAD = allreduce.WORKLOAD
SIZE = 4096
honest = collective_ops.OPERATIONS["all_reduce"]

def run(ranks, metrics, *, share, calls, runs):
    checked_calls.WANTED = ((checked_calls.WANTED[-1][0], calls),)
    operation_buffers.CPU_CHECKS_S = 600.0
    operation_buffers.CPU_BUDGET_S = 0.01
    found = 0
    for seed in range(runs):
        chance = random.Random(seed)
        def broken(peers, target, source):
            honest.call(peers, target, source)
            if peers.rank == 1 and chance.random() < share:
                target[chance.randrange(target.numel())] += 1
        collective_ops.OPERATIONS["all_reduce"] = replace(honest, call=broken)
        try:
            result = allreduce.run(ranks, ["errors"], min_size=SIZE, max_size=SIZE)
        finally:
            collective_ops.OPERATIONS["all_reduce"] = honest
        (row,) = result.facts["table"]
        assert row["checked"] == calls, row
        (errors,) = [m for m in result.measurements if m.metric == "errors"]
        found += errors.value > 0
    return Result(measurements=[Measurement(metric="errors", unit="runs", value=found)])
'''

CASES = ((0.10, 44, 0.96), (0.01, 299, 0.89))
"""(share of wrong calls, checked calls, share of the runs that must find it)."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """In how many runs something was found."""

    found: int
    """On the rank that is wrong."""
    accused: int
    """On the rank that is well."""


def found_in(share: float, calls: int, runs: int) -> Found:
    """Run as many runs as asked for and return in how many of them each rank saw an error."""
    with tempfile.TemporaryDirectory(prefix="acceptance-soak-") as folder:
        root = Path(folder)
        job = Job(root, per_node=2)
        (root / "now_and_then.py").write_text(MODULE, encoding="utf-8")
        job.add("now_and_then", ["errors"], share=share, calls=calls, runs=runs)
        if job.run(warm=TORCH) != [0, 0]:
            raise SystemExit(job.output())
        (_, well), (_, wrong) = job.record("now_and_then").points("errors", {})
    return Found(found=int(str(wrong.value)), accused=int(str(well.value)))


def main() -> int:
    """Run both cases; return 0 if enough runs found the fault and nobody else was accused."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.soak_collectives")
    parser.add_argument("--runs", type=int, default=100)
    runs = parser.parse_args().runs
    bad = False
    for share, calls, least in CASES:
        result = found_in(share, calls, runs)
        right = result.found >= least * runs and not result.accused
        bad = bad or not right
        print(
            f"wrong in {100 * share:g} % of its calls, {calls} checked: found in {result.found} of "
            f"{runs} runs (at least {least * runs:g}), the other rank accused in {result.accused}",
            flush=True,
        )
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
