"""What a run over many nodes costs the login node and slurmctld; a part of `make bench`.

python -m tests.tools.bench_scale [--nodes 128 1024] [--json FILE] [--keep DIR]

A light sandbox (no namespaces, no GPUs, no torch) behind a real slurmctld, and the probe of it by
the pytest that a cluster is accepted with. In each size ten nodes are bad; of each size the run is
made twice: once from start to end, and once killed when half of the nodes have been measured, and
resumed. Nothing is asserted: the table says met or missed.

The suite's own time is what passes before the first submission, and from there on the CPU time of
pytest and of every command that it waits for (sbatch, squeue); not that of Slurm, or of what runs
on the nodes, or the time in which it waits for either.
"""

# Length: one tool; its run, its observer and its table are used nowhere else.

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from fixtures.background import BackgroundThread
from fixtures.paths import CHECKOUT
from fixtures.records.files import read_json, read_lines
from fixtures.records.run_directory import RunDirectory
from fixtures.sandbox import Sandbox, SandboxError
from tests.tools import bench

GPUS = 1
STATUS = ("JOB_INFO", "JOB_USER_INFO", "JOB_INFO_SINGLE", "NODE_INFO", "PARTITION_INFO")
"""The RPCs of squeue, sinfo and scontrol, without their prefix REQUEST_."""
KILLED, DRAINED, SLOW, WRONG = 3, 2, 2, 3
"""Number of nodes with each fault; ten in total."""
EXACT_GOALS = ("bad nodes named", "good nodes accused", "measured twice", "verdicts that differ")


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    name: str
    value: float
    unit: str = ""
    goal: float | None = None
    """Largest accepted value, or the exact one; None where there is no goal."""
    note: str = ""
    exactly: bool = False

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value == self.goal if self.exactly else self.value <= self.goal


@dataclass
class Probe:
    """One pytest process over the nodes; times in seconds after its start."""

    wall_s: float
    status: int
    peak_mib: float
    cpu_s: float
    first_submission_s: float
    last_line_s: float
    own_s: float
    rpcs: dict[str, int]
    """RPC -> number of requests, as sdiag counts them."""
    queued: int
    """Largest number of jobs in the queue."""
    outcomes: dict[tuple[str, str], str] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)
    """The nodes that bad-nodes.txt names."""
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def to_certificate_s(self) -> float:
        return self.wall_s - self.first_submission_s

    @property
    def status_queries(self) -> int:
        return sum(self.rpcs.get(f"REQUEST_{name}", 0) for name in STATUS)


class Observer:
    """Samples once per second slurmctld's counters, the queue's length and pytest's CPU time."""

    def __init__(self, env: Mapping[str, str], process: subprocess.Popen[bytes]) -> None:
        self._thread = BackgroundThread(self._observe, name="observer")
        self._env = dict(env)
        self._process = process
        self._stop_event = threading.Event()
        self._first = self._last = self._counts()
        self.queued = 0
        self.cpu: list[tuple[float, float]] = [(time.time(), 0.0)]

    def start(self) -> None:
        self._thread.start()

    def _observe(self) -> None:
        while not self._stop_event.wait(1.0):
            self._last = self._counts()
            with suppress(psutil.Error):
                used = psutil.Process(self._process.pid).cpu_times()
                cpu_s = used.user + used.system + used.children_user + used.children_system
                self.cpu.append((time.time(), cpu_s))

    def stop(self) -> None:
        self._stop_event.set()
        self._thread.join(60)
        self._last = self._counts()

    def cpu_at(self, when: float) -> float:
        return self.cpu[max(0, bisect_right(self.cpu, (when, float("inf"))) - 1)][1]

    @property
    def new_counts(self) -> dict[str, int]:
        new = {name: count - self._first.get(name, 0) for name, count in self._last.items()}
        return {name: count for name, count in new.items() if count}

    def _counts(self) -> dict[str, int]:
        sdiag_output = subprocess.run(
            ["sdiag"], env=self._env, capture_output=True, text=True, timeout=120
        ).stdout
        # sdiag reports the queue's length as well, so no further query is needed.
        alive = re.findall(r"^Jobs (?:pending|running):\s+(\d+)", sdiag_output, re.M)
        if hasattr(self, "queued"):
            self.queued = max(self.queued, sum(map(int, alive)))
        by_type = sdiag_output.partition("by message type")[2].partition("by user")[0]
        counters = re.findall(r"^\s+([A-Z_]+)\s+\(\s*\d+\) count:(\d+)", by_type, re.M)
        return {name: int(count) for name, count in counters}


