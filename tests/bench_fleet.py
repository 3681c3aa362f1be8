"""The part of `make bench` about a large fleet: judging its records, and all that is made of them.

python -m tests.bench_fleet [--nodes 1024] [--gpus 8]

Judging is timed without pytest; all of it is one `pytest --cluster replay` with report and CSV,
and the certificate, which a replay itself does not write. Peak memory is that of all processes
together, shared pages counted once.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from fixtures.checkout import CHECKOUT
from tests import fleet_run

JUDGED_S, ALL_S, PEAK_MB = 60, 150, 1000
Measured = tuple[str, float, float | None, str]
"""Name, value, goal (at most), note."""

_JUDGE = """
import sys, time
from dataclasses import replace
from pathlib import Path
from fixtures import judging, plan, thresholds
from fixtures.contract import Contract
from fixtures.evidence import Evidence
from fixtures.inventory import Population
from fixtures.records import RunDirectory, read_json

def main(root):
    run = read_json(root / "run.json")
    limits = thresholds.load(Path("thresholds.yaml"))
    limits = replace(limits, cluster=Contract(**run["contract"]))
    people = Population.from_json(run["population"])
    began = time.monotonic()
    items = plan.planned_list(limits, people)
    bench = judging.Bench(Evidence(RunDirectory(root), run["nonce"]).for_many(), limits, people)
    judged = judging.judge_many(bench, items, [i.key for i in items])
    print(time.monotonic() - began, len(judged.verdicts))

if __name__ == "__main__":
    main(Path(sys.argv[1]))
"""
_CERTIFY = """
import sys, time
from pathlib import Path
from fixtures.records import RunDirectory
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
            self.mb = max(self.mb, sum(map(_pss_mb, _tree(self._pid))))

    def stop(self) -> float:
        self._enough.set()
        self.join()
        return self.mb


def fleet(nodes: int, gpus: int) -> list[Measured]:
    """Figures of a fleet that is generated into a temporary directory, and removed again."""
    with tempfile.TemporaryDirectory(prefix="bench-fleet-") as temporary:
        source, made = Path(temporary) / "source", Path(temporary) / "made"
        fleet_run.Fleet(source, nodes, gpus).write()
        size = sum(p.stat().st_size for p in (source / "records").iterdir()) / 1e9
        judge = Path(temporary) / "judge.py"
        judge.write_text(_JUDGE, encoding="utf-8")
        said, _, _ = _timed(str(judge), str(source))
        seconds, verdicts = said.split()[-2:]
        replay = (
            "-m", "pytest", "-m", "multinode", "--cluster=replay", f"--from={source}",
            f"--run-dir={made}", "-p", "no:cacheprovider", "-q",
        )  # fmt: skip
        _, replayed, peak = _timed(*replay)
        said, _, _ = _timed("-c", _CERTIFY, str(made))
        certified = float(said.split()[-1])
        pages = ", ".join(
            f"{name} {(made / name).stat().st_size / 1e6:.1f} MB"
            for name in ("report.html", "certificate.html", "results.csv")
        )
        name = f"{nodes} x {gpus}"
        load = f"load {os.getloadavg()[0]:.1f}"
        return [
            (f"{name}: judging {verdicts} verdicts", float(seconds), JUDGED_S,
             f"s; {size:.2f} GB of records; {load}"),
            (f"{name}: judge, report, certificate, CSV", replayed + certified, ALL_S,
             f"s; certificate {certified:.1f} s; {pages}"),
            (f"{name}: peak memory", peak, PEAK_MB, "MB, of all processes"),
        ]  # fmt: skip


def _timed(*command: str) -> tuple[str, float, float]:
    """What a command of this interpreter printed, seconds, and its peak memory in MB."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *command], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True,
        env={**env, "PYTHONPATH": str(CHECKOUT)},
    )  # fmt: skip
    peak = Peak(process.pid)
    peak.start()
    said = process.communicate()[0]
    found = said, time.monotonic() - began, peak.stop()
    if process.returncode:
        raise RuntimeError(
            f"{' '.join(command[:4])} ended with {process.returncode}: {said[-500:]}"
        )
    return found


def _tree(pid: int) -> list[int]:
    found = [pid]
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += _tree(int(child))
    return found


def _pss_mb(pid: int) -> float:
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1e3
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench_fleet", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--gpus", type=int, default=8)
    options = parser.parse_args()
    for name, value, goal, note in fleet(options.nodes, options.gpus):
        met = "" if goal is None else "met" if value <= goal else "missed"
        print(f"{name:50} {value:8.1f}  <= {goal}  {met:6}  {note}")


if __name__ == "__main__":
    main()
