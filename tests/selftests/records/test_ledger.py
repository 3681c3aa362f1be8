"""What the ledger says of attempts: which there were, and which rows failed in them."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.records.files import append_line
from fixtures.records.ledger import carried_over, device_of, is_by_life, read_ledger, verdict_lines
from fixtures.records.run_directory import RunDirectory, attempt_of

pytestmark = pytest.mark.cpu

GEMM = ("gemm.bf16", "n0")


def said(directory: RunDirectory, outcome: str, record: str | None = "gemm@n0.json", **more: Any):
    append_line(directory.ledger, {
        "event": "verdict", "criterion": "gemm.bf16", "subject": "n0", "outcome": outcome,
        "record": record, "cause": "", **more,
    })  # fmt: skip


def test_the_name_of_a_record_is_its_attempt():
    assert attempt_of("gemm@n0.json") == ("gemm", "n0", 1)
    assert attempt_of("gemm@a--b.attempt12.json") == ("gemm", "a--b", 12)
    for other in ("gemm.json", "", "gemm@n0.txt", "../gemm@n0.json", "gemm@n0.attemptx.jsonl"):
        assert attempt_of(other) is None


def test_attempts_are_those_whose_record_was_judged(directory):
    assert read_ledger(directory).newest == {}
    said(directory, "FAIL")
    said(directory, "NOT_MEASURED", None)
    said(directory, "PASS", "gemm@n0.attempt3.json")
    append_line(directory.ledger, {"event": "end", "record": "gemm@n0.attempt9.json"})
    found = read_ledger(directory)
    assert found.newest == {("gemm", "n0"): 3}
    assert found.outcomes == {"gemm@n0.json": "FAIL", "gemm@n0.attempt3.json": "PASS"}
    assert [*found.failed[GEMM]] == [1]
    assert found.latest_attempt(directory, "gemm", "n0") == 3
    directory.record("gemm", "n0", 4).write_text("{}")
    assert found.latest_attempt(directory, "gemm", "n0") == 4
    assert found.latest_attempt(directory, "gemm", "n1") == 0


@pytest.mark.parametrize(
    ("later", "stays"),
    [
        ({"outcome": "PASS"}, False), ({"outcome": "RECORDED"}, False),
        ({"outcome": "NOT_MEASURED", "cause": "repetition"}, False),
        ({"outcome": "NOT_MEASURED", "cause": "device replaced"}, False),
        ({"outcome": "NOT_MEASURED", "cause": "record"}, True),
        ({"outcome": "NOT_MEASURED", "cause": "node"}, True), ({"outcome": "WAIVED"}, True),
        ({"outcome": "PASS", "record": "gemm@n0.attempt2.json"}, True),
        ({"outcome": 3}, True), ({"outcome": "PASS", "record": ["x"]}, True),
        ({"outcome": "PASS", "subject": "n1"}, True),
    ],
)  # fmt: skip
def test_a_failure_is_taken_back_by_judging_the_same_attempt_again(directory, later, stays):
    said(directory, "FAIL")
    said(directory, **{"outcome": "FAIL", **later})
    assert (1 in read_ledger(directory).failed[GEMM]) is stays


def test_what_one_gpu_failed_in_is_not_taken_back_by_a_void_record(directory):
    said(directory, "FAIL", worst={"node": "n0", "gpu": 2, "uuid": "GPU-2"})
    said(directory, "NOT_MEASURED", cause="device replaced")
    line = read_ledger(directory).failed[GEMM][1]
    assert device_of(line) == ("n0", "GPU-2")
    assert device_of({"worst": {"node": "n0", "uuid": None}}) is None
    assert device_of({"worst": "x"}) is device_of({}) is None


def test_lines_that_are_none_are_passed_over(directory):
    directory.ledger.write_text('torn {\n[1]\n"x"\n{"event": "verdict"}\n{"event": "verd')
    assert read_ledger(directory).failed == {}
    said(directory, "FAIL")
    assert [key for key, _ in verdict_lines(directory)] == [("None", "None"), GEMM]
    assert [*verdict_lines(directory, {("x", "y")})] == []


def test_a_replay_takes_over_what_no_record_may_show(directory):
    directory.run_json.write_text('{"suite_version": "1", "thresholds": {"sha256": "ab"}}')
    directory.record("gemm", "n0").write_text("{}")
    said(directory, "PASS")
    assert [*carried_over(directory)] == []
    said(directory, "PASS", "copy@n0.json", criterion="copy")
    (lost,) = carried_over(directory)
    assert (lost["criterion"], lost["suite_version"], lost["limits_sha256"]) == ("copy", "1", "ab")
    said(directory, "FAIL")
    assert [line["criterion"] for line in carried_over(directory)] == [
        "gemm.bf16", "copy", "gemm.bf16",
    ]  # fmt: skip


def test_a_replay_takes_over_the_first_of_several_attempts_that_passed(directory):
    """Slices of a load, parts of a burn-in: a record that the ledger does not name is one added."""
    for name in ("gemm@n0.json", "gemm@n0.attempt2.json"):
        (directory.records / name).write_text("{}")
        said(directory, "PASS", name)
    assert [line["record"] for line in carried_over(directory)] == [
        "gemm@n0.json", "gemm@n0.attempt2.json",
    ]  # fmt: skip


def test_the_ledgers_of_recertified_runs_come_first(directory):
    before = RunDirectory(directory.recertified / "20261101-before")
    before.root.mkdir(parents=True)
    said(before, "FAIL")
    assert 1 in read_ledger(directory).failed[GEMM]
    said(directory, "PASS")
    assert read_ledger(directory).failed[GEMM] == {}


def test_what_a_part_counted_in_its_life_is_no_failed_attempt(directory):
    said(directory, "PASS")
    said(directory, "FAIL", reason="life counter: GPU 2: 505 replays")
    assert GEMM not in read_ledger(directory).failed
    said(directory, "FAIL", reason="too slow")
    assert 1 in read_ledger(directory).failed[GEMM]
    assert not is_by_life({"outcome": "PASS", "reason": "life counter: GPU 2"})
