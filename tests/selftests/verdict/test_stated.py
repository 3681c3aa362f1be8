"""A rank's own reason for a missing or partial value."""

from __future__ import annotations

import pytest

from fixtures.records.files import RecordError
from fixtures.verdict.causes import Cause
from fixtures.verdict.stated import Reason, device_name, is_least, reason_of, reasons_of
from tests.selftests.verdict.made import rank

pytestmark = pytest.mark.cpu

LOST = {"not_measured": {"rate": "GpuIsLost"}}
NO_SUCH = {"not_offered": {"rate": "NotSupported"}}


def test_the_drivers_reason_and_the_nodes_are_told_apart():
    assert reason_of(rank(0, **LOST), "rate") == Reason("GpuIsLost", Cause.NODE)
    assert reason_of(rank(0, **NO_SUCH), "rate") == Reason("NotSupported", Cause.DRIVER)
    assert reason_of(rank(0, **LOST, **NO_SUCH), "rate") == Reason("NotSupported", Cause.DRIVER)
    for facts in ({}, {"not_measured": "rate"}, {"not_measured": {"other": "x"}}):
        assert reason_of(rank(0, **facts), "rate") is None


def test_only_some_of_nvmls_errors_mean_that_there_is_no_such_value():
    for why, none in (("NotSupported", True), ("FunctionNotFound", True), ("GpuIsLost", False)):
        assert Reason(why, Cause.DRIVER).none_exists is none


def test_reasons_of_the_nodes_come_first_and_only_of_the_nodes_asked_for():
    ranks = [rank(0, **NO_SUCH), rank(1, **LOST), rank(2), rank(3, node="other", **LOST)]
    assert [(r.rank, reason.cause) for r, reason in reasons_of(ranks, "rate", ["worker0"])] == [
        (1, Cause.NODE), (0, Cause.DRIVER),
    ]  # fmt: skip
    assert reasons_of(ranks, "other", ["worker0"]) == []


def test_a_lower_bound_is_marked_by_its_rank():
    assert is_least(rank(0, at_least=["rate"]), "rate") is True
    assert is_least(rank(0, at_least=["other"]), "rate") is False
    assert is_least(rank(0), "rate") is False
    for wrong in ("rate", ["rate", 3]):
        with pytest.raises(RecordError, match=r"worker0 GPU-worker0-0: at_least is .* not a list"):
            is_least(rank(0, at_least=wrong), "rate")


def test_a_device_is_named_by_its_uuid_or_by_the_rank():
    plain = rank(1)
    del plain.device["uuid"]
    assert device_name(rank(1)) == "worker0 GPU-worker0-1"
    assert device_name(plain) == "worker0 rank 1"
