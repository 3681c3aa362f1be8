"""A row is about its subject: who reports of a node or of the cluster is not accused for it."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.run_directory import RunDirectory
from fixtures.verdict.model import Verdict
from reports.exports import export
from reports.facts import causes
from reports.facts.groups import sentences
from reports.facts.rows import cells
from reports.pages import certificate, figures, page
from tests.selftests import support
from tests.selftests.support import DATA

pytestmark = pytest.mark.cpu

FAILED = {
    ("inventory.gpus", "worker0"), ("scheduler.node_state", "worker1"),
    ("scheduler.partition", "cluster"), ("allgather.node.errors", "worker0"),
}  # fmt: skip
NOT_OF_A_GPU = FAILED - {("allgather.node.errors", "worker0")}


def change(run: Path, record: str, metric: str, value: Any, node: str | None = None) -> str:
    """Give the metric another value on the last rank that reports it; return the rank's UUID."""
    with support.edited(run / "records" / record) as data:
        told = [
            (rank, m)
            for rank in data["ranks"]
            for m in rank["measurements"]
            if m["metric"] == metric and node in (None, rank["node"])
        ]
        rank, m = told[-1]
        m["value"] = value
    return str(rank["device"]["uuid"])


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run in which a GPU is missing, a node is drained, the partition is down, and a collective
    of one GPU is wrong; with the UUIDs of who reports the first and of who is at fault."""
    folder = tmp_path_factory.mktemp("subjects")
    source = folder / "source"
    shutil.copytree(DATA / "h200-2x2", source)
    change(source, "slurm@login.json", "node_state", "drained", "worker1")
    wrong = change(source, "allgather@worker0.json", "errors", 3)
    change(source, "slurm@login.json", "partition", "DOWN")
    healthy = change(source, "inventory@worker0.json", "gpus", 1)
    _, verdict = support.judged(source, folder / "run")
    return RunDirectory(folder / "run"), verdict, healthy, wrong


def test_no_row_of_a_node_or_of_the_cluster_names_the_gpu_that_reports(judged):
    directory, verdict, healthy, wrong = judged
    rows = {(v["criterion"], v["subject"]): v for v in verdict["criteria"]}
    assert {key for key, v in rows.items() if v["outcome"] == "FAIL"} == FAILED
    for key in NOT_OF_A_GPU:
        worst = rows[key]["worst"]
        assert (worst["gpu"], worst["uuid"]) == (None, None), key
        assert healthy not in json.dumps(rows[key]), key
        assert "gpu0" not in json.dumps(rows[key]), key
    assert rows["allgather.node.errors", "worker0"]["worst"]["uuid"] == wrong
    assert rows["scheduler.partition", "cluster"]["worst"]["node"] == "login"
    assert (directory.root / "bad-nodes.txt").read_text().split() == ["worker0", "worker1"]


def test_nor_does_what_is_read_of_the_run(judged):
    directory, verdict, healthy, _ = judged
    named: dict[str, str] = {}
    for row in csv.DictReader(io.StringIO(export.results(verdict))):
        key = row["criterion"], row["subject"]
        if key in FAILED:
            named[f"CSV {key[0]}"] = " ".join(v for k, v in row.items() if k.startswith("worst_"))
    for v in verdict["criteria"]:
        if (key := (v["criterion"], v["subject"])) in FAILED:
            named[f"certificate {key[0]}"] = certificate._not_accepted(v)["place"]
            shown = figures._failure(directory, causes.Failure([v]), None)
            named[f"figures {key[0]}"] = f"{shown['where']} {shown['uuid']}"
            named[f"table {key[0]}"] = " ".join(cells(Verdict.from_json(v), "failed"))
    assert len(named) == 4 * len(FAILED)
    for where, text in named.items():
        assert ("GPU-" in text) is ("allgather" in where), (where, text)
        assert re.search(r"\bgpu\d", text) is None or "allgather" in where, (where, text)
        assert healthy not in text
    for text in (page.page(directory, verdict), certificate.page(directory, verdict)):
        for key, subject in NOT_OF_A_GPU:
            assert f"{subject} gpu0 {key}" not in text


def test_drained_nodes_have_no_slot_in_common():
    nodes = [f"n{k:02}" for k in range(16)]
    for worst, said in (
        ({"node": "x", "gpu": None, "uuid": None, "part": "the node", "value": "drained"}, False),
        ({"node": "x", "gpu": 0, "uuid": "GPU-0", "value": 1}, True),
    ):
        rows = [
            {"criterion": "scheduler.node_state", "subject": node, "worst": worst,
             "outcome": "FAIL" if k in (0, 5, 9, 14) else "PASS"}
            for k, node in enumerate(nodes)
        ]  # fmt: skip
        text = " ".join(
            sentences({"scope": {"nodes": nodes, "gpus_per_node": 8}, "criteria": rows})
        )
        assert ("GPU 0 is the only one that fails" in text) is said
