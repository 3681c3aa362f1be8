"""Why something was not measured: the kind of the reason, its next step, and whom it accuses."""

from __future__ import annotations

import json

import pytest

from fixtures.conclusion.node_lists import RowNodes, node_lists
from fixtures.records.absence import JobKind, Kind
from fixtures.records.files import RecordError
from fixtures.records.run_directory import RunDirectory, assemble
from fixtures.thresholds import loader
from fixtures.verdict.absence import TABLE, Accused, of_missing
from fixtures.verdict.causes import IN_NODE, NEXT_STEP, Cause
from fixtures.verdict.model import Outcome, Verdict
from reports.evidence import rejudge
from reports.facts.blame import blame
from tests.selftests import support
from tests.selftests.fleets import NODES, Data, fleet, names, whole_fleet
from tests.selftests.support import NONCE, bf16, result_line

__all__ = ["fleet", "whole_fleet"]
from tests.selftests.verdict.made import row_on

pytestmark = pytest.mark.cpu

SICK = NODES[2]


def test_every_cause_has_a_next_step():
    assert set(NEXT_STEP) == set(Cause)
    for cause in (Cause.LIMIT, Cause.PLAN, Cause.DRIVER):
        assert "--resume" not in NEXT_STEP[cause], "measuring again cannot help"


@pytest.mark.parametrize("kind", [kind for kind in JobKind if kind is not JobKind.UNUSABLE])
def test_a_record_that_is_missing_says_where_the_reason_lies(kind):
    line = {"kind": kind.value, "reason": "r", "placement": SICK}
    cause, nodes = of_missing(line, [SICK])
    assert nodes == ([SICK] if cause is Cause.NODE else [])
    # Of a job over two nodes only what the system says of one of them is that node's fault.
    pair = {**line, "placement": f"{SICK}--{NODES[3]}", "node": SICK}
    cause, nodes = of_missing(pair, [SICK, NODES[3]])
    assert nodes == ([SICK] if TABLE[kind].accused is Accused.NAMED_NODE else [])
    assert of_missing(pair, [NODES[3]])[1] == []


def test_a_reason_lies_where_the_record_says_or_in_a_node_that_is_named():
    pair, lost = [SICK, NODES[3]], "node lost"
    for line, nodes, expected in (
        ({"cause": "set-up", "cause_nodes": [SICK]}, [SICK], (Cause.SETUP, [SICK])),
        ({"cause": "node"}, [SICK], (Cause.NODE, [])),
        ({"cause": "no cause", "kind": "storage"}, [SICK], (Cause.SETUP, [])),
        ({"kind": "unheard of"}, [SICK], (Cause.INTERRUPTED, [])),
        ({}, [SICK], (Cause.INTERRUPTED, [])),
        ({"kind": "rank died"}, [SICK], (Cause.NODE, [SICK])),
        ({"kind": "rank died", "placement": SICK}, [SICK], (Cause.NODE, [SICK])),
        ({"kind": "rank died", "placement": "all"}, [SICK], (Cause.OTHER_NODE, [])),
        ({"kind": lost, "placement": "all", "node": SICK}, [SICK], (Cause.NODE, [SICK])),
        ({"kind": lost, "node": SICK}, pair, (Cause.NODE, [SICK])),
        ({"kind": lost, "node": NODES[0]}, pair, (Cause.OTHER_NODE, [])),
        ({"kind": "rank died", "node": SICK}, pair, (Cause.OTHER_NODE, [])),
    ):
        assert of_missing(line, nodes) == expected, line


def verdict(
    outcome: Outcome, subject: str, cause: str = "", nodes: tuple[str, ...] = (), **more
) -> Verdict:
    more |= {"cause": cause, "cause_nodes": list(nodes), "reason": "why"}
    return row_on(subject, outcome, **more)


@pytest.mark.parametrize("cause", list(Cause))
def test_only_what_lies_in_a_node_takes_it_out_of_service(cause):
    at_fault = (NODES[0],) if cause in IN_NODE else ()
    verdicts = [
        verdict(Outcome.NOT_MEASURED, NODES[0], cause, at_fault),
        verdict(Outcome.PASS, NODES[1]),
    ]
    lists = node_lists(verdicts, RowNodes(NODES[:2], {}))
    assert lists.bad == ([NODES[0]] if at_fault else [])
    assert lists.good == [NODES[1]]
    kind = "bad" if at_fault else "neither"
    assert [line.partition(":")[0] for line in lists.reasons] == [f"{NODES[0]} {kind}"]
    seen_on_it = cause in {
        Cause.MEASUREMENT, Cause.SLOW, Cause.REPETITION, Cause.REPLACED, Cause.DRIVER,
    }  # fmt: skip
    assert lists.doubtful == ([NODES[0]] if seen_on_it else [])
    scope = {"criteria": [vars(v) for v in verdicts], "scope": {"nodes": list(NODES[:2])}}
    sentence = blame(scope, lists).sentence
    assert ("to look at" in sentence) == seen_on_it
    assert (NODES[0] in sentence) == bool(at_fault or seen_on_it)


