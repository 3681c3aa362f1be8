"""`make bench-gpu`: our figures beside those of nccl-tests and nvbandwidth, on the same GPUs.

python -m tests.tools.bench_gpu [--tools DIR] [--rounds 3] [--most-rounds 12] [--json FILE]
[--parts PART ...] [--before DIR]

A and B take turns, three times or more, and every round is printed: the two never share the GPUs.
What differs too much from one start to the next for its goal is measured again, up to --most-rounds
times; what is still uncertain then is neither met nor missed but open.
The tools (`all_reduce_perf`, ..., `nvbandwidth`) are taken from DIR or the PATH; one that is not
there is left out, and the table says so. For products there is no such tool: ours are compared with
the wall clock of the same window, and with PLAIN, a loop that shares no code with the suite; the
published best shape with the best of a search. With --before the same workloads of another checkout
are "theirs": whether a change of the suite has moved its figures. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fixtures.records.files import read_lines
from fixtures.records.run_directory import RunDirectory
from fixtures.workloads.collectives import crosscheck
from tests.tools.bench import machine, save
from tests.tools.figures_in_turns import Figure, show

MIB = 1 << 20
TIMEOUT_S = 3600
MOST_ROUNDS = 12

TOOLS = {
    "allreduce": ("all_reduce_perf", True),
    "allgather": ("all_gather_perf", True),
    "reducescatter": ("reduce_scatter_perf", True),
    "alltoall": ("alltoall_perf", False),
    "sendrecv": ("sendrecv_perf", False),
}
"""Workload -> the binary of nccl-tests, and whether its in-place column is compared."""
CALLS = (("16M", "256M", 200), ("256M", "4G", 20))
"""Sizes that nccl-tests measures in one start, and how many calls it times of each. Its time has
the start of the first call and the wait for the last in it: 3 % of 20 calls of 16 MiB, 1 ms in all.
Ours times some 200 calls in a batch there. The first start goes up to 256 MiB because its buffers
are as large as its largest size, and calls of 16 MiB that move within 64 may be served from a
cache; that size itself is taken from the second."""

NVBANDWIDTH = {
    "h2d": ("host_to_device_memcpy_ce", 1.0),
    "d2h": ("device_to_host_memcpy_ce", 1.0),
    "p2p": ("device_to_device_memcpy_write_ce", 1.0),
    "copy": ("device_local_copy -b 16384", 2.0),
}
"""Figure -> the test of nvbandwidth, and the factor for its result: its local copy counts bytes
once. It copies 512 MiB by default; within a GPU both copy 16 GiB."""


CUBE = 8192
PLAIN = f"""
import sys, time
import torch
torch.cuda.set_device(int(sys.argv[1]))
a, b = (torch.randn({CUBE}, {CUBE}, device="cuda", dtype=torch.bfloat16) for _ in range(2))
def products(seconds):
    begun, count = time.perf_counter(), 0
    while (now := time.perf_counter()) - begun < seconds:
        for _ in range(50):
            torch.matmul(a, b)
        torch.cuda.synchronize()
        count += 50
    return 2 * {CUBE} ** 3 * count / (now - begun) / 1e12
