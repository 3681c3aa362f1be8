"""What is broken costs the verdicts that rest on it, once, and no others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.run import batch_judging
from fixtures.run import judge_item as judging
from tests.selftests import support
from tests.selftests.fleets import GPUS, NODES, Data, FleetRun, Outcomes, fleet, names, whole_fleet

__all__ = ["fleet", "whole_fleet"]

pytestmark = pytest.mark.cpu

SICK = NODES[2]
OTHERS = [n for n in NODES if n != SICK]
PAIR_OF_SICK = f"{NODES[2]}--{NODES[3]}"


# --- a node that is dead, whose part is truncated, or that is there twice


def _dead(record: Data, node: str) -> None:
    """As a job on the other nodes leaves it: the suite submits it without the dead one."""
    ranks = [r for r in record["ranks"] if r["node"] != node]
    record["ranks"] = [{**rank, "rank": k} for k, rank in enumerate(ranks)]
    record["nodes"] = [n for n in record["nodes"] if n != node]
    record["world_size"] = len(record["ranks"])
    if record["workload"] == "alltoall":
        # Of fewer nodes a smaller share of the data crosses the network: the rate is higher.
        factor = (23 / 16) / (31 / 24)
        for rank in record["ranks"]:
            for m in rank["measurements"]:
                m["samples"] = [factor * value for value in m.get("samples", [])]


def _truncated(record: Data, node: str) -> None:
    """Some of the node's ranks have left nothing."""
    cut = [r for r in record["ranks"] if r["node"] == node][GPUS // 2 :]
    cut = cut or [r for r in record["ranks"] if r["node"] == node][-1:]
    record["ranks"] = [r for r in record["ranks"] if r not in cut]


def _doubled(record: Data, node: str) -> None:
    record["ranks"] += [r for r in record["ranks"] if r["node"] == node]


Fault = Callable[[Data, str], None]


def _apply(fleet: FleetRun, fault: Fault, placement: str) -> list[str]:
    """Break the node's part of every record of a placement; returns the workloads."""
    broken = []
    for name in fleet.names(SICK):
        data = fleet.read(name)
        if data["placement"] != placement:
            continue
        if fault is _dead and len(data["nodes"]) <= 2:
            (fleet.root / "records" / name).unlink()
            line = {
                "schema": 1, "nonce": data["nonce"], "workload": data["workload"], "attempt": 1,
                "placement": placement, "kind": "node lost", "reason": f"{SICK} is gone",
                "node": SICK, "next_step": "look at it",
            }  # fmt: skip
            with (fleet.root / "jobs" / "missing.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        else:
            fault(data, SICK)
            fleet.write(name, data)
        broken.append(data["workload"])
    return broken


def _not_measured(rows: Outcomes) -> dict[tuple[str, str], dict[str, Any]]:
    return {k: v for k, v in rows.items() if v["outcome"] == "NOT_MEASURED"}


@pytest.fixture(scope="module")
def before(whole_fleet: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """The rows of the fleet as it was measured."""
    return FleetRun(whole_fleet).judged(tmp_path_factory.mktemp("before") / "run")[1]


@pytest.mark.parametrize("fault", [_dead, _truncated, _doubled])
@pytest.mark.parametrize("placement", [SICK, PAIR_OF_SICK, "all"])
def test_one_broken_node_costs_itself_and_what_depends_on_it(
    fleet, before, fault, placement, tmp_path
):
    assert _apply(fleet, fault, placement)
    verdict, rows = fleet.judged(tmp_path / "judged")
    lost = _not_measured(rows)
    assert lost
    assert verdict["counts"]["fail"] == 0
    for criterion, subject in lost:
        depends = subject in (SICK, PAIR_OF_SICK, "cluster") or subject.startswith("rail")
        alone_in_pair = placement == PAIR_OF_SICK and subject == NODES[3]
        assert depends or alone_in_pair, (criterion, subject)
    assert {k for k, v in rows.items() if v["outcome"] == "PASS"} == {
        k for k, v in before.items() if v["outcome"] == "PASS"
    } - set(lost)
    assert names(tmp_path / "judged" / "bad-nodes.txt") == [SICK]
    assert names(tmp_path / "judged" / "good-nodes.txt") == OTHERS
    reasons = (tmp_path / "judged" / "node-reasons.txt").read_text().splitlines()
    assert [line.partition(":")[0] for line in reasons] == [f"{SICK} bad"]


@pytest.mark.parametrize("fault", [_dead, _truncated, _doubled])
def test_a_rail_without_one_node_is_reduced_and_the_rest_is_judged(fleet, fault, tmp_path):
    fleet.change("rails@all.json", lambda record: fault(record, SICK))
    verdict, rows = fleet.judged(tmp_path / "judged")
    lost = _not_measured(rows)
    assert {key[0].partition(".")[0] for key in lost} == {"rails"}
    assert all(SICK in v["reason"] for v in lost.values())
    assert verdict["verdict"] == "INCOMPLETE"
    assert set(OTHERS) <= set(names(tmp_path / "judged" / "good-nodes.txt"))


def test_a_dead_node_is_one_line_among_the_reasons(fleet, tmp_path):
    for placement in (SICK, PAIR_OF_SICK, "all"):
        _apply(fleet, _dead, placement)
    verdict, rows = fleet.judged(tmp_path / "judged")
    assert {k[1] for k in _not_measured(rows)} & {*OTHERS} <= {NODES[3]}
    named = [line for line in verdict["reasons"] if line.startswith(f"{SICK}: ")]
    assert len(named) == 1
    assert "node lost" in named[0]
    assert len(verdict["reasons"]) <= 4
    assert names(tmp_path / "judged" / "bad-nodes.txt") == [SICK]
    assert names(tmp_path / "judged" / "good-nodes.txt") == OTHERS


def test_what_one_node_says_of_itself_is_void_where_it_was_left_alone(tmp_path):
    run = FleetRun(Path(shutil.copytree(support.DATA / "sandbox-2x2-cpu", tmp_path / "run")))
    for name in run.names("worker1"):
        run.change(name, lambda record: _dead(record, "worker1"))
    _, rows = run.judged(tmp_path / "judged")
    row = rows["connectivity.peers", "worker0"]
    assert (row["outcome"], row["cause"]) == ("NOT_MEASURED", "other node")


# --- one value, one record, many records


def _without_size(record: Data) -> None:
    for m in record["ranks"][0]["measurements"]:
        m.pop("at", None)


def _a_list_for_a_size(record: Data) -> None:
    for m in record["ranks"][0]["measurements"]:
        m["at"] = {"size": [1, 2]}


def _a_text_for_a_size(record: Data) -> None:
    for m in record["ranks"][0]["measurements"]:
        m["at"] = {"size": "much"}


@pytest.mark.parametrize("change", [_without_size, _a_list_for_a_size, _a_text_for_a_size])
def test_a_malformed_measurement_costs_what_rests_on_it(fleet, change, tmp_path):
    fleet.change(f"allreduce@{SICK}.json", change)
    _, rows = fleet.judged(tmp_path / "judged")
    lost = _not_measured(rows)
    assert lost
    assert {key[1] for key in lost} == {SICK}
    assert {key[0].partition(".")[0] for key in lost} == {"allreduce"}
    assert {v["cause"] for v in lost.values()} <= {"record", "node", "measurement"}


def test_a_failure_elsewhere_stays_a_failure(fleet, tmp_path):
    def wrong_elements(record: Data) -> None:
        for m in record["ranks"][2]["measurements"]:
            if m["metric"] == "errors":
                m["value"] = 7

    fleet.change(f"allreduce@{NODES[0]}.json", wrong_elements)
    fleet.change(f"allreduce@{SICK}.json", _without_size)
    verdict, rows = fleet.judged(tmp_path / "judged")
    assert rows["allreduce.node.errors", NODES[0]]["outcome"] == "FAIL"
    assert verdict["verdict"] == "REJECTED"


def test_a_judge_that_raises_costs_one_verdict_and_is_asked_once(fleet, tmp_path, monkeypatch):
    asked = []

    def broken(reading, *arguments):
        case = reading.case
        if case.criterion.key == "gemm.bf16" and case.subject == SICK:
            asked.append(case.subject)
            raise ZeroDivisionError("planted")
        return original(reading, *arguments)

    from fixtures.verdict import judge

    original = judge._judge_case
    monkeypatch.setattr(judge, "_judge_case", broken)
    monkeypatch.setattr(batch_judging, "SINGLE_PROCESS_ITEMS", 1 << 30)
    _, rows = fleet.judged(tmp_path / "judged")
    lost = _not_measured(rows)
    assert set(lost) == {("gemm.bf16", SICK)}
    assert "ZeroDivisionError: planted" in lost["gemm.bf16", SICK]["reason"]
    assert len(asked) <= 2  # without and with the fleet


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b'{"schema": 1}', b"null", b"1e999"]
)
def test_a_file_that_is_no_record_costs_its_own_rows(fleet, content, tmp_path):
    (fleet.root / "records" / f"memory@{SICK}.json").write_bytes(content)
    _, rows = fleet.judged(tmp_path / "judged")
    lost = _not_measured(rows)
    assert {(k[0].partition(".")[0], k[1]) for k in lost} == {("memory", SICK)}
    assert {v["cause"] for v in lost.values()} == {"record"}


def test_a_record_that_is_a_directory_costs_its_own_rows(fleet, tmp_path):
    path = fleet.root / "records" / f"memory@{SICK}.json"
    path.unlink()
    path.mkdir()
    _, rows = fleet.judged(tmp_path / "judged")
    assert {(k[0].partition(".")[0], k[1]) for k in _not_measured(rows)} == {("memory", SICK)}


def test_a_rank_that_gave_no_value_is_not_taken_for_good(fleet, tmp_path):
    """M4: every criterion of which each rank owes a value, one rank's taken away."""

    def forget(metric: str) -> Callable[[Data], None]:
        def change(record: Data) -> None:
            rank = record["ranks"][-1]
            rank["measurements"] = [m for m in rank["measurements"] if m["metric"] != metric]

        return change

    collectives = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "sendrecv")
    for workload in collectives:
        for placement in (SICK, "all"):
            fleet.change(f"{workload}@{placement}.json", forget("errors"))
    for name in ("allreduce_ring@all", "rails@all", f"allreduce@{PAIR_OF_SICK}"):
        fleet.change(f"{name}.json", forget("errors"))
    for name in (f"training_ddp@{SICK}", "training_ddp@all"):
        fleet.change(f"{name}.json", forget("coverage"))
    _, rows = fleet.judged(tmp_path / "judged")
    lost = {key[0] for key in _not_measured(rows)}
    assert lost == {
        *(f"{name}.node.errors" for name in collectives),
        *(f"{name}.cluster.errors" for name in collectives),
        "allreduce_ring.errors", "rails.errors", "allreduce.pair.errors", "training_ddp.coverage",
        "training_ddp.cluster.coverage",
    }  # fmt: skip


