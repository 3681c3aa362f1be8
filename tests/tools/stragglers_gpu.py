"""Is the rank that makes the others wait in training named, on real GPUs?

python -m tests.tools.stragglers_gpu [--healthy 20] [--neighbour 10] [--host 10] [--out DIR]
[--json FILE]

Compiled bf16 trainings of two GPUs, DDP and FSDP in turns, measured by the suite (`pace`) and
judged by it: left alone; with a neighbour process on GPU 0 whose products take about 10 % of its
time; with a host thread of GPU 1 that ends each step 10 % late. All trainings run in one torchrun,
each into a run directory of its own. Nothing is asserted, the lines say who was named. By default
this takes about nine minutes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fixtures.records.files import read_lines
from tests.tools.bench import machine, save

RANKS = 2
SLOWED_BY = 0.10
CALIBRATIONS = 4
"""Trainings beside the neighbour before those that count, to set how much it takes from each
strategy."""
TRAINING = {"preset": "1b", "batch": 1, "steps": 14}
"""Bound by the GPU with either strategy: where the host bounds a step (160m with FSDP), a
neighbour that takes a tenth of a GPU slows the training by 3 to 10 %."""
STRATEGIES = ("ddp", "fsdp")
CONDITIONS = {"healthy": None, "host": 1, "neighbour": 0}
"""What is slowed, and the GPU that is to be named."""

NEIGHBOUR = """
import sys, threading, time
import torch
period = 0.05
a = torch.randn(4096, 4096, device="cuda:0", dtype=torch.bfloat16)
for _ in range(3):
    a @ a
torch.cuda.synchronize()
begun = time.perf_counter()
for _ in range(200):
    a @ a
torch.cuda.synchronize()
launch_s = (time.perf_counter() - begun) / 200
share = [0.0]
def listen():
    for line in sys.stdin:
        share[0] = float(line)
        print("set", flush=True)
threading.Thread(target=listen, daemon=True).start()
print("ready", flush=True)
while True:
    begun = time.perf_counter()
    for _ in range(round(share[0] * period / launch_s)):
        a @ a
    torch.cuda.synchronize()
    time.sleep(max(0.001, period - (time.perf_counter() - begun)))
"""


@dataclass
class Run:
    """One training, and what the suite made of it."""

    condition: str
    strategy: str
    outcome: str
    named: list[int]
    """GPUs that a row of pace names."""
    paces: list[list[float]] = field(default_factory=list)
    """Of each rank, the median of each round in %."""
    reason: str = ""

    @property
    def right(self) -> bool:
        """Whether the slowed GPU alone is named; of a healthy training nobody."""
        wanted = CONDITIONS[self.condition]
        return self.named == ([] if wanted is None else [wanted])


def main(arguments: list[str] | None = None) -> int:
    """Train, judge, and print a line for each run."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.stragglers_gpu", description=__doc__
    )
    parser.add_argument("--healthy", type=int, default=20, metavar="RUNS")
    parser.add_argument("--neighbour", type=int, default=10, metavar="RUNS")
    parser.add_argument("--host", type=int, default=10, metavar="RUNS")
    parser.add_argument("--preset", default=TRAINING["preset"])
    parser.add_argument("--batch", type=int, default=TRAINING["batch"])
    parser.add_argument("--cpu", action="store_true", help="try the tool itself, without GPUs")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the run directories here")
    parser.add_argument("--rank-of", metavar="DIR", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank_of:
        Rank(options, options.rank_of).train()
        return 0
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="acceptance-stragglers-") as temporary:
        folder = str(options.out or temporary)
        command = [
            sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}",
            "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0",
            "-m", "tests.tools.stragglers_gpu", "--rank-of", folder,
            *(sys.argv[1:] if arguments is None else arguments),
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "4"}
        training = subprocess.run(command, check=False, env=environment)
        trained_s = time.perf_counter() - begun
        runs = [
            judged(path)
            for path in sorted(Path(folder).glob("[0-9]*-*"))
            if "calibration" not in path.name
        ]
    for number, run in enumerate(runs, start=1):
        paces = "; ".join(
            f"gpu{k} {', '.join(f'{x:.1f}' for x in rounds)}" for k, rounds in enumerate(run.paces)
        )
        print(
            f"{number:3} {run.condition:10} {run.strategy:5} {run.outcome:12} "
            f"{'right' if run.right else 'WRONG'}: named {run.named or 'nobody'}; pace {paces} "
            f"{run.reason}"
        )
    for condition in CONDITIONS:
        of_it = [run for run in runs if run.condition == condition]
        right = sum(run.right for run in of_it)
        print(f"{condition}: right in {right} of {len(of_it)} runs")
    print(f"{trained_s:.0f} s of training, {time.perf_counter() - begun:.0f} s in all")
    save("stragglers-gpu", [asdict(run) for run in runs], machine(), options.json)
    return training.returncode


def judged(path: Path) -> Run:
    """Judge one run directory, as a replay does."""
    from tests.selftests import support

    _, condition, strategy = path.name.split("-")
    _, verdict = support.judged(path, path.with_name(f"judged-{path.name}"))
    (row,) = (r for r in verdict["criteria"] if r["criterion"] == f"training_{strategy}.pace")
    named = [row["worst"]["gpu"]] if row["outcome"] == "FAIL" else []
    return Run(condition, strategy, row["outcome"], named, paces_of(path), row["reason"])