def test_of_a_row_of_all_nodes_without_a_culprit_nobody_is_good_or_bad():
    worst = {"node": None, "gpu": None, "uuid": None, "part": "all nodes", "value": 1}
    verdicts = [
        *(verdict(Outcome.PASS, node) for node in NODES),
        verdict(Outcome.FAIL, "cluster", criterion="allreduce.cluster.1GiB", worst=worst),
    ]
    lists = node_lists(verdicts, RowNodes(NODES, {}))
    assert (lists.good, lists.bad) == ([], [])
    assert len(lists.reasons) == len(NODES)
    assert lists.doubtful == list(NODES)


# --- A1: an interrupted run, or a part of it


def test_an_interrupted_run_accuses_nobody(fleet, tmp_path):
    for path in (fleet.root / "records").glob("*.json"):
        if path.name.partition("@")[0] not in ("inventory", "slurm", "environment"):
            path.unlink()
    judged, rows = fleet.judged(tmp_path / "judged")
    assert judged["verdict"] == "INCOMPLETE"
    assert {v["cause"] for v in rows.values() if v["outcome"] == "NOT_MEASURED"} == {"interrupted"}
    assert names(tmp_path / "judged" / "bad-nodes.txt") == []
    assert names(tmp_path / "judged" / "good-nodes.txt") == []


def test_a_part_of_a_replay_accuses_nobody(tmp_path):
    run = support.run_pytest(
        "-m", "multinode", "--cluster", "replay", f"--from={support.DATA / 'h200-2x2'}", "-q",
        f"--run-dir={tmp_path / 'run'}", "-k", "gemm",
    )  # fmt: skip
    assert run.returncode == 2, run.stdout + run.stderr
    assert names(tmp_path / "run" / "bad-nodes.txt") == []


# --- what the driver does not offer, and what has no limit


def lacks(kind: Kind, why: str) -> list[Data]:
    return [support.absent(kind, "thermal", why).to_json()]


def test_what_the_driver_does_not_offer_is_said_as_that(fleet, tmp_path):
    why = "InvalidArgument"

    def silent(record: Data) -> None:
        record["provenance"]["driver"] = "550.90.07"
        for rank in record["ranks"]:
            rank["measurements"] = [m for m in rank["measurements"] if m["metric"] != "thermal"]
            rank["absent"] = lacks(Kind.NOT_OFFERED, why)

    fleet.change(f"under_load@{SICK}.json", silent)
    _, rows = fleet.judged(tmp_path / "judged")
    row = rows["health.thermal", SICK]
    assert (row["outcome"], row["cause"]) == ("NOT_MEASURED", "driver")
    assert row["reason"] == f"driver 550.90.07 does not give thermal: {why}"
    assert "not_applicable" in row["next_step"]
    assert "--resume" not in row["next_step"]
    assert names(tmp_path / "judged" / "bad-nodes.txt") == []
    assert SICK not in names(tmp_path / "judged" / "good-nodes.txt")


@pytest.mark.parametrize(
    "why",
    ["GpuIsLost", "samples cover 7 of 3600 s", "the counter was reset during the run",
     "NotSupported; samples cover 7 of 3600 s"],
)  # fmt: skip
def test_what_the_driver_offers_and_the_node_did_not_measure_is_of_the_node(fleet, tmp_path, why):
    """The driver is not to blame for a GPU that is lost or a recording that has gaps."""

    def silent(record: Data) -> None:
        for rank in record["ranks"]:
            rank["measurements"] = [m for m in rank["measurements"] if m["metric"] != "thermal"]
            rank["absent"] = lacks(Kind.FAULT, why)

    fleet.change(f"under_load@{SICK}.json", silent)
    _, rows = fleet.judged(tmp_path / "judged")
    row = rows["health.thermal", SICK]
    assert (row["outcome"], row["cause"]) == ("NOT_MEASURED", "node")
    assert row["reason"].endswith(f": no thermal: {why}")
    assert "driver" not in row["reason"]
    assert SICK not in names(tmp_path / "judged" / "good-nodes.txt")


@pytest.mark.parametrize(("kind", "cause"), [(Kind.NOT_OFFERED, "driver"), (Kind.FAULT, "node")])
def test_a_gpu_without_a_value_beside_one_that_has_it_says_whose_fault_it_is(
    fleet, tmp_path, kind, cause
):
    def silent(record: Data) -> None:
        rank = record["ranks"][0]
        rank["measurements"] = [m for m in rank["measurements"] if m["metric"] != "thermal"]
        rank["absent"] = lacks(kind, "why")

    fleet.change(f"under_load@{SICK}.json", silent)
    _, rows = fleet.judged(tmp_path / "judged")
    row = rows["health.thermal", SICK]
    assert (row["outcome"], row["cause"]) == ("NOT_MEASURED", cause)
    assert ": why; measured " in row["reason"]


