"""The part of `make bench` about a large fleet: judging its records, and all that is made of them.

python -m tests.tools.bench_fleet [--nodes 1024] [--gpus 8] [--shown 128] [--large]

Judging is timed without pytest; all of it is one `pytest --cluster replay` with report and CSV,
and the certificate, which a replay itself does not write. Peak memory is that of all processes
together, shared pages counted once.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from fixtures.background import BackgroundThread
from fixtures.paths import CHECKOUT
from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import read_verdict
from tests.tools import browser, fleet_run
from tests.tools.fleet_faults import Planter, wrong

JUDGING_GOAL_S, TOTAL_GOAL_S, PEAK_MEMORY_GOAL_MB, OPENING_GOAL_S = 60, 75, 700, 3
LARGE_NODES, LARGE_GOAL_S, LARGE_GOAL_MB = 4096, 360, 1500
"""A part of `make soak`: four times as many nodes."""
SHOWN = 128
"""Number of nodes in the report whose opening is timed."""
Measured = tuple[str, float | None, float, str]
"""Name, value (None: not measured), goal (at most), note."""

_JUDGE = """
import sys, time
from dataclasses import replace
from pathlib import Path
from fixtures.cluster.population import Population
from fixtures.plan.items import planned_list
from fixtures.records.files import read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.run import batch_judging
from fixtures.run.evidence import Evidence
from fixtures.run.devices_of_record import DeviceIndex
from fixtures.thresholds import loader
from fixtures.thresholds.contract import Contract

def main(root):
    run = read_json(root / "run.json")
    limits = loader.load(Path("thresholds.yaml"))
    limits = replace(limits, cluster=Contract(**run["contract"]))
    people = Population.from_json(run["population"])
    began = time.monotonic()
    items = planned_list(limits, people)
    directory = RunDirectory(root)
    devices = DeviceIndex(directory, run["nonce"], people)
    evidence = Evidence(directory, run["nonce"], devices=devices).for_batch()
    bench = batch_judging.BatchJudge(evidence, limits, people)
    judged = batch_judging.judge_many(bench, items, [i.key for i in items])
    print(time.monotonic() - began, len(judged.verdicts))

if __name__ == "__main__":
    main(Path(sys.argv[1]))
