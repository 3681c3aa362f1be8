"""Jobs that failed as published failures do, from their evidence to the node that is accused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fixtures.jobs.diagnosis import diagnose
from fixtures.jobs.error_texts import kind_of_text, part_of_text
from fixtures.jobs.failure import Failure
from fixtures.records.absence import JobKind
from fixtures.verdict.absence import of_missing

pytestmark = pytest.mark.cpu

CASES = yaml.safe_load(Path(__file__).with_name("failure_cases.yaml").read_text())
TEXTS = yaml.safe_load(Path(__file__).with_name("error_texts.yaml").read_text())
RIGHT_TEXTS = 245
"""So many texts of the table must come out right in all that is expected of them."""


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_a_published_failure_is_told_as_what_it_is(case: dict[str, Any]):
    failure = diagnose(
        case["lines"], state=case["state"], exit_code=case["exit_code"], log_tail=case["log"],
        job="42", world_size=case["world_size"], nodes=case["nodes"],
    )  # fmt: skip
    expected = case["expected"]
    line = {"kind": failure.kind.value, "node": failure.node, "placement": case["placement"]}
    cause, accused = of_missing(line, case["nodes"])
    assert {
        "kind": failure.kind.value, "node": failure.node, "cause": cause.value, "accused": accused,
    } == {name: expected[name] for name in ("kind", "node", "cause", "accused")}  # fmt: skip
    assert expected["shown"] in failure.shown
    assert expected["shown"] in failure.reason
    assert expected.get("part", failure.part) == failure.part
    assert expected.get("next", "") in failure.next_step


def of_text(row: dict[str, Any]) -> Failure:
    """What is made of one row of the table of texts."""
    nodes = [f"n0{k + 1}" for k in range(row.get("nodes", 2))]
    teller = len(nodes) - 1
    wrote = row.get("wrote", range(len(nodes)) if "error" in row else ())
    lines: list[dict[str, Any]] = [
        {"event": "started", "rank": k, "node": nodes[k], "workload": "allreduce", "time": 100.0}
        for k in wrote
    ]
    if "error" in row:
        lines.append(
            {"event": "error", "rank": teller, "node": nodes[teller], "workload": "allreduce",
             "time": 110.0, "kind": "raised", "error": row["error"], "stack": ""}
        )  # fmt: skip
    return diagnose(
        lines, state=row.get("state", "FAILED"), exit_code="1:0", log_tail=row.get("log", ""),
        job="42", world_size=len(nodes), nodes=nodes, directory=Path("/shared/run/jobs/allreduce"),
    )  # fmt: skip


def wrong(row: dict[str, Any]) -> list[str]:
    """What of a row does not come out as it should."""
    failure, found = of_text(row), []
    kinds = row["kind"] if isinstance(row["kind"], list) else [row["kind"]]
    if failure.kind.value not in kinds:
        found.append(f"kind {failure.kind.value!r} instead of {kinds}")
    if row.get("node") and failure.node != row["node"]:
        found.append(f"node {failure.node} instead of {row['node']}")
    if row.get("part") and row["part"] not in failure.part:
        found.append(f"part {failure.part!r} instead of {row['part']!r}")
    if row["shown"] not in failure.shown:
        found.append(f"shown {failure.shown!r} instead of {row['shown']!r}")
    return found


def test_most_error_texts_have_their_kind_node_part_and_line():
    assert len(TEXTS) >= 150
    failed = {row["shown"]: found for row in TEXTS if (found := wrong(row))}
    assert len(TEXTS) - len(failed) >= RIGHT_TEXTS, failed


def test_no_error_text_accuses_a_wrong_node():
    failed = {row["shown"]: nodes for row in TEXTS if (nodes := wrongly_accused(row))}
    assert not failed


def wrongly_accused(row: dict[str, Any]) -> set[str]:
    """Return the nodes that are accused of a text and not named by it."""
    failure = of_text(row)
    nodes = [f"n0{k + 1}" for k in range(row.get("nodes", 2))]
    placement = nodes[0] if len(nodes) == 1 else "all"
    line = {"kind": failure.kind.value, "node": failure.node, "placement": placement}
    if failure.cause is not None:
        line |= {"cause": failure.cause.value, "cause_nodes": list(failure.accused)}
    return set(of_missing(line, nodes)[1]) - {row.get("node")}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 119, pid=1234, name=python, Timeout after 6s of waiting for "
         "RPC response from GPU0 GSP!", "0000:3b:00"),
        ("[123.4] NVRM: Xid (PCI:000a:01:00): 145, RLW_REMAP Nonfatal XC0 Link 17", "000a:01:00"),
        ("NVRM: Xid (0000:18:00): 94, Contained: SM (0x1). RST: No, D-RST: No", "0000:18:00"),
        ("Xid 79 on GPU 3", "GPU 3"),
    ],
)  # fmt: skip
def test_an_xid_is_an_error_of_its_gpu_in_every_form(text: str, part: str):
    kind = kind_of_text(text)
    assert kind is JobKind.GPU_ERROR
    assert part_of_text(text, kind) == part


@pytest.mark.parametrize(
    "text", ["nfs: RPC: xid 0x12345678 retransmitted", "rpc xid 12345678 timed out"]
)
def test_the_xid_of_another_protocol_is_none(text: str):
    assert kind_of_text(text) is None
