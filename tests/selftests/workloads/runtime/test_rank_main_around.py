"""A workload that goes around the others of its job begins first and runs last."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fixtures.workloads.runtime.rank_main import run_spec
from fixtures.workloads.runtime.watchdog import Watchdog
from tests.selftests.rank_job import Job

pytestmark = pytest.mark.cpu


AROUND = """\
from fixtures.records.model import Measurement, Result
from fixtures.workloads.runtime.spec import Workload
WORKLOAD = Workload(metrics=dict(order="ranks"), needs_torch=False, seconds=1, cpu_seconds=1,
                    deadline_s=30, spans_job=True)
def begin(ranks):
    if {broken}:
        raise OSError("no counters")
    return "began"
def run(ranks, metrics):
    return Result(facts=dict(begun=ranks.begin_notes["around"]))
"""


@pytest.fixture
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Job:
    """A job of `environment` and of a workload that goes around it."""
    (tmp_path / "around.py").write_text(AROUND.format(broken=request.param))
    job = Job(tmp_path)
    job.spec["workloads"] = [
        {"name": "around", "module": "around", "placement": "localhost", "metrics": ["order"]},
        {"name": "environment", "module": "fixtures.workloads.inventory.environment",
         "placement": "localhost", "metrics": ["versions"]},
    ]  # fmt: skip
    job.spec["directory"] = str(tmp_path / "job")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "around", raising=False)
    return job


def told(job: Job) -> list[dict[str, Any]]:
    text = (Path(job.spec["directory"]) / "rank0.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("around", [False], indirect=True)
def test_workload_around_the_others_begins_first_and_runs_last(around: Job) -> None:
    run_spec(around.spec)
    results = [line for line in told(around) if line["event"] == "result"]
    assert [line["workload"] for line in results] == ["environment", "around"]
    assert results[1]["facts"]["begun"] == "began"


@pytest.mark.parametrize("around", [True], indirect=True)
def test_workload_whose_beginning_fails_is_the_one_that_is_named(
    around: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A failed rank is ended for good after a while; this process is not a rank.
    monkeypatch.setattr(Watchdog, "force_exit_after", lambda *_: None)
    with pytest.raises(OSError, match="no counters"):
        run_spec(around.spec)
    last = told(around)[-1]
    assert (last["event"], last["workload"]) == ("error", "around")
