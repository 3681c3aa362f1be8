"""The workloads on wiring on real GPUs: two ranks of one host that say that they are two nodes.

    python -m tests.tools.wiring_gpu [--gpus 2] [--cpu]

Shows that NCCL's messages in CUDA graphs work and how long they take, and that one rail after
another is measured. Over NVLink there are no leaf switches: which is near tells a fabric only.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.selftests.rank_job import TORCH, Job

ONE_GPU_EACH = """\
import os
if {gpu}:
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["SLURM_PROCID"]
from fixtures.workloads import {name} as workload
WORKLOAD, run = workload.WORKLOAD, workload.run
"""
METRICS = {"wiring": ["leaf"], "rails_alone": ["busbw"]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.wiring_gpu")
    parser.add_argument("--gpus", type=int, default=2, help="each is a node of its own")
    parser.add_argument("--cpu", action="store_true", help="on CPUs, to see this tool at work")
    options = parser.parse_args()
    nodes = [f"node{k}" for k in range(options.gpus)]
    for name, metrics in METRICS.items():
        with tempfile.TemporaryDirectory() as folder:
            job = Job(Path(folder), nodes=nodes if name == "wiring" else nodes[:2])
            job.spec |= {"device": "cpu" if options.cpu else "cuda", "demonstration": options.cpu}
            text = ONE_GPU_EACH.format(name=name, gpu=not options.cpu)
            (job.root / f"own_{name}.py").write_text(text, encoding="utf-8")
            job.add(f"own_{name}", metrics)
            statuses = job.run(slurm=True, warm=TORCH if options.cpu else ())
            if any(statuses):
                raise SystemExit(f"{name}: ranks ended with {statuses}\n{job.output()}")
            for rank in job.record(f"own_{name}").ranks:
                seconds = f"{rank.end - rank.start:.1f} s" if rank.end and rank.start else "?"
                rates = [f"{m.metric} {m.samples[:3] or m.value}" for m in rank.measurements]
                print(name, rank.node, seconds, *rates, rank.facts.get("latency_us", ""))


if __name__ == "__main__":
    main()