def test_siblings_of_a_broken_record_are_those_of_the_others(fleet, tmp_path, monkeypatch):
    def broken(original, nodes_of):
        def sometimes(*given):
            if SICK in nodes_of(*given):
                raise KeyError("planted")
            return original(*given)

        return sometimes

    for module, name, nodes_of in (
        (batch_judging, "_valid_rounds", lambda reading: reading.case.nodes),
        (judging, "sibling_values", lambda criterion, record, *_: record.nodes),
    ):
        monkeypatch.setattr(module, name, broken(getattr(module, name), nodes_of))
    verdict, _ = fleet.judged(tmp_path / "judged")
    assert verdict["counts"]["fail"] == 0


# --- a test file that cannot be collected


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_a_file_that_cannot_be_imported_is_incomplete_whatever_is_given(workers, tmp_path):
    from tests.selftests.sandboxes import copy_checkout

    checkout = copy_checkout(tmp_path / "checkout", selftests=False)
    test = checkout / "tests" / "test_memory.py"
    test.write_text("import no_such_module\n" + test.read_text(encoding="utf-8"), encoding="utf-8")
    source = support.DATA / "sandbox-2x2-cpu"
    run = support.run_pytest(
        "-m", "multinode", "--cluster", "replay", f"--from={source}", "-q",
        f"--run-dir={tmp_path / 'run'}", "--continue-on-collection-errors", *workers,
        checkout=checkout,
    )  # fmt: skip
    assert run.returncode == 2, run.stdout + run.stderr
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert verdict["verdict"] == "INCOMPLETE"
    assert any("tests/test_memory.py" in reason for reason in verdict["reasons"])
