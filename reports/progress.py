"""How far a run is, read from its directory alone: stages, jobs, verdicts (login side).

A run is watched from the process that runs it, from another one, and after the fact: all three
read the same files. What is not there yet is not an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fixtures.records.files import RecordError, Tail, read_json
from fixtures.records.model import record_name
from fixtures.records.run_directory import RunDirectory

RED = ("FAIL", "NOT_MEASURED")


@dataclass
class JobProgress:
    """One job of the plan, by what its first rank wrote."""

    name: str
    stage: str
    nodes: list[str]
    placement: str
    estimated_s: float
    workloads: list[str]
    state: str = "planned"
    """planned, queued, running, done, or failed."""
    workload: str = ""
    """The one that it is in."""
    done: int = 0
    """Workloads with a result of its first rank."""
    began: float | None = None
    last: float | None = None
    """Epoch seconds of its first and last line."""
    rank0: Tail | None = field(default=None, repr=False)


class Progress:
    """The state of a run; `refresh` reads what is new."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.run: dict[str, Any] = {}
        self.jobs: dict[str, JobProgress] = {}
        self.counts: dict[str, int] = {}
        """Outcome -> verdicts; the newest of each criterion and subject."""
        self.red: list[str] = []
        """What failed or was not measured, as one line each, in the order in which it fell."""
        self.verdict = ""
        """The run's last word, "" before it."""
        self._outcomes: dict[tuple[str, str], str] = {}
        self._ledger = Tail(directory.ledger)

    @property
    def planned(self) -> int:
        return int(self.run.get("planned", 0))

    @property
    def stages(self) -> dict[str, list[JobProgress]]:
        found: dict[str, list[JobProgress]] = {}
        for job in self.jobs.values():
            found.setdefault(job.stage, []).append(job)
        return found

    def refresh(self) -> None:
        """Read what the run, its jobs and its ledger have gained."""
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
                self._look_at(job)
        for line in self._ledger.read():
            self._note(line)

    def _look_at(self, job: JobProgress) -> None:
        folder = self.directory.job(job.name)
        if job.rank0 is None:
            if not folder.is_dir():
                self._look_at_records(job)
                return
            job.rank0 = Tail(folder / "rank0.jsonl")
            job.state = "queued"
        for line in job.rank0.read():
            self._hear(job, line)
        if job.state in ("queued", "running"):
            with suppress(OSError, RecordError):
                noted = read_json(folder / "job.json")
                if noted.get("ended"):
                    job.state = "done" if job.done == len(job.workloads) else "failed"

    def _look_at_records(self, job: JobProgress) -> None:
        """A run that was kept without its jobs: what it has records of was done."""
        if not self.run.get("ended"):
            return
        names = [record_name(w, job.placement) for w in job.workloads]
        job.done = sum((self.directory.records / name).exists() for name in names)
        times = self.run.get("durations", {}).get("jobs", {}).get(job.name)
        if times:
            job.began, job.last = times
        job.state = "done" if job.done == len(names) else "failed"

    @staticmethod
    def _hear(job: JobProgress, line: Mapping[str, Any]) -> None:
        time, event = line.get("time"), line.get("event")
        if isinstance(time, (int, float)):
            job.began = float(time) if job.began is None else job.began
            job.last = float(time)
        if event == "started":
            job.state, job.workload = "running", str(line.get("workload", ""))
        elif event == "result":
            job.done += 1
        elif event == "end":  # of the job
            job.state, job.workload = "done", ""
        elif event == "error":
            job.state = "failed"

    def _note(self, line: Mapping[str, Any]) -> None:
        if line.get("event") == "end":
            self.verdict = str(line.get("verdict", ""))
            return
        if line.get("event") != "verdict":
            self.verdict = ""
            return
        key = (str(line.get("criterion")), str(line.get("subject")))
        before, now = self._outcomes.get(key), str(line.get("outcome"))
        if before is not None:
            self.counts[before] -= 1
        self._outcomes[key] = now
        self.counts[now] = self.counts.get(now, 0) + 1
        if now in RED:
            self.red.append(f"{now.replace('_', ' ')} {key[1]} {key[0]}")
