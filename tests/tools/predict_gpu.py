"""Predict trainings from a short measurement, then train and compare: on one or two GPUs.

python -m tests.tools.predict_gpu [--out DIR] [--minutes 8] [--json FILE]

Records products, memory and collectives, predicts ten trainings (shape, sequence, batch, GPUs; none
of them is one that the constants of reports/throughput.py were fitted to), writes the predictions
down, and only then trains each for a few steps. Prints for each whether tokens/s lie
inside the interval, its half width, and the joules of the timed steps by the suite, by another
integration of the same samples, and by the GPU's own energy counter. Exit status 0 where at least
nine of ten lie inside, no half width is above 10 %, and joules agree to 2 %.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fixtures.background import BackgroundThread
from fixtures.paths import CHECKOUT
from fixtures.records.model import Record
from fixtures.records.run_directory import RunDirectory
from fixtures.shapes import PRESETS
from reports import energy, predict, throughput
from reports.tables import records_of

MEASURED = {"gemm": "bf16", "memory": "triad", "allreduce": "busbw", "allgather": "busbw",
            "reducescatter": "busbw"}  # fmt: skip
COLLECTIVES = ("allreduce", "allgather", "reducescatter")
SOAK_S = 10
EXCLUDED_STEPS, MIN_STEPS, MAX_STEPS, TIMED_S = 10, 6, 30, 6.0
CASE_S = 60.0
"""Reserved for a training: start, compiling and its steps."""
COUNTER_PERIOD_S = 0.05
WANTED_INSIDE, WANTED_OF = 9, 10
MAX_JOULES_DIFFERENCE = 0.02


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training."""

    strategy: str
    preset: str
    sequence: int
    batch: int
    gpus: int = 1
    passes: int = 1

    @property
    def name(self) -> str:
        passes = f" x{self.passes}" if self.passes > 1 else ""
        gpus = f" on {self.gpus}" if self.gpus > 1 else ""
        return f"{self.preset} {self.strategy}{gpus}: {self.batch} x {self.sequence}{passes}"

    @property
    def training(self) -> throughput.Training:
        return throughput.Training(
            shape=PRESETS[self.preset], strategy=self.strategy, gpus=self.gpus,
            batch=self.batch, sequence=self.sequence, passes=self.passes,
        )  # fmt: skip


def _case(strategy: str, preset: str, sequence: int, batch: int, gpus: int = 1, passes: int = 1
          ) -> Case:  # fmt: skip
    return Case(strategy=strategy, preset=preset, sequence=sequence, batch=batch, gpus=gpus,
                passes=passes)  # fmt: skip


TWO_GPUS = (
    _case("fsdp", "8b-short", 2048, 4, 2),
    _case("single", "1b", 4096, 2), _case("single", "1b", 2048, 4),
    _case("ddp", "1b", 2048, 8, 2),
    _case("single", "1b", 4096, 3), _case("single", "8b-mini", 8192, 1),
    _case("fsdp", "8b-mini", 4096, 4, 2),
    _case("ddp", "1b", 4096, 2, 2, 2),
    _case("fsdp", "1b", 8192, 2, 2),
    _case("single", "160m", 4096, 8),
)  # fmt: skip
ONE_GPU = (
    *(_case("single", "1b", sequence, batch) for sequence, batch in
      ((4096, 4), (16384, 1), (2048, 16), (8192, 4))),
    _case("single", "1b", 8192, 2, 1, 2),
    *(_case("single", "8b-mini", sequence, batch) for sequence, batch in
      ((4096, 2), (8192, 2), (2048, 8))),
    _case("single", "160m", 2048, 32), _case("single", "160m", 4096, 16),
)  # fmt: skip
LARGE_MIB = 100 << 10
"""GPUs with less memory than that train smaller batches."""
ON_CPU = (_case("single", "tiny", 64, 4), _case("ddp", "tiny", 64, 4, 2))
"""Only to try the script: nothing is predicted of a CPU."""


# --- ranks


def train(case: Case, out: Path, steps: int, *, cpu: bool) -> None:
    """Train on this process's GPU, and those of the other ranks that torchrun started."""
    from fixtures.workloads.runtime import standalone

    params: dict[str, Any] = {
        "preset": case.preset, "sequence": case.sequence, "batch": case.batch, "steps": steps,
        "global_batch": case.batch * case.gpus * case.passes, "checks": False,
    }  # fmt: skip
    standalone.start(
        standalone.Request(
            names=[f"training_{case.strategy}"], out=out, params=params, metrics=["tokens"],
            cpu=cpu,
        )
    )  # fmt: skip