products(float(sys.argv[2]))
print(products(float(sys.argv[3])))
"""
"""Started once per GPU: prints TFLOPS by the host's clock, after WARMUP_S of the same load."""
WARMUP_S, WINDOW_S = 10.0, 6.0


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the table and write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench_gpu", description=__doc__)
    parser.add_argument("--tools", type=Path, metavar="DIR", help="where the binaries are")
    parser.add_argument("--rounds", type=int, default=3, help="of everything")
    parser.add_argument(
        "--most-rounds", type=int, default=MOST_ROUNDS, metavar="N",
        help=f"of what starts do not agree on (default: {MOST_ROUNDS})",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--before", type=Path, metavar="DIR",
        help="compare bf16, HBM and P2P with another checkout; other PARTs only where named",
    )  # fmt: skip
    every = ["collectives", *PARTS]
    parser.add_argument("--parts", nargs="+", choices=every)
    parser.add_argument(
        "--operations", nargs="+", choices=TOOLS, default=list(TOOLS), help="in collectives"
    )
    options = parser.parse_args(arguments)
    if options.tools:
        os.environ["PATH"] = f"{options.tools.resolve()}:{os.environ['PATH']}"
    gpus = len(_run(["nvidia-smi", "-L"]).splitlines())
    if not gpus:
        print("no NVIDIA GPUs here: nothing to compare", file=sys.stderr)
        return 2
    parts = dict(PARTS)
    wanted = options.parts or ([] if options.before else every)
    due = [part for part in wanted if part in PARTS]
    if "collectives" in wanted:
        due += options.operations
    if options.before:
        parts["before"] = partial(before, checkout=options.before)
        due.append("before")
    path = options.json
    figures: dict[str, Figure] = {}
    for number in range(1, max(options.rounds, options.most_rounds) + 1):
        if operations := [name for name in due if name in TOOLS]:
            collectives(figures, gpus, operations=operations)
        for part in due:
            if part in parts:
                parts[part](figures, gpus)
        print(f"round {number}: {' '.join(due)}", file=sys.stderr)
        # After every round, so that an aborted run keeps its measurements.
        path = save(
            "bench-gpu",
            [f.as_json() for f in figures.values()],
            machine(),
            path,
            gpus=_run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv"]),
        )
        if "shape" in due:
            due.remove("shape")  # it takes turns by itself
        if number >= options.rounds:
            due = list(dict.fromkeys(f.part for f in figures.values() if f.open))
        if not due:
            break
    show(figures.values())
    return 0


def collectives(
    figures: dict[str, Figure], gpus: int, *, operations: Iterable[str] = TOOLS
) -> None:
    """Compare each collective from 16 MiB to 4 GiB, by factors of four, with nccl-tests."""
    tools = {name: TOOLS[name] for name in operations}
    sizes = {"min_size": 16 * MIB, "max_size": 4096 * MIB, "step": 4}
    for name, table in _tables(gpus, tools, sizes).items():
        for row in table:
            mib = row["size"] // MIB
            goal = 0.01 if mib >= 256 else 0.10 if (name, mib) == ("sendrecv", 64) else 0.03
            key = f"{name} {mib} MiB"
            figure = figures.setdefault(key, Figure(key, "GB/s", goal, name))
            figure.ours.append(row["busbw"])
            figure.launching.append(row["launching"])
    for name, (tool, in_place) in tools.items():
        rates = {
            size: busbw
            for low, high, calls in CALLS
            for size, _, busbw in _nccl_tests(
                tool, gpus, low, high, 4, in_place=in_place, calls=calls, threads=gpus
            )
        }
        for size, busbw in rates.items():
            figures[f"{name} {size // MIB} MiB"].theirs.append(busbw)


def latency(figures: dict[str, Figure], gpus: int) -> None:
    """Compare NCCL's all-reduce in a CUDA graph with nccl-tests -G."""
    tables = _tables(gpus, ["allreduce"], {"min_size": 8, "max_size": MIB, "step": 2})
    for row in tables["allreduce"]:
        key = f"allreduce latency {row['size']} B"
        figure = figures.setdefault(key, Figure(key, "us", 0.10, "latency", slack=1.0))
        figure.ours.append(row["graph_us"])
    extra_arguments = ["-G", "20"]
    for size, time_us, _ in _nccl_tests(
        "all_reduce_perf", gpus, "8", "1M", 2, in_place=True, extra_arguments=extra_arguments
    ):
        figures[f"allreduce latency {size} B"].theirs.append(time_us)


