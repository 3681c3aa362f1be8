"""Faults of ten kinds put into the records of a made-up fleet, and who must be named for each.

plant() changes the records of a healthy fleet (tests.tools.fleet_run) on 10 single nodes and on one
rack, 26 nodes with the rack of 16 of a large fleet. wrong() says where a verdict on it names
somebody else, misses one, or says it at another place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fixtures.records.files import read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import read_verdict
from reports.facts import blame

Data = dict[str, Any]
Change = Callable[[Data], None]

RACK = 16
"""Nodes of the slow rack."""


@dataclass(frozen=True)
class Fault:
    """One fault: on which node, and the row that must say it."""

    kind: str
    node: str
    criterion: str
    """The criterion, or a prefix of several."""
    outcome: str
    part: str | int | None = None
    """GPU index or part of the node that the row must name; None where it is all of it."""


class Planter:
    """Puts faults into the run directory of a healthy fleet of at least 24 nodes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        run = read_json(root / "run.json")
        self.nodes: list[str] = run["population"]["nodes"]
        self.gpus: int = run["population"]["gpus_per_node"]
        self.faults: list[Fault] = []

    def plant(self, rack: int = RACK) -> list[Fault]:
        """Plant everything; `rack`: the number of nodes of the slow rack."""
        single = [node for k, node in enumerate(self.nodes) if k % 2 == 0]
        first = len(self.nodes) // 2
        in_rack = self.nodes[first : first + rack]
        chosen = [node for node in single if node not in in_rack]
        step = len(chosen) // 10
        (cycle, other, clock, dead, port, ecc, firmware, cut, twice, stranger) = (
            chosen[k * step] for k in range(10)
        )
        for node, gpu in ((cycle, 0), (other, self.gpus - 1)):
            self._rates("gemm", node, 0.85, {gpu}, per_clock=True)
            self._add("slow in work per cycle", node, "gemm.bf16_per_ghz", "FAIL", gpu)
        self._rates("gemm", clock, 0.85, {3}, per_clock=False)
        self._add("slow by its clock", clock, "gemm.bf16", "FAIL", 3)
        for node in in_rack:
            self._rates("memory", node, 0.88, set(range(self.gpus)), per_clock=False)
            self._add("rack slow", node, "memory.", "FAIL")
        self._value("infiniband", port, 0, {"state": "DOWN"}, "mlx5_3")
        self._add("NIC down", port, "infiniband.state", "FAIL", "mlx5_3")
        self._value("health", ecc, 5, {"ecc_uncorrected": 3})
        self._add("ECC", ecc, "health.ecc_uncorrected", "FAIL", 5)
        self._old_firmware(firmware)
        self._add("old firmware", firmware, "infiniband.firmware", "FAIL")
        path = self._path("hostcopy", cut)
        text = path.read_text(encoding="utf-8")
        path.write_text(text[: len(text) // 2], encoding="utf-8")
        self._add("truncated record", cut, "hostcopy.", "NOT_MEASURED")
        self._gpus_of(twice, self.nodes[self.nodes.index(twice) + 1])
        self._add("same GPUs twice", twice, "gemm.", "NOT_MEASURED")
        self._change("p2p", stranger, lambda data: _rename(data, "login7"))
        self._add("ranks of another host", stranger, "p2p.", "NOT_MEASURED")
        self._kill(dead)
        self._add("dead node", dead, "gemm.", "NOT_MEASURED")
        return self.faults

    def _add(
        self, kind: str, node: str, criterion: str, outcome: str, part: str | int | None = None
    ) -> None:
        self.faults.append(Fault(kind, node, criterion, outcome, part))

    def _path(self, workload: str, placement: str) -> Path:
        return RunDirectory(self.root).record(workload, placement)

    def _change(self, workload: str, placement: str, change: Change) -> None:
        path = self._path(workload, placement)
        data = read_json(path)
        change(data)
        path.write_text(json.dumps(data), encoding="utf-8")

    def _rates(
        self, workload: str, node: str, factor: float, gpus: set[int], *, per_clock: bool
    ) -> None:
        """Make all rates of some GPUs lower; those per clock only where the GPU does less in it."""

        def slower(data: Data) -> None:
            for rank in data["ranks"]:
                for m in rank["measurements"] if rank["local_rank"] in gpus else ():
                    if "samples" in m and (per_clock or not m["unit"].endswith("/GHz")):
                        m["samples"] = [factor * s for s in m["samples"]]

        self._change(workload, node, slower)

    def _value(
        self, workload: str, node: str, local_rank: int, values: Mapping[str, Any], part: str = ""
    ) -> None:
        def changed(data: Data) -> None:
            for m in data["ranks"][local_rank]["measurements"]:
                if m["metric"] in values and (not part or m["at"].get("part") == part):
                    m["value"] = values[m["metric"]]

        self._change(workload, node, changed)

    def _old_firmware(self, node: str) -> None:
        def older(data: Data) -> None:
            for rank in data["ranks"]:
                for m in rank["measurements"] if rank["node"] == node else ():
                    if m["metric"] == "firmware" and m["at"]["part"] == "mlx5_0":
                        m["value"] = "28.39.1002"

        self._change("drift", "all", older)

    def _gpus_of(self, node: str, other: str) -> None:
        """The GEMM of a node is one of the GPUs of its neighbour."""
        neighbours = {
            r["local_rank"]: r["device"]["uuid"]
            for r in read_json(self._path("gemm", other))["ranks"]
        }

        def taken(data: Data) -> None:
            for rank in data["ranks"]:
                rank["device"]["uuid"] = neighbours[rank["local_rank"]]

        self._change("gemm", node, taken)

    def _kill(self, node: str) -> None:
        """Leave what a run leaves whose node died before anything was measured on it."""
        missing = RunDirectory(self.root).missing
        lines = []
        for path in sorted((self.root / "records").glob("*.json")):
            workload, _, placement = path.stem.partition("@")
            if placement == "login" or node not in (*placement.split("--"), *_all(placement, node)):
                continue
            if placement == "all":
                self._change(workload, placement, lambda data: without_node(data, node))
                continue
            nonce = read_json(path)["nonce"]
            path.unlink()
            lines.append(
                {
                    "schema": 1,
                    "nonce": nonce,
                    "workload": workload,
                    "placement": placement,
                    "attempt": 1,
                    "kind": "node lost",
                    "reason": f"{node} is gone",
                    "node": node,
                    "cause": "node",
                    "cause_nodes": [node],
                    "next_step": "look at it",
                }
            )
        with missing.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


def _all(placement: str, node: str) -> tuple[str, ...]:
    return (node,) if placement == "all" else ()


def _rename(data: Data, name: str) -> None:
    for rank in data["ranks"]:
        rank["node"] = name


def without_node(data: Data, node: str) -> None:
    """Take a node out of a record of all nodes, as a job on the others leaves it."""
    world, each = data["world_size"], data["world_size"] // len(data["nodes"])
    ranks = [r for r in data["ranks"] if r["node"] != node]
    data["ranks"] = [{**rank, "rank": k} for k, rank in enumerate(ranks)]
    data["nodes"] = [n for n in data["nodes"] if n != node]
    data["world_size"] = len(ranks)
    if data["workload"] == "alltoall":
        # Of fewer nodes a smaller share of the data crosses the network: the rate is higher.
        fewer = world - each
        factor = ((fewer - 1) / (fewer - each)) / ((world - 1) / (world - each))
        for rank in data["ranks"]:
            for m in rank["measurements"]:
                if "samples" in m:
                    m["samples"] = [factor * s for s in m["samples"]]


def wrong(run: Path, faults: list[Fault]) -> Iterator[str]:
    """Yield what a judged run says wrongly of these faults; nothing where it says all of them."""
    directory = RunDirectory(run)
    verdict = read_verdict(directory)
    bad = {fault.node for fault in faults}
    listed = set((run / "bad-nodes.txt").read_text(encoding="utf-8").split())
    if listed != bad:
        yield f"bad-nodes.txt: accused {sorted(listed - bad)}, missed {sorted(bad - listed)}"
    rows = verdict["criteria"]
    for fault in faults:
        if not any(_says(row, fault) for row in rows):
            yield f"{fault.kind} on {fault.node}: no row {fault.criterion} says it"
    for row in rows:
        if row["outcome"] == "FAIL" and _named(row) not in bad:
            yield f"{row['criterion']} {row['subject']} accuses {_named(row)}: {row['reason']}"
        if stranger := set(row["cause_nodes"]) - bad:
            yield f"{row['criterion']} {row['subject']}: its cause is said to be in {stranger}"
    lists = blame.lists_of(directory, verdict, read_json(directory.run_json))
    sentence = blame.blame(verdict, lists).sentence
    if sentence not in (run / "report.html").read_text(encoding="utf-8"):
        yield f"report.html does not say: {sentence}"
    dead = [fault.node for fault in faults if fault.kind == "dead node"]
    if "1 node dead" not in sentence or dead[0] not in sentence.partition(";")[0]:
        yield f"the first box does not say who is dead: {sentence}"
    if f"{len(bad) - 1} nodes at fault" not in sentence:
        yield f"the first box does not say who is at fault: {sentence}"


def _says(row: Mapping[str, Any], fault: Fault) -> bool:
    if not row["criterion"].startswith(fault.criterion) or row["outcome"] != fault.outcome:
        return False
    if fault.outcome == "NOT_MEASURED":
        return row["subject"] == fault.node and fault.node in row["cause_nodes"]
    worst = row["worst"] or {}
    return _named(row) == fault.node and fault.part in (None, worst.get("gpu"), worst.get("part"))


def _named(row: Mapping[str, Any]) -> str:
    return str((row["worst"] or {}).get("node") or row["subject"])
