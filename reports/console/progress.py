"""Progress of a run, read from its directory alone: stages, jobs, verdicts (login side).

The process of the run, another process, and one after the run read the same files. A file that is
not there yet is not an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fixtures.records.files import RecordError, Tail, read_json
from fixtures.records.ledger import row_of
from fixtures.records.model import record_name
from fixtures.records.run_directory import RunDirectory

PROBLEM_OUTCOMES = ("FAIL", "NOT_MEASURED")


@dataclass
class JobProgress:
    """The state of one job of the plan, from the lines of its rank 0."""

    name: str
    stage: str
    nodes: list[str]
    placement: str
    estimated_s: float
    workloads: list[str]
    state: str = "planned"
    """planned, queued, running, done, or failed."""
    workload: str = ""
    """The running workload, "" where none runs."""
    done: int = 0
    """Number of workloads with a result of rank 0."""
    began: float | None = None
    last_time: float | None = None
    """Times of rank 0's first and last line, in seconds since the epoch."""
    rank0: Tail | None = field(default=None, repr=False)


class Progress:
    """The state of a run; `refresh` reads the new lines of its files."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.run: dict[str, Any] = {}
        self.jobs: dict[str, JobProgress] = {}
        self.counts: dict[str, int] = {}
        """Outcome -> number of verdicts; only the newest of each criterion and subject counts."""
        self.problems: list[str] = []
        """One line for each verdict FAIL or NOT_MEASURED, in the order of the ledger."""
        self.verdict = ""
        """The run's verdict, "" until the run has ended."""
        self._outcomes: dict[tuple[str, str], str] = {}
        self._ledger = Tail(directory.ledger)

    @property
    def planned(self) -> int:
        """Number of planned verdicts."""
        return int(self.run.get("planned", 0))

    @property
    def stages(self) -> dict[str, list[JobProgress]]:
        """Jobs by stage."""
        stages: dict[str, list[JobProgress]] = {}
        for job in self.jobs.values():
            stages.setdefault(job.stage, []).append(job)
        return stages

    def refresh(self) -> None:
        """Read run.json once, and the new lines of the jobs and the ledger."""
        if not self.jobs:
            with suppress(OSError, RecordError):
                self.run = read_json(self.directory.run_json)
            for job in self.run.get("plan", []):
                self.jobs[job["name"]] = JobProgress(
                    name=job["name"],
                    stage=job["stage"],
                    nodes=list(job["nodes"]),
                    placement=job["placement"],
                    estimated_s=float(job.get("estimated_s", 0)),
                    workloads=[w["name"] for w in job["workloads"]],
                )
        for job in self.jobs.values():
            if job.state not in ("done", "failed"):
                self._update_job(job)
        for line in self._ledger.read():
            self._apply_ledger_line(line)

    def _update_job(self, job: JobProgress) -> None:
        folder = self.directory.job(job.name)
        if job.rank0 is None:
            if not folder.is_dir():
                self._update_from_records(job)
                return
            job.rank0 = Tail(folder / "rank0.jsonl")
            job.state = "queued"
        for line in job.rank0.read():
            self._apply_rank_line(job, line)
        if job.state in ("queued", "running"):
            with suppress(OSError, RecordError):
                job_json = read_json(folder / "job.json")
                if job_json.get("ended"):
                    job.state = "done" if job.done == len(job.workloads) else "failed"

    def _update_from_records(self, job: JobProgress) -> None:
        """Take a job of an ended run without a job directory for done if it has all its records."""
        if not self.run.get("ended"):
            return
        names = [record_name(w, job.placement) for w in job.workloads]
        job.done = sum((self.directory.records / name).exists() for name in names)
        times = self.run.get("durations", {}).get("jobs", {}).get(job.name)
        if times:
            job.began, job.last_time = times
        job.state = "done" if job.done == len(names) else "failed"

    @staticmethod
    def _apply_rank_line(job: JobProgress, line: Mapping[str, Any]) -> None:
        time, event = line.get("time"), line.get("event")
        if isinstance(time, (int, float)):
            job.began = float(time) if job.began is None else job.began
            job.last_time = float(time)
        if event == "started":
            job.state, job.workload = "running", str(line.get("workload", ""))
        elif event == "result":
            job.done += 1
        elif event == "end":  # of the job
            job.state, job.workload = "done", ""
        elif event == "error":
            job.state = "failed"

    def _apply_ledger_line(self, line: Mapping[str, Any]) -> None:
        if line.get("event") == "end":
            self.verdict = str(line.get("verdict", ""))
            return
        if line.get("event") != "verdict":
            self.verdict = ""
            return
        key = row_of(line)
        before, now = self._outcomes.get(key), str(line.get("outcome"))
        if before is not None:
            self.counts[before] -= 1
        self._outcomes[key] = now
        self.counts[now] = self.counts.get(now, 0) + 1
        if now in PROBLEM_OUTCOMES:
            self.problems.append(f"{now.replace('_', ' ')} {key[1]} {key[0]}")