def copies(figures: dict[str, Figure], gpus: int) -> None:
    """Compare copies from and to the host, between GPUs and within a GPU with nvbandwidth."""
    lines = run_with_torchrun(gpus, ["memory", "hostcopy", "p2p"], {})
    for name, metric in {"h2d": "h2d", "d2h": "d2h", "p2p": "write", "copy": "copy"}.items():
        values = medians(lines, metric)
        if not values:
            continue  # one GPU alone copies to no other
        key = f"{name} (mean over GPUs)"
        figures.setdefault(key, Figure(key, "GB/s", 0.01, "copies")).ours.append(
            statistics.fmean(values)
        )
    if shutil.which("nvbandwidth") is None:
        return
    for name, (test, factor) in NVBANDWIDTH.items():
        output = _tool_output(["nvbandwidth", "-t", *test.split()]).partition("bandwidth (GB/s)")[2]
        values = [float(x) for x in re.findall(r"\d+\.\d+", output.partition("SUM")[0])]
        if values and f"{name} (mean over GPUs)" in figures:
            figures[f"{name} (mean over GPUs)"].theirs.append(factor * statistics.fmean(values))


def products(figures: dict[str, Figure], gpus: int) -> None:
    """Compare bf16 products of 8192 cubed on all GPUs at once, after a warm-up."""
    lines = run_with_torchrun(gpus, ["gemm"], {"soak_s": WARMUP_S}, metrics=["bf16"])
    rates = medians(lines, "bf16")
    # Of the whole window, whereas a rate is the median batch's: the ratio is never exactly 1.
    walls = [
        statistics.harmonic_mean(m["samples"]) / line["facts"]["dtypes"]["bf16"]["wall_over_events"]
        for line in lines
        for m in line["measurements"]
    ]
    plain = [
        subprocess.Popen(
            [sys.executable, "-c", PLAIN, str(gpu), str(WARMUP_S), str(WINDOW_S)],
            stdout=subprocess.PIPE, text=True,
        )
        for gpu in range(gpus)
    ]  # fmt: skip
    theirs = [float(process.communicate(timeout=TIMEOUT_S)[0]) for process in plain]
    for name, references in (("wall clock", walls), ("a plain loop", theirs)):
        key = f"bf16 8192 cubed, {name} (mean over GPUs)"
        figure = figures.setdefault(key, Figure(key, "TFLOPS", 0.01, "products"))
        figure.ours.append(statistics.fmean(rates))
        figure.theirs.append(statistics.fmean(references))


def before(figures: dict[str, Figure], gpus: int, *, checkout: Path) -> None:
    """Compare bf16, HBM and P2P with those of another checkout; the two take turns to go first."""
    metrics = {"bf16": "TFLOPS", "copy": "GB/s", "write": "GB/s"}
    turns: list[tuple[str, Path | None]] = [("ours", None), ("theirs", checkout)]
    rounds = max((len(f.ours) for f in figures.values() if f.part == "before"), default=0)
    for side, directory in turns if rounds % 2 == 0 else reversed(turns):
        lines = run_with_torchrun(
            gpus, ["gemm", "memory", "p2p"], {"gemm.soak_s": WARMUP_S},
            metrics=metrics, checkout=directory,
        )  # fmt: skip
        for metric, unit in metrics.items():
            key = f"{metric}, {checkout.name} (mean over GPUs)"
            figure = figures.setdefault(key, Figure(key, unit, 0.005, "before"))
            if values := medians(lines, metric):  # one GPU alone copies to no other
                getattr(figure, side).append(statistics.fmean(values))


def best_shape(figures: dict[str, Figure], gpus: int) -> None:
    """Compare the published best shape of this GPU model, if any, with the best of a search."""
    lines = run_with_torchrun(gpus, ["gemm_search"], {"soak_s": WARMUP_S})
    if published := medians(lines, "published"):
        key = "bf16 published shape, best found (mean over GPUs)"
        figures[key] = Figure(
            key, "TFLOPS", 0.03, "shape", ours=[statistics.fmean(published)],
            theirs=[statistics.fmean(medians(lines, "search"))],
        )  # fmt: skip


PARTS = {"latency": latency, "copies": copies, "products": products, "shape": best_shape}
"""Beside the collectives, of which each operation can be measured by itself."""


