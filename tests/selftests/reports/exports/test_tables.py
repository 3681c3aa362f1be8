"""The tables that engineers know, made from recorded runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.records.files import read_json
from fixtures.records.run_directory import RunDirectory
from reports.exports import tables
from reports.plots.trainings import Training
from tests.selftests import support
from tests.selftests.support import CHECKOUT, DATA

pytestmark = pytest.mark.cpu

H200 = DATA / "h200-1x4"


def row(text: str, title: str, size: int) -> list[str]:
    """The cells of one size in the table of that title."""
    part = text[text.index(title) :]
    match = re.search(rf"^ +{size} .*$", part, re.MULTILINE)
    assert match is not None, part[:500]
    return match[0].split()


def test_collectives_are_printed_as_nccl_tests_prints_them() -> None:
    records = tables.records_of(RunDirectory(H200))
    text = "\n\n".join(tables.table(r) for r in records)
    cells = row(text, "# allreduce node0: 4 ranks, in place", 1 << 30)
    assert cells[1:4] == [str(1 << 28), "float", "sum"]
    time_us, algbw, busbw, wrong = (float(x) for x in cells[4:8])
    assert algbw == pytest.approx((1 << 30) / time_us / 1e3, rel=1e-3)
    assert busbw == pytest.approx(algbw * 1.5, rel=1e-3)
    assert wrong == 0
    assert cells[9] == "RING/SIMPLE"
    small = row(text, "# allreduce node0", 1024)
    assert float(small[8]) < float(small[4]), "NCCL's own call is faster than PyTorch's"
    assert row(text, "# sendrecv node0: 4 ranks, out of place", 1 << 30)[9] == "-"


def test_every_rail_has_a_table_of_its_own() -> None:
    records = tables.records_of(RunDirectory(DATA / "sandbox-2x2-cpu"))
    (rails,) = [r for r in records if r.workload == "rails"]
    text = tables.table(rails)
    assert re.findall(r"# rails (\w+): (\d) ranks", text) == [("rail0", "2"), ("rail1", "2")]


def test_copies_are_printed_as_nvbandwidth_prints_them() -> None:
    (record,) = [r for r in tables.records_of(RunDirectory(H200)) if r.workload == "p2p"]
    lines = tables.table(record).splitlines()
    assert "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)" in lines[0]
    assert lines[1].split() == ["0", "1", "2", "3"]
    first = lines[2].split()
    assert first[:2] == ["0", "N/A"]
    assert all(300 < float(cell) < 450 for cell in first[2:])


def test_other_records_have_no_table() -> None:
    (record,) = [r for r in tables.records_of(RunDirectory(H200)) if r.workload == "gemm"]
    assert tables.table(record) == ""


def test_the_command_prints_them_also_of_a_run_by_hand(tmp_path: Path) -> None:
    record = read_json(H200 / "records" / "broadcast@node0.json")
    run = {"schema": 2, "id": "by-hand", "nonce": record["nonce"], "origin": "by-hand"}
    (tmp_path / "run.json").write_text(json.dumps(run))
    shared = {k: record[k] for k in ("schema", "nonce", "workload", "placement", "world_size")}
    for rank in record["ranks"]:
        line = {**shared, "event": "result", "time": 1.0, "attempt": 1, **rank}
        support.say(tmp_path / "jobs" / "broadcast" / f"rank{rank['rank']}.jsonl", [line])
    done = subprocess.run(
        [sys.executable, "-m", "reports", "tables", str(tmp_path)],
        cwd=CHECKOUT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(row(done.stdout, "# broadcast node0: 4 ranks", 4 << 30)[6]) > 300


# --- parts of them


def test_of_a_long_training_at_most_twelve_steps_are_printed():
    def printed(count: int) -> list[str]:
        steps = [[k, None if k else 12.0] for k in range(count)]
        text = tables._training_table(Training("a", "ddp", {}, ["step", "loss"], steps))
        return [line.split()[0] for line in text.splitlines()[2:]]

    assert printed(12) == [str(k) for k in range(12)]
    assert printed(40) == [*(str(k) for k in range(0, 39, 4)), "39"]
    assert tables._cell(None) == "-"
    assert tables._cell(5.0) == "5"


def test_what_is_recorded_is_a_table_and_nothing_is_none():
    rows = [{"criterion": c, "subject": "a", "outcome": o, "value": 5.0, "unit": "GB/s"}
            for c, o in (("x", "RECORDED"), ("longer", "RECORDED"), ("y", "PASS"))]  # fmt: skip
    text = tables.recorded_table({"criteria": rows})
    assert text.splitlines()[1:] == ["  x       a  5 GB/s", "  longer  a  5 GB/s"]
    assert tables.recorded_table({"criteria": rows[2:]}) == ""
    assert tables._table_blocks("title", [0], [0], {}) == []
    assert tables.nccl_tables(support.node_record(650.0)) == ""


def test_the_newest_attempt_is_shown(tmp_path):
    run = support.run_directory(tmp_path, origin="cluster", id=support.RUN_ID, nonce=support.NONCE)
    for attempt in (1, 2):
        support.save(support.node_record(650.0, attempt=attempt), run)
    (run.records / "torn@x.json").write_text("{")
    assert [record.attempt for record in tables.records_of(run)] == [2]


def test_records_of_a_run_by_hand_are_those_of_its_ranks(tmp_path):
    run = RunDirectory(tmp_path)
    hand = {"origin": "by-hand", "id": "r", "nonce": support.NONCE}
    for k in (0, 1):
        lines = [support.line("started", k), support.result_line(k, support.bf16())]
        support.say(run.job("hand") / f"rank{k}.jsonl", lines)
    for origin, found in (("by-hand", ["gemm"]), ("cluster", [])):
        run.run_json.write_text(json.dumps({**hand, "origin": origin}))
        assert [record.workload for record in tables.records_of(run)] == found
