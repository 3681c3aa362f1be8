"""What parts have counted in their life, at the end of a run: said, or failed by the order."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from fixtures.records.files import read_json
from fixtures.records.inert import inert
from fixtures.records.ledger import BY_LIFE, is_by_life
from fixtures.records.run_directory import RunDirectory
from fixtures.run import life_counters
from fixtures.verdict.model import Outcome, Verdict
from reports.evidence import differences, rejudge
from tests.selftests import support
from tests.selftests.support import DATA

pytestmark = pytest.mark.cpu

PLANTED = 505
"""Recoveries of the link of the published incident."""


def copied(name: str, root: Path) -> Path:
    shutil.copytree(DATA / name, root)
    return root


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A recorded run of four H200, in an older record: the counter is one sum for each GPU."""
    root = copied("h200-1x4", tmp_path / "run")
    with support.edited(root / "records" / "under_load@node0.json") as data:
        for when in ("before", "after"):
            data["ranks"][2]["facts"][when]["nvlink_errors"] = PLANTED
    return root


def row_of(found: dict[str, Any], key: str) -> dict[str, Any]:
    (row,) = [r for r in found["criteria"] if r["criterion"] == key]
    return dict(row)


def test_the_incident_stands_among_the_first_lines_and_on_its_row(planted, tmp_path):
    _, found = support.judged(planted, tmp_path / "out")
    (line,) = [r for r in found["reasons"] if r.startswith(BY_LIFE)]
    assert line == (
        f"{BY_LIFE}: node0 GPU 2: 505 NVLink replays and recoveries in its life, 3 siblings at "
        "most 0 (0 in the mean); since the driver was loaded; root can reset it; recorded, not "
        "judged"
    )
    row = row_of(found, "nvlink.errors")
    assert row["outcome"] == "PASS"
    assert row["notes"][0].startswith(f"{BY_LIFE}: GPU 2: 505 NVLink")
    assert found["verdict"] == "PARTIAL"


def ordered(root: Path, file: Path, **limits: Any) -> Path:
    """Give a run an order by which such a part fails; return the file of its limits."""
    order = {"nodes": 1, "gpus_per_node": 4, "gpu_model": "H200 SXM", "life_counters": "fail"}
    data = {"schema": 1, "base": str(support.SHIPPED), "cluster": order}
    file.write_text(yaml.safe_dump(data | limits))
    with support.edited(root / "run.json") as run:
        run["contract"] = order
        run["population"] |= {"origin": "cluster", "ordered": True}
    return file


def test_by_the_order_it_fails_and_names_the_gpu(planted, tmp_path):
    limits = ordered(planted, tmp_path / "order.yaml")
    _, found = support.judged(planted, tmp_path / "out", limits)
    row = row_of(found, "nvlink.errors")
    assert row["outcome"] == "FAIL"
    assert is_by_life(row)
    assert (row["worst"]["node"], row["worst"]["gpu"]) == ("node0", 2)
    assert "reseat or replace" in row["next_step"]
    assert (tmp_path / "out" / "bad-nodes.txt").read_text().split() == ["node0"]


RECORDED = {"nvlink.errors": {"limits": [{"recorded": "no NVLink switch"}]}}


@pytest.mark.parametrize("criteria", [{}, RECORDED], ids=["judged", "recorded"])
def test_who_judges_the_run_again_comes_to_the_same(planted, tmp_path, criteria):
    """A ledger that has the failure calls the record no other one, and the second judge agrees."""
    limits = ordered(planted, tmp_path / "order.yaml", criteria=criteria)
    _, found = support.judged(planted, tmp_path / "out", limits)
    _, again = support.judged(tmp_path / "out", tmp_path / "again", limits)
    assert is_by_life(row_of(found, "nvlink.errors"))
    assert row_of(again, "nvlink.errors")["reason"] == row_of(found, "nvlink.errors")["reason"]
    compared = rejudge.compare(tmp_path / "out", support.loader.load(limits))
    assert compared.wrong == []
    assert [line for line in compared.uncovered if line.startswith("nvlink.errors")] == [
        "nvlink.errors node0: a claim that its second source contradicts, or a life counter"
    ]


