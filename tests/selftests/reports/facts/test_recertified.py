"""A return to service: how it is told, and that it follows from the evidence of the run before."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.run_directory import RunDirectory
from reports.facts import recertified
from tests.selftests import support
from tests.selftests.plain_records import plain_record

pytestmark = pytest.mark.cpu

ROW = ["gemm.bf16", "b"]


def made(root: Path, run: Any = None, repair: Any = None, **earlier: Any) -> tuple[Any, Any]:
    """A run that recertifies another one, whose evidence is in it."""
    before = RunDirectory(root / "recertified" / "OLD")
    before.root.mkdir(parents=True)
    shared = {"contract": {"nodes": 2}, "tier": "standard", "nonce": "N",
              "thresholds": {"sha256": "ab"}}  # fmt: skip
    data = {"id": "OLD", "created": "then", "scope": [ROW, ["gemm.fp8", "b"]], **shared, **earlier}
    before.run_json.write_text(json.dumps(data))
    before.verdict.write_text(json.dumps({"verdict": "ACCEPTED"}))
    before.write_manifest()
    told = {
        "run": "OLD", "created": "then", "verdict": "ACCEPTED", "nodes": ["b"], "told": ["cable"],
        "manifest_sha256": hashlib.sha256(before.manifest.read_bytes()).hexdigest(),
        "not_repeated": [["gemm.fp8", "b", "no GPU"]], **(repair or {}),
    }  # fmt: skip
    current = {"id": "NEW", "recertifies": [told], "scope": [ROW], **shared, **(run or {})}
    directory = RunDirectory(root)
    directory.records.mkdir()
    for name, content in (
        ("gemm@b.attempt2.json", "NEW"),
        ("p2p@b.attempt2.json", "OLD"),
        ("fp8@b.attempt2.json", "OTHER"),
    ):
        record = plain_record(name, {}, run_id=content, nonce="N")
        support.save(record, directory)
    (directory.records / "x@b.attempt2.json").write_text('["NEW"]')
    (directory.records / "y@b.attempt2.json").write_text("{")
    return directory, current


def test_a_return_is_told_by_its_nodes_the_repair_and_what_was_measured_again(tmp_path):
    (told,) = recertified.returns(*made(tmp_path))
    assert told.measured == ["gemm on b"]
    assert told.not_repeated == [("gemm.fp8", "b", "no GPU")]
    for part in ("service: b, after a moved cable", "Run OLD was ACCEPTED", "1 record measured",
                 "1 row not repeated"):  # fmt: skip
        assert part in told.sentence
    for kinds, text in (([], "a repair that the inventory shows"),
                        (["cable", "firmware"], "a moved cable and new firmware")):  # fmt: skip
        directory, run = made(tmp_path / str(len(kinds)), repair={"told": kinds})
        assert recertified.returns(directory, run)[0].told == text
    assert recertified.returns(directory, {"id": "NEW"}) == []


def test_of_two_returns_each_has_its_own_records(tmp_path):
    directory, run = made(tmp_path)
    (repair,) = run["recertifies"]
    run["recertifies"] = [{**repair, "run": "FIRST"}, repair]
    assert [told.measured for told in recertified.returns(directory, run)] == [
        ["p2p on b"], ["gemm on b"],
    ]  # fmt: skip
    assert recertified.MAX_ROWS == 200  # as the certificate says where it names no more


def test_what_follows_from_the_evidence_has_no_differences(tmp_path):
    assert list(recertified.differences(*made(tmp_path))) == []
    assert list(recertified.differences(RunDirectory(tmp_path / "no"), {"id": "NEW"})) == []


def test_evidence_of_a_run_that_nobody_recertified_is_named(tmp_path):
    directory, run = made(tmp_path)
    (directory.recertified / "OTHER").mkdir()
    (directory.recertified / "OTHER" / "ledger.jsonl").write_text("{}\n")
    (line,) = recertified.differences(directory, run)
    assert line == "recertified/OTHER: run.json names no such run"
    assert len(list(recertified.differences(directory, {"id": "NEW"}))) == 2


@pytest.mark.parametrize(
    ("repair", "run", "said"),
    [
        ({"manifest_sha256": "0"}, {}, "manifest.sha256: not the file that run.json names"),
        ({"verdict": "REJECTED"}, {}, "verdict is REJECTED, that run says ACCEPTED"),
        ({"created": "now"}, {}, "created is now, that run says then"),
        ({}, {"tier": "probe"}, "tier is not that of the recertified run OLD"),
        ({}, {"nonce": "M"}, "nonce is not that of the recertified run OLD"),
        ({}, {"thresholds": {"sha256": "cd"}}, "judged by other limits"),
        ({}, {"thresholds": None}, "judged by other limits"),
        ({"not_repeated": []}, {}, "1 row of run OLD missing without a reason, such as gemm.fp8 b"),
    ],
)
def test_what_does_not_follow_from_it_is_named(tmp_path, repair, run, said):
    (line,) = recertified.differences(*made(tmp_path, run, repair))
    assert said in line


def test_evidence_that_was_changed_or_is_gone_is_named(tmp_path):
    directory, run = made(tmp_path)
    run_json = directory.recertified / "OLD" / "run.json"
    run_json.write_text(run_json.read_text() + " ")
    (line,) = recertified.differences(directory, run)
    assert line.startswith("recertified/OLD: run.json: changed")
    run_json.unlink()
    (line,) = recertified.differences(directory, run)
    assert "cannot be read" in line
