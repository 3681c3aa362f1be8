"""A run directory of any size, made from recorded runs of four H200: for benches and self-tests.

    python -m tests.tools.fleet_run OUT [--nodes 1024] [--gpus 8]

Every number was measured once, on other GPUs: each device gets one of a few versions of the
recorded samples, scaled by what like devices differ by. Nothing of it says anything about any
cluster; it is as large, and as deep, as the records of a real one.
"""

from __future__ import annotations

import argparse
import json
import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fixtures.cluster.population import Population
from fixtures.paths import CHECKOUT
from fixtures.plan.items import ALL, facts_of, planned_list
from fixtures.thresholds import loader
from fixtures.thresholds.contract import Contract
from fixtures.thresholds.loader import Criterion, Thresholds

DATA = Path(__file__).parents[1] / "selftests" / "data"
NODE, PAIR, CPU = DATA / "h200-1x4", DATA / "h200-2x2", DATA / "sandbox-2x2-cpu"

LIMITS = CHECKOUT / "thresholds.yaml"

VERSIONS = 12
"""Versions of a recorded rank that the devices share."""
SIGMA = 0.003
"""Relative spread of like devices."""

IN_A_NODE = (
    "allgather", "allreduce", "allreduce_ring", "alltoall", "broadcast", "environment", "gemm",
    "health", "hostcopy", "identical", "inventory", "memory", "nvlink", "p2p", "reducescatter",
    "sendrecv", "under_load",
)  # fmt: skip
OVER_ALL = {
    "allgather": 0.97, "allreduce": 0.97, "allreduce_ring": 1.0, "alltoall": 0.128,
    "broadcast": 0.9, "reducescatter": 0.99, "sendrecv": 0.13,
}  # fmt: skip
"""Collectives over all nodes, made of those in a node: the factor brings eight NVLinks to eight
NICs of 400 Gbit/s."""

Change = Callable[[dict[str, Any]], None]