def test_verify_finds_the_line_in_the_records_and_misses_one_that_was_taken_out(planted, tmp_path):
    _, found = support.judged(planted, tmp_path / "out")
    _, again = support.judged(tmp_path / "out", tmp_path / "again")
    directory = RunDirectory(tmp_path / "out")
    again["run_id"] = found["run_id"]

    def wrong() -> list[str]:
        return differences.differences(directory, directory.read_run(), found, again).wrong

    assert wrong() == []
    found["reasons"] = [r for r in found["reasons"] if not r.startswith(BY_LIFE)]
    assert any("reasons is" in line for line in wrong())


@pytest.mark.parametrize("expired", [False, True])
def test_a_waiver_of_its_row_holds_for_a_life_too(planted, tmp_path, expired):
    day = datetime.now(UTC).date() + timedelta(days=-1 if expired else 30)
    waiver = {"criterion": "nvlink.errors", "node": "node0", "owner": "ops", "reason": "known link",
              "expires": str(day)}  # fmt: skip
    limits = ordered(planted, tmp_path / "order.yaml", waivers=[waiver])
    _, found = support.judged(planted, tmp_path / "out", limits)
    row = row_of(found, "nvlink.errors")
    assert row["outcome"] == ("FAIL" if expired else "WAIVED")
    assert "known link" in row["reason"]
    assert is_by_life(row)
    _, again = support.judged(tmp_path / "out", tmp_path / "again", limits)
    assert row_of(again, "nvlink.errors")["reason"] == row["reason"]
    assert rejudge.compare(tmp_path / "out", support.loader.load(limits)).wrong == []


def test_what_no_row_is_on_is_not_said_to_be_judged(planted, tmp_path):
    waived = {"criteria": ["nvlink.errors"], "reason": "not of this delivery"}
    limits = ordered(planted, tmp_path / "order.yaml", not_applicable=[waived])
    _, found = support.judged(planted, tmp_path / "out", limits)
    (line,) = [r for r in found["reasons"] if r.startswith(BY_LIFE)]
    assert line.endswith("; recorded, not judged")


def test_ports_by_any_name_fail_by_the_order(tmp_path):
    """A node names its ports: by a digit that int() refuses, as a GPU, with what acts."""
    root = copied("sandbox-2x2-cpu", tmp_path / "run")
    with support.edited(root / "run.json") as run:
        run["contract"] |= {"life_counters": "fail"}
    limits = tmp_path / "order.yaml"
    limits.write_text(yaml.safe_dump(
        {"schema": 1, "base": str(support.SHIPPED), "cluster": run["contract"]}
    ))  # fmt: skip
    names = ["\u00b2", "7", "GPU 3", "a\x1b[31m\nb"]
    with support.edited(root / "records" / "ib_counters@all.json") as data:
        for rank in data["ranks"]:
            if rank["facts"].get("after"):
                rank["facts"]["after"] |= {f"port{k}": {"symbol_error": 0} for k in range(60)}
                rank["facts"]["after"] |= {name: {"symbol_error": 90_000} for name in names}
        node = data["nodes"][0]
    _, found = support.judged(root, tmp_path / "out", limits)
    (row,) = [r for r in found["criteria"]
              if (r["criterion"], r["subject"]) == ("infiniband.symbol_error", node)]  # fmt: skip
    assert is_by_life(row)
    assert row["worst"]["gpu"] is None
    assert row["worst"]["part"] in [inert(name) for name in names]
    assert "\x1b" not in str(row)


def test_a_link_of_its_own_is_named_where_the_record_has_links(planted, tmp_path):
    links = {f"link {k} recoveries": 0 for k in range(18)}
    with support.edited(planted / "records" / "under_load@node0.json") as data:
        for k, rank in enumerate(data["ranks"]):
            counts = {"link 7 recoveries": PLANTED} if k == 2 else {}
            rank["facts"]["life"] = {"nvlink_errors": {"parts": len(links), "counts": counts}}
            rank["facts"]["uptime_h"] = 700.0
    _, found = support.judged(planted, tmp_path / "out")
    (line,) = [r for r in found["reasons"] if r.startswith(BY_LIFE)]
    assert "node0 GPU 2 (link 7 recoveries): 505 NVLink" in line
    assert "54 siblings at most 0" in line


