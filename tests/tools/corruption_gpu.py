"""Is silent corruption named, and is nobody healthy accused, on real GPUs? Part of `make soak-gpu`.

python -m tests.tools.corruption_gpu [--rounds 20] [--json FILE]

Rounds with faults on the last GPU, put in below the workloads: one element of one product in 15,
in each dtype; one flipped gradient bit of a replayed training; one wrong word of one copy in 15
between GPUs; one wrong element of one all-reduce in 30. Then healthy rounds of the parts that look
for wrong bits. Last, what looking for wrong bits takes of a node's job: the seconds of the checked
calls in whole sweeps, and of these parts. Every other run is judged by the acceptance tests
(`--cluster replay`); nothing is asserted, the lines say what came out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fixtures.records.files import read_lines
from tests.tools.bench import machine, save
from tests.tools.gpus import gpus_here
from tests.tools.soak_gpu import PARALLEL_REPLAYS, replay

EVERY = 15
"""One launch in so many is wrong."""
PARTS = ("identical", "p2p_together")
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "sendrecv")
FEW_SIZES = {"min_size": 1 << 20, "max_size": 64 << 20, "step": 64}
"""1 MiB and 64 MiB: 299 and 44 checked calls of each collective."""
IN_A_JOB = ("gemm", "identical", *COLLECTIVES, "allreduce_ring", "p2p", "p2p_together")
"""The order of a node's job: products have loaded their kernels before they are compared."""
NOT_CHECKS = {"gemm", "p2p"}
SILENT = {"gemm.identical", "p2p.errors_together", *(f"{name}.node.errors" for name in COLLECTIVES)}
"""Criteria that look for wrong bits; rates stay open, as a few sizes are not a whole sweep."""
FAULT_VARIABLE = "ACCEPTANCE_PLANTED_FAULT"


def products(dtype: str) -> Callable[[], None]:
    """Return what makes one element of one product in EVERY wrong, in one dtype."""

    def plant() -> None:
        from fixtures.workloads.compute.matmul import MatMul

        honest, done = MatMul.launch, [0]

        def launch(self: MatMul) -> None:
            honest(self)
            if self.name == dtype:
                done[0] += 1
                if done[0] % EVERY == 0:
                    _flip_a_bit(self.c)

        MatMul.launch = launch  # type: ignore[method-assign]

    return plant


def gradient() -> None:
    """Flip one bit of one gradient, in one step of one replay of the training."""
    from fixtures.workloads.compute import repeatable_kernels

    honest, steps = repeatable_kernels.adam, [0]

    def adam(weights: Any, gradients: Any, *more: Any) -> None:
        steps[0] += 1
        if steps[0] % 24 == 13:  # the fifth step of the second of three replays
            _flip_a_bit(gradients[2], bit=20)
        honest(weights, gradients, *more)

    repeatable_kernels.adam = adam


def copies() -> None:
    """Make one word wrong in one copy of EVERY between GPUs."""
    from fixtures.workloads.memory.p2p_together import Link

    honest, done = Link._copy, [0]

    def _copy(self: Link) -> None:
        honest(self)
        done[0] += 1
        if done[0] % EVERY == 0:
            _flip_a_bit(self.there)
            self.back.copy_(self.there)
            self.wrong += (self.back != self.source).sum()

    Link._copy = _copy  # type: ignore[method-assign]


def reductions() -> None:
    """Make one element wrong in one all-reduce of 2 x EVERY, eager ones alone."""
    import torch
    import torch.distributed as dist

    honest, done = dist.all_reduce, [0]

    def all_reduce(tensor: torch.Tensor, *arguments: Any, **more: Any) -> Any:
        result = honest(tensor, *arguments, **more)
        captured = tensor.is_cuda and torch.cuda.is_current_stream_capturing()
        if tensor.numel() > 1 << 10 and not captured:
            done[0] += 1
            if done[0] % (2 * EVERY) == 0:  # the last rank's copy of the sum
                _flip_a_bit(tensor)
        return result

    dist.all_reduce = all_reduce


FAULTS: dict[str, tuple[Callable[[], None], str, str]] = {
    **{
        f"product {dtype}": (products(dtype), "gemm.identical", f"{dtype} ")
        for dtype in ("bf16", "fp16", "fp8", "tf32", "fp32")
    },
    "gradient": (gradient, "gemm.identical", "training of"),
    "copy": (copies, "p2p.errors_together", "wrong between"),
    "all-reduce": (reductions, "allreduce.node.errors", "wrong"),
}
"""Name -> (what plants it, the criterion that is to be red, a word of its note)."""
FAULTY = ("identical", "p2p_together", "allreduce")