def launched(
    module: str, arguments: Sequence[str], gpus: int, *, first: int = 0, cpu: bool = False
) -> subprocess.Popen[str]:
    """Start ranks, on `gpus` GPUs from `first` on."""
    env = dict(os.environ)
    if not cpu:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        devices = visible.split(",") if visible else [str(k) for k in range(first + gpus)]
        env["CUDA_VISIBLE_DEVICES"] = ",".join(devices[first : first + gpus])
    command = [sys.executable, "-m"]
    if gpus > 1:
        command += ["torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}", "-m"]
    return subprocess.Popen(
        [*command, module, *arguments], cwd=CHECKOUT, env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def finished(processes: Iterable[subprocess.Popen[str]], until: float) -> list[str]:
    """Wait for processes; return what each printed that failed, "" of those that did not."""
    said = []
    for process in processes:
        try:
            out, _ = process.communicate(timeout=max(1.0, until - time.monotonic()))
            said.append("" if process.returncode == 0 else out[-1500:])
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            said.append(f"ran out of time: {out[-500:]}")
    return said


# --- energy by the GPU's counter


class Counters:
    """Reads every GPU's energy counter, if it has one: joules since the driver was loaded."""

    def __init__(self) -> None:
        self._thread = BackgroundThread(self._read, name="counters")
        self.samples: dict[str, list[tuple[float, float]]] = {}
        self._over = threading.Event()
        self._thread.start()

    def _read(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            handles = [
                pynvml.nvmlDeviceGetHandleByIndex(k) for k in range(pynvml.nvmlDeviceGetCount())
            ]
            uuids = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
            while not self._over.wait(COUNTER_PERIOD_S):
                for uuid, handle in zip(uuids, handles, strict=True):
                    joules = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
                    self.samples.setdefault(uuid, []).append((time.time(), joules))
        except Exception as error:  # a figure to compare with, which not every host has
            print(f"no energy counter: {error!r}")

    def stop(self) -> None:
        self._over.set()
        self._thread.join(60)

    def between(self, uuid: str, start: float, end: float) -> float | None:
        """Return joules by the counter, between its readings nearest to both times."""
        of_gpu = self.samples.get(uuid, [])
        if not of_gpu:
            return None
        first, last = (min(of_gpu, key=lambda s: abs(s[0] - t)) for t in (start, end))
        measured = last[0] - first[0]
        return (last[1] - first[1]) * (end - start) / measured if measured > 0 else None


def by_rectangles(samples: Sequence[tuple[float, float]], start: float, end: float) -> float | None:
    """Integrate power another way than the suite: each sample holds to the middles beside it."""
    total = 0.0
    for k, (t, watts) in enumerate(samples):
        begin = (samples[k - 1][0] + t) / 2 if k else t
        finish = (t + samples[k + 1][0]) / 2 if k + 1 < len(samples) else t
        total += watts * max(0.0, min(end, finish) - max(start, begin))
    return total if samples else None


# --- a case


def result_of(case: Case, out: Path, counters: Counters) -> dict[str, Any]:
    """Return tokens/s of a GPU, and joules three ways, of a training that has run."""
    directory = RunDirectory(out)
    (record,) = [r for r in records_of(directory) if r.workload == f"training_{case.strategy}"]
    rates = [statistics.median(m.samples) for r in record.ranks for m in r.measurements
             if m.metric == "tokens"]  # fmt: skip
    found: dict[str, Any] = {"tokens_per_s": statistics.median(rates)}
    power: dict[str, list[tuple[float, float]]] = {}
    for path in directory.jobs.glob("*/telemetry-*.jsonl"):
        for uuid, sample in energy.samples_of(path):
            power.setdefault(uuid, []).append(sample)
    costs = list(energy.costs(directory))
    if not costs or any(cost.joules is None for cost in costs):
        return found
    windows = _windows(record)
    other = [by_rectangles(power.get(uuid, []), *window) for uuid, window in windows]
    counted = [counters.between(uuid, *window) for uuid, window in windows]
    found["joules"] = sum(cost.joules or 0.0 for cost in costs)
    found["joules_per_pflop"] = found["joules"] / sum(cost.pflop for cost in costs)
    if all(x is not None for x in other):
        found["joules_other"] = sum(x or 0.0 for x in other)
    if all(x is not None for x in counted):
        found["joules_counter"] = sum(x or 0.0 for x in counted)
    return found


def _windows(record: Record) -> list[tuple[str, tuple[float, float]]]:
    return [
        (str(rank.device.get("uuid")), (float(m.started or 0), float(m.ended[-1])))
        for rank in record.ranks
        for m in rank.measurements
        if m.metric == "tokens"
    ]


def rounds(cases: Sequence[Case], gpus: int) -> list[list[Case]]:
    """Return cases in rounds: those of one GPU share the GPUs, each on its own."""
    single = [case for case in cases if case.gpus == 1]
    shared = [single[k : k + gpus] for k in range(0, len(single), gpus)]
    return [*shared, *([case] for case in cases if case.gpus > 1)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.predict_gpu", description=__doc__)
    parser.add_argument("--out", type=Path, help="keep the records here")
    parser.add_argument("--minutes", type=float, default=8.0, help="of the whole script")
    parser.add_argument("--json", type=Path, help="write every figure here")
    parser.add_argument("--gpus", type=int, default=0, help="default: all up to 2")
    parser.add_argument("--cpu", action="store_true", help="try the script without a GPU")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(Case(**json.loads(options.train)), options.out, options.steps, cpu=options.cpu)
        return 0
    until = time.monotonic() + 60 * options.minutes
    out = (options.out or Path(tempfile.mkdtemp(prefix="predict-"))).absolute()
    memories = [0, 0] if options.cpu else memories_mib()
    gpus = options.gpus or min(2, len(memories))
    cases = ON_CPU if options.cpu else cases_of(gpus, min(memories))
    if not measure(out / "measured", gpus, until, cpu=options.cpu):
        return 2
    predictions = {case: _predicted(case, out / "measured") for case in cases}
    for case, made in predictions.items():
        shares = ", ".join(f"{n} {100 * x:.1f}" for n, x in made.shares.items())
        print(f"predicted {case.name}: {made.low:.0f} to {made.high:.0f} tokens/s per GPU, "
              f"+-{100 * made.half_width:.1f} % ({shares})")  # fmt: skip
    written = [{"case": asdict(case), "tokens_per_s": made.tokens_per_s, "half_width":
                made.half_width} for case, made in predictions.items()]  # fmt: skip
    (out / "predictions.json").write_text(json.dumps(written, indent=1), encoding="utf-8")
    counters = Counters()
    found = _trained(cases, predictions, out, gpus, until, counters, cpu=options.cpu)
    counters.stop()
    rows = [_row(case, predictions[case], found.get(case)) for case in cases]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return conclude(rows)


def cases_of(gpus: int, memory_mib: int) -> list[Case]:
    """Return the ten trainings, as GPUs with so much memory can hold them."""
    cases = TWO_GPUS if gpus > 1 else ONE_GPU
    return list(cases) if memory_mib >= LARGE_MIB else [on_80_gb(case) for case in cases]


def on_80_gb(case: Case) -> Case:
    most = 8192 if case.preset == "8b-mini" and case.gpus == 1 else 16384
    return replace(case, batch=case.batch // 2) if case.batch * case.sequence > most else case


def memories_mib() -> list[int]:
    """Return the memory of every GPU of this host."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    return [int(mib) for mib in subprocess.check_output(command, text=True).split()]


def measure(out: Path, gpus: int, until: float, *, cpu: bool) -> bool:
    """Record the standard measurement; whether it could be."""
    begun = time.monotonic()
    names = [name for name in MEASURED if gpus > 1 or name not in COLLECTIVES]
    arguments = [*names, "--out", str(out), "--metrics", "bf16,triad" +
                 (",busbw" if gpus > 1 else ""), "--param", f"gemm.soak_s={SOAK_S}"]  # fmt: skip
    if cpu:
        arguments = ["gemm", "memory", *COLLECTIVES, "--out", str(out), "--cpu",
                     "--metrics", "fp32,triad,busbw"]  # fmt: skip
    (said,) = finished([launched("fixtures.workloads", arguments, gpus, cpu=cpu)], until)
    print(f"measured {', '.join(names)} in {time.monotonic() - begun:.0f} s{said and ': ' + said}")
    return not said


def _predicted(case: Case, measured: Path) -> throughput.Prediction:
    directory = RunDirectory(measured)
    if case.preset == "tiny":  # on a CPU only the script is tried
        return throughput.Prediction(tokens_per_s=1.0, half_width=0.1, seconds={"products": 1.0},
                                     shares={}, refusal="a CPU")  # fmt: skip
    return throughput.predict(case.training, predict.rates_of(directory, case.training)[0])


def _trained(
    cases: Sequence[Case], predictions: dict[Case, throughput.Prediction], out: Path, gpus: int,
    until: float, counters: Counters, *, cpu: bool,
) -> dict[Case, dict[str, Any]]:  # fmt: skip
    found: dict[Case, dict[str, Any]] = {}
    number = {case: k for k, case in enumerate(cases)}
    for group in rounds(cases, gpus):
        if time.monotonic() + CASE_S > until:
            print(f"no time left for {', '.join(case.name for case in group)}")
            continue
        begun, processes = time.monotonic(), []
        for k, case in enumerate(group):
            step_s = case.training.tokens / predictions[case].tokens_per_s
            timed = 3 if cpu else min(MAX_STEPS, max(MIN_STEPS, round(TIMED_S / step_s)))
            arguments = ["--train", json.dumps(asdict(case)), "--out", str(out / str(number[case])),
                         "--steps", str(EXCLUDED_STEPS + timed), *(["--cpu"] * cpu)]  # fmt: skip
            processes.append(
                launched("tests.tools.predict_gpu", arguments, case.gpus, first=k, cpu=cpu)
            )
        for case, said in zip(group, finished(processes, until), strict=True):
            if said:
                print(f"{case.name}: {said}")
            else:
                found[case] = result_of(case, out / str(number[case]), counters)
        names = ", ".join(case.name for case in group)
        print(f"trained {names} in {time.monotonic() - begun:.0f} s", flush=True)
    return found


def _row(case: Case, made: throughput.Prediction, found: dict[str, Any] | None) -> dict[str, Any]:
    measured = (found or {}).get("tokens_per_s")
    inside = measured is not None and made.low <= measured <= made.high
    return {
        "case": case.name, "low": made.low, "high": made.high, "predicted": made.tokens_per_s,
        "half_width": made.half_width, "refusal": made.refusal, "measured": measured,
        "inside": inside, **(found or {}),
    }  # fmt: skip


def conclude(rows: Sequence[dict[str, Any]]) -> int:
    """Print the table; 0 where what was promised holds."""
    print(f"\n{'training':<34} {'predicted':>19} {'+-%':>5} {'measured':>9} {'off':>7}  "
          f"{'':<8} {'kJ':>7} {'other':>7} {'counter':>8} {'J/PFLOP':>8}")  # fmt: skip
    agree = []
    for row in rows:
        measured = row["measured"]
        off = "" if measured is None else f"{100 * (measured / row['predicted'] - 1):+.1f} %"
        word = "not run" if measured is None else "inside" if row["inside"] else "OUTSIDE"
        kilojoules = [
            f"{row[name] / 1000:.2f}" if name in row else "-"
            for name in ("joules", "joules_other", "joules_counter")
        ]
        per = f"{row['joules_per_pflop']:.0f}" if "joules_per_pflop" in row else "-"
        print(f"{row['case']:<34} {row['low']:>9.0f}-{row['high']:<9.0f} "
              f"{100 * row['half_width']:>5.1f} {measured or 0:>9.0f} {off:>7}  {word:<8} "
              f"{kilojoules[0]:>7} {kilojoules[1]:>7} {kilojoules[2]:>8} {per:>8}")  # fmt: skip
        if "joules_other" in row:
            agree.append(abs(row["joules"] / row["joules_other"] - 1))
    inside = sum(row["inside"] for row in rows)
    widest = max(row["half_width"] for row in rows)
    energy_said = f"{100 * max(agree):.2f} %" if agree else "not measured"
    print(f"\n{inside} of {len(rows)} inside; widest half width {100 * widest:.1f} %; joules "
          f"differ from another integration by at most {energy_said}")  # fmt: skip
    good = (
        len(rows) >= WANTED_OF and inside >= WANTED_INSIDE * len(rows) / WANTED_OF
        and widest <= throughput.MAX_HALF_WIDTH and agree and max(agree) <= MAX_JOULES_DIFFERENCE
    )  # fmt: skip
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
