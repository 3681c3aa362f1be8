"""Fleets with defects of many kinds at once, and whether the node lists are exactly as planted.

    python -m tests.tools.mixed_fleet [--nodes 16 32 128 512] [--gpus 8]

Planted at the same time: dead and drained nodes, one that died in the middle, one with half of its
GPUs, one with GPUs of another model, a GPU that was replaced after it was measured, a wrong clock,
a sample that is not a number, a truncated record, two nodes with old firmware, and a slow uplink
that the search found. A row of throttled nodes and two bins of memory are within the limits: no
node is listed for them.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fixtures.localization.culprits import Culprit
from fixtures.records import located
from fixtures.records.files import read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import read_verdict
from tests.tools import bench_fleet, fleet_faults, fleet_run, rank_texts
from tests.tools.fleet_faults import Planter

Data = dict[str, Any]
SIZES = (16, 32, 128, 512)

EARLY = ("inventory", "environment", "health", "gemm", "infiniband")
"""Workloads of a node that died afterwards."""
OTHER_MODEL = "NVIDIA H100 80GB HBM3"
LATER_S = 1e6
"""Seconds from all measurements of a node to the inventory that found another GPU in it."""
PART = 8
"""The slow leaf, and the row of throttled nodes, are one of so many parts of the fleet."""


@dataclass
class Planted:
    """Which node is in which list, each with a word of its reason in node-reasons.txt."""

    bad: dict[str, str] = field(default_factory=dict)
    neither: dict[str, str] = field(default_factory=dict)


class Mixture(Planter):
    """Puts all defects into the run directory of a healthy fleet of at least 16 nodes."""

    def mix(self) -> Planted:
        """Plant everything; return what must be said of it."""
        part = max(2, len(self.nodes) // PART)
        row, places, leaf = self.nodes[:part], self.nodes[part:-part], self.nodes[-part:]
        needed = 10 + max(1, len(self.nodes) // 64)
        chosen = [places[k * len(places) // needed] for k in range(needed)]
        (dead, died, half, model, gpu, clock, nan, cut, *old), idle = chosen[:10], chosen[10:]
        lost = {dead: (), died: EARLY, half: EARLY[:1]} | dict.fromkeys(idle, ())
        self._uplink(leaf)
        for node in row:
            self._scale("gemm", node, lambda m: 1 if m["unit"].endswith("/GHz") else 0.96)
        bins = random.Random(len(self.nodes))
        for node in self.nodes:
            self._scale("memory", node, lambda m: bins.choice((1.0, 0.988)))
        self._change("inventory", half, self._half)
        self._model(model)
        self._change("inventory", gpu, self._replaced)
        self._of_node("host_clock", clock, {"offset": 5.4e6})
        self._change("gemm", nan, _not_a_number)
        self._truncate("hostcopy", cut)
        for node in old:
            self._old_firmware(node)
        self._take_out(lost)
        self._states(dict.fromkeys(idle, "idle+drain") | {dead: "down*"})
        bad = {
            dead: "is gone", died: "is gone", half: "inventory.gpus failed", nan: "not finite",
            model: "inventory.gpu_model failed", clock: "host.clock_offset failed",
            cut: "hostcopy",
        }  # fmt: skip
        bad |= dict.fromkeys(old, "infiniband.firmware failed")
        bad |= dict.fromkeys(idle, "scheduler.node_state failed: idle+drain")
        neither = dict.fromkeys(leaf, "the search accuses what it shares")
        return Planted(bad, {gpu: "was replaced", **neither})

    def _scale(self, workload: str, node: str, factor: Callable[[Data], float]) -> None:
        def scaled(data: Data) -> None:
            for rank in data["ranks"]:
                for m in rank["measurements"]:
                    if "samples" in m:
                        times = factor(m)
                        m["samples"] = [times * s for s in m["samples"]]

        self._change(workload, node, scaled)

    def _of_node(self, workload: str, node: str, values: Mapping[str, Any]) -> None:
        def changed(data: Data) -> None:
            for rank in data["ranks"]:
                for m in rank["measurements"] if rank["node"] == node else ():
                    m["value"] = values.get(m["metric"], m.get("value"))

        self._change(workload, "login" if workload == "slurm" else "all", changed)

    def _states(self, states: Mapping[str, str]) -> None:
        for node, state in states.items():
            self._of_node("slurm", node, {"node_state": state})

    def _half(self, data: Data) -> None:
        """The driver shows every second GPU."""
        left = self.gpus // 2
        data["ranks"], data["world_size"] = data["ranks"][:left], left
        for rank in data["ranks"]:
            for m in rank["measurements"]:
                if m["metric"] == "gpus":
                    m["value"] = left
            if gpus := rank["facts"].get("gpus"):
                rank["facts"]["gpus"] = gpus[:left]

    def _model(self, node: str) -> None:
        for path in self._records_of(node):
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace(self._product, OTHER_MODEL), encoding="utf-8")

        def others(data: Data) -> None:
            for rank in data["ranks"]:
                if rank["node"] == node:
                    rank["device"] |= {"name": OTHER_MODEL, "model": OTHER_MODEL}

        for path in self._records_of_all():
            self._change(path.stem.partition("@")[0], "all", others)

    def _replaced(self, data: Data) -> None:
        """The inventory was taken after all else, with another GPU in the place of one."""
        text = json.dumps(data["ranks"])
        old = data["ranks"][self.gpus - 1]["device"]["uuid"]
        data["ranks"] = json.loads(text.replace(old, rank_texts.gpu_uuid("new", 0)))
        for rank in data["ranks"]:
            rank["start"] += LATER_S
            rank["end"] += LATER_S

    def _truncate(self, workload: str, node: str) -> None:
        path = self._path(workload, node)
        text = path.read_text(encoding="utf-8")
        path.write_text(text[: len(text) // 2], encoding="utf-8")

    def _uplink(self, leaf: list[str]) -> None:
        self._scale("alltoall", "all", lambda m: 0.6)
        culprit = Culprit(
            kind="uplink", nodes=tuple(leaf), rails=frozenset({0}), place="leaf7"
        ).to_json()
        job = {"placement": "locate-1", "nodes": self.nodes, "every_path": True,
               "failed_rails": [0]}  # fmt: skip
        nonce = read_json(self.root / "run.json")["nonce"]
        located.write(
            RunDirectory(self.root), nonce, because=["alltoall.cluster.1GiB cluster"],
            culprits=[culprit], explained=True, rounds=[[job]], why="",
        )  # fmt: skip

    def _take_out(self, lost: Mapping[str, tuple[str, ...]]) -> None:
        """Leave what a run leaves whose nodes had gone; of some a few workloads were measured."""
        nonce = read_json(self.root / "run.json")["nonce"]
        lines = []
        for path in sorted((self.root / "records").glob("*.json")):
            workload, _, placement = path.stem.partition("@")
            if placement in ("all", "login"):
                continue
            gone = [n for n in placement.split("--") if n in lost and workload not in lost[n]]
            if gone:
                path.unlink()
                lines.append({
                    "schema": 1, "nonce": nonce, "workload": workload, "placement": placement,
                    "attempt": 1, "kind": "node lost", "reason": f"{gone[0]} is gone",
                    "node": gone[0], "cause": "node", "cause_nodes": gone[:1],
                    "next_step": "look at it",
                })  # fmt: skip
        with RunDirectory(self.root).missing.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        for path in self._records_of_all():
            data = read_json(path)
            for node in lost:
                fleet_faults.without_node(data, node)
            path.write_text(json.dumps(data), encoding="utf-8")

    @property
    def _product(self) -> str:
        name: str = read_json(self._path("inventory", self.nodes[0]))["ranks"][0]["device"]["name"]
        return name

    def _records_of(self, node: str) -> list[Path]:
        return sorted((self.root / "records").glob(f"*@{node}.json"))

    def _records_of_all(self) -> list[Path]:
        return sorted((self.root / "records").glob("*@all.json"))


def _not_a_number(data: Data) -> None:
    for m in data["ranks"][0]["measurements"]:
        if "samples" in m:
            m["samples"][0] = math.nan


def wrong(run: Path, planted: Planted) -> Iterator[str]:
    """Yield how the node lists of a judged run differ from what was planted."""
    nodes = set(read_verdict(RunDirectory(run))["scope"]["nodes"])
    expected = {
        "bad": set(planted.bad),
        "good": nodes - set(planted.bad) - set(planted.neither),
    }
    for name, wanted in expected.items():
        listed = set((run / f"{name}-nodes.txt").read_text(encoding="utf-8").split())
        if listed != wanted:
            yield (
                f"{name}-nodes.txt: {sorted(listed - wanted)} too many, "
                f"{sorted(wanted - listed)} missing"
            )
    reasons = (run / "node-reasons.txt").read_text(encoding="utf-8").splitlines()
    reason_of = {line.partition(" ")[0]: line for line in reasons}
    for kind, words in (("bad", planted.bad), ("neither", planted.neither)):
        for node, word in words.items():
            line = reason_of.get(node, "")
            if not line.startswith(f"{node} {kind}: ") or word not in line:
                yield f"{node} {kind}, expected {word!r}: {line!r}"


def made(folder: Path, nodes: int, gpus: int = 8) -> tuple[Path, Planted]:
    """Write a fleet with all defects; return its run directory and what was planted."""
    fleet_run.Fleet(folder / "source", nodes, gpus).write()
    return folder / "source", Mixture(folder / "source").mix()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.mixed_fleet", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--gpus", type=int, default=8)
    options = parser.parse_args()
    for nodes in options.nodes:
        with tempfile.TemporaryDirectory(prefix="mixed-fleet-") as temporary:
            source, planted = made(Path(temporary), nodes, options.gpus)
            judged = bench_fleet.replayed(source, Path(temporary) / "judged")
            said = list(wrong(Path(temporary) / "judged", planted))
            print(
                f"{nodes} x {options.gpus}: {len(planted.bad)} bad, {len(planted.neither)} "
                f"neither, {len(said)} differences, {judged.cpu_s:.0f} CPU s",
                *said,
                sep="\n  ",
            )


if __name__ == "__main__":
    main()
