"""Is every fault named by its cause or kind, on real GPUs? Part of `make soak-gpu`.

python -m tests.tools.planted_faults_gpu [--only NAME ...] [--runs DIR] [--json FILE]

Nine faults, one after the other: settings of the environment below the workloads, a flipped bit in
a product, and processes beside them on the first GPU or on the cores. Only what shows a fault is
measured (about 20 s each), and judged by the acceptance tests (`--cluster replay`). A fault is
missed where one of its rows is not red, or is red for another GPU; its first red line, as pytest
and the terminal have it, must name the cause or the kind. Exit status 1 where one is missed or not
named.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from reports.console.terminal import problems
from tests.tools.bench import machine, save
from tests.tools.corruption_gpu import products
from tests.tools.gpus import gpus_here, neighbour
from tests.tools.intermittent_gpu import NEIGHBOUR as COPIES_IN_BURSTS
from tests.tools.soak_gpu import PARALLEL_REPLAYS, replay

PLANTED = "ACCEPTANCE_PLANTED_FAULT"
FIRST, LAST = 0, -1
LARGE = {"min_size": 1 << 30, "max_size": 1 << 30}
"""Bytes of the one size of a collective that is judged."""

NOT_ASKED_FOR = "the record holds no "
"""How the reason of a row begins whose metric or size was left out to save time."""

PRODUCTS_IN_BURSTS = """
import time
import torch
a = torch.randn(8192, 8192, device="cuda:0", dtype=torch.bfloat16)
a @ a
torch.cuda.synchronize()
print("ready", flush=True)
while True:
    begun = time.perf_counter()
    while time.perf_counter() - begun < 0.12:
        a @ a
        torch.cuda.synchronize()
    time.sleep(1.18)
"""

HELD_MEMORY = """
import signal
import torch
held = torch.empty(50 << 30, dtype=torch.uint8, device="cuda:0")
print("ready", flush=True)
signal.pause()
"""

BUSY_CORES = """
import ctypes
import mmap
import os
parent, size = os.getpid(), 64 << 20
for _ in range(os.cpu_count()):
    if os.fork() == 0:
        maps = mmap.mmap(-1, size), mmap.mmap(-1, size)
        a, b = (ctypes.addressof(ctypes.c_char.from_buffer(m)) for m in maps)
        ctypes.memset(a, 1, size)
        while os.getppid() == parent:
            ctypes.memmove(b, a, size)
        os._exit(0)
