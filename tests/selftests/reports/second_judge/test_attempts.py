"""What the second judge reads of the ledger; both judges on whole runs: run/test_attempts.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reports.second_judge.attempts import Told, is_gone, named

pytestmark = pytest.mark.cpu


def test_the_name_of_a_record_is_its_attempt():
    assert named("gemm@a--b.attempt12.json") == ("gemm", "a--b", 12)
    assert named("gemm@a.json") == ("gemm", "a", 1)
    assert named("gemm.json") is None


def test_a_failure_stays_until_the_same_attempt_is_judged_again(tmp_path: Path):
    line = {"event": "verdict", "criterion": "k", "subject": "a", "record": "gemm@a.json"}
    for outcome, cause, stays in (
        ("PASS", "", False), ("NOT_MEASURED", "record", True), ("WAIVED", "", True),
        ("NOT_MEASURED", "device replaced", False), ("NOT_MEASURED", "repetition", False),
    ):  # fmt: skip
        lines = [{**line, "outcome": "FAIL"}, {**line, "outcome": outcome, "cause": cause}]
        text = "\n".join(["torn {", "[]", *map(json.dumps, lines)])
        (tmp_path / "ledger.jsonl").write_text(text)
        told = Told(tmp_path, lambda path: path.read_text("utf-8"))
        assert (1 in told.failed["k", "a"]) is stays, (outcome, cause)
        assert told.newest == {("gemm", "a"): 1}


def test_a_gpu_is_gone_where_its_node_is_known_to_have_others():
    line = {"worst": {"node": "a", "uuid": "GPU-1"}}
    assert is_gone(line, lambda node: {"GPU-2"})
    assert not is_gone(line, lambda node: {"GPU-1"})
    assert not is_gone(line, lambda node: ())
    assert not is_gone({"worst": None}, lambda node: {"GPU-2"})
