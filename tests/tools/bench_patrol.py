"""How long a user's job waits while patrol holds every node: `python -m tests.tools.bench_patrol`.

In a sandbox of 4 nodes a round of patrol takes all of them, then somebody submits a job, 50 times.
Prints the time from sbatch to the job's first line, and how many jobs were lost. Exit status 0
where none was, and none waited longer than 5 s.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from fixtures.patrol import queue, visits
from fixtures.sandbox import Sandbox
from fixtures.sandbox.processes import wait_until
from tests.selftests.patrol.test_patrol import HELD_S, Round, patrol_of, user_job

NODES = 4
LONGEST_S = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench_patrol", description=__doc__)
    parser.add_argument("--tries", type=int, default=50)
    options = parser.parse_args()
    waits: list[float] = []
    lost = 0
    with Sandbox.up(nodes=NODES, gpus=2) as sandbox:
        os.environ.update(sandbox.env)
        for k in range(options.tries):
            wait_until(lambda: len(queue.idle_nodes(None)[0]) == NODES, timeout_s=60)
            with tempfile.TemporaryDirectory(prefix="patrol-") as folder:
                held = Round(patrol_of(Path(folder)), NODES)
                submitted = time.time()
                _, out = user_job(Path(folder), nodes=1 + k % NODES)
                if not wait_until(lambda out=out: out.exists() and out.read_text().strip(),  # type: ignore[misc]
                                  timeout_s=HELD_S):  # fmt: skip
                    lost += 1
                    continue
                waits.append(float(out.read_text().split()[0]) - submitted)
                held.join(60)
                if any(visit["outcome"] != visits.GAVE_WAY for visit in held.visits):
                    print(f"try {k + 1}: {[visit['outcome'] for visit in held.visits]}")
            print(f"try {k + 1}: {waits[-1]:.2f} s", flush=True)
    ordered = sorted(waits)
    print(f"{len(waits)} of {options.tries} jobs ran, {lost} lost; waited {ordered[0]:.2f} to "
          f"{ordered[-1]:.2f} s, median {statistics.median(ordered):.2f} s")  # fmt: skip
    return 0 if not lost and ordered[-1] <= LONGEST_S else 1


if __name__ == "__main__":
    sys.exit(main())