def test_a_healthy_run_says_nothing(tmp_path):
    _, found = support.judged(DATA / "h100-1x4-accepted", tmp_path / "out")
    assert [r for r in found["reasons"] if r.startswith(BY_LIFE)] == []


@pytest.mark.parametrize(
    "life",
    [
        3, {"nvlink_errors": 3}, {"nvlink_errors": {"parts": "many", "counts": {}}},
        {"nvlink_errors": {"parts": 10**9, "counts": {}}},
        {"nvlink_errors": {"parts": 2, "counts": {"a": True, "b": -3, "c": 1e9, "d": "505"}}},
        {"nvlink_errors": {"parts": 2, "counts": {"a": 2**70}}},
        {"nvlink_errors": {"parts": 2, "counts": {str(k): 505 for k in range(2000)}}},
    ],
)  # fmt: skip
def test_what_a_node_states_otherwise_than_as_counts_is_nothing(tmp_path, life):
    root = copied("h200-1x4", tmp_path / "run")
    with support.edited(root / "records" / "under_load@node0.json") as data:
        data["ranks"][1]["facts"] |= {"life": life, "uptime_h": "long"}
        data["ranks"][3]["facts"]["after"] = ["x"]
    _, found = support.judged(root, tmp_path / "out")
    assert [r for r in found["reasons"] if r.startswith(BY_LIFE)] == []


@pytest.mark.parametrize("hours", [10**400, float("nan")], ids=["huge", "nan"])
def test_a_node_that_states_no_number_hides_nothing(planted, tmp_path, hours):
    """Its rows pass, because who judges them reads no facts; it is said that nothing compared."""
    with support.edited(planted / "records" / "under_load@node0.json") as data:
        data["ranks"][0]["facts"]["uptime_h"] = hours
    _, found = support.judged(planted, tmp_path / "out")
    (line,) = [r for r in found["reasons"] if r.startswith(BY_LIFE)]
    assert line.startswith(f"{BY_LIFE}: not compared: records/under_load@node0.json: ")


def test_a_port_is_named_on_the_row_of_its_counter(tmp_path):
    source = tmp_path / "run"
    copied("sandbox-2x2-cpu", source)
    with support.edited(source / "records" / "ib_counters@all.json") as data:
        for rank in data["ranks"]:
            for port, counts in rank["facts"].get("after", {}).items():
                counts["symbol_error"] = 900 if (rank["node"], port[:6]) == (
                    data["nodes"][1], "mlx5_1"
                ) else 0  # fmt: skip
    _, found = support.judged(source, tmp_path / "out")
    lines = [r for r in found["reasons"] if r.startswith(BY_LIFE)]
    assert len(lines) == 1
    assert "mlx5_1" in lines[0]
    assert "900 symbol_error of a port" in lines[0]
    node = read_json(source / "records" / "ib_counters@all.json")["nodes"][1]
    (row,) = [r for r in found["criteria"]
              if (r["criterion"], r["subject"]) == ("infiniband.symbol_error", node)]  # fmt: skip
    assert row["notes"][0].startswith(BY_LIFE)


def test_more_devices_than_are_named_are_counted(monkeypatch):
    counter = life_counters.GPU_COUNTERS["nvlink_errors"]
    found = [
        life_counters.Accused(life_counters.Part(f"n{k}", "GPU 0", "", 900 - k), 9, 0, 0)
        for k in range(7)
    ]
    monkeypatch.setattr(life_counters, "stand_out", lambda *_: iter([(counter, found)]))
    rows = {("nvlink.errors", f"n{k}"): verdict(f"n{k}") for k in range(6)}
    limits: Any = SimpleNamespace(cluster=None, criteria={})
    changed, lines = life_counters.held(rows, None, [], limits)  # type: ignore[arg-type]
    assert len(changed) == 6
    assert len(lines) == 5
    assert lines[-1] == f"{BY_LIFE}: 3 more devices in the notes"


def verdict(node: str) -> Verdict:
    return Verdict(criterion="nvlink.errors", title="t", subject=node, outcome=Outcome.PASS)