def _flip_a_bit(tensor: Any, bit: int = 1) -> None:
    """Flip one bit of one element."""
    import torch

    sizes = {1: torch.int8, 2: torch.int16, 4: torch.int32}
    flat = tensor.view(-1) if tensor.is_contiguous() else tensor.t().reshape(-1)
    flat.view(sizes[tensor.element_size()])[flat.numel() // 3] ^= 1 << bit


def on_a_rank() -> None:
    """What torchrun starts: plant the fault on the last rank, then run the workloads by hand."""
    from fixtures.workloads.__main__ import main as workloads

    fault = os.environ.pop(FAULT_VARIABLE, "")
    if fault and int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        for plant, _, _ in FAULTS.values():
            plant()
    workloads()


def run(
    gpus: int, names: Sequence[str], params: dict[str, Any], out: Path, *, fault: str = "",
    repeat: int | None = None,
) -> float:  # fmt: skip
    """Run workloads by hand on all GPUs, with a fault; return the seconds that it took."""
    command = [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={gpus}",
        "-m", "tests.tools.corruption_gpu", *names, "--out", str(out),
    ]  # fmt: skip
    sweeps = [name for name in names if name in COLLECTIVES]
    for key in (f"{name}.{key}={value}" for name in sweeps for key, value in params.items()):
        command += ["--param", key]
    command += ["--repeat", str(repeat)] if repeat else []
    environment = {**os.environ, FAULT_VARIABLE: fault}
    began = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return time.monotonic() - began


def seconds_of(run_directory: Path, *, checks: bool = False) -> dict[str, float]:
    """Return the seconds of each workload, from its start to its result, on the first rank.

    `checks`: of sweeps those of the checked calls alone.
    """
    seconds: dict[str, float] = {}
    for path in run_directory.glob("jobs/*/rank0.jsonl"):
        started: dict[str, float] = {}
        for line in read_lines(path):
            if line["event"] == "started":
                started[line["workload"]] = line["time"]
            elif line["event"] == "result":
                took = line["time"] - started[line["workload"]]
                checks_s = line["facts"].get("checks_s") if checks else None
                seconds[line["workload"]] = round(took if checks_s is None else checks_s, 2)
    return seconds


def judged(run_directories: Sequence[Path]) -> list[list[dict[str, Any]]]:
    """Judge runs; return of each the rows that are FAIL, or of these parts and NOT_MEASURED."""

    def one(run_directory: Path) -> list[dict[str, Any]]:
        return [
            row for row in replay(run_directory)["criteria"]
            if row["outcome"] == "FAIL"
            or (row["outcome"] == "NOT_MEASURED" and row["criterion"] in SILENT)
        ]  # fmt: skip

    with ThreadPoolExecutor(PARALLEL_REPLAYS) as pool:
        return list(pool.map(one, run_directories))


def named(rows: Sequence[dict[str, Any]], fault: str, gpu: int) -> bool:
    """Whether a fault is red, on its GPU, in words of its own."""
    _, criterion, note = FAULTS[fault]
    return any(
        row["criterion"] == criterion and row["outcome"] == "FAIL"
        and (row["worst"] or {}).get("gpu") == gpu
        and any(text.startswith(note) or f" {note} " in text for text in row["notes"])
        for row in rows
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Measure, judge, print and save."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.corruption_gpu")
    parser.add_argument("--rounds", type=int, default=20, help="healthy ones of kernels and copies")
    parser.add_argument("--collective-rounds", type=int, default=20, help="healthy ones of these")
    parser.add_argument("--faulty-rounds", type=int, default=5, help="with all faults planted")
    parser.add_argument("--no-cost", action="store_true", help="without the whole sweeps")
    parser.add_argument("--gpus", type=int, help="processes, where there are no GPUs to count")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    gpus = options.gpus or gpus_here()
    if gpus < 2:
        print("fewer than two NVIDIA GPUs here", file=sys.stderr)
        return 2
    said: list[dict[str, Any]] = []

    def say(**line: Any) -> None:
        said.append(line)
        print(line, flush=True)
        save("corruption-gpu", said, machine(), options.json)

    with tempfile.TemporaryDirectory(prefix="acceptance-corruption-") as folder:
        root = Path(folder)
        if rounds := options.faulty_rounds:
            out = root / "faulty"
            run(gpus, FAULTY, FEW_SIZES, out, fault="all", repeat=rounds)
            found = judged([out / str(k) for k in range(1, rounds + 1)])
            for fault in FAULTS:
                times = sum(named(rows, fault, gpus - 1) for rows in found)
                say(fault=fault, named=times, of=rounds)
            accused = [
                (row["criterion"], row["worst"]) for rows in found for row in rows
                if (row["worst"] or {}).get("gpu") != gpus - 1
            ]  # fmt: skip
            say(others_accused=accused)
        for names, params, rounds in (
            (PARTS, {}, options.rounds),
            (COLLECTIVES, FEW_SIZES, options.collective_rounds),
        ):
            if not rounds:
                continue
            out = root / names[0]
            took = run(gpus, names, params, out, repeat=rounds)
            found = judged([out / str(k) for k in range(1, rounds + 1)])
            wrong = [f"{r['criterion']} {r['outcome']}" for rows in found for r in rows]
            say(healthy=names, rounds=rounds, seconds=round(took), wrong=wrong,
                last=seconds_of(out / str(rounds)))  # fmt: skip
        if not options.no_cost:
            out = root / "cost"
            run(gpus, IN_A_JOB, {}, out)
            seconds = {k: v for k, v in seconds_of(out, checks=True).items() if k not in NOT_CHECKS}
            say(cost=seconds, all=round(sum(seconds.values()), 2), whole=seconds_of(out))
    return 0


if __name__ == "__main__":
    if "RANK" in os.environ:
        on_a_rank()
    else:
        sys.exit(main())
