"""Progress of a run, as its files tell it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fixtures.records.files import append_line, write_json
from fixtures.records.run_directory import RunDirectory
from fixtures.records.run_schema import RUN_SCHEMA
from reports.console.progress import Progress

pytestmark = pytest.mark.cpu


def a_run(root: Path) -> RunDirectory:
    """A run of two nodes in the middle of its node jobs."""
    run = RunDirectory(root)
    plan = [
        {"name": f"node-worker{k}", "stage": "node", "placement": f"worker{k}",
         "nodes": [f"worker{k}"], "estimated_s": 30, "workloads": [{"name": "gemm"}]}
        for k in (0, 1)
    ]  # fmt: skip
    write_json(run.run_json, {"schema": RUN_SCHEMA, "id": "r", "planned": 4, "plan": plan})
    for k in (0, 1):
        folder = run.job(f"node-worker{k}")
        folder.mkdir(parents=True)
        append_line(folder / "rank0.jsonl", {"event": "started", "workload": "gemm", "time": 100.0})
        for t in (0, 1):
            gpu = {
                "util": 90 + k, "sm_mhz": 1500, "power_w": 650.0, "temp_c": 60, "mem_mib": 2048,
                "reasons": 0x4, "nvlink_tx": t * 5 * 10**9, "nvlink_rx": t * 10**9,
            }  # fmt: skip
            sample = {"t": 100.0 + t, "gpus": {f"GPU-{k}": gpu},
                      "nics": {"mlx5_0": [t * 2 * 10**9, 0], "mlx5_1": [t * 10**9, 0]},
                      "cpu": [100 * t, 200 * t]}  # fmt: skip
            append_line(folder / f"telemetry-worker{k}.jsonl", sample)
    return run


def test_progress_follows_the_files_of_a_run(tmp_path):
    run = a_run(tmp_path)
    progress = Progress(run)
    progress.refresh()
    assert [(j.state, j.workload) for j in progress.jobs.values()] == [("running", "gemm")] * 2
    rank0 = run.job("node-worker0") / "rank0.jsonl"
    append_line(rank0, {"event": "result", "workload": "gemm", "time": 120.0})
    append_line(rank0, {"event": "end", "time": 121.0})
    append_line(run.job("node-worker1") / "rank0.jsonl", {"event": "error", "time": 110.0})
    verdict = {"event": "verdict", "criterion": "gemm.bf16", "subject": "worker1"}
    append_line(run.ledger, {**verdict, "outcome": "NOT_MEASURED"})
    append_line(run.ledger, {**verdict, "outcome": "PASS"})
    progress.refresh()
    assert [(j.state, j.done) for j in progress.jobs.values()] == [("done", 1), ("failed", 0)]
    assert {k: n for k, n in progress.counts.items() if n} == {"PASS": 1}
    assert progress.problems == ["NOT MEASURED worker1 gemm.bf16"]
    assert progress.verdict == ""
    append_line(run.ledger, {"event": "end", "verdict": "INCOMPLETE"})
    progress.refresh()
    assert progress.verdict == "INCOMPLETE"


def test_a_torn_line_is_read_when_it_is_whole(tmp_path):
    run = a_run(tmp_path)
    progress = Progress(run)
    with run.ledger.open("a") as file:
        file.write('{"event": "end", ')
        file.flush()
        progress.refresh()
        assert progress.verdict == ""
        file.write('"verdict": "PARTIAL"}\n')
    progress.refresh()
    assert progress.verdict == "PARTIAL"


def test_a_job_is_queued_until_its_first_line_and_done_when_the_scheduler_says_so(tmp_path):
    run = a_run(tmp_path)
    for k in (0, 1):
        folder = run.job(f"node-worker{k}")
        (folder / "rank0.jsonl").write_text("")
    progress = Progress(run)
    progress.refresh()
    assert [j.state for j in progress.jobs.values()] == ["queued"] * 2
    assert list(progress.stages) == ["node"]
    assert [j.name for j in progress.stages["node"]] == ["node-worker0", "node-worker1"]
    assert progress.planned == 4
    append_line(run.job("node-worker0") / "rank0.jsonl", {"event": "result", "time": 120.0})
    for k in (0, 1):
        write_json(run.job(f"node-worker{k}") / "job.json", {"ended": 130.0})
    progress.refresh()
    assert [j.state for j in progress.jobs.values()] == ["done", "failed"]
    # What is over is not read again.
    append_line(run.job("node-worker0") / "rank0.jsonl", {"event": "error", "time": 140.0})
    progress.refresh()
    assert [j.state for j in progress.jobs.values()] == ["done", "failed"]


def test_a_job_began_with_its_first_line_and_has_no_workload_at_its_end(tmp_path):
    run = a_run(tmp_path)
    rank0 = run.job("node-worker0") / "rank0.jsonl"
    append_line(rank0, {"event": "result", "time": 120.0})
    append_line(rank0, {"event": "note", "time": "late"})
    progress = Progress(run)
    progress.refresh()
    job = progress.jobs["node-worker0"]
    assert (job.began, job.last_time, job.state, job.done) == (100.0, 120.0, "running", 1)
    append_line(rank0, {"event": "end", "time": 121.0})
    progress.refresh()
    assert (job.state, job.workload) == ("done", "")


def test_of_an_ended_run_without_job_directories_the_records_count(tmp_path):
    run = a_run(tmp_path)
    for k in (0, 1):
        shutil.rmtree(run.job(f"node-worker{k}"))
    progress = Progress(run)
    progress.refresh()
    assert [j.state for j in progress.jobs.values()] == ["planned"] * 2
    run_json = json.loads(run.run_json.read_text())
    durations = {"jobs": {"node-worker0": [100.0, 130.0]}}
    write_json(run.run_json, {**run_json, "ended": "now", "durations": durations})
    run.records.mkdir()
    (run.records / "gemm@worker0.json").write_text("{}")
    progress = Progress(run)
    progress.refresh()
    assert [(j.state, j.began, j.done) for j in progress.jobs.values()] == [
        ("done", 100.0, 1), ("failed", None, 0),
    ]  # fmt: skip


def test_a_ledger_that_goes_on_has_no_verdict_yet_and_counts_the_newest(tmp_path):
    run = a_run(tmp_path)
    verdict = {"event": "verdict", "criterion": "x", "subject": "a"}
    for line in (
        {**verdict, "outcome": "FAIL"}, {**verdict, "subject": "b", "outcome": "PASS"},
        {"event": "end", "verdict": "REJECTED"}, {"event": "session"},
        {**verdict, "outcome": "NOT_MEASURED"},
    ):  # fmt: skip
        append_line(run.ledger, line)
    progress = Progress(run)
    progress.refresh()
    assert progress.verdict == ""
    assert progress.counts == {"FAIL": 0, "PASS": 1, "NOT_MEASURED": 1}
    assert progress.problems == ["FAIL a x", "NOT MEASURED a x"]
