"""The smallest defect that each criterion finds, as the certificate says it."""

from __future__ import annotations

from typing import Any

import pytest

from reports.facts import power

pytestmark = pytest.mark.cpu


def line(**row: Any) -> tuple[str, str]:
    given = {"criterion": "gemm.bf16", "kind": "rate", "finds": 0.05, "values": 8, "rounds": 3,
             "by": "limit", "noise": 0.003, "repetitions": 100}  # fmt: skip
    (made,) = power.lines({"power": [{**given, **row}]})
    assert made["criterion"] == "gemm.bf16"
    return made["finds"], made["from"]


def test_a_rate_falls_a_time_grows_and_a_fault_is_repeated():
    assert line() == (
        "a value that falls by 5 %", "8 values, below the limit in 3 rounds, 0.3 % between rounds",
    )  # fmt: skip
    assert line(kind="time", by="devices") == (
        "a time that grows by 5 %",
        "8 values, above the other devices in 3 rounds, 0.3 % between rounds",
    )
    assert line(kind="repeated") == (
        "a fault in 5 % of the repetitions", "100 repetitions, none may be faulty",
    )  # fmt: skip


def test_where_no_defect_is_found_it_says_so():
    assert line(finds=None)[0] == "none"
    assert line(finds=None, kind="time")[0] == "none up to 64 times the value"


def test_a_run_of_an_earlier_version_has_no_lines():
    assert list(power.lines({})) == []
    assert list(power.lines({"power": None})) == []
