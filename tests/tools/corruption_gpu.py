"""Is silent corruption named, and is nobody healthy accused, on real GPUs? Part of `make soak-gpu`.

python -m tests.tools.corruption_gpu [--rounds 20] [--json FILE]

Healthy rounds of the parts that look for wrong bits (repeated kernels, copies of all pairs at once,
collectives), then runs with one fault each on the last GPU, put in below the workloads: one element
of one product in 15, by dtype, one flipped gradient bit of a replayed training, one wrong word of
one copy in 15 between GPUs, one wrong element of one all-reduce in 30. Last, what the repeated
checks of the collectives cost: the same sweeps with and without them. Every run is judged by the
acceptance tests (`--cluster replay`); nothing is asserted, the lines say what came out.
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
from tests.tools.soak_gpu import PARALLEL_REPLAYS, replay

EVERY = 15
"""One launch in so many is wrong."""
PARTS = ("identical", "p2p_together")
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "sendrecv")
FEW_SIZES = {"min_size": 1 << 20, "max_size": 1 << 30, "step": 32}
"""1 MiB, 32 MiB and 1 GiB: 299, 44 and 44 checked calls of each collective."""
FAULT_VARIABLE = "ACCEPTANCE_PLANTED_FAULT"


def products(dtype: str) -> Callable[[], None]:
    """Return what makes one element of one product in EVERY wrong, in one dtype."""

    def plant() -> None:
        from fixtures.workloads.runtime.matmul import MatMul

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
    import torch

    honest, steps = torch.optim.AdamW.step, [0]

    def step(optimizer: Any, *arguments: Any, **more: Any) -> Any:
        steps[0] += 1
        if steps[0] == 13:  # the fifth step of the second replay
            _flip_a_bit(optimizer.param_groups[0]["params"][2].grad, bit=20)
        return honest(optimizer, *arguments, **more)

    torch.optim.AdamW.step = step  # type: ignore[method-assign, assignment]


def copies() -> None:
    """Make one word wrong in one copy of EVERY between GPUs."""
    from fixtures.workloads.p2p_together import Link

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
            if done[0] % (2 * EVERY) == 0:
                _flip_a_bit(tensor)
        return result

    dist.all_reduce = all_reduce


def unchecked() -> None:
    """Check each size of a collective once, as before: what the repetitions cost."""
    from fixtures.workloads.runtime import checked_calls

    checked_calls.WANTED = ((1 << 30, 1),)  # type: ignore[assignment]


FAULTS: dict[str, tuple[Callable[[], None], Sequence[str], dict[str, Any], str]] = {
    **{
        f"product {dtype}": (products(dtype), ["identical"], {}, f"{dtype} ")
        for dtype in ("bf16", "fp16", "fp8", "tf32", "fp32")
    },
    "gradient": (gradient, ["identical"], {}, "training of"),
    "copy": (copies, ["p2p_together"], {}, "wrong between"),
    "all-reduce": (reductions, ["allreduce"], FEW_SIZES, ""),
}
"""Name -> (what plants it, workloads, their parameters, what a note says of it)."""


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
    if fault == "unchecked":
        unchecked()
    elif fault and int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        FAULTS[fault][0]()
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
    command += [x for name, value in params.items() for x in ("--param", f"{name}={value}")]
    command += ["--repeat", str(repeat)] if repeat else []
    environment = {**os.environ, FAULT_VARIABLE: fault}
    began = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return time.monotonic() - began


def seconds_of(run_directory: Path) -> dict[str, float]:
    """Return the seconds of each workload, from its start to its result, on the first rank."""
    seconds: dict[str, float] = {}
    for path in run_directory.glob("jobs/*/rank0.jsonl"):
        started: dict[str, float] = {}
        for line in read_lines(path):
            if line["event"] == "started":
                started[line["workload"]] = line["time"]
            elif line["event"] == "result":
                seconds[line["workload"]] = round(line["time"] - started[line["workload"]], 2)
    return seconds


def failed(run_directory: Path) -> list[dict[str, Any]]:
    """Judge a run; return the rows that are FAIL or NOT_MEASURED."""
    rows = replay(run_directory)["criteria"]
    return [row for row in rows if row["outcome"] in ("FAIL", "NOT_MEASURED")]


def named(rows: Sequence[dict[str, Any]], gpu: int, note: str) -> bool:
    """Whether wrong data is red, on this GPU, with what the note is to say, and nothing else is."""
    red = [row for row in rows if row["outcome"] == "FAIL"]
    accused = {(row["worst"] or {}).get("gpu") for row in red}
    texts = [" ".join([row["reason"], *row["notes"]]) for row in red]
    return bool(red) and accused == {gpu} and any(note in text for text in texts)


def main(arguments: list[str] | None = None) -> int:
    """Measure, judge, print and save."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.corruption_gpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--collective-rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    if (gpus := len(listed.stdout.splitlines())) < 2:
        print("fewer than two NVIDIA GPUs here", file=sys.stderr)
        return 2
    said: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="acceptance-corruption-") as folder:
        root = Path(folder)
        for names, params, rounds in (
            (PARTS, {}, options.rounds),
            (COLLECTIVES, FEW_SIZES, options.collective_rounds),
        ):
            out = root / names[0]
            took = run(gpus, names, params, out, repeat=rounds)
            with ThreadPoolExecutor(PARALLEL_REPLAYS) as pool:
                rows = list(pool.map(failed, [out / str(k) for k in range(1, rounds + 1)]))
            wrong = [
                f"{r['criterion']} {r['outcome']} {r['reason'][:100]}"
                for found in rows for r in found if ".errors" in r["criterion"]
                or "identical" in r["criterion"]
            ]  # fmt: skip
            said.append({
                "what": f"healthy, {rounds} rounds of {', '.join(names)}", "seconds": took,
                "wrong": wrong, "last": seconds_of(out / str(rounds)),
            })  # fmt: skip
            print(said[-1], flush=True)
        for fault, (_, workloads, params, note) in FAULTS.items():
            out = root / fault.replace(" ", "-")
            run(gpus, workloads, params, out, fault=fault)
            found = failed(out)
            said.append({
                "what": fault, "named": named(found, gpus - 1, note),
                "rows": [f"{r['line'] if 'line' in r else r['criterion']}: {r['reason']} "
                         f"{r['worst']} {r['notes'][:2]}" for r in found][:3],
            })  # fmt: skip
            print(said[-1], flush=True)
        for fault in ("", "unchecked"):
            out = root / f"cost{fault}"
            run(gpus, COLLECTIVES, {}, out, fault=fault)
            said.append({"what": f"whole sweeps {fault or 'checked'}", "last": seconds_of(out)})
            print(said[-1], flush=True)
    save("corruption-gpu", said, machine(), options.json)
    return 0


if __name__ == "__main__":
    if "RANK" in os.environ:
        on_a_rank()
    else:
        sys.exit(main())
