"""Why rows were not measured: each reason once, with the names of all of its nodes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fixtures.verdict.causes import Cause
from fixtures.verdict.model import Outcome, Verdict
from reports.facts import causes

pytestmark = pytest.mark.cpu

STEP = "look at the node, then run again"


def row(subject: str, reason: str, *nodes: str, cause: str = Cause.NODE, step: str = STEP) -> Any:
    return {"outcome": "NOT_MEASURED", "criterion": "gemm.bf16", "subject": subject,
            "reason": reason, "next_step": step, "cause": cause,
            "cause_nodes": [*nodes]}  # fmt: skip


def lost(node: str) -> str:
    return f"node lost: {node} went down"


def test_what_follows_from_a_dead_node_is_one_reason():
    rows = [row("n2", lost("n2"), "n2") for _ in range(5)]
    rows += [row("cluster", lost("n2"), "n2"), row("n1--n2", lost("n2"), "n2")]
    rows += [row("n1", lost("n2"), cause=Cause.OTHER_NODE, step="repair what is missing")]
    (reason,) = causes.reasons(rows)
    assert reason.line == (
        "node lost: n2 went down (8 checks not measured: n2 (5), cluster,n1,n1--n2 (1 each))"
    )
    assert reason.next_step == STEP


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["n2", "n3", "n7"], "node lost: n[2-3,7] went down"),
        (["rack1-gpu003", "rack1-gpu004"], "node lost: rack1-gpu[003-004] went down"),
        (["a.site", "b.site"], "node lost: a.site,b.site went down"),
        ([f"x{k * k}y" for k in range(200)], "node lost: 200 nodes went down"),
    ],
    ids=["few", "of a rack", "with a domain", "many"],
)
def test_texts_that_differ_in_their_nodes_are_one_reason(names, said):
    (reason,) = causes.reasons([row(name, lost(name), name) for name in names])
    assert reason.reason == said
    assert reason.count == len(names)


def test_gpus_are_counted_where_there_are_several():
    rows = [
        row(f"n{k}", f"n{k}: measured on GPU-{k:08x}-0000-0000-0000-000000000000") for k in (1, 2)
    ]
    (reason,) = causes.reasons(rows)
    assert reason.line == "n[1-2]: measured on 2 GPUs (2 checks not measured: n[1-2] (1 each))"
    assert causes.reasons(rows[:1])[0].reason == rows[0]["reason"]


def test_the_step_is_that_of_the_cause_and_not_of_its_many_consequences():
    rows = [row(f"n{k}", lost("n9"), step="repair", cause=Cause.OTHER_NODE) for k in range(8)]
    (reason,) = causes.reasons([*rows, row("n9", lost("n9"), "n9")])
    assert reason.next_step == STEP
    assert reason.where == "n[0-7,9] (1 each)"


def test_each_place_in_a_text_has_its_own_nodes():
    rows = [row(f"n{k}", f"n{k} took no part; measured on n{k + 4}", f"n{k}") for k in (1, 2)]
    rows += [row("n5", "is slow", "n5"), row("n6", "is slow", "n6")]
    found = causes.reasons(rows)
    assert [reason.reason for reason in found] == [
        "n[1-2] took no part; measured on n[5-6]", "is slow"
    ]  # fmt: skip


def test_a_reason_in_a_node_comes_before_one_that_costs_more():
    rows = [row("cluster", "the queue is closed", cause=Cause.SCHEDULER) for _ in range(9)]
    rows += [row("n1", "GPU 1 of n1 is missing", "n1")]
    assert [r.reason for r in causes.reasons(rows)] == [
        "GPU 1 of n1 is missing", "the queue is closed"
    ]  # fmt: skip


def test_what_was_measured_has_no_reason_and_no_text_is_said():
    measured = {**row("n1", "out of its limit"), "outcome": "FAIL"}
    assert causes.reasons([measured]) == []
    assert causes.reasons([row("n1", "")])[0].line.startswith("no reason given (1 check")
    assert causes.reasons([row("n1", "\0 and n1", "n1")])[0].reason == " and n1"


# --- failures


def failed(criterion: str, node: str, *, gpu: int | None = None, margin: float = -0.1) -> Any:
    worst = {"node": node, "value": 1.0} | ({} if gpu is None else {"gpu": gpu})
    made = Verdict(
        criterion=criterion, title="", subject=node, outcome=Outcome.FAIL, value=541.0,
        unit="TFLOPS", limit=">= 605", margin=margin, worst=worst, next_step=f"check {node}",
    )  # fmt: skip
    return made.to_json()


def test_one_slow_gpu_is_one_failure_of_an_area():
    rows = [failed(f"gemm.{k}", "n1", gpu=1, margin=-m / 10) for k, m in
            (("bf16", 1), ("fp16", 3), ("tf32", 2))]  # fmt: skip
    rows += [failed("health.xid", "n1", gpu=1), failed("gemm.bf16", "n1", gpu=0)]
    found = causes.failures(rows)
    assert [len(failure.rows) for failure in found] == [3, 1, 1]
    assert found[0].text == (
        "n1 gpu1 gemm.fp16: 541 TFLOPS, limit >= 605 (-30 %); "
        "also gemm.tf32 541 TFLOPS, gemm.bf16 541 TFLOPS"
    )
    assert found[1].text == "n1 gpu1 health.xid: 541 TFLOPS, limit >= 605 (-10 %)"


def test_what_fails_on_many_nodes_is_one_failure_with_their_host_list():
    rows = [failed("nvlink.errors", f"n{k}", margin=-k / 10) for k in (3, 4, 7)]
    (failure,) = causes.failures(rows)
    assert failure.text.startswith("n[3-4,7] nvlink.errors: 3 checks failed; worst n7: 541 TFLOPS")
    assert (failure.criterion, failure.next_step) == ("nvlink.errors", "check n7")


@pytest.mark.parametrize("seed", range(5))
def test_each_row_is_in_one_failure(seed):
    rng = random.Random(seed)
    rows = [
        failed(f"{rng.choice('abc')}.{rng.choice('xyz')}", f"n{rng.randrange(9)}",
               gpu=rng.choice((None, 0, 1)))
        for _ in range(60)
    ]  # fmt: skip
    rows += [row("n1", lost("n1"), "n1"), {**rows[0], "outcome": "PASS"}]
    told = [id(r) for failure in causes.failures(iter(rows)) for r in failure.rows]
    assert sorted(told) == sorted(id(r) for r in rows[:60])


# --- all that is wrong


def state(criterion: str, node: str, value: Any, *notes: str, **worst: Any) -> Any:
    """A row that failed without any distance from its limit."""
    made = Verdict(
        criterion=criterion, title="", subject=node, outcome=Outcome.FAIL, value=value,
        unit="Xids", limit="<= 0", worst={"node": node, **worst}, notes=[*notes],
        next_step=f"check {node}",
    )  # fmt: skip
    return made.to_json()


OWN = "GPU-971f86e2-0e2b-4c5d-9d1c-6b1a2f3c4d5e"
OTHER = "GPU-40ed73c2-9ef4-5f9c-a8b0-193e92824be3"


def test_a_meaning_comes_before_the_count_and_the_gpu_is_named_by_its_index():
    xid = state("health.xid", "n1", 1, f"{OWN} Xid 79: fell off the bus", gpu=1, uuid=OWN)
    (failure,) = causes.found([xid])
    assert failure.text == "n1 gpu1 health.xid: Xid 79: fell off the bus; 1 Xid, limit <= 0"
    peers = state("nvlink.topology", "n1", 1, f"{OWN} to {OTHER}: SYS", gpu=1, uuid=OWN)
    assert f"to {OTHER}: SYS" in causes.found([peers])[0].text, "another GPU keeps its name"
    gone = state("health.answers", "n1", "GpuIsLost", "nvmlDeviceGetTemperature", gpu=1)
    (failure,) = causes.found([gone])
    assert failure.text.startswith("n1 gpu1 health.answers: GpuIsLost, limit <= 0; nvmlDevice")


def test_a_row_of_all_nodes_names_the_node_that_it_singles_out():
    of_all = {**state("allreduce.cluster.errors", "cluster", 3, gpu=2), "worst":
              {"node": "n7", "gpu": 2}}  # fmt: skip
    assert causes.found([of_all])[0].text.startswith("n7 gpu2 (cluster) allreduce.cluster.errors:")
    pair = {**of_all, "subject": "n6--n7"}
    assert causes.found([pair])[0].text.startswith("n7 gpu2 (n6--n7) allreduce.cluster")


def test_what_a_lost_gpu_does_not_give_is_told_with_its_failure():
    rows = [state("health.answers", "n1", "GpuIsLost", gpu=1)]
    rows += [
        {**row("n1", f"n1 gpu1: no {metric}: GpuIsLost; measured 1 value of 2 devices", "n1"),
         "criterion": f"health.{metric}"}
        for metric in ("ecc_rate", "rate at link=3", "fabric")
    ]  # fmt: skip
    (failure,) = causes.found(rows)
    assert failure.text.endswith("; 3 checks not measured there")
    (reason,) = causes.reasons(rows)
    assert reason.reason == "n1 gpu1: GpuIsLost"
    (reason,) = causes.reasons(rows[:2])
    assert "no ecc_rate: GpuIsLost" in reason.reason, "of one check its metric is told"
    other = row("n1", "n1 gpu0: no ecc_rate: GpuIsLost", "n1")
    assert len(causes.found([*rows, other])) == 2, "another GPU of the node is another cause"


def test_causes_come_before_what_may_follow_from_them():
    rows = [
        row("n1", "n1 took no part", cause=Cause.OTHER_NODE),
        *(failed(f"gemm.{k}", "n4", gpu=1) for k in "abc"),
        row("n3", lost("n3"), "n3"),
        state("health.xid", "n2", 1, "Xid 79", gpu=1),
    ]
    assert [cause.text.split()[0] for cause in causes.found(rows)] == ["n2", "node", "n4", "n1"]


def test_a_node_that_slurm_has_lost_is_one_cause():
    rows = [state("scheduler.node_state", "n2", "down*")]
    rows += [row("n2", lost("n2"), "n2") for _ in range(80)]
    (failure,) = causes.found(rows)
    assert failure.text.endswith("; 80 checks not measured there")
    assert len(causes.found([*rows, row("n3", lost("n3"), "n3")])) == 2


@pytest.mark.parametrize(
    ("criterion", "text", "subject", "told"),
    [
        ("scheduler.node_state", "node lost: n2 went down", "n2", True),
        ("scheduler.node_state", "node lost: n3 went down", "n2", False),
        ("scheduler.node_state", "no answer", "n2", True),
        ("scheduler.node_state", "no answer", "n3", False),
        ("inventory.gpus", "no answer", "n2", True),
        ("health.answers", "no answer", "n2", False),
    ],
)
def test_a_node_that_failed_as_a_whole_has_what_it_names_or_what_is_its_own(
    criterion, text, subject, told
):
    (reason,) = causes.reasons([row(subject, text, "n2", "n3")])
    failure = causes.Failure([state(criterion, "n2", "down*")])
    assert failure.has(reason) is told
    (elsewhere,) = causes.reasons([row(subject, text, cause=Cause.SETUP)])
    assert not failure.has(elsewhere), "a reason that lies in no node"
