"""Which node is at fault, by how the same job went on other nodes."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.jobs.comparison import Others, StageComparison, compared
from fixtures.jobs.failure import Failure, is_nearly_all, likeness
from fixtures.jobs.submission import Submission
from fixtures.plan.jobs import Job
from fixtures.records.absence import JobKind
from fixtures.verdict.absence import TABLE, of_missing
from fixtures.verdict.causes import IN_NODE, Cause

pytestmark = pytest.mark.cpu

NODE = "n03"
FAILURE = Failure(JobKind.INTERPRETER, "job 7: no glibc", node=NODE, shown="GLIBC_2.34 not found")
NOBODY = Others(ran=(), ran_since=(), alike=(), undecided=False, total=3, any_wrote=True)


def accused(failure: Failure) -> tuple[Cause, list[str]]:
    line: dict[str, object] = {"kind": failure.kind.value, "node": NODE, "placement": NODE}
    if failure.cause is not None:
        line |= {"cause": failure.cause.value, "cause_nodes": list(failure.accused)}
    return of_missing(line, [NODE])


def test_where_others_ran_the_same_job_it_is_the_nodes_own_fault():
    found = compared(FAILURE, NODE, [NODE], replace(NOBODY, ran=("n02", "n01"), undecided=True))
    assert found is not None
    assert accused(found) == (Cause.NODE, [NODE])
    assert found.reason == "job 7: no glibc; n01 ran its job without this"


def test_what_fails_alike_everywhere_is_set_up_and_names_nobody():
    found = compared(FAILURE, NODE, [NODE], replace(NOBODY, alike=("n01", "n02")))
    assert found is not None
    assert accused(found) == (Cause.SETUP, [])
    assert "alike on 3 of 3 nodes (n01, n02, n03)" in found.reason


def test_what_comes_to_several_nodes_after_all_others_ran_is_set_up():
    """A shared directory that goes half way: who ran before does not count."""
    several = replace(NOBODY, ran=("n01", "n02"), alike=("n04",), total=9)
    found = compared(FAILURE, NODE, [NODE], several)
    assert found is not None
    assert accused(found) == (Cause.SETUP, [])
    since = compared(FAILURE, NODE, [NODE], replace(several, ran_since=("n02",)))
    assert since is not None
    assert accused(since) == (Cause.NODE, [NODE])
    alone = compared(FAILURE, NODE, [NODE], replace(several, alike=()))
    assert alone is not None
    assert accused(alone) == (Cause.NODE, [NODE])


def test_nothing_is_decided_before_others_have_told():
    assert compared(FAILURE, NODE, [NODE], replace(NOBODY, undecided=True)) is None


def test_where_no_node_ever_wrote_a_line_nobody_is_at_fault():
    never = replace(FAILURE, kind=JobKind.NEVER_STARTED)
    alone = replace(NOBODY, total=1, any_wrote=False)
    found = compared(never, NODE, [NODE], alone)
    assert found is not None
    assert accused(found) == (Cause.SETUP, [])
    assert accused(compared(never, NODE, [NODE], replace(alone, any_wrote=True)) or never)[1] == [
        NODE
    ]


@pytest.mark.parametrize(
    ("total", "alike", "cause"),
    [(3, 2, Cause.NODE), (9, 8, Cause.NODE), (10, 9, Cause.SETUP), (1024, 922, Cause.SETUP),
     (1024, 921, Cause.NODE)],
)  # fmt: skip
def test_one_node_in_ten_may_run_where_the_set_up_is_wrong(total, alike, cause):
    names = [f"m{k}" for k in range(total)]
    others = replace(
        NOBODY, alike=names[: alike - 1], ran=names[alike:total], ran_since=names[alike:total],
        total=total,
    )  # fmt: skip
    found = compared(replace(FAILURE, kind=JobKind.RANK_RAISED), NODE, [NODE], others)
    assert found is not None
    assert found.cause is cause
    assert is_nearly_all(alike, total) is (cause is Cause.SETUP)


def test_a_shared_directory_that_is_full_is_no_node_s_fault():
    full = Failure(JobKind.STORAGE, "job 7", shown="[Errno 28] No space left on device")
    assert compared(full, NODE, [NODE], replace(NOBODY, ran=("n01", "n02"))) == full
    stale = replace(full, shown="[Errno 116] Stale file handle")
    assert accused(compared(stale, NODE, [NODE], replace(NOBODY, ran=("n01", "n02"))) or stale)[
        1
    ] == [NODE]


def test_pairs_that_all_fail_alike_are_set_up_and_of_some_the_evidence_counts():
    pair, nodes = "n01--n02", ("n01", "n02")
    failure = Failure(JobKind.GPU_ERROR, "job 7", node="n01", shown="CUDA error: unknown")
    others = replace(NOBODY, alike=("n01--n03", "n02--n03"))
    found = compared(failure, pair, nodes, others)
    assert found is not None
    assert (found.cause, found.accused) == (Cause.SETUP, ())
    assert "alike on 3 of 3 jobs" in found.reason
    assert compared(failure, pair, nodes, replace(NOBODY, ran=("n02--n03",))) == failure
    assert compared(failure, pair, nodes, replace(NOBODY, undecided=True)) is None
    # One job over all nodes has no other to be compared with.
    assert compared(failure, "all", nodes, replace(NOBODY, total=1, undecided=True)) == failure


def test_names_and_numbers_do_not_make_a_failure_another_one():
    said = [
        "n01 ran out at step 3 of 4096 in /shared/run/n01", "n17 ran out at step 12 of 8 in /x/n17"
    ]  # fmt: skip
    assert len({likeness(replace(FAILURE, shown=text)) for text in said}) == 1
    assert likeness(FAILURE) != likeness(replace(FAILURE, shown="no torch"))
    assert likeness(FAILURE) != likeness(replace(FAILURE, kind=JobKind.STORAGE))


KINDS = [kind for kind in JobKind if kind not in (JobKind.UNUSABLE, JobKind.LEFT_OUT)]


@pytest.mark.parametrize("kind", KINDS)
def test_any_set_of_jobs_accuses_only_nodes_that_failed_where_others_ran(kind):
    """All nodes fail alike, or some do, whatever the kind and however many there are."""
    draw = random.Random(f"comparison {kind}")
    accuses_nobody = TABLE[kind].cause in (Cause.INTERRUPTED, Cause.SCHEDULER)
    for _ in range(60):
        total = draw.choice((1, 2, 3, 8, 64))
        nodes = [f"n{k:02}" for k in range(total)]
        failed = set(draw.sample(nodes, draw.randint(1, total)))
        failure = Failure(kind, "job 7", shown="the same words")
        for node in failed:
            others = Others(
                ran=set(nodes) - failed, ran_since=set(nodes) - failed, alike=failed - {node},
                undecided=False, total=total,
                any_wrote=bool(set(nodes) - failed),
            )  # fmt: skip
            found = compared(failure, node, [node], others)
            assert found is not None
            line: dict[str, object] = {"kind": kind.value, "placement": node}
            if found.cause is not None:
                line |= {"cause": found.cause.value, "cause_nodes": list(found.accused)}
            cause, named = of_missing(line, [node])
            if accuses_nobody or (failed == set(nodes) and kind is not JobKind.NODE_LOST):
                assert named == [], (total, failed)
                assert cause not in IN_NODE
            elif len(failed) < 0.9 * total:
                assert named == [node], (total, failed)


def submission(*nodes: str, **more: Any) -> Submission:
    job = Job(
        name="x", stage="node", placement="--".join(nodes), nodes=nodes, ranks_per_node=1,
        workloads=(("gemm", ("bf16",)),),
    )  # fmt: skip
    return Submission(job=job, name="x", directory=Path(), number=1, **more)


WROTE = {"lines": [{"event": "started"}]}


@pytest.mark.parametrize(
    ("workload", "nodes", "more", "waits"),
    [
        (None, ("n01",), {}, True),
        (None, ("n01",), {"closed": True}, False),
        (None, ("n01",), WROTE, False),
        (None, ("n01", "n02"), {}, False),
        ("gemm", ("n01",), {"pending": {"gemm"}} | WROTE, True),
        ("gemm", ("n01",), {"pending": {"gemm"}, "closed": True}, False),
        ("gemm", ("n01",), {"pending": {"copy"}}, False),
        ("gemm", ("n01", "n02"), {"pending": {"gemm"}}, False),
    ],
)
def test_a_failure_waits_for_jobs_that_may_still_come_to_where_it_was(workload, nodes, more, waits):
    """Those on as many nodes that go on, and have not begun, or have its workload before them."""
    failed, other = submission(NODE), submission(*nodes, **more)
    collector: Any = SimpleNamespace(recorded={})
    stage = StageComparison(collector)
    stage.begin([failed.job, other.job])
    assert stage.take(failed, replace(FAILURE, workload=workload))
    known = stage.settled([other], queued=False)
    assert [s for s, _ in known] == ([] if waits else [failed])
    assert [s for s, _ in stage.settled([other], queued=False, at_once=True)] == [failed] * waits
