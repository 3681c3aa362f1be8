"""Records from the lines of ranks, and one reason for each that is missing."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from fixtures.jobs import collector
from fixtures.jobs.collector import ResultCollector
from fixtures.jobs.context import RunContext
from fixtures.jobs.failure import Failure
from fixtures.jobs.submission import Submission
from fixtures.jobs.watcher import JobState
from fixtures.plan.jobs import Job
from fixtures.records.absence import JobKind
from fixtures.records.files import Tail, read_json, read_lines
from fixtures.records.run_directory import RunDirectory
from fixtures.verdict.causes import Cause
from tests.selftests import support
from tests.selftests.support import NONCE, line, result_line

pytestmark = pytest.mark.cpu

JOB = Job(
    name="node-worker0", stage="node", placement="worker0", nodes=("worker0",), ranks_per_node=2,
    workloads=(("gemm", ("bf16",)), ("copy", ("h2d",))),
)  # fmt: skip


@pytest.fixture
def results(directory: RunDirectory) -> ResultCollector:
    context = RunContext(
        directory=directory, run_id="r", nonce=NONCE, population=support.population(1),
        attempts={("gemm", "worker0"): 1, ("copy", "worker0"): 2}, spec_facts={},
    )  # fmt: skip
    return ResultCollector(context)


@pytest.fixture
def submission(directory: RunDirectory) -> Submission:
    folder = directory.job("node-worker0")
    tails = [Tail(folder / f"rank{k}.jsonl") for k in range(2)]
    return Submission(
        job=JOB, name="node-worker0", directory=folder, number=1, tails=tails,
        pending={"gemm", "copy"},
    )  # fmt: skip


def say(s: Submission, *lines: dict[str, Any]) -> None:
    for one in lines:
        support.say(s.tails[one["rank"]].path, [one])


def missing(directory: RunDirectory) -> list[dict[str, Any]]:
    return list(read_lines(directory.missing))


def test_a_thousand_files_are_read_at_a_time():
    assert collector.FILES_PER_TICK == 1000


def test_a_record_is_written_when_the_last_rank_has_delivered(results, submission, directory):
    assert results.collect(submission) is False
    say(submission, line("started", 0), result_line(0))
    assert results.collect(submission) is True
    assert submission.delivered == 0
    assert list(directory.records.iterdir()) == []
    say(submission, result_line(1))
    assert results.collect(submission) is True
    record = read_json(directory.record("gemm", "worker0", 1))
    assert [r["rank"] for r in record["ranks"]] == [0, 1]
    assert record["job"]["name"] == "node-worker0"
    assert submission.delivered == 1
    assert submission.pending == {"copy"}
    assert results.collect(submission) is False
    assert missing(directory) == []
    # What has its record gets no reason.
    results.record_missing(JOB, "gemm", Failure(JobKind.RANK_DIED, "late"))
    assert missing(directory) == []


def test_what_a_job_did_not_reach_follows_from_the_record_in_which_it_ended(results, directory):
    results.record_all_missing(JOB, Failure(JobKind.RANK_DIED, "exit 1", "gemm", "worker0", 0))
    gemm, copy = missing(directory)
    assert "follows_from" not in gemm, "it is the cause itself"
    assert copy["follows_from"] == "gemm@worker0"


def test_a_record_says_which_nodes_were_left_out_of_its_job(results, submission, directory):
    results.left_out["worker1"] = {"why": "it is ill", "follows_from": "gemm@worker1"}
    submission.job = replace(JOB, placement="worker0--worker1")
    results._context.attempts["gemm", "worker0--worker1"] = 1
    pair = {"placement": "worker0--worker1"}
    say(submission, {**result_line(0), **pair}, {**result_line(1), **pair})
    assert results.collect(submission) is True
    record = read_json(directory.record("gemm", "worker0--worker1", 1))
    assert record["job"]["without"] == {
        "worker1": {"why": "it is ill", "follows_from": "gemm@worker1"}
    }


@pytest.mark.parametrize("foreign", [{"nonce": "f" * 32}, {"schema": 0}])
def test_lines_of_another_run_or_schema_are_nobody_s(results, submission, foreign):
    say(submission, {**result_line(0), **foreign})
    assert results.collect(submission) is False
    assert submission.lines == []


def test_what_is_no_longer_awaited_makes_no_record(results, submission, directory):
    submission.pending = {"copy"}
    say(submission, result_line(0), result_line(1))
    assert results.collect(submission) is True
    assert list(directory.records.iterdir()) == []


def test_results_that_do_not_fit_together_are_missing_with_the_reason(
    results, submission, directory
):
    say(submission, result_line(0), result_line(0))
    assert results.collect(submission) is True
    (why,) = missing(directory)
    assert (why["workload"], why["kind"]) == ("gemm", "rank raised")
    assert why["reason"].startswith("unusable result: ")
    assert submission.pending == {"copy"}


def test_a_reason_says_all_that_is_known_and_only_the_first_one_counts(
    results, submission, directory
):
    submission.parts["42"] = JobState("RUNNING")
    failure = Failure(JobKind.NODE_LOST, "it is gone", "copy", "worker0", 1, "first",
                      Cause.NODE, ("worker0",), part="GPU 3")  # fmt: skip
    results.record_missing(JOB, "copy", failure, submission)
    results.record_missing(JOB, "copy", Failure(JobKind.RANK_DIED, "later"))
    (why,) = missing(directory)
    known = {k: why[k] for k in ("workload", "placement", "attempt", "kind", "reason", "job")}
    assert known == {
        "workload": "copy", "placement": "worker0", "attempt": 2, "kind": "node lost",
        "reason": "it is gone", "job": "42",
    }  # fmt: skip
    assert (why["node"], why["rank"], why["first_error"]) == ("worker0", 1, "first")
    assert (why["cause"], why["cause_nodes"]) == ("node", ["worker0"])
    assert why["part"] == "GPU 3"
    assert results.causes["copy", "worker0"] is Cause.NODE
    assert why["next_step"] == failure.next_step


def test_a_job_is_settled_when_each_workload_has_a_record_or_a_reason(
    results, submission, directory
):
    assert results.has_settled(JOB) is False
    assert results.unrecorded(JOB) == ["copy", "gemm"]
    say(submission, result_line(0), result_line(1))
    results.collect(submission)
    assert results.has_settled(JOB) is False
    assert results.unrecorded(JOB) == ["copy"]
    results.record_all_missing(JOB, Failure(JobKind.NOT_RUN, "stopped"))
    assert results.has_settled(JOB) is True
    assert results.unrecorded(JOB) == ["copy"]
    (why,) = missing(directory)
    assert (why["workload"], why["job"], "cause" in why) == ("copy", None, False)


# --- what no rank of the suite writes


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"time": "soon"}, "a line whose time: Input should be a valid number, not 'soon'"),
        ({"rank": 1}, "a line of rank 1, in the file of rank 0"),
        ({"world_size": 10**9}, "a result line of world size 1000000000, that of the job is 2"),
        ({"measurements": "none"}, "a line whose measurements: Input should be a valid list"),
        ({"facts": []}, "a line whose facts: Input should be a valid dictionary"),
    ],
)
def test_a_malformed_line_costs_its_workload_and_names_rank_and_node(
    results, submission, directory, changed, says
):
    support.say(submission.tails[0].path, [{**result_line(0), **changed}])
    support.say(submission.tails[1].path, [result_line(1)])
    assert results.collect(submission) is True
    (why,) = missing(directory)
    assert (why["workload"], why["kind"]) == ("gemm", JobKind.MALFORMED)
    assert (why["node"], why["rank"]) == ("worker0", 0)
    assert why["reason"].startswith(
        f"unusable output of rank 0 on worker0 in jobs/node-worker0/rank0.jsonl: {says}"
    )
    assert submission.pending == {"copy"}, "it says which workload it is of"
    assert list(directory.records.iterdir()) == []
    say(submission, result_line(0, workload="copy"), result_line(1, workload="copy"))
    assert results.collect(submission) is True
    assert submission.pending == set()


def test_a_malformed_line_of_no_workload_costs_all_that_the_job_still_owes(
    results, submission, directory
):
    note = {"schema": 1, "nonce": NONCE, "event": "note", "time": "soon", "rank": 0}
    support.say(submission.tails[0].path, [note])
    assert results.collect(submission) is True
    assert {m["workload"]: m["kind"] for m in missing(directory)} == {
        "gemm": JobKind.MALFORMED, "copy": JobKind.MALFORMED,
    }  # fmt: skip
    assert submission.pending == set()
    assert results.collect(submission) is False


def test_a_file_that_is_none_costs_what_the_job_owes_and_is_named_once(
    results, submission, directory
):
    submission.directory.mkdir()
    os.mkfifo(submission.tails[1].path)
    assert results.collect(submission) is True
    assert results.collect(submission) is False
    reasons = {(m["node"], m["rank"], m["reason"].rpartition(": ")[2]) for m in missing(directory)}
    assert reasons == {("worker0", 1, "is a FIFO, expected a regular file")}


def test_a_rank_of_a_job_on_several_nodes_is_named_by_its_own_lines_else_by_its_number(
    submission,
):
    submission.job = replace(JOB, nodes=("worker0", "worker1"), ranks_per_node=1)
    assert [submission.node_of(k) for k in range(2)] == ["worker0", "worker1"]
    submission.receive([line("started", 0, node="worker1")])
    assert submission.node_of(0) == "worker1"
    submission.lines[0]["node"] = "elsewhere"
    assert submission.node_of(0) == "worker0"