print("ready", flush=True)
os.wait()
"""
"""Copies memory on each core: loops that touch none leave the copies of GPUs as fast as they were,
with 32 cores and with 64."""


@dataclass(frozen=True)
class Fault:
    """One fault, what is measured with it, and what has to be said of it."""

    name: str
    workloads: Sequence[str]
    red: Sequence[str]
    """Criteria that must be FAIL; in brackets one that must be NOT_MEASURED. Of those joined by
    `or` one must be: a burst comes while one or two of four kinds of access are measured."""
    words: Sequence[str]
    """One of these names the cause or kind."""
    gpu: int | None = None
    """The GPU that is to be named: FIRST, LAST, or None for no certain one."""
    environment: Mapping[str, str] = field(default_factory=dict)
    beside: str = ""
    """A program that runs beside the workloads."""
    plant: Callable[[], None] | None = None
    """Changes the workloads of the last rank."""
    metrics: Sequence[str] = ()
    params: Mapping[str, Any] = field(default_factory=dict)


FAULTS = (
    Fault(
        "TF32 forced", ["gemm"], ["(gemm.fp32)"], ["NVIDIA_TF32_OVERRIDE=1"],
        environment={"NVIDIA_TF32_OVERRIDE": "1"}, metrics=["fp32"], params={"gemm.soak_s": 1},
    ),
    Fault(
        "copies in bursts, GPU 0", ["memory"],
        ["memory.copy or memory.triad or memory.read or memory.fill"], ["comes and goes"],
        FIRST, beside=COPIES_IN_BURSTS,
    ),
    Fault(
        "products in bursts, GPU 0", ["gemm"], ["gemm.bf16"], ["comes and goes"],
        FIRST, beside=PRODUCTS_IN_BURSTS, metrics=["bf16"], params={"gemm.soak_s": 5},
    ),
    Fault(
        "no direct copies between GPUs", ["allreduce"], ["allreduce.node.1GiB"],
        ["NCCL_P2P_DISABLE=1"], environment={"NCCL_P2P_DISABLE": "1"}, metrics=["busbw"],
        params=LARGE,
    ),
    Fault(
        "eight channels", ["allreduce"], ["allreduce.node.1GiB"], ["NCCL_MAX_NCHANNELS=8"],
        environment={"NCCL_MAX_NCHANNELS": "8"}, metrics=["busbw"], params=LARGE,
    ),
    Fault(
        "protocol LL", ["allgather"], ["allgather.node.1GiB"], ["NCCL_PROTO=LL"],
        environment={"NCCL_PROTO": "LL"}, metrics=["busbw"], params=LARGE,
    ),
    Fault(
        "a flipped bit, last GPU", ["identical"], ["gemm.identical"], ["results differ"], LAST,
        plant=products("bf16"),
    ),
    Fault(
        "50 GiB held, GPU 0", ["health"], ["health.foreign_processes"],
        ["health.foreign_processes"], FIRST, beside=HELD_MEMORY,
    ),
    Fault(
        "all cores busy", ["hostcopy"], ["hostcopy.h2d", "hostcopy.d2h"], ["of the cores of"],
        beside=BUSY_CORES, metrics=["h2d", "d2h"],
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """What came of one fault."""

    fault: str
    first_line: str
    """The first red line, "" where nothing was red."""
    missed: Sequence[str]
    """Rows that had to be red and are not, with what they are."""
    named: bool
    """Whether the first red line names cause or kind."""

    @property
    def ok(self) -> bool:
        return self.named and not self.missed


def found_of(fault: Fault, rows: Sequence[Mapping[str, Any]], gpus: int) -> Found:
    """Hold the rows of a verdict against what a fault must make of them."""
    of_criterion = {str(row["criterion"]): row for row in rows}
    missed = []
    for wanted in fault.red:
        wrong = [_wrong(of_criterion, key, fault, gpus) for key in wanted.split(" or ")]
        if all(wrong):
            missed.append(" and ".join(wrong))
    red = problems(row for row in rows if not str(row["reason"]).startswith(NOT_ASKED_FOR))
    first = red[0].text if red else ""
    return Found(fault.name, first, missed, any(word in first for word in fault.words))


def _wrong(
    of_criterion: Mapping[str, Mapping[str, Any]], wanted: str, fault: Fault, gpus: int
) -> str:
    """Return how a row is not as the fault must make it; "" where it is."""
    key, outcome = wanted.strip("()"), "NOT_MEASURED" if wanted.startswith("(") else "FAIL"
    row = of_criterion.get(key, {"outcome": "no row", "worst": None})
    gpu = (row["worst"] or {}).get("gpu")
    if row["outcome"] != outcome:
        return f"{key} is {row['outcome']}, expected {outcome}"
    if fault.gpu is not None and gpu != fault.gpu % gpus:
        return f"{key} names gpu{gpu}, expected gpu{fault.gpu % gpus}"
    return ""


def measure(fault: Fault, gpus: int, out: Path) -> None:
    """Run the workloads of a fault by hand on all GPUs, with the fault."""
    command = [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={gpus}",
        "-m", "tests.tools.planted_faults_gpu", *fault.workloads, "--out", str(out),
    ]  # fmt: skip
    command += ["--metrics", ",".join(fault.metrics)] if fault.metrics else []
    for name, value in fault.params.items():
        command += ["--param", f"{name}={value}"]
    environment = {**os.environ, **fault.environment, PLANTED: fault.name}
    with ExitStack() as beside:
        if fault.beside:
            beside.enter_context(neighbour(fault.beside))
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def on_a_rank() -> None:
    """What torchrun starts: plant the fault on the last rank, then run the workloads by hand."""
    from fixtures.workloads.__main__ import main as workloads

    name = os.environ.pop(PLANTED, "")
    if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        for fault in FAULTS:
            if fault.name == name and fault.plant is not None:
                fault.plant()
    workloads()


def main(arguments: list[str] | None = None) -> int:
    """Measure with each fault, then judge, print and save."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.planted_faults_gpu")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="faults whose name has one of these texts in it"
    )
    parser.add_argument("--runs", type=Path, metavar="DIR", help="keep the runs here")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    chosen = [f for f in FAULTS if any(text in f.name for text in options.only or [""])]
    if not chosen:
        parser.error(f"--only: no such fault; there are {', '.join(f.name for f in FAULTS)}")
    if (gpus := gpus_here()) < 2:
        print("fewer than two NVIDIA GPUs here", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="acceptance-faults-") as folder:
        root: Path = options.runs or Path(folder)
        runs = [root / fault.name.replace(" ", "-").replace(",", "") for fault in chosen]
        for fault, run in zip(chosen, runs, strict=True):
            measure(fault, gpus, run)
        with ThreadPoolExecutor(PARALLEL_REPLAYS) as pool:
            verdicts = list(pool.map(replay, runs))
    found = [
        found_of(fault, verdict["criteria"], gpus)
        for fault, verdict in zip(chosen, verdicts, strict=True)
    ]
    for one in found:
        wrong = [*one.missed, *([] if one.named else ["NOT named"])]
        said = "; ".join(wrong) or "named"
        print(f"{one.fault}: {said}\n  {one.first_line or 'nothing is red'}")
    print(f"named: {sum(one.ok for one in found)} of {len(found)}")
    save("planted-faults-gpu", [asdict(one) for one in found], machine(), options.json)
    return 0 if all(one.ok for one in found) else 1


if __name__ == "__main__":
    if "RANK" in os.environ:
        on_a_rank()
    else:
        sys.exit(main())
