"""`make bench`: what a run costs beside its own jobs, as a table and as JSON. Nothing is asserted.

python -m tests.tools.bench [--json FILE] [--accounting] [--nodes N] [--gpus G]
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fixtures.background import BackgroundThread
from fixtures.paths import CHECKOUT, RUNS, commit
from fixtures.records.files import RecordError, read_json, read_lines, write_json
from fixtures.records.run_directory import RunDirectory
from fixtures.sandbox import Sandbox, SandboxError
from tests.tools import bench_fleet

RUN_TIMEOUT_S = 1800


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    name: str
    seconds: float | None
    goal: float | None = None
    """Largest accepted value, in seconds; None where there is no goal."""
    note: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.goal is None or self.seconds is None else self.seconds <= self.goal


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="default: reports/runs/")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--fleet", type=int, default=1024, help="nodes of 8 GPUs to judge")
    parser.add_argument("--accounting", action="store_true", help="with slurmdbd")
    options = parser.parse_args(arguments)
    facts = machine()
    try:
        figures = [
            collection_time(),
            *sandbox_times(options.nodes, options.gpus, accounting=options.accounting),
            *run_times(options.nodes, options.gpus, accounting=options.accounting),
            *(Figure(*f) for f in bench_fleet.figures(options.fleet, 8, bench_fleet.SHOWN)),
        ]
    except SandboxError as error:
        print(error, file=sys.stderr)
        return 1
    show(figures, facts)
    save("bench", [{**asdict(f), "met": f.met} for f in figures], facts, options.json)
    return 0


def save(
    name: str,
    figures: list[dict[str, Any]],
    facts: Mapping[str, Any],
    path: Path | None,
    **more: Any,
) -> Path:
    """Write the figures as JSON beside the runs, or to the file of --json; return the file."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    path = path or RUNS / f"{name}-{stamp}.json"
    write_json(
        path,
        {
            "schema": 1,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "machine": facts,
            "figures": figures,
            **more,
        },
    )
    print(f"JSON {path}")
    return path


def machine() -> dict[str, Any]:
    """Return what the figures depend on; the load shows whether other processes were running."""
    memory = Path("/proc/meminfo").read_text().split()[1]
    model = next(
        (line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), platform.machine(),
    )  # fmt: skip
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": model,
        "memory_gib": round(int(memory) / 2**20, 1),
        "load_1min": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "slurm": _output_of("slurmctld", "-V"),
    }


def collection_time() -> Figure:
    """Return the time of the second of two collections: the first writes the bytecode."""
    seconds, lines = 0.0, ""
    for _ in range(2):
        start_time = time.monotonic()
        done = run_pytest("--collect-only", "-q", "-m", "multinode", "--cluster", "sandbox")
        seconds = time.monotonic() - start_time
        lines = done.stdout.strip().splitlines()[-1] if done.stdout else done.stderr
    return Figure("pytest --collect-only -m multinode", seconds, 2, lines)


def sandbox_times(nodes: int, gpus: int, *, accounting: bool) -> list[Figure]:
    """Return the times of starting and removing a sandbox."""
    start_time = time.monotonic()
    cluster = Sandbox.up(nodes=nodes, gpus=gpus, accounting=accounting)
    ready = time.monotonic()
    cluster.down()
    size = f"{nodes} x {gpus}" + (", accounting" if accounting else "")
    return [
        Figure("sandbox up", ready - start_time, 10, size),
        Figure("sandbox down", time.monotonic() - ready),
    ]


