"""`make soak-gpu`: does a healthy GPU pass every time, and is a slowed one named every time?

python -m tests.tools.soak_gpu [--rounds 20] [--parts gemm memory hostcopy p2p] [--launches 4 8]
[--json FILE]

Rounds of bf16, HBM, host and GPU-to-GPU copies on GPUs that are left alone, then rounds of bf16
with a neighbour process on GPU 0 that computes a part of the time. Every round is judged by the
acceptance tests themselves (`--cluster replay`); nothing is asserted, the table says what came out.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fixtures.records.files import read_json, read_lines
from tests.tools.bench import machine, save
from tests.tools.bench_gpu import medians, run_with_torchrun
from tests.tools.gpus import gpus_here, neighbour

COMPUTE = ("gemm.bf16", "gemm.bf16_per_ghz")
HEALTHY = (*COMPUTE, "memory.copy", "hostcopy.h2d", "p2p.write")
PARTS = tuple(dict.fromkeys(criterion.split(".")[0] for criterion in HEALTHY))
PARALLEL_REPLAYS = 8
"""Number of replays at a time; they use no GPU."""

NEIGHBOUR = """
import sys, time
import torch
launches, period = int(sys.argv[1]), 0.1
a = torch.randn(8192, 8192, device="cuda:0", dtype=torch.bfloat16)
a @ a
torch.cuda.synchronize()
print("ready", flush=True)
while True:
    begun = time.perf_counter()
    for _ in range(launches):
        a @ a
    torch.cuda.synchronize()
    time.sleep(max(0.0, period - (time.perf_counter() - begun)))
"""


@dataclass
class Series:
    """Rounds under one condition."""

    name: str
    launches: int
    """Matrix products of the neighbour process every 0.1 s."""
    criteria: tuple[str, ...]
    outcomes: list[dict[str, str]] = field(default_factory=list)
    """Criterion -> outcome, for each round; a FAIL includes the GPU that was named."""
    rates: list[float] = field(default_factory=list)
    """bf16 TFLOPS of GPU 0."""

    def count(self, wanted: str) -> int:
        """Return the number of rounds in which some criterion had this outcome."""
        return sum(any(o.startswith(wanted) for o in r.values()) for r in self.outcomes)


def main(arguments: list[str] | None = None) -> int:
    """Measure everything, then judge everything."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.soak_gpu", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="of the healthy rounds"
    )
    parser.add_argument(
        "--launches", type=int, nargs="*", default=[4, 8],
        help="products of 8192 cubed (1.6 ms each) that the neighbour does every 0.1 s",
    )  # fmt: skip
    parser.add_argument("--neighbour-rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if not (gpus := gpus_here()):
        print("no NVIDIA GPUs here", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="acceptance-soak-") as folder:
        root = Path(folder)
        all_series = [healthy(root / "healthy", gpus, options.rounds, options.parts)]
        for launches in options.launches:
            into = root / f"neighbour{launches}"
            all_series.append(with_neighbour(into, gpus, options.neighbour_rounds, launches))
        for series, out, rounds in all_series:
            judge(series, out, rounds)
    shown = [series for series, _, _ in all_series]
    show(shown)
    save("soak-gpu", [asdict(s) for s in shown], machine(), options.json)
    return 0


def healthy(out: Path, gpus: int, rounds: int, parts: list[str]) -> tuple[Series, Path, int]:
    """Measure rounds on warm GPUs without a neighbour process."""
    names = [name for name in parts if gpus > 1 or name != "p2p"]
    criteria = tuple(c for c in HEALTHY if c.split(".")[0] in names)
    metrics = [criterion.split(".")[1] for criterion in criteria]
    if rounds:
        run_with_torchrun(gpus, ["gemm"], {"soak_s": 30}, metrics=["bf16"])
        run_with_torchrun(gpus, names, {"gemm.soak_s": 1}, metrics=metrics, out=out, repeat=rounds)
    return Series("left alone", 0, criteria), out, rounds


def with_neighbour(out: Path, gpus: int, rounds: int, launches: int) -> tuple[Series, Path, int]:
    """Measure rounds of bf16 with a neighbour process on GPU 0."""
    with neighbour(NEIGHBOUR, launches):
        run_with_torchrun(gpus, ["gemm"], {"soak_s": 1}, metrics=["bf16", "bf16_per_ghz"],
                          out=out, repeat=rounds)  # fmt: skip
    return Series(f"neighbour, {launches} products in 0.1 s", launches, COMPUTE), out, rounds


def judge(series: Series, out: Path, rounds: int) -> None:
    """Judge each round by a replay with the acceptance tests."""
    with ThreadPoolExecutor(PARALLEL_REPLAYS) as pool:
        verdicts = list(pool.map(replay, [out / str(k) for k in range(1, rounds + 1)]))
    for verdict, run in zip(verdicts, [out / str(k) for k in range(1, rounds + 1)], strict=True):
        rows = {c["criterion"]: c for c in verdict["criteria"]}
        series.outcomes.append({key: _outcome_text(rows.get(key)) for key in series.criteria})
        lines = (run / "jobs").glob("*/rank0.jsonl")
        series.rates += [rate for path in lines for rate in _bf16_rates(path)]


def replay(run: Path) -> dict[str, Any]:
    """Judge a recorded run and return its verdict."""
    into = run.parent / f"{run.name}-judged"
    command = [
        sys.executable, "-m", "pytest", "-q", "-m", "singlenode", "--cluster", "replay",
        f"--from={run}", f"--run-dir={into}", "-p", "no:cacheprovider",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not (into / "verdict.json").exists():
        raise SystemExit(f"{' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    verdict: dict[str, Any] = read_json(into / "verdict.json")
    return verdict


def _outcome_text(row: dict[str, Any] | None) -> str:
    """Return the outcome of a row, with the named GPU or the reason."""
    if row is None:
        return "NOT_MEASURED (no row)"
    if row["outcome"] == "FAIL":
        return f"FAIL gpu{(row['worst'] or {}).get('gpu')} {row['value']:.4g}"
    return row["outcome"] if row["outcome"] == "PASS" else f"{row['outcome']} {row['reason'][:80]}"


def _bf16_rates(path: Path) -> list[float]:
    """Return the median bf16 TFLOPS of each result of a rank."""
    return medians((line for line in read_lines(path) if line["event"] == "result"), "bf16")


def show(all_series: list[Series]) -> None:
    """Print one line per condition."""
    healthy_rate = statistics.median(all_series[0].rates) if all_series[0].rates else None
    table = Table(title="rounds, judged one by one")
    for name in ("condition", "rounds", "slowed by", "FAIL", "gpu0 named", "NOT_MEASURED"):
        table.add_column(name, justify="left" if name == "condition" else "right")
    for series in all_series:
        slowdowns = (
            [100 * (1 - rate / healthy_rate) for rate in series.rates] if healthy_rate else []
        )
        shown = f"{min(slowdowns):.1f} to {max(slowdowns):.1f} %" if slowdowns else "-"
        table.add_row(
            series.name, str(len(series.outcomes)), shown, str(series.count("FAIL")),
            str(series.count("FAIL gpu0")), str(series.count("NOT_MEASURED")),
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    for series in all_series:
        for number, (outcomes, rate) in enumerate(zip(series.outcomes, series.rates, strict=False)):
            print(f"{series.name} {number + 1}: {rate:.1f} TFLOPS {outcomes}")


if __name__ == "__main__":
    began = time.time()
    status = main()
    print(f"{time.time() - began:.0f} s", file=sys.stderr)
    sys.exit(status)
