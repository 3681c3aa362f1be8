"""Are faults that come and go named, on real GPUs? Part of `make soak-gpu`.

python -m tests.tools.intermittent_gpu [--bursts 10] [--stalls 1] [--runs DIR] [--json FILE]

Rounds of the memory workload with a neighbour process that copies memory on GPU 0 for 0.25 s every
4 s, and trainings whose every tenth step waits 300 ms. Each is judged by the acceptance tests
(`--cluster replay`); nothing is asserted, the lines say what came out. With --runs the runs stay
in DIR: why a round was not named can only be seen in its samples.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.tools.bench import machine, save
from tests.tools.bench_gpu import run_with_torchrun
from tests.tools.gpus import gpus_here, neighbour
from tests.tools.soak_gpu import replay

BURST_S, EVERY_S = 0.25, 4.0
STALL_S, EVERY_STEPS = 0.3, 10

NEIGHBOUR = f"""
import time
import torch
a = torch.empty(4 << 30, dtype=torch.uint8, device="cuda:0")
b = torch.empty_like(a)
b.copy_(a)
torch.cuda.synchronize()
print("ready", flush=True)
while True:
    begun = time.perf_counter()
    while time.perf_counter() - begun < {BURST_S}:
        b.copy_(a)
        torch.cuda.synchronize()
    time.sleep({EVERY_S} - {BURST_S})
"""


@dataclass
class Round:
    """The result of one run with a fault in it."""

    fault: str
    failed: list[str] = field(default_factory=list)
    """Criterion, GPU and reason of every row that failed."""
    named: bool = False
    """Whether a row failed for what comes and goes, on GPU 0 where the fault is one GPU's."""


def judged(fault: str, run: Path, *, one_gpu: bool) -> Round:
    """Judge a run, and say whether the fault was named."""
    result = Round(fault)
    for row in replay(run)["criteria"]:
        if row["outcome"] != "FAIL":
            continue
        gpu = (row["worst"] or {}).get("gpu")
        result.failed.append(f"{row['criterion']} gpu{gpu}: {row['reason'][:160]}")
        result.named |= "comes and goes" in row["reason"] and (not one_gpu or gpu == 0)
    return result


def with_bursts(root: Path, gpus: int, rounds: int) -> list[Round]:
    """Measure memory beside a neighbour process on GPU 0."""
    with neighbour(NEIGHBOUR):
        run_with_torchrun(gpus, ["memory"], {}, out=root, repeat=rounds)
    runs = [root / str(k) for k in range(1, rounds + 1)]
    return [judged("bursts of copies on GPU 0", run, one_gpu=True) for run in runs]


def with_stalls(root: Path, gpus: int, rounds: int) -> list[Round]:
    """Train with a loader that waits, after all work that was given to the GPU is done."""
    found = []
    for k in range(rounds):
        out = root / str(k)
        command = [
            sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={gpus}",
            "-m", "tests.tools.intermittent_gpu", "--stalled-rank", str(out),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(judged("every tenth step waits 300 ms", out, one_gpu=False))
    return found


def stalled_rank(out: str) -> None:
    """Run a rank of a training by hand, with a loader that stalls."""
    import torch

    from fixtures.workloads import __main__ as by_hand
    from training.loop import Training

    whole_step = Training._train_step

    def stalling_step(training: Training, batches: list[Any]) -> None:
        if training.step % EVERY_STEPS == EVERY_STEPS - 1:
            torch.cuda.synchronize()
            time.sleep(STALL_S)
        whole_step(training, batches)

    Training._train_step = stalling_step  # type: ignore[method-assign]
    sys.argv = ["fixtures.workloads", "training_single", "--out", out]
    by_hand.main()


def main(arguments: list[str] | None = None) -> int:
    """Measure and judge every round, and print a line for each."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.intermittent_gpu", description=__doc__
    )
    parser.add_argument("--bursts", type=int, default=10)
    parser.add_argument("--stalls", type=int, default=1)
    parser.add_argument("--runs", type=Path, metavar="DIR", help="keep the runs here")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--stalled-rank", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.stalled_rank:
        stalled_rank(options.stalled_rank)
        return 0
    if not (gpus := gpus_here()):
        print("no NVIDIA GPUs here", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="acceptance-intermittent-") as folder:
        root: Path = options.runs or Path(folder)
        rounds = with_bursts(root / "bursts", gpus, options.bursts)
        rounds += with_stalls(root / "stalls", gpus, options.stalls)
    for fault in dict.fromkeys(r.fault for r in rounds):
        of_fault = [r for r in rounds if r.fault == fault]
        print(f"{fault}: named in {sum(r.named for r in of_fault)} of {len(of_fault)} rounds")
        for number, r in enumerate(of_fault):
            print(f"  {number + 1}: {'named' if r.named else 'NOT named'}: {r.failed or 'no FAIL'}")
    save("intermittent-gpu", [asdict(r) for r in rounds], machine(), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