def run_times(nodes: int, gpus: int, *, accounting: bool) -> list[Figure]:
    """Return the time of `pytest -m multinode --cluster sandbox` and of its parts."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    directory = RunDirectory(folder / "run")
    slurm = SlurmTimes(directory)
    slurm.start()
    start_time = time.time()
    done = run_pytest(
        "-q", "-m", "multinode", "--cluster", "sandbox", f"--sandbox-nodes={nodes}",
        f"--sandbox-gpus={gpus}", f"--run-dir={directory.root}",
        *(["--sandbox-accounting"] if accounting else []),
    )  # fmt: skip
    ended = time.time()
    slurm.stop()
    try:
        verdict = read_json(directory.verdict)
        data = read_json(directory.run_json)
    except (OSError, RecordError):
        print(done.stdout[-2000:] + done.stderr[-2000:], file=sys.stderr)
        return [Figure("whole run", ended - start_time, 60, f"no verdict, exit {done.returncode}")]
    finally:
        spans_of_jobs = _job_spans(directory)
        lines = _first_line_delays(directory)
        shutil.rmtree(folder, ignore_errors=True)
    wall = ended - start_time
    ranks_union_s = float(data["durations"]["union_s"])
    slurm_union_s = union(list(slurm.times.values()))
    overhead = wall - slurm_union_s if slurm.times else wall - ranks_union_s
    figures = [
        Figure("whole run, sandbox included", wall, 60, verdict["verdict"]),
        Figure("union of the jobs by Slurm", slurm_union_s, None, f"{len(slurm.times)} jobs"),
        Figure(
            "union of the jobs by their own lines",
            ranks_union_s,
            None,
            "first line to last, run.json",
        ),
        Figure("overhead: wall less Slurm's union", overhead, 15),
        Figure(
            "overhead: wall less the lines' union", wall - ranks_union_s, None, "interpreters count"
        ),
    ]
    first = min((start for start, _ in spans_of_jobs.values()), default=start_time)
    last = max((end for _, end in spans_of_jobs.values()), default=ended)
    figures.append(Figure("  pytest to first submission", first - start_time))
    figures.append(Figure("  last line to the end of pytest", ended - last))
    for stage in dict.fromkeys(job["stage"] for job in data["plan"]):
        names = [job["name"] for job in data["plan"] if job["stage"] == stage]
        spans = [spans_of_jobs[name] for name in names if name in spans_of_jobs]
        if spans:
            seconds = max(end for _, end in spans) - min(start for start, _ in spans)
            estimate = max(j["estimated_s"] for j in data["plan"] if j["stage"] == stage)
            note = f"{len(names)} jobs, submission to last line; estimated {estimate:.0f} s"
            figures.append(Figure(f"stage {stage}", seconds, None, note))
    figures += [Figure(f"{name}: submission to first line", s) for name, s in lines.items()]
    return figures


class SlurmTimes:
    """Polls StartTime and EndTime of the run's jobs while its sandbox exists."""

    def __init__(self, directory: RunDirectory) -> None:
        self._thread = BackgroundThread(self._poll, name="slurm-times")
        self.times: dict[str, list[float]] = {}
        self._directory = directory
        self._stop_event = threading.Event()

    def stop(self) -> None:
        self._stop_event.set()
        self._thread.join(60)

    def start(self) -> None:
        self._thread.start()

    def _poll(self) -> None:
        while not self._stop_event.wait(0.3):
            with suppress(OSError, RecordError, KeyError, SandboxError, subprocess.SubprocessError):
                sandbox_id = read_json(self._directory.run_json)["sandbox"]["id"]
                self._read_job_times(Sandbox.attach(sandbox_id).environ)

    def _read_job_times(self, env: Mapping[str, str]) -> None:
        output = subprocess.run(
            ["scontrol", "show", "job", "--oneliner"],
            env=dict(env), capture_output=True, text=True, timeout=10,
        ).stdout  # fmt: skip
        for line in output.splitlines():
            fields = dict(word.partition("=")[::2] for word in line.split())
            with suppress(ValueError, KeyError):
                start, end = (
                    datetime.fromisoformat(fields[name]).timestamp()
                    for name in ("StartTime", "EndTime")
                )
                # Until a job ends, EndTime is the end of its time limit.
                self.times[fields["JobId"]] = [start, min(end, time.time())]


def union(spans: list[list[float]]) -> float:
    """Return the length of the union of [start, end] intervals."""
    total, latest_end = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, latest_end))
        latest_end = max(latest_end, end)
    return total


def _job_spans(directory: RunDirectory) -> dict[str, tuple[float, float]]:
    """Return job -> the times of its submission and of its ranks' last line."""
    spans = {}
    for path in directory.jobs.glob("*/job.json"):
        times = [float(n["time"]) for f in path.parent.glob("rank*.jsonl") for n in read_lines(f)]
        if times:
            spans[path.parent.name] = (float(read_json(path)["submitted"]), max(times))
    return spans


def _first_line_delays(directory: RunDirectory) -> dict[str, float]:
    """Return job -> seconds from its submission to its ranks' first line."""
    delays = {}
    for path in sorted(directory.jobs.glob("*/job.json")):
        times = [float(n["time"]) for f in path.parent.glob("rank*.jsonl") for n in read_lines(f)]
        if times:
            delays[path.parent.name] = min(times) - float(read_json(path)["submitted"])
    return delays


def show(figures: list[Figure], facts: Mapping[str, Any]) -> None:
    """Print the figures as a table."""
    table = Table(title=", ".join(f"{name} {value}" for name, value in facts.items()))
    for name in ("figure", "s", "goal", "", "note"):
        table.add_column(name, justify="right" if name in ("s", "goal") else "left")
    for f in figures:
        mark = {True: "met", False: "missed", None: ""}[f.met]
        seconds = "-" if f.seconds is None else f"{f.seconds:.2f}"
        goal = "" if f.goal is None else f"<= {f.goal:g}"
        table.add_row(f.name, seconds, goal, mark, f.note)
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def run_pytest(
    *arguments: str, timeout_s: float | None = RUN_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run pytest as a user would, without the variables of an outer pytest or job."""
    outer = ("PYTEST_", "SLURM_", "SBATCH_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(outer)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=CHECKOUT, env=env, capture_output=True, text=True, timeout=timeout_s,
    )  # fmt: skip


def _output_of(*command: str) -> str | None:
    """Return the output of a command; None where it cannot be run."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()
    return None


if __name__ == "__main__":
    sys.exit(main())
