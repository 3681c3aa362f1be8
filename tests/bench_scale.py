"""What a run over many nodes costs the login node and slurmctld; a part of `make bench`.

python -m tests.bench_scale [--nodes N ...] [--drills] [--json FILE]

A light sandbox of N nodes (no namespaces, no GPUs, no torch) behind a real slurmctld, and a probe
of it by the same pytest that a cluster is accepted with. The suite's own work is the CPU time of
pytest and of every command it waits for (sbatch, squeue), not that of Slurm or of the nodes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fixtures import launch
from fixtures.records import RunDirectory, read_json, read_lines
from fixtures.sandbox import Sandbox

RUN_TIMEOUT_S = 1500
GPUS = 1
STATUS_RPCS = ("JOB_INFO", "JOB_USER_INFO", "NODE_INFO", "PARTITION_INFO", "JOB_STEP_INFO")
"""slurmctld's names of what squeue, sinfo and scontrol show ask it, without their prefix."""
BAD = {"killed": 3, "drained": 2, "slow-driver": 2, "gpu-missing": 3}
"""How many nodes are broken in which way; ten together."""


@dataclass
class Probe:
    """One pytest process over the nodes, from its start to its end."""

    nodes: int
    wall_s: float = 0.0
    own_cpu_s: float = 0.0
    """Of pytest and of the commands that it waited for."""
    peak_mib: float = 0.0
    status: int = 0
    first_submission_s: float = 0.0
    last_line_s: float = 0.0
    """Seconds after the start of pytest."""
    status_queries: int = 0
    busiest_s: int = 0
    """Status queries in the second that had most of them."""
    rpcs: dict[str, int] = field(default_factory=dict)
    nodes_cpu_s: float = 0.0
    verdict: dict[str, Any] = field(default_factory=dict)
    said: str = ""

    @property
    def to_certificate_s(self) -> float:
        """From the submission of the first job to the end of pytest."""
        return self.wall_s - self.first_submission_s

    @property
    def queries_a_second(self) -> float:
        return self.status_queries / max(self.to_certificate_s, 1.0)


@contextmanager
def sandbox(nodes: int) -> Iterator[tuple[Sandbox, float]]:
    began = time.monotonic()
    with Sandbox.up(nodes=nodes, gpus=GPUS, many=True) as up:
        yield up, time.monotonic() - began


def environment(up: Sandbox) -> dict[str, str]:
    """That of a user on the login node of this sandbox."""
    outer = ("PYTEST_", "SLURM_", "SBATCH_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(outer)}
    return {**clean, **up.env}


class Sdiag(threading.Thread):
    """Counts what slurmctld was asked, by looking once a second."""

    def __init__(self, up: Sandbox) -> None:
        super().__init__(daemon=True)
        self._env = environment(up)
        self._enough = threading.Event()
        self.first = self.last = self._counts()
        self.busiest = 0

    def run(self) -> None:
        while not self._enough.wait(1.0):
            found = self._counts()
            self.busiest = max(self.busiest, status_of(found) - status_of(self.last))
            self.last = found

    def stop(self) -> None:
        self._enough.set()
        self.join()
        self.last = self._counts()

    def _counts(self) -> dict[str, int]:
        said = subprocess.run(
            ["sdiag"], env=self._env, capture_output=True, text=True, timeout=60
        ).stdout
        by_type = said.partition("by message type")[2].partition("by user")[0]
        return {
            name: int(count)
            for name, count in re.findall(r"^\s+([A-Z_]+)\s+\(\s*\d+\) count:(\d+)", by_type, re.M)
        }

    @property
    def added(self) -> dict[str, int]:
        new = {name: count - self.first.get(name, 0) for name, count in self.last.items()}
        return {name: count for name, count in new.items() if count}


def status_of(counts: Mapping[str, int]) -> int:
    return sum(counts.get(f"REQUEST_{name}", 0) for name in STATUS_RPCS)


def probe(
    up: Sandbox,
    run: Path,
    *arguments: str,
    meanwhile: Callable[[subprocess.Popen[bytes], RunDirectory], None] | None = None,
    new: bool = True,
) -> Probe:
    """Run the probe on a sandbox that is up, and take its figures."""
    directory = RunDirectory(run)
    found = Probe(nodes=len(up.nodes))
    log = run.parent / f"{run.name}.txt"
    sdiag = Sdiag(up)
    sdiag.start()
    where = [f"--run-dir={run}"] if new else []
    command = [sys.executable, "-m", "pytest", "-q", "-m", "multinode", "--tier", "probe",
               "-p", "no:cacheprovider", *where, *arguments]  # fmt: skip
    began, wall = time.monotonic(), time.time()
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=launch.CHECKOUT, env=environment(up), stdin=subprocess.DEVNULL,
            stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    if meanwhile is not None:
        meanwhile(process, directory)
    # wait4 and not wait: the kernel's own account of pytest and of all that it waited for.
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    sdiag.stop()
    found.wall_s = time.monotonic() - began
    found.status = process.returncode
    found.own_cpu_s = usage.ru_utime + usage.ru_stime
    found.peak_mib = usage.ru_maxrss / 1024
    found.rpcs = sdiag.added
    found.status_queries, found.busiest_s = status_of(sdiag.added), sdiag.busiest
    found.said = log.read_text(errors="replace")
    submitted, lines = spans(directory)
    found.first_submission_s = max(0.0, min(submitted, default=wall) - wall)
    found.last_line_s = max(lines, default=wall) - wall
    if directory.verdict.exists():
        found.verdict = read_json(directory.verdict)
    return found


def spans(directory: RunDirectory) -> tuple[list[float], list[float]]:
    """When the jobs were submitted, and when each one's last line was written."""
    submitted, lines = [], []
    for path in directory.jobs.glob("*/job.json"):
        submitted.append(float(read_json(path)["submitted"]))
        times = [float(n["time"]) for f in path.parent.glob("rank*.jsonl") for n in read_lines(f)]
        lines += [max(times)] if times else []
    return submitted, lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench_scale", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("more", nargs="*")
    options = parser.parse_args(arguments)
    for nodes in options.nodes:
        folder = Path(tempfile.mkdtemp(prefix="bench-scale-"))
        with sandbox(nodes) as (up, up_s):
            found = probe(up, folder / "run", *options.more)
        print(
            nodes,
            "up",
            up_s,
            {k: v for k, v in asdict(found).items() if k not in ("verdict", "said")},
        )
        print(found.to_certificate_s, found.queries_a_second, found.verdict.get("counts"))
        print(found.said[-1500:])
        if options.keep:
            shutil.move(folder, options.keep)
        else:
            shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