"""
_CERTIFY = """
import sys, time
from pathlib import Path
from fixtures.records.run_directory import RunDirectory
from reports.pages import certificate
began = time.monotonic()
certificate.write(RunDirectory(Path(sys.argv[1])))
print(time.monotonic() - began)
"""


class PeakMemory:
    """Samples the memory of a process and everything that it started, in MB."""

    def __init__(self, pid: int) -> None:
        self._thread = BackgroundThread(self._sample, name="peak-memory")
        self.mb = 0.0
        self._pid = pid
        self._stop_event = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def _sample(self) -> None:
        while not self._stop_event.wait(0.5):
            self.mb = max(self.mb, _tree_pss_mb(self._pid))

    def stop(self) -> float:
        self._stop_event.set()
        self._thread.join(60)
        return self.mb


def figures(nodes: int, gpus: int, shown: int) -> list[Measured]:
    """Return the figures of fleets that are generated into temporary directories."""
    return [
        *judging_figures(nodes, gpus),
        planted_faults(nodes, gpus),
        report_opening(shown, gpus),
        broken_records(shown, gpus),
    ]


def planted_faults(nodes: int, gpus: int) -> Measured:
    """Count what a fleet with 26 faults of ten kinds says wrongly of them."""
    with tempfile.TemporaryDirectory(prefix="bench-fleet-") as temporary:
        source, judged_run = Path(temporary) / "source", Path(temporary) / "made"
        fleet_run.Fleet(source, nodes, gpus).write()
        faults = Planter(source).plant()
        replayed(source, judged_run)
        said_wrongly = list(wrong(judged_run, faults))
        name = f"{nodes} x {gpus}: {len(faults)} faults, said wrongly"
        return name, len(said_wrongly), 0, "; ".join(said_wrongly[:3])


def large_figures(gpus: int) -> list[Measured]:
    """Measure judging and all files of LARGE_NODES nodes."""
    with tempfile.TemporaryDirectory(prefix="bench-fleet-") as temporary:
        source, judged_run = Path(temporary) / "source", Path(temporary) / "made"
        fleet_run.Fleet(source, LARGE_NODES, gpus).write()
        judged = accepted(source, judged_run)
        name = f"{LARGE_NODES} x {gpus}"
        return [
            (f"{name}: judge, report, CSV", judged.seconds, LARGE_GOAL_S,
             f"s; CPU {judged.cpu_s:.0f} s; {_load()}"),
            (f"{name}: peak memory", judged.mb, LARGE_GOAL_MB, "MB, of all processes together"),
        ]  # fmt: skip


BROKEN = 1000
BROKEN_GOAL = 2.0
"""CPU time of judging a fleet with so many broken records, as a multiple of that with none."""


def broken_records(nodes: int, gpus: int) -> Measured:
    """Measure what broken records cost: truncated files, malformed values, and missing ranks."""
    with tempfile.TemporaryDirectory(prefix="bench-fleet-") as temporary:
        source = Path(temporary) / "source"
        fleet_run.Fleet(source, nodes, gpus).write()
        whole = accepted(source, Path(temporary) / "whole")
        names = [p for p in sorted((source / "records").glob("*@gpu*.json")) if "--" not in p.name]
        chosen = [p for p in names if not p.name.startswith("inventory@")][:BROKEN]
        for k, path in enumerate(chosen):
            text = path.read_text(encoding="utf-8")
            broken = (text[: len(text) // 2], text.replace('"at":', '"att":'),
                      text.replace('"rank": 1,', '"rank": 0,', 1))[k % 3]  # fmt: skip
            path.write_text(broken, encoding="utf-8")
        judged = replayed(source, Path(temporary) / "broken")
        return (
            f"{nodes} x {gpus}: CPU time with {len(chosen)} broken records",
            judged.cpu_s / whole.cpu_s,
            BROKEN_GOAL,
            f"times that without, {whole.cpu_s:.0f} s; {_load()}",
        )


def judging_figures(nodes: int, gpus: int) -> list[Measured]:
    """Measure judging the records of a fleet and writing report, certificate and CSV."""
    with tempfile.TemporaryDirectory(prefix="bench-fleet-") as temporary:
        source, judged_run = Path(temporary) / "source", Path(temporary) / "made"
        fleet_run.Fleet(source, nodes, gpus).write()
        size = sum(p.stat().st_size for p in (source / "records").iterdir()) / 1e9
        judge = Path(temporary) / "judge.py"
        judge.write_text(_JUDGE, encoding="utf-8")
        judged = _timed(str(judge), str(source))
        seconds, verdicts = judged.output.split()[-2:]
        replayed = accepted(source, judged_run)
        certified = _timed("-c", _CERTIFY, str(judged_run))
        pages = ", ".join(
            f"{name} {(judged_run / name).stat().st_size / 1e6:.1f} MB"
            for name in ("report.html", "certificate.html", "results.csv")
        )
        name = f"{nodes} x {gpus}"
        total_s = replayed.seconds + float(certified.output.split()[-1])
        return [
            (f"{name}: judging {verdicts} verdicts", float(seconds), JUDGING_GOAL_S,
             f"s; CPU {judged.cpu_s:.0f} s; {size:.2f} GB of records; {_load()}"),
            (f"{name}: judge, report, certificate, CSV", total_s, TOTAL_GOAL_S,
             f"s; CPU {replayed.cpu_s + certified.cpu_s:.0f} s; {pages}; {_load()}"),
            (f"{name}: peak memory", max(replayed.mb, certified.mb), PEAK_MEMORY_GOAL_MB,
             "MB, of all processes together"),
            (f"{name}: certificate opens", _opening_time_s(judged_run / "certificate.html"),
             OPENING_GOAL_S, _load()),
        ]  # fmt: skip


def report_opening(nodes: int, gpus: int) -> Measured:
    """Measure how long a browser takes to open the report of a fleet."""
    with tempfile.TemporaryDirectory(prefix="bench-fleet-") as temporary:
        source, judged_run = Path(temporary) / "source", Path(temporary) / "made"
        fleet_run.Fleet(source, nodes, gpus).write()
        accepted(source, judged_run)
        size = (judged_run / "report.html").stat().st_size / 1e6
        seconds = _opening_time_s(judged_run / "report.html")
        return (
            f"{nodes} x {gpus}: report opens",
            seconds,
            OPENING_GOAL_S,
            f"s; {size:.1f} MB; {_load()}",
        )


def _opening_time_s(page: Path) -> float | None:
    """Return the better of two times: the first includes loading the browser from disk."""
    return min(browser.opening_time_s(page) for _ in range(2)) if browser.CHROMIUM else None


def _load() -> str:
    """Return the load average of this machine, for a note."""
    return f"load {os.getloadavg()[0]:.1f}"


def replayed(source: Path, judged_run: Path) -> Timed:
    """Judge a recorded run into a new run directory."""
    return _timed(
        "-m", "pytest", "-m", "multinode", "--cluster=replay", f"--from={source}",
        f"--run-dir={judged_run}", "-p", "no:cacheprovider", "-q",
    )  # fmt: skip


def accepted(source: Path, judged_run: Path) -> Timed:
    """Judge a healthy fleet into a new run directory; RuntimeError unless it is ACCEPTED."""
    timed = replayed(source, judged_run)
    verdict = read_verdict(RunDirectory(judged_run))
    if verdict["verdict"] != "ACCEPTED":
        red = [v for v in verdict["criteria"] if v["outcome"] in ("FAIL", "NOT_MEASURED")]
        first = [f"{v['outcome']} {v['criterion']} {v['subject']}: {v['reason']}" for v in red[:5]]
        raise RuntimeError(
            f"a healthy fleet is {verdict['verdict']}, {len(red)} rows are red: {'; '.join(first)}"
        )
    return timed


@dataclass(frozen=True)
class Timed:
    """A finished command of this interpreter: its output, time and memory."""

    output: str
    seconds: float
    cpu_s: float
    mb: float
    """Peak memory of it and its descendants."""


def _timed(*command: str) -> Timed:
    """Run this interpreter with these arguments and measure it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    start_time, cpu = time.monotonic(), _cpu_s()
    process = subprocess.Popen(
        [sys.executable, *command], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True,
        env={**env, "PYTHONPATH": str(CHECKOUT)},
    )  # fmt: skip
    peak_memory = PeakMemory(process.pid)
    peak_memory.start()
    output = process.communicate()[0]
    timed = Timed(output, time.monotonic() - start_time, _cpu_s() - cpu, peak_memory.stop())
    if process.returncode not in (0, 1, 2):  # the exit statuses of verdicts
        raise RuntimeError(
            f"{' '.join(command[:4])} ended with {process.returncode}: {output[-500:]}"
        )
    return timed


def _cpu_s() -> float:
    """Return the CPU time of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tree_pss_mb(pid: int) -> float:
    """Return the memory of a process and its descendants, with shared pages counted once."""
    total = 0.0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for member in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error):
                total += member.memory_full_info().pss / 1e6
    return total


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench_fleet", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--shown", type=int, default=SHOWN, help="nodes of the report to open")
    parser.add_argument(
        "--large", action="store_true", help=f"only {LARGE_NODES} nodes, as `make soak` does"
    )
    options = parser.parse_args()
    measured = (
        large_figures(options.gpus)
        if options.large
        else figures(options.nodes, options.gpus, options.shown)
    )
    for name, value, goal, note in measured:
        met = "-" if value is None else "met" if value <= goal else "missed"
        shown = "-" if value is None else f"{value:.1f}"
        print(f"{name:50} {shown:>8}  <= {goal:4}  {met:6}  {note}")


if __name__ == "__main__":
    main()