@pytest.mark.parametrize(
    ("least", "outcome"),
    [
        (["thermal"], "NOT_MEASURED"), ([], "PASS"), ("thermal", "NOT_MEASURED"),
        ({"thermal": 1}, "NOT_MEASURED"), ([["thermal"]], "NOT_MEASURED"), (None, "NOT_MEASURED"),
    ],
)  # fmt: skip
def test_a_lower_bound_passes_no_limit_and_broken_facts_pass_none(fleet, tmp_path, least, outcome):
    def in_part(record: Data) -> None:
        reason = {"not_measured": {"thermal": "reset"}, "not_offered": {}}
        record["schema"] = 1
        for rank in record["ranks"]:
            rank.pop("absent", None)
        record["ranks"][0]["facts"] |= {"at_least": least} | (reason if least else {})

    fleet.change(f"under_load@{SICK}.json", in_part)
    _, rows = fleet.judged(tmp_path / "judged")
    assert rows["health.thermal", SICK]["outcome"] == outcome
    contract = json.loads((tmp_path / "judged" / "run.json").read_text())["contract"]
    limits = loader.load_with_contract(support.SHIPPED, contract)
    compared = rejudge.compare(tmp_path / "judged", limits)
    assert compared.wrong == []


def test_the_gpu_that_is_lost_is_named_before_what_the_driver_does_not_offer(fleet, tmp_path):
    def lost(record: Data) -> None:
        first, second = record["ranks"][:2]
        first["absent"] = lacks(Kind.NOT_OFFERED, "NotSupported")
        second["measurements"] = [m for m in second["measurements"] if m["metric"] != "thermal"]
        second["absent"] = lacks(Kind.FAULT, "GpuIsLost")

    fleet.change(f"under_load@{SICK}.json", lost)
    _, rows = fleet.judged(tmp_path / "judged")
    row = rows["health.thermal", SICK]
    assert (row["outcome"], row["cause"], row["cause_nodes"]) == ("NOT_MEASURED", "node", [SICK])
    assert "GpuIsLost; measured 3 values" in row["reason"]


def test_a_limit_that_is_not_set_is_no_reason_to_measure_again(fleet, tmp_path):
    lines = support.SHIPPED.read_text(encoding="utf-8").split("\n")
    row = next(k for k, line in enumerate(lines) if "expect: 660, fail_below: 605" in line)
    lines[row] = "      - {model: H200 SXM, calibrate: true}"
    limits = tmp_path / "thresholds.yaml"
    limits.write_text("\n".join(lines), encoding="utf-8")
    _, judged = support.judged(fleet.root, tmp_path / "judged", limits)
    rows = {(v["criterion"], v["subject"]): v for v in judged["criteria"]}
    row = rows["gemm.bf16", SICK]
    assert (row["outcome"], row["cause"]) == ("NOT_MEASURED", "limit")
    assert "reports judge" in row["next_step"]
    assert "--resume" not in row["next_step"]
    assert names(tmp_path / "judged" / "bad-nodes.txt") == []


# --- M8: lines of different starts never make one record


def lines(*numbers: int, attempt: int = 1, world_size: int = 4, job: str = "node-worker0") -> list:
    return [
        {
            **result_line(k, bf16([600.0] * 20), node="worker0", world_size=world_size),
            "attempt": attempt,
            "job": job,
        }
        for k in numbers
    ]


def made(*parts: list):
    return assemble(
        [line for part in parts for line in part], run_id="r", nonce=NONCE, workload="gemm",
        placement="worker0", attempt=1, job={},
    )  # fmt: skip


def test_lines_of_one_start_make_a_record():
    assert made(lines(0, 1, 2, 3)) is not None
    assert made(lines(0, 1, 2)) is None


def test_lines_of_two_attempts_make_none():
    assert made(lines(0, 1), lines(2, 3, attempt=2)) is None
    assert made(lines(0, 1, 2, 3), lines(2, 3, attempt=2)) is None, "a later start replaces it"
    assert made(lines(0, 1, attempt=1), lines(0, 1, 2, 3, attempt=2)) is not None


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (lines(2, 3, world_size=8), "different starts"),
        (lines(2, 3, job="node-worker0.2"), "different starts"),
        (lines(1, 2, 3), "two result lines of gemm by rank 1"),
    ],
)
def test_lines_that_cannot_belong_together_are_refused(other, what):
    with pytest.raises(RecordError, match=what):
        made(lines(0, 1), other)


def test_the_reasons_lie_in_a_file_beside_the_lists(fleet, tmp_path):
    (fleet.root / "records" / f"memory@{SICK}.json").write_text("{")
    fleet.judged(tmp_path / "judged")
    directory = RunDirectory(tmp_path / "judged")
    text = (directory.root / "node-reasons.txt").read_text(encoding="utf-8")
    assert text.startswith(f"{SICK} bad: unusable record: records/memory@{SICK}.json")
    assert json.loads(directory.verdict.read_text())["verdict"] == "INCOMPLETE"
