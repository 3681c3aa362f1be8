"""Why a record has no value: the node's reason, else that it reported nothing."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.verdict import recorded
from fixtures.verdict.absent import without_points
from fixtures.verdict.causes import Cause
from fixtures.verdict.model import Outcome, Verdict
from tests.selftests.verdict import made
from tests.selftests.verdict.made import rank, record

pytestmark = pytest.mark.cpu

TWO = ("worker0", "worker1")


def absent(
    *ranks: Any, nodes: tuple[str, ...] = ("worker0",), size: int = 0, **more: Any
) -> Verdict:
    of = made.criterion(at={"size": size} if size else {}, workload="gemm", metric="rate")
    found = record(*ranks, workload="gemm", **more)
    return without_points(made.verdict(cause=""), made.case(of, nodes), found)


def test_a_node_that_says_nothing_has_reported_nothing():
    one = absent(rank(0))
    assert (one.reason, one.cause) == ("the record holds no rate", Cause.NODE)
    assert one.cause_nodes == ["worker0"]
    several = absent(rank(0), rank(2, node="worker1"), nodes=TWO, size=1024)
    assert several.reason == "the record holds no rate at size=1024"
    assert several.cause_nodes == []


def test_sizes_that_were_left_out_say_why():
    left = {"left_out": {"sizes": [1024], "why": "smaller ones were slow"}}
    found = absent(rank(0), rank(2, node="other", **left), size=1024)
    assert (found.reason, found.cause) == ("rate at size=1024: smaller ones were slow", Cause.SLOW)
    for facts, size in (
        (left, 2048),
        (left, 0),
        ({"left_out": "1024"}, 1024),
        ({"left_out": {}}, 0),
    ):
        assert absent(rank(0, **facts), size=size).cause is Cause.NODE


def test_what_another_tool_refused_is_said_of_the_nodes_of_the_subject_alone():
    refused = {"refused": {"rate": "file is too old"}}
    found = absent(rank(0, **refused))
    assert (found.reason, found.cause) == ("file is too old", Cause.GUEST)
    for ranks in ((rank(0), rank(2, node="other", **refused)), (rank(0, refused="rate"),),
                  (rank(0, refused={"x": "y"}),)):  # fmt: skip
        assert absent(*ranks).cause is Cause.NODE


def test_a_reason_of_the_driver_is_told_from_one_of_the_node():
    offered = {"not_offered": {"rate": "NoPermission"}}
    found = absent(rank(0, **offered))
    assert found.reason == "the driver or platform does not give rate: NoPermission"
    assert (found.cause, found.cause_nodes) == (Cause.DRIVER, [])
    driven = record(rank(0, **offered), workload="gemm")
    driven.provenance["driver"] = "580.1"
    of = made.case(made.criterion(workload="gemm"))
    found = without_points(made.verdict(), of, driven)
    assert found.reason.startswith("driver 580.1 does not give rate")
    lost = absent(rank(0, **offered), rank(1, not_measured={"rate": "GpuIsLost"}))
    assert lost.reason == "worker0 GPU-worker0-1: no rate: GpuIsLost"
    assert (lost.cause, lost.cause_nodes) == (Cause.NODE, ["worker0"])


def test_what_the_node_cannot_read_or_does_not_have_is_asked_of_the_record(monkeypatch):
    monkeypatch.setattr(recorded, "why_unsupported", lambda rank, criterion: "no such file")
    found = absent(rank(0), size=1024)
    assert found.reason == "worker0 cannot read rate at size=1024: no such file"
    assert found.cause is Cause.DRIVER
    monkeypatch.setattr(recorded, "why_there_is_none", lambda case, record: "no disk")
    found = absent(rank(0))
    assert (found.outcome, found.reason) == (Outcome.NOT_APPLICABLE, "no disk")
    assert (found.limit, found.cause) == ("", "")
