"""NCCL's algorithm by operation and size on the GPUs of this host, of one or two checkouts.

    python -m tests.tools.nccl_algorithms_gpu [--before DIR] [--gpus N]

Runs the collectives by hand and prints what their records say: algorithm and protocol of each size,
the channels of the node, and the seconds that finding them out took (`algorithms_s`). With --before
those of another checkout stand beside. The exit status is 1 where a size differs or is missing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fixtures.paths import CHECKOUT

WORKLOADS = ("allreduce", "allgather", "reducescatter", "broadcast", "allreduce_ring")


def facts_of(checkout: Path, gpus: int) -> tuple[dict[str, dict[str, Any]], float]:
    """Return the facts of rank 0 by workload, and the seconds that the run took."""
    with tempfile.TemporaryDirectory(prefix="nccl-algorithms-") as folder:
        out, started = Path(folder) / "run", time.perf_counter()
        subprocess.run(
            [
                sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={gpus}",
                "-m", "fixtures.workloads", *WORKLOADS, "--out", str(out),
            ],
            cwd=checkout, check=True,
        )  # fmt: skip
        seconds = time.perf_counter() - started
        lines = [
            json.loads(line)
            for path in out.rglob("rank0.jsonl")
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
    return {x["workload"]: x["facts"] for x in lines if x["event"] == "result"}, seconds


def algorithms(facts: dict[str, Any]) -> dict[int, str]:
    """Return "RING LL" by bytes, of the sizes whose algorithm is known."""
    return {
        row["size"]: f"{row['algorithm']} {row['protocol']}"
        for row in facts.get("table", [])
        if "algorithm" in row
    }


def main() -> int:
    """Print the comparison; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.nccl_algorithms_gpu")
    parser.add_argument("--before", type=Path, help="another checkout, to compare with")
    parser.add_argument("--gpus", type=int, default=2)
    options = parser.parse_args()
    now, seconds = facts_of(CHECKOUT, options.gpus)
    before, seconds_before = facts_of(options.before, options.gpus) if options.before else ({}, 0.0)
    wrong = 0
    for workload in WORKLOADS:
        facts = now.get(workload, {})
        here, there = algorithms(facts), algorithms(before.get(workload, {}))
        sizes = [row["size"] for row in facts.get("table", [])]
        unlike = [s for s in sizes if s not in here or (there and there.get(s) != here[s])]
        wrong += bool(unlike) or not sizes
        print(f"{workload}: {len(here)} of {len(sizes)} sizes, {facts.get('algorithms_s', 0)} s")
        print(f"  {facts.get('algorithms_unknown', '')} {facts.get('nccl', {}).get('by_node', '')}")
        for size in sizes:
            mark = "  <- differs" if size in unlike else ""
            print(f"  {size:>12} {here.get(size)!s:<16} before {there.get(size)!s:<16}{mark}")
    print(f"whole run {seconds:.1f} s, before {seconds_before:.1f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