def probe(
    sandbox: Sandbox,
    run: Path,
    *arguments: str,
    new: bool = True,
    during_run: Callable[[subprocess.Popen[bytes], RunDirectory], None] | None = None,
) -> Probe:
    """Run the probe on a running sandbox and return its figures."""
    directory = RunDirectory(run)
    env = environment(sandbox)
    run_dir_option = [f"--run-dir={run}"] if new else []
    command = [sys.executable, "-m", "pytest", "-q", "-m", "multinode", "--tier", "probe",
               "-p", "no:cacheprovider", *run_dir_option, *arguments]  # fmt: skip
    start_time = time.time()
    with (run.parent / f"{run.name}.txt").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=CHECKOUT, env=env, stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    observer = Observer(env, process)
    observer.start()
    if during_run is not None:
        during_run(process, directory)
    # wait4, not wait: the kernel's CPU time of pytest and of all children that it waited for.
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    ended = time.time()
    observer.stop()
    cpu_s = usage.ru_utime + usage.ru_stime
    submitted, lines = spans(directory, since=start_time)
    first, last = min(submitted, default=ended), max(lines, default=ended)
    result = Probe(
        wall_s=ended - start_time, status=process.returncode, peak_mib=usage.ru_maxrss / 1024,
        cpu_s=cpu_s, first_submission_s=first - start_time, last_line_s=last - start_time,
        own_s=(first - start_time) + cpu_s - observer.cpu_at(first), rpcs=observer.new_counts,
        queued=observer.queued,
    )  # fmt: skip
    if directory.verdict.exists():
        verdict = read_json(directory.verdict)
        result.counts = verdict["counts"]
        result.outcomes = {
            (c["criterion"], c["subject"]): c["outcome"] for c in verdict["criteria"]
        }
        result.bad = (run / "bad-nodes.txt").read_text().split()
    return result


