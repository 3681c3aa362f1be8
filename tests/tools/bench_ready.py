"""How long the check of a node before each job takes, on an emulated node with eight GPUs.

    python -m tests.tools.bench_ready [--starts 200] [--jobs 20]

Installed as on a site, started as on a site (`python -I DEST/ready.py`) on a virtual node of a
sandbox: with the driver loaded, as in persistence mode, with a driver that takes 2.5 s to start at
every program, beside a load on every core, and with a driver that hangs. Then how much later a job
starts with the Prolog than without.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fixtures.sandbox import Sandbox, emulation
from fixtures.sandbox.processes import run, wait_until
from reports.handover import ready
from tests.selftests.ready_nodes import certified

GPUS = 8
START_MS = 2500
"""Of a driver that is not loaded."""
FEW = 20
"""Starts that take seconds each."""


def starts(site: Sandbox, dest: Path, number: int) -> tuple[list[float], set[int]]:
    """Return the seconds of each start on the first node, and the statuses."""
    command = site.inside(site.nodes[0], sys.executable, "-I", str(dest / "ready.py"))
    times, statuses = [], set()
    for _ in range(number):
        began = time.monotonic()
        statuses.add(subprocess.run(command, stdout=subprocess.DEVNULL).returncode)
        times.append(time.monotonic() - began)
    return times, statuses


def show(what: str, times: list[float], statuses: set[int]) -> None:
    median, worst = statistics.median(times), max(times)
    print(f"{what}: {len(times)} starts, median {median:.2f} s, worst {worst:.2f} s, "
          f"status {sorted(statuses)}", flush=True)  # fmt: skip


@contextmanager
def busy_cores() -> Iterator[None]:
    """A program on every core, twice."""
    cores = 2 * (os.cpu_count() or 1)
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def job_times(site: Sandbox, number: int) -> list[float]:
    """Return the seconds from sbatch to the job's end, one after the other, on the first node."""
    times = []
    for _ in range(number):
        began = time.monotonic()
        submit = ["sbatch", "--parsable", "-w", site.nodes[0], "-o", "/dev/null", "--wrap", "true"]
        job = run(submit, env=site.environ).strip()
        ended = ["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]
        wait_until(lambda: run(ended, env=site.environ).strip() == "COMPLETED",  # noqa: B023
                   timeout_s=60, step_s=0.02)  # fmt: skip
        times.append(time.monotonic() - began)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=FEW)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-ready-"))
    dest = folder / "ready"
    try:
        for prolog in (True, False):
            site = {"slurm": f"Prolog={dest}/prolog.sh"} if prolog else {}
            with Sandbox.up(nodes=1, gpus=GPUS, site=site) as up:
                if prolog:
                    ready.install(dest, certified(gpus=GPUS))
                    (dest / "ready.env").write_text(f"export READY_PYTHON={sys.executable}\n")
                    measure(up, dest, options.starts)
                jobs = job_times(up, options.jobs)
            median, worst = statistics.median(jobs), max(jobs)
            print(f"{len(jobs)} jobs {'with' if prolog else 'without'} the Prolog, from sbatch to "
                  f"the end: median {median:.2f} s, worst {worst:.2f} s", flush=True)  # fmt: skip
    finally:
        shutil.rmtree(folder)


def measure(site: Sandbox, dest: Path, number: int) -> None:
    node = site.nodes[0]
    show("driver loaded", *starts(site, dest, number))
    with busy_cores():
        show("beside two programs a core", *starts(site, dest, FEW))
    emulation.write_state(site.state, node, [f"start={START_MS}", "*.persistence=1"])
    show(f"driver that starts for {START_MS / 1000:g} s", *starts(site, dest, FEW))
    emulation.write_state(site.state, node, ["*.delay=5"])
    show("driver that takes 5 ms an answer", *starts(site, dest, FEW))
    emulation.write_state(site.state, node, [f"{GPUS - 1}.delay=600000"])
    show("driver that hangs", *starts(site, dest, 3))
    emulation.write_state(site.state, node, [])


if __name__ == "__main__":
    main()