def paces_of(path: Path) -> list[list[float]]:
    """Return the median pace of each round of every rank, as recorded."""
    return [
        [statistics.median(r) for r in (m["samples"], *m.get("rounds", []))]
        for lines in sorted(path.glob("jobs/*/rank*.jsonl"))
        for line in read_lines(lines)
        if line["event"] == "result"
        for m in line["measurements"]
        if m["metric"] == "pace"
    ]


class Rank:
    """One rank of all trainings."""

    def __init__(self, options: argparse.Namespace, out: Path) -> None:
        from fixtures.workloads.runtime import standalone

        self.options = options
        self.out = out
        self.rank = int(os.environ["RANK"])
        self.store = standalone.rendezvous(self.rank, RANKS)
        self.count = 0
        self.healthy_s: dict[str, float] = {}
        """This rank's own step of each strategy, left alone."""

    def train(self) -> None:
        """Run all trainings: left alone and with a slow host in turns, then beside a neighbour."""
        options = self.options
        for k in range(max(options.healthy, options.host + 2)):
            # A slowed step is 10 % longer than one of the same strategy was: that comes first.
            if k >= 2 and k - 2 < options.host:
                with self.slow_host(STRATEGIES[k % 2]):
                    self.one("host", STRATEGIES[k % 2])
            if k < options.healthy:
                self.one("healthy", STRATEGIES[k % 2])
        if options.neighbour:
            self.beside_a_neighbour(options.neighbour)

    def one(self, condition: str, strategy: str) -> None:
        """Train once by the suite's own workload, into a run directory of its own."""
        from fixtures.workloads.runtime import standalone

        self.count += 1
        path = self.out / f"{self.count:03}-{condition}-{strategy}"
        cpu = self.options.cpu
        params = TRAINING | {"preset": self.options.preset, "batch": self.options.batch}
        request = standalone.Request(
            names=[f"training_{strategy}"], out=path, metrics=["pace"], cpu=cpu,
            params={"preset": "tiny", "steps": 14} if cpu else params,
        )  # fmt: skip
        standalone.run_once(
            request, self.rank, RANKS, standalone.with_fresh_prefix(self.store, self.count)
        )
        if condition == "healthy":
            self.healthy_s.setdefault(strategy, self.own_step_s(path))

    def own_step_s(self, path: Path) -> float:
        """Return the seconds of this rank's own step in a run that it has just written."""
        (lines,) = path.glob(f"jobs/*/rank{self.rank}.jsonl")
        (result,) = (line for line in read_lines(lines) if line["event"] == "result")
        rounds = result["facts"]["runs"][-1]["own_steps"]
        return float(statistics.median(x for r in rounds for x in r["own"]))

    @contextmanager
    def slow_host(self, strategy: str) -> Iterator[None]:
        """Let the host thread of the rank that is to be named end each step 10 % late."""
        if self.rank != CONDITIONS["host"]:
            yield
            return
        import torch

        from training.loop import Training

        whole_step, ended = Training._train_step, [0.0]
        step_s = (1 + SLOWED_BY) * self.healthy_s[strategy]

        def late_step(training: Any, batches: list[Any]) -> None:
            whole_step(training, batches)
            if training.team.device.type == "cuda":
                torch.cuda.synchronize()
            while time.perf_counter() < ended[0] + step_s:
                pass
            ended[0] = time.perf_counter()

        Training._train_step = late_step  # type: ignore[method-assign]
        try:
            yield
        finally:
            Training._train_step = whole_step  # type: ignore[method-assign]

    def beside_a_neighbour(self, runs: int) -> None:
        """Train beside a process on GPU 0, which is first set to take about 10 % of its time."""
        if self.rank != CONDITIONS["neighbour"]:
            for k in range(-CALIBRATIONS, runs):
                self.one("calibration" if k < 0 else "neighbour", STRATEGIES[k % 2])
            return
        with subprocess.Popen(
            [sys.executable, "-c", NEIGHBOUR], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        ) as neighbour:  # fmt: skip
            try:
                assert neighbour.stdin is not None
                assert neighbour.stdout is not None
                neighbour.stdout.readline()  # wait until its GPU is ready
                shares = dict.fromkeys(STRATEGIES, SLOWED_BY / (1 + SLOWED_BY))
                for k in range(-CALIBRATIONS, runs):
                    strategy = STRATEGIES[k % 2]
                    neighbour.stdin.write(f"{shares[strategy]}\n")
                    neighbour.stdin.flush()
                    neighbour.stdout.readline()  # wait until it has been set
                    self.one("calibration" if k < 0 else "neighbour", strategy)
                    path = self.out / f"{self.count:03}-calibration-{strategy}"
                    if not path.exists():
                        continue
                    cost = self.own_step_s(path) / self.healthy_s[strategy] - 1
                    print(f"{strategy}: share {shares[strategy]:.3f} costs {cost:.1%}", flush=True)
                    factor = min(2.0, SLOWED_BY / max(cost, 0.01))
                    shares[strategy] = min(0.4, shares[strategy] * factor)
            finally:
                neighbour.kill()


if __name__ == "__main__":
    sys.exit(main())