def environment(sandbox: Sandbox) -> dict[str, str]:
    """Return the environment of a user on the login node of this sandbox."""
    outer = ("PYTEST_", "SLURM_", "SBATCH_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(outer)}
    return {**clean, **sandbox.env}


def spans(directory: RunDirectory, *, since: float) -> tuple[list[float], list[float]]:
    """Return when jobs were submitted, and when their lines or missing reasons were written."""
    submitted = []
    lines = [float(m["time"]) for m in read_lines(directory.missing)]
    for path in directory.jobs.glob("*/job.json"):
        submitted.append(float(read_json(path)["submitted"]))
        for file in path.parent.glob("rank*.jsonl"):
            lines += [float(n["time"]) for n in read_lines(file)]
    return [s for s in submitted if s >= since], [n for n in lines if n >= since]


# --- bad nodes


@dataclass(frozen=True)
class BadNodes:
    """The nodes with a fault, spread over all nodes."""

    killed: tuple[str, ...]
    drained: tuple[str, ...]
    slow: tuple[str, ...]
    missing_gpu: tuple[str, ...]

    @staticmethod
    def choose(names: Sequence[str]) -> BadNodes:
        """Choose the nodes that get a fault."""
        # The last nodes are killed before they are measured.
        dying, others = names[-KILLED:], names[: -2 * KILLED]
        step = len(others) // (DRAINED + SLOW + WRONG)
        spread = [others[k * step + step // 2] for k in range(DRAINED + SLOW + WRONG)]
        return BadNodes(
            killed=tuple(dying),
            drained=tuple(spread[:DRAINED]),
            slow=tuple(spread[DRAINED : DRAINED + SLOW]),
            missing_gpu=tuple(spread[DRAINED + SLOW :]),
        )

    @property
    def all(self) -> set[str]:
        return {*self.killed, *self.drained, *self.slow, *self.missing_gpu}

    def inject(self, sandbox: Sandbox) -> None:
        """Inject all faults but the kills, which happen during the run."""
        for node in self.drained:
            sandbox.drain(node)
        for node in self.slow:
            sandbox.fault(node, "slow-driver")
        for node in self.missing_gpu:
            sandbox.fault(node, "gpu-missing")

    def kill(
        self, sandbox: Sandbox, process: subprocess.Popen[bytes], directory: RunDirectory
    ) -> None:
        wait_for(process, lambda: nodes_measured(directory) > 0)
        for node in self.killed:
            sandbox.kill_node(node)


def nodes_measured(directory: RunDirectory) -> int:
    """Return the number of nodes with a record of the last workload."""
    return sum(1 for _ in directory.records.glob("health@*.json"))


def wait_for(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, or pytest has ended (which its figures show)."""
    while not condition():
        # WNOWAIT: wait4 reaps the process and reads its CPU time later.
        gone = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if gone is not None:
            return
        time.sleep(0.2)


# --- the runs of one size


@dataclass
class SizeResult:
    """The results with one number of nodes."""

    nodes: int
    up_s: float
    whole: Probe
    killed_at: int
    """Number of nodes measured when pytest was killed."""
    resumed: Probe
    bad: BadNodes
    measured_twice: int
    """Number of results that the resumed run has twice."""
    differing_verdicts: list[tuple[str, str]]
    """Verdicts that differ between the two runs, without nodes that were killed in one of them."""


def measure_size(nodes: int, folder: Path) -> SizeResult:
    """Run the probe in a sandbox of this size: killed and resumed, then from start to end."""
    start_time = time.monotonic()
    with Sandbox.up(nodes=nodes, gpus=GPUS, light=True) as sandbox:
        up_s = time.monotonic() - start_time
        bad = BadNodes.choose(sandbox.nodes)
        bad.inject(sandbox)
        killed_at = 0

        def kill_at_half(process: subprocess.Popen[bytes], directory: RunDirectory) -> None:
            nonlocal killed_at
            wait_for(process, lambda: nodes_measured(directory) >= nodes // 2)
            killed_at = nodes_measured(directory)
            process.send_signal(signal.SIGKILL)

        half = folder / "half"
        probe(sandbox, half, during_run=kill_at_half)
        resumed = probe(sandbox, half, f"--resume={half}", new=False)
        whole = probe(sandbox, folder / "whole", during_run=lambda p, d: bad.kill(sandbox, p, d))
    killed_nodes = set(bad.killed)
    keys = whole.outcomes.keys() | resumed.outcomes.keys()
    return SizeResult(
        nodes=nodes, up_s=up_s, whole=whole, killed_at=killed_at, resumed=resumed, bad=bad,
        measured_twice=results_twice(RunDirectory(half), bad),
        differing_verdicts=[
            key for key in sorted(keys)
            if key[1] not in killed_nodes and whole.outcomes.get(key) != resumed.outcomes.get(key)
        ],
    )  # fmt: skip


def results_twice(directory: RunDirectory, bad: BadNodes) -> int:
    """Return the number of results that a rank measured twice without need.

    A node with a missing GPU does not count: its first record measures nothing and is repeated.
    """
    measurements: Counter[tuple[str, str, int]] = Counter()
    for file in directory.jobs.glob("node-*/rank*.jsonl"):
        for line in read_lines(file):
            if line.get("event") == "result" and line["placement"] not in bad.missing_gpu:
                measurements[line["workload"], line["placement"], line["rank"]] += 1
    return sum(1 for count in measurements.values() if count > 1)


def table(sizes: Sequence[SizeResult]) -> list[Line]:
    """Return the figures; only those of the largest size have goals."""
    lines = []
    for k, size in enumerate(sizes):
        last = k == len(sizes) - 1
        lines += figures(size, goals=last)
    if len(sizes) > 1:
        small, large = sizes[0], sizes[-1]
        ratio = large.nodes / small.nodes
        grown = round(large.whole.own_s / small.whole.own_s, 2)
        name = f"own time, {small.nodes} to {large.nodes} nodes"
        lines.append(Line(name, grown, "x", round(ratio * 8.5 / 8, 2), "at most linear"))
    return lines


def figures(size: SizeResult, *, goals: bool) -> list[Line]:
    whole, n = size.whole, size.nodes
    named, accused = set(whole.bad) & size.bad.all, set(whole.bad) - size.bad.all

    def line(name: str, value: float, unit: str, goal: float | None = None, note: str = "") -> Line:
        wanted = goal if goals else None
        return Line(f"{n} nodes: {name}", round(value, 2), unit, wanted, note, name in EXACT_GOALS)

    rate = whole.status_queries / max(whole.to_certificate_s, 1)
    counts = ", ".join(f"{v} {k.replace('_', ' ')}" for k, v in whole.counts.items())
    return [
        line("sandbox up", size.up_s, "s"),
        line("first submission to the end", whole.to_certificate_s, "s", 600, counts),
        line("the suite's own time", whole.own_s, "s", 90, f"{whole.cpu_s:.0f} s of CPU in all"),
        line("last line of a node to the end", whole.wall_s - whole.last_line_s, "s"),
        line("peak memory of pytest", whole.peak_mib, "MiB", 1024),
        line("status queries a second", rate, "1/s", 1.0, f"{whole.status_queries} by sdiag"),
        line("most jobs in the queue", whole.queued, "jobs"),
        line("bad nodes named", len(named), "nodes", len(size.bad.all)),
        line("good nodes accused", len(accused), "nodes", 0, " ".join(sorted(accused)[:5])),
        line("killed after, and resumed", size.killed_at, "nodes"),
        line("measured twice", size.measured_twice, "results", 0),
        line(
            "verdicts that differ",
            len(size.differing_verdicts),
            "",
            0,
            str(size.differing_verdicts[:3] or ""),
        ),
    ]


def show(lines: Sequence[Line], facts: Mapping[str, Any]) -> None:
    output_table = Table(title=", ".join(f"{name} {value}" for name, value in facts.items()))
    for name in ("figure", "value", "unit", "goal", "", "note"):
        output_table.add_column(name, justify="right" if name in ("value", "goal") else "left")
    for row in lines:
        mark = {True: "met", False: "missed", None: ""}[row.met]
        goal = "" if row.goal is None else str(row.goal)
        output_table.add_row(row.name, str(row.value), row.unit, goal, mark, row.note)
    Console(width=None if sys.stdout.isatty() else 150).print(output_table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench_scale", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[128, 1024], metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="default: reports/runs/")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the run directories here")
    options = parser.parse_args(arguments)
    facts = bench.machine()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="bench-scale-"))
    sizes = []
    try:
        for nodes in options.nodes:
            (folder / str(nodes)).mkdir(parents=True)
            sizes.append(measure_size(nodes, folder / str(nodes)))
    except SandboxError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    lines = table(sizes)
    show(lines, facts)
    figures = [{**vars(line), "met": line.met} for line in lines]
    requests = {str(s.nodes): s.whole.rpcs for s in sizes}
    bench.save("bench-scale", figures, facts, options.json, requests=requests)
    return 0


if __name__ == "__main__":
    sys.exit(main())