class Fleet:
    """The run directory that is being written."""

    def __init__(self, root: Path, nodes: int, gpus: int) -> None:
        self.root = root
        self.nodes = [f"gpu{k:04d}" for k in range(1, nodes + 1)]
        self.gpus = gpus
        self._random = random.Random(0)
        self.run = json.loads((PAIR / "run.json").read_text(encoding="utf-8"))
        self._device = json.loads((NODE / "records" / "gemm@node0.json").read_text())["ranks"][0]

    def write(self) -> None:
        (self.root / "records").mkdir(parents=True)
        (self.root / "jobs").mkdir()
        for workload in IN_A_NODE:
            base = _read(NODE, f"{workload}@node0")
            if workload == "inventory":
                base = _read(PAIR, f"{workload}@worker0")  # of a run with an order
            if workload == "health":  # recorded before drivers were asked for their time
                for rank in base["ranks"]:
                    rank["measurements"].append(
                        {"metric": "answer_time", "unit": "us", "samples": [35.0] * 20}
                    )
            ranks = [base["ranks"][k % len(base["ranks"])] for k in range(self.gpus)]
            ranks = [{**rank, "local_rank": k} for k, rank in enumerate(ranks)]
            versions = self._versions(ranks, self._in_a_node)
            for node in self.nodes:
                self._record(workload, node, [node], base, versions)
        # A ring sends most of it to other nodes, an all-to-all a part that grows with their number.
        share = (len(self.nodes) * self.gpus - 1) / ((len(self.nodes) - 1) * self.gpus)
        for workload, factor in OVER_ALL.items():
            factor *= share if workload == "alltoall" else 1
            base = _read(NODE, f"{workload}@node0")
            versions = self._versions(base["ranks"], lambda r, f=factor: self._over_all(r, f))
            self._record(workload, "all", self.nodes, base, versions)
        for workload in ("connectivity", "drift", "filesystem", "identical"):
            base = _read(PAIR, f"{workload}@all")
            versions = self._versions(base["ranks"][:1], self._plain)
            self._record(
                workload, "all", self.nodes, base, versions, of_nodes=workload != "identical"
            )
        self._rails()
        self._nics()
        self._small()
        self._login()
        self._trained()
        self._run_json()

    # --- records

    def _record(
        self,
        workload: str,
        placement: str,
        nodes: list[str],
        base: dict[str, Any],
        versions: list[list[str]],
        *,
        of_nodes: bool = False,
    ) -> None:
        """Ranks as text that is made once a version; `of_nodes`: only first ranks measure."""
        head = {
            "run_id": self.run["id"], "nonce": self.run["nonce"], "workload": workload,
            "placement": placement, "attempt": 1, "nodes": nodes,
            "world_size": len(nodes) * self.gpus, "schema": 1,
            "job": {**base["job"], "name": f"node-{placement}", "id": str(4000 + len(nodes))},
            "provenance": base["provenance"],
        }  # fmt: skip
        text = json.dumps(head, separators=(",", ":")).removesuffix("}") + ',"ranks":['
        path = self.root / "records" / f"{workload}@{placement}.json"
        with path.open("w", encoding="utf-8") as file:
            file.write(text)
            for i, node in enumerate(nodes):
                for k in range(self.gpus):
                    # The recorded ranks in turn: what a node's first rank alone measures stays so.
                    own = versions[k % len(versions)]
                    if of_nodes and k:
                        own = [self._silent]
                    rank = self._random.choice(own)
                    rank = rank.replace("@RANK@", str(i * self.gpus + k)).replace("@K@", str(k))
                    rank = rank.replace("@NODE@", node).replace("@UUID@", gpu_uuid(node, k))
                    file.write(("," if i or k else "") + rank)
            file.write("]}\n")

    @property
    def _silent(self) -> str:
        return self._text({**self._device, "measurements": [], "facts": {}}, 0)

    def _versions(self, ranks: list[dict[str, Any]], change: Change) -> list[list[str]]:
        """For each recorded rank some texts, the samples of each scaled by a factor of its own."""
        found = []
        for k, rank in enumerate(ranks):
            changed = json.loads(json.dumps(rank))
            changed["facts"].pop("telemetry", None)
            change(changed)
            texts = []
            for _ in range(VERSIONS):
                factor = self._random.gauss(1, SIGMA)
                one = json.loads(json.dumps(changed))
                for m in one["measurements"]:
                    if len(m.get("samples", [])) > 1:  # one alone is a size, no rate
                        m["samples"] = [float(f"{s * factor:.6g}") for s in m["samples"]]
                texts.append(self._text(one, k))
            found.append(texts)
        return found

    def _text(self, rank: dict[str, Any], k: int) -> str:
        device = {**self._device["device"], "index": "@K@", "uuid": "@UUID@", "serial": "1650@K@"}
        own = rank["device"].get("uuid") or "no uuid"
        rank = {**rank, "rank": "@RANK@", "local_rank": "@K@", "node": "@NODE@", "device": device}
        text = json.dumps(rank, separators=(",", ":")).replace(own, "@UUID@")
        for name in ("RANK", "K"):
            text = text.replace(f'"@{name}@"', f"@{name}@")
        return text

    def _plain(self, rank: dict[str, Any]) -> None:
        rank["facts"] = {}
        facts = [m for m in rank["measurements"] if m["metric"] == "fact"]
        if facts:
            for k in range(8):
                at = {"fact": "firmware", "part": f"mlx5_{k}"}
                firmware = {**facts[0], "metric": "firmware", "unit": "devices", "at": at}
                rank["measurements"].append({**firmware, "value": "28.42.1000"})

    def _in_a_node(self, rank: dict[str, Any]) -> None:
        """What depends on the number of GPUs in a node."""
        links: dict[tuple[str, str], dict[str, Any]] = {}
        for m in rank["measurements"]:
            _conditions(m, {"gpus_per_domain": self.gpus})
            if m["metric"] == "gpus":
                m["value"] = self.gpus
                nics = {**m, "metric": "nics", "unit": "NICs", "value": 8}
                rank["measurements"] = [*rank["measurements"], nics]
            if "to" in m.get("at", {}):
                links.setdefault((m["metric"], m["unit"]), m)
        if links:
            others = [m for m in rank["measurements"] if "to" not in m.get("at", {})]
            for m in links.values():
                arrow = "->" if m["metric"] == "write" else "<->"
                for to in (k for k in range(self.gpus) if k != rank["local_rank"]):
                    at = {"to": to, "part": f"gpu@K@{arrow}gpu{to}"}
                    others.append({**m, "at": at})
            rank["measurements"] = others

    def _over_all(self, rank: dict[str, Any], factor: float) -> None:
        # Between nodes only rates are measured.
        rank["measurements"] = [m for m in rank["measurements"] if m["unit"] != "us"]
        for m in rank["measurements"]:
            _conditions(
                m, {"transport": "NET/IB", "domains": len(self.nodes), "gpus_per_domain": self.gpus}
            )
            if m["metric"] == "transport":
                m["value"] = "NET/IB"
            if m["unit"] == "GB/s":
                m["samples"] = [s * factor for s in m["samples"]]
        rank["facts"].pop("table", None)
        like = {"conditions": rank["measurements"][-1].get("conditions", {})}
        rank["measurements"] += [
            {**like, "metric": "gdr", "unit": "state", "value": "on"},
            {**like, "metric": "nics", "unit": "NICs", "value": 8},
        ]
        if not any(m["metric"] == "errors" for m in rank["measurements"]):
            none = {**like, "metric": "errors", "unit": "elements", "value": 0}
            rank["measurements"].append(none)

    def _rails(self) -> None:
        base = _read(PAIR, "rails@all")

        def change(rank: dict[str, Any]) -> None:
            (found,) = [m for m in rank["measurements"] if m["metric"] == "busbw"][:1]
            rest = [m for m in rank["measurements"] if m["metric"] != "busbw"]
            middle = sorted(found["samples"])[len(found["samples"]) // 2]
            found["samples"] = [48.0 * (1 + 0.01 * (s / middle - 1)) for s in found["samples"]]
            sizes = (2**24, 2**28, 2**30)
            rank["measurements"] = [*({**found, "at": {"size": s}} for s in sizes), *rest]
            for m in rank["measurements"]:
                _conditions(
                    m, {"transport": "NET/IB", "domains": len(self.nodes), "gpus_per_domain": 1}
                )
            rank["facts"].pop("table", None)

        self._record("rails", "all", self.nodes, base, self._versions(base["ranks"], change))

    def _nics(self) -> None:
        def eight(rank: dict[str, Any]) -> None:
            first = [m for m in rank["measurements"] if m["at"]["part"] == "mlx5_0"]
            rank["measurements"] = [
                {**m, "at": {**m["at"], "part": f"mlx5_{k}"}} for k in range(8) for m in first
            ]
            gpudirect = [m for m in rank["measurements"] if m["metric"] == "gpudirect"]
            rank["measurements"] += gpudirect
            rank["facts"] = {}

        base = _read(CPU, "infiniband@worker0")
        base["ranks"][0]["measurements"] = [
            {**m, "at": m.get("at") or {"part": "mlx5_0"}} for m in base["ranks"][0]["measurements"]
        ]
        versions = self._versions(base["ranks"][:1], eight)
        for node in self.nodes:
            self._record("infiniband", node, [node], base, versions, of_nodes=True)
        base = _read(CPU, "ib_counters@all")
        versions = self._versions(base["ranks"][:1], eight)
        self._record("ib_counters", "all", self.nodes, base, versions, of_nodes=True)

    def _small(self) -> None:
        """Jobs that ask for a part of a node: two ranks a node, whatever GPUs it has."""
        gpus, self.gpus = self.gpus, 2
        base = _read(PAIR, "isolation@worker0")
        versions = self._versions(base["ranks"], self._plain)
        for node in self.nodes:
            self._record("isolation", node, [node], base, versions)
        pairs = list(zip(self.nodes[::2], self.nodes[1::2], strict=False))
        for workload in ("placement", "memory_limit"):
            base = _read(PAIR, f"{workload}@worker0--worker1")
            self.gpus = base["world_size"] // 2
            versions = self._versions(base["ranks"], self._plain)
            for pair in pairs:
                self._record(workload, "--".join(pair), list(pair), base, versions)
        self.gpus = gpus
        base = _read(NODE, "allreduce@node0")
        versions = self._versions(base["ranks"], lambda rank: self._over_all(rank, 1.03))
        for pair in pairs if len(self.nodes) > 2 else ():
            self._record("allreduce", "--".join(pair), list(pair), base, versions)

    def _login(self) -> None:
        base = _read(PAIR, "slurm@login")
        whole = next(
            r for r in base["ranks"] if any(m["metric"] == "nodes" for m in r["measurements"])
        )
        of_node = next(
            r for r in base["ranks"] if r["node"] in ("worker0", "worker1") and r is not whole
        )
        ranks = []
        for k, (node, like) in enumerate(
            [(whole["node"], whole), *((n, of_node) for n in self.nodes)]
        ):
            rank = json.loads(json.dumps({**like, "rank": k, "node": node}))
            for m in rank["measurements"]:
                if m["metric"] == "nodes":
                    m["value"] = len(self.nodes)
                if m["metric"] == "gres":
                    m["value"] = self.gpus
            ranks.append(rank)
        record = {
            **base, "run_id": self.run["id"], "nonce": self.run["nonce"], "nodes": self.nodes,
            "world_size": len(ranks), "ranks": ranks,
        }  # fmt: skip
        (self.root / "records" / "slurm@login.json").write_text(json.dumps(record))

    def _trained(self) -> None:
        """Training is recorded on no such GPUs yet: figures that hold its limits by a little."""
        limits, people = self._contract()
        wanted: dict[tuple[str, str], dict[str, Criterion]] = {}
        for item in planned_list(limits, people):
            if item.workload.startswith("training") and not item.not_applicable:
                kind = (item.workload, ALL if item.placement == ALL else "")
                wanted.setdefault(kind, {})[item.criterion] = limits.criteria[item.criterion]
        base = _read(NODE, "gemm@node0")
        for (workload, placement), criteria in wanted.items():
            nodes = people.nodes if placement else people.nodes[:1]
            measured = [self._holding(c, nodes, limits, people) for c in criteria.values()]
            rank = {**base["ranks"][0], "measurements": measured, "facts": {}}
            versions = self._versions([rank], lambda rank: None)
            for place, of_place in (
                [(placement, self.nodes)] if placement else [(n, [n]) for n in self.nodes]
            ):
                self._record(workload, place, of_place, base, versions)

    def _holding(
        self, criterion: Criterion, nodes: Sequence[str], limits: Thresholds, people: Population
    ) -> dict[str, Any]:
        conditions = {"dtype": "bf16", "flops_per_token": 4.8e10}
        facts = {**facts_of(criterion, tuple(nodes), people), **self._device["device"]}
        facts = {**facts, **conditions, "model": people.gpu_model}
        limit = criterion.limit_for(facts)
        resolved = limit.resolve(criterion.bound(facts), limits.cluster)
        value: Any = resolved.value
        if resolved.kind in ("below", "above"):
            value = value * (1.06 if resolved.kind == "below" else 0.5)
        made = {"metric": criterion.metric, "unit": criterion.unit, "at": dict(criterion.at)}
        if criterion.statistic == "value":
            return {**made, "value": value}
        # What is recorded and not judged has no limit that it could hold.
        samples = [value or 1000.0] * 10
        checks = {
            name: (low + high) / 2 if low is not None and high is not None else 1.1 * (low or 0)
            for name, (low, high) in criterion.valid_for(limit).items()
        }
        return {**made, "samples": samples, "conditions": conditions, "checks": checks}

    def _contract(self) -> tuple[Thresholds, Population]:
        run = self._about()
        limits = loader.load(LIMITS)
        people = Population.from_json(run["population"])
        return replace(limits, cluster=Contract(**run["contract"])), people

    def _about(self) -> dict[str, Any]:
        contract = {
            **self.run["contract"], "nodes": len(self.nodes), "gpus_per_node": self.gpus,
            "gpu_model": "H200 SXM", "nics_per_node": 8, "nic_gbps": 400.0,
        }  # fmt: skip
        population = {
            **self.run["population"], "origin": "cluster", "nodes": self.nodes,
            "gpus_per_node": self.gpus, "nics_per_node": 8, "nic_gbps": 400.0, "partition": "gpu",
        }  # fmt: skip
        return {"contract": contract, "population": population}

    def _run_json(self) -> None:
        data = {
            **self.run, **self._about(), "plan": [], "origin": "cluster",
            "session": {"expected": [], "missing_from": 0}, "durations": {},
        }  # fmt: skip
        data["scope"] = [list(i.key) for i in planned_list(*self._contract())]
        data["planned"] = len(data["scope"])
        (self.root / "run.json").write_text(json.dumps(data))


def gpu_uuid(node: str, k: int) -> str:
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}.{k}')}"


def _conditions(m: dict[str, Any], changed: dict[str, Any]) -> None:
    """Change the conditions that a measurement has; it gets none that it had not."""
    if given := m.get("conditions"):
        m["conditions"] = {**given, **{k: v for k, v in changed.items() if k in given}}


def _read(run: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "records" / f"{name}.json").read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.fleet_run")
    parser.add_argument("out", type=Path)
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--gpus", type=int, default=8)
    options = parser.parse_args()
    Fleet(options.out, options.nodes, options.gpus).write()


if __name__ == "__main__":
    main()