def medians(lines: Iterable[Mapping[str, Any]], metric: str) -> list[float]:
    """Return the median of each measurement of a metric, one or more per rank."""
    return [
        statistics.median(m["samples"])
        for line in lines for m in line["measurements"] if m["metric"] == metric
    ]  # fmt: skip


def _tables(
    gpus: int, names: Iterable[str], params: Mapping[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """Return each workload's table, with times averaged over ranks.

    `launching`: the share of its time that launching took on the rank where it took the most.
    """
    tables: dict[str, list[dict[str, Any]]] = {}
    lines = run_with_torchrun(gpus, names, params)
    for name in names:
        by_rank = [line["facts"]["table"] for line in lines if line["workload"] == name]
        tables[name] = []
        for rows in zip(*by_rank, strict=True):
            times = [k for k in ("time_us", "graph_us") if k in rows[0]]
            mean = {k: statistics.fmean(row[k] for row in rows) for k in times}
            rate = rows[0]["busbw"] * rows[0]["time_us"] / mean["time_us"]
            launching = max(row["launch_us"] / row["time_us"] for row in rows)
            tables[name].append({**rows[0], **mean, "busbw": rate, "launching": launching})
    return tables


def _nccl_tests(
    tool: str,
    gpus: int,
    low: str,
    high: str,
    step: int,
    *,
    in_place: bool,
    calls: int = 20,
    threads: int = 1,
    extra_arguments: Iterable[str] = (),
) -> list[tuple[int, float, float]]:
    """Return (bytes, time in us, bus bandwidth) of each row; none where the tool is not installed.

    With one thread per GPU the launches run in parallel, as in the suite's processes: launches of a
    single thread take a visible part of the time of 16 MiB.
    """
    if shutil.which(tool) is None:
        return []
    command = [tool, "-t", str(threads), "-g", str(gpus // threads), "-b", low, "-e", high]
    command += ["-f", str(step), "-n", str(calls), "-w", "5"]
    return crosscheck.parse_rows(_tool_output([*command, *extra_arguments]), in_place=in_place)


def run_with_torchrun(
    gpus: int,
    names: Iterable[str],
    params: Mapping[str, Any],
    *,
    metrics: Iterable[str] = (),
    out: Path | None = None,
    repeat: int | None = None,
    checkout: Path | None = None,
) -> list[dict[str, Any]]:
    """Run workloads with torchrun and return their result lines, one per rank and workload.

    `checkout`: where the suite lies that is run, if not here.
    """
    with tempfile.TemporaryDirectory(prefix="acceptance-bench-") as folder:
        into = out or Path(folder)
        command = [
            sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={gpus}",
            "-m", "fixtures.workloads", *names, "--out", str(into),
        ]  # fmt: skip
        for name, value in params.items():
            command += ["--param", f"{name}={value}"]
        if wanted := ",".join(metrics):
            command += ["--metrics", wanted]
        if repeat is not None:
            command += ["--repeat", str(repeat)]
        _run(command, directory=checkout)
        return [
            line
            for path in sorted(RunDirectory(into).jobs.glob("*/rank*.jsonl"))
            for line in read_lines(path)
            if line["event"] == "result"
        ]


def _tool_output(command: list[str]) -> str:
    """Return the output of a tool; where it fails, print why and return '', to keep our figures."""
    try:
        return _run(command)
    except SystemExit as error:
        print(error, file=sys.stderr)
        return ""


def _run(command: list[str], directory: Path | None = None) -> str:
    """Return the output of a command, '' where it is not installed; SystemExit where it fails."""
    env = {**os.environ, "NCCL_GRAPH_MIXING_SUPPORT": "0"}  # the same for both sides
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, env=env, check=True,
            cwd=directory,
        )  # fmt: skip
    except FileNotFoundError:
        return ""
    except subprocess.CalledProcessError as error:
        message = f"{' '.join(command)}: exit {error.returncode}\n{error.stderr[-3000:]}"
        raise SystemExit(message) from error
    except subprocess.TimeoutExpired as error:
        raise SystemExit(f"{' '.join(command)}: no end after {TIMEOUT_S} s") from error
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
