"""The evidence in a dossier: records, samples, counters, telemetry and messages of one node."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.files import append_line
from fixtures.records.model import Measurement
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds.loader import Thresholds
from reports.evidence.run_files import CommandError
from reports.pages import dossier_evidence as evidence
from tests.selftests import support
from tests.selftests.plain_records import plain_record, reader_of

pytestmark = pytest.mark.cpu

Json = dict[str, Any]


# --- records


def test_records_that_do_not_count_stand_there_with_the_reason(directory):
    for name in ("a@n0.json", "b@n1.json", "c@n0.json"):
        support.save(plain_record(name, {}, nonce="f" * 32 if name[0] == "c" else support.NONCE),
                     directory)  # fmt: skip
    for name in ("f@n0.json", "g@n0--n1.json", "h@n1.json"):
        (directory.records / name).write_text("{")
    reader = reader_of(directory)
    assert [r.workload for r in reader.every()] == ["a", "b"]
    told = evidence.not_counted(reader, "n0")
    assert [line["record"] for line in told] == ["c@n0.json", "f@n0.json", "g@n0--n1.json"]
    assert "is of another run" in told[0]["reason"]


def test_the_ranks_of_a_node_are_of_the_newest_record_that_has_any():
    records = [
        plain_record("gemm@n0.json", {}, {"node": "n1"}), plain_record("gemm@n1.attempt9.json", {}),
        plain_record("memory@n0.attempt9.json", {}),
    ]  # fmt: skip
    assert evidence.ranks_of(records, "n0", "gemm") == records[0].ranks[:1]
    newer = [plain_record(f"gemm@n0.attempt{k}.json", {}) for k in (3, 2)]
    assert evidence.ranks_of([*records, *newer], "n0", "gemm") == newer[0].ranks
    assert evidence.ranks_of(records, "n2", "gemm") == []


def test_the_first_value_that_is_something_is_taken():
    assert evidence.first_of(iter([None, [], "a", "b"])) == "a"
    assert evidence.first_of([None, 0]) is None


def test_of_many_values_evenly_spread_ones_are_kept():
    for count, most, kept in ((4, 4, [0, 1, 2, 3]), (5, 4, [0, 2, 4]), (9, 3, [0, 3, 6]),
                              (0, 3, [])):  # fmt: skip
        assert evidence.thinned(range(count), most) == kept


# --- rows


def row(**more: Any) -> Json:
    return {"criterion": "gemm.bf16", "subject": "worker0", "outcome": "FAIL", "value": 541.0,
            "record": "gemm@worker0.attempt3.json", "attempt": 3, "job": "42", **more}  # fmt: skip


def made_row(directory: RunDirectory, limits: Thresholds, v: Json, *others: Json) -> Json:
    return evidence.row_of(v, limits, {"criteria": [v, *others]}, reader_of(directory), "worker0")


def test_a_row_has_its_samples_and_earlier_attempts(directory, limits):
    for attempt, rate in ((1, 500.0), (3, 541.0)):
        support.save(support.node_record(rate, 600.0, attempt=attempt), directory)
    (directory.records / "gemm@worker0.attempt2.json").write_text("{")
    made = made_row(directory, limits, row())
    assert [(m["gpu"], m["median"], m["count"]) for m in made["measured"]] == [
        (0, 541.0, 5), (1, 600.0, 5)
    ]  # fmt: skip
    assert made["attempts"] == [
        {"attempt": 1, "record": "gemm@worker0.json", "is": [
            {"gpu": 0, "uuid": "GPU-worker0-0", "median": 500.0, "value": None},
            {"gpu": 1, "uuid": "GPU-worker0-1", "median": 600.0, "value": None},
        ]}
    ]  # fmt: skip
    assert (made["job"], made["attempt"], made["outcome"]) == ("42", 3, "FAIL")


def test_a_row_without_record_or_known_criterion_has_no_samples(directory, limits):
    support.save(support.node_record(541.0), directory)
    for v in (row(record=None), row(record="gemm"), row(criterion="not.known", attempt=1)):
        made = made_row(directory, limits, v)
        assert (made["measured"], made["attempts"]) == ([], [])
        assert made["criterion"] == v["criterion"]
    old = made_row(directory, limits, row(attempt=None, record="gemm@worker0.json"))
    assert (len(old["attempts"]), old["measured"]) == (1, []), "its own attempt is not known"
    first = made_row(directory, limits, row(attempt=1, record="gemm@worker0.json"))
    assert len(first["measured"]) == 1


def test_the_same_criterion_elsewhere_is_shown_of_sixty_four_subjects(directory, limits):
    others = [row(subject=f"n{k}", value=float(k)) for k in range(65)]
    made = made_row(directory, limits, row(), row(criterion="gemm.fp8", subject="n0"), *others)
    assert list(made["elsewhere"].items()) == [(f"n{k}", float(k)) for k in range(64)]


def test_what_a_rank_measured_is_of_its_node_metric_and_size(limits):
    pair = limits.criteria["allreduce.pair"]
    at = {"size": 2**30}
    ms = [
        Measurement(metric="busbw", unit="GB/s", samples=[90.0, 92.0, 80.0], at=at,
                    rounds=[[float(k) for k in range(401)]], notes=["a note"]),
        support.busbw(5.0, size=2**20),
        Measurement(metric="latency", unit="us", samples=[1.0], at=at),
        Measurement(metric="busbw", unit="GB/s", value=7, at=at),
    ]  # fmt: skip
    record = support.record(
        support.rank(0, "worker0", *ms), support.rank(1, "worker1", ms[0]), workload="allreduce"
    )
    first, second = evidence.measured_by(record, pair, "worker0")
    assert (first["median"], first["samples"], first["count"]) == (90.0, [90.0, 92.0, 80.0], 3)
    assert (first["rank"], first["gpu"], first["uuid"]) == (0, 0, "GPU-worker0-0")
    assert [len(r) for r in first["rounds"]] == [201], "400 samples are shown"
    assert first["notes"] == ["a note"]
    assert (second["value"], second["median"], second["samples"]) == (7, None, [])
    exactly = Measurement(metric="busbw", unit="GB/s", samples=[1.0] * 400, at=at)
    record = support.record(support.rank(0, "worker0", exactly))
    (shown,) = evidence.measured_by(record, pair, "worker0")
    assert len(shown["samples"]) == 400


# --- counters and messages


def test_counters_have_their_values_and_what_was_before():
    ms = [{"metric": "xid", "unit": "", "value": 0},
          {"metric": "ecc", "unit": "", "samples": [1, 2, 9], "at": {"part": "hbm"},
           "notes": ["new"]}, {"metric": "none", "unit": ""}]  # fmt: skip
    facts = {"before": {"xid": 0}, "driver": "580"}
    absent = [{"metric": "ecc", "kind": "not offered by the driver", "why": "old"}]
    rank = {"node": "n0", "device": {"index": 0, "uuid": "A"}, "measurements": ms, "facts": facts,
            "absent": absent}  # fmt: skip
    records = [plain_record("health@n0.json", rank)]
    assert evidence.counters_of(records, "n0", "health") == [{
        "gpu": 0, "uuid": "A", "before": {"xid": 0}, "absent": absent,
        "values": [
            {"metric": "xid", "part": None, "unit": "", "value": 0, "notes": []},
            {"metric": "ecc", "part": "hbm", "unit": "", "value": 2, "notes": ["new"]},
            {"metric": "none", "part": None, "unit": "", "value": None, "notes": []},
        ],
    }]  # fmt: skip
    assert evidence.counters_of(records, "n0", "nvlink") == []


def test_only_errors_of_ranks_of_the_node_are_told(directory):
    folder = directory.job("gemm")
    folder.mkdir(parents=True)
    for line in ({"event": "error", "node": "n0", "error": "hung", "rank": 1},
                 {"event": "error", "node": "n1"}, {"event": "end", "node": "n0"}):  # fmt: skip
        append_line(folder / "rank0.jsonl", line)
    assert list(evidence.errors_of(directory, "n0")) == [
        {"workload": None, "rank": 1, "time": None, "kind": None, "error": "hung", "stack": None}
    ]


def write_lines(path: Path, *lines: Json) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_telemetry_is_of_the_node_and_of_one_gpu_where_one_is_asked_for(directory):
    gpus = {"A": {"temp": 50}, "B": {"temp": 60}}
    ranks = [{"node": "n0", "facts": {"telemetry": {"gpus": gpus}}},
             {"node": "n1", "facts": {"telemetry": {"gpus": {"C": {}}}}}]  # fmt: skip
    none = [{"node": "n0", "facts": facts} for facts in
            ({}, {"telemetry": {"gpus": []}}, {"telemetry": "none"})]  # fmt: skip
    records = [plain_record("gemm@n0.json", *ranks), plain_record("memory@n0.json", *none)]
    folder = directory.job("node-n0")
    folder.mkdir(parents=True)
    lines = [{"t": k, "gpus": gpus} for k in range(301)]
    write_lines(folder / "telemetry-n0.jsonl", *lines, {"t": 999, "gpus": None})
    write_lines(folder / "telemetry-n1.jsonl", {"t": 0, "gpus": {"C": {}}})
    found = evidence.telemetry_of(directory, records, "n0", None)
    assert found["summaries"] == {"gemm@n0.json": gpus}
    assert list(found["points"]) == ["node-n0"]
    points = found["points"]["node-n0"]
    assert (len(points), points[1]) == (151, {"t": 2, "gpus": gpus}), "300 points are shown"
    one = evidence.telemetry_of(directory, records, "n0", {"uuid": "B"})
    assert one["summaries"] == {"gemm@n0.json": {"B": {"temp": 60}}}
    assert one["points"]["node-n0"][0]["gpus"] == {"B": {"temp": 60}}


def test_three_hundred_points_of_telemetry_are_shown_whole(directory):
    folder = directory.job("node-n0")
    folder.mkdir(parents=True)
    write_lines(folder / "telemetry-n0.jsonl", *({"t": k, "gpus": {}} for k in range(300)))
    found = evidence.telemetry_of(directory, [], "n0", None)
    assert len(found["points"]["node-n0"]) == 300


# --- nvidia-bug-report


def test_lines_on_gpus_are_taken_from_a_bug_report_plain_or_zipped(tmp_path):
    lines = ["boring", "  NVRM: Xid 79  ", "  NVRM: Xid 79", "fine", "ecc error", "NVRM: Xid 79"]
    text = "\n".join(lines).encode()
    for raw in (text, gzip.compress(text)):
        path = tmp_path / "report.log"
        path.write_bytes(raw)
        assert evidence.lines_of_bug_report(path) == {
            "name": "report.log", "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest(),
            "lines": ["NVRM: Xid 79", "ecc error", "NVRM: Xid 79"], "more_lines": 0,
        }  # fmt: skip
    path.write_bytes(gzip.compress(text)[:30])
    for broken in (path, tmp_path / "none"):
        with pytest.raises(CommandError, match=f"--bug-report {broken}"):
            evidence.lines_of_bug_report(broken)


def test_four_hundred_lines_of_a_bug_report_are_shown_and_the_others_counted(tmp_path):
    path = tmp_path / "report.log"
    path.write_text("".join(f"Xid {k} {'x' * 500}\n" for k in range(402)))
    found = evidence.lines_of_bug_report(path)
    assert (len(found["lines"]), found["more_lines"]) == (400, 2)
    assert {len(line) for line in found["lines"]} == {400}


def test_two_hundred_megabytes_of_a_bug_report_are_read():
    """As far as it is unpacked: a small file may unpack to any size."""
    assert evidence.MAX_REPORT_BYTES == 200 * 1000 * 1000
