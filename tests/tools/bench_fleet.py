"""The part of `make bench` about a large fleet: judging its records, and all that is made of them.

python -m tests.tools.bench_fleet [--nodes 1024] [--gpus 8] [--shown 128]

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

from fixtures.paths import CHECKOUT
from tests.tools import browser, fleet_run

JUDGED_S, ALL_S, PEAK_MB, OPENS_S = 60, 150, 1000, 3
SHOWN = 128
"""Nodes of the report whose opening is timed."""
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
from fixtures.thresholds import loader
from fixtures.thresholds.contract import Contract

def main(root):
    run = read_json(root / "run.json")
    limits = loader.load(Path("thresholds.yaml"))
    limits = replace(limits, cluster=Contract(**run["contract"]))
    people = Population.from_json(run["population"])
    began = time.monotonic()
    items = planned_list(limits, people)
    evidence = Evidence(RunDirectory(root), run["nonce"]).for_many()
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
from reports import certificate
began = time.monotonic()
certificate.write(RunDirectory(Path(sys.argv[1])))
print(time.monotonic() - began)
"""


class Peak(threading.Thread):
    """Samples the memory of a process and everything that it started, in MB."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.mb = 0.0
        self._pid = pid
        self._enough = threading.Event()

    def run(self) -> None:
        while not self._enough.wait(0.5):
            self.mb = max(self.mb, _tree_pss_mb(self._pid))

    def stop(self) -> float:
        self._enough.set()
        self.join()
        return self.mb


def figures(nodes: int, gpus: int, shown: int) -> list[Measured]:
    """Figures of fleets that are generated into temporary directories, and removed again."""
    return [*fleet(nodes, gpus), opens(shown, gpus)]


def fleet(nodes: int, gpus: int) -> list[Measured]:
    """Judging the records of a fleet, and everything that is made of them."""
    with tempfile.TemporaryDirectory(prefix="bench-fleet-") as temporary:
        source, made = Path(temporary) / "source", Path(temporary) / "made"
        fleet_run.Fleet(source, nodes, gpus).write()
        size = sum(p.stat().st_size for p in (source / "records").iterdir()) / 1e9
        judge = Path(temporary) / "judge.py"
        judge.write_text(_JUDGE, encoding="utf-8")
        judged = _timed(str(judge), str(source))
        seconds, verdicts = judged.said.split()[-2:]
        replayed = _replayed(source, made)
        certified = _timed("-c", _CERTIFY, str(made))
        pages = ", ".join(
            f"{name} {(made / name).stat().st_size / 1e6:.1f} MB"
            for name in ("report.html", "certificate.html", "results.csv")
        )
        name = f"{nodes} x {gpus}"
        everything = replayed.seconds + float(certified.said.split()[-1])
        return [
            (f"{name}: judging {verdicts} verdicts", float(seconds), JUDGED_S,
             f"s; CPU {judged.cpu_s:.0f} s; {size:.2f} GB of records; {_load()}"),
            (f"{name}: judge, report, certificate, CSV", everything, ALL_S,
             f"s; CPU {replayed.cpu_s + certified.cpu_s:.0f} s; {pages}; {_load()}"),
            (f"{name}: peak memory", max(replayed.mb, certified.mb), PEAK_MB,
             "MB, of all processes together"),
            (f"{name}: certificate opens", _opened(made / "certificate.html"), OPENS_S, _load()),
        ]  # fmt: skip


def opens(nodes: int, gpus: int) -> Measured:
    """How long a browser takes to open the report of a fleet."""
    with tempfile.TemporaryDirectory(prefix="bench-fleet-") as temporary:
        source, made = Path(temporary) / "source", Path(temporary) / "made"
        fleet_run.Fleet(source, nodes, gpus).write()
        _replayed(source, made)
        size = (made / "report.html").stat().st_size / 1e6
        seconds = _opened(made / "report.html")
        return f"{nodes} x {gpus}: report opens", seconds, OPENS_S, f"s; {size:.1f} MB; {_load()}"


def _opened(page: Path) -> float | None:
    """The better of two: the first also starts a browser that nothing of is in memory yet."""
    return min(browser.opened_s(page) for _ in range(2)) if browser.CHROMIUM else None


def _load() -> str:
    return f"load {os.getloadavg()[0]:.1f}"


def _replayed(source: Path, made: Path) -> Timed:
    return _timed(
        "-m", "pytest", "-m", "multinode", "--cluster=replay", f"--from={source}",
        f"--run-dir={made}", "-p", "no:cacheprovider", "-q",
    )  # fmt: skip


@dataclass(frozen=True)
class Timed:
    """A command of this interpreter: what it printed, and what it took."""

    said: str
    seconds: float
    cpu_s: float
    mb: float
    """Peak memory of it and all that it started."""


def _timed(*command: str) -> Timed:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    began, cpu = time.monotonic(), _cpu_s()
    process = subprocess.Popen(
        [sys.executable, *command], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True,
        env={**env, "PYTHONPATH": str(CHECKOUT)},
    )  # fmt: skip
    peak = Peak(process.pid)
    peak.start()
    said = process.communicate()[0]
    found = Timed(said, time.monotonic() - began, _cpu_s() - cpu, peak.stop())
    if process.returncode not in (0, 1, 2):  # verdicts
        raise RuntimeError(
            f"{' '.join(command[:4])} ended with {process.returncode}: {said[-500:]}"
        )
    return found


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tree_pss_mb(pid: int) -> float:
    """Memory of a process and its descendants; what several share counts once."""
    total = 0.0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error):
                total += one.memory_full_info().pss / 1e6
    return total


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench_fleet", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--shown", type=int, default=SHOWN, help="nodes of the report to open")
    options = parser.parse_args()
    for name, value, goal, note in figures(options.nodes, options.gpus, options.shown):
        met = "-" if value is None else "met" if value <= goal else "missed"
        shown = "-" if value is None else f"{value:.1f}"
        print(f"{name:50} {shown:>8}  <= {goal:4}  {met:6}  {note}")


if __name__ == "__main__":
    main()
