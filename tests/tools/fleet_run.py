"""A run directory of any size, made from recorded runs of four H200: for benches and self-tests.

    python -m tests.tools.fleet_run OUT [--nodes 1024] [--gpus 8] [--platform hgx]

Every number was measured once, on other GPUs: each device gets one of a few versions of the
recorded samples, scaled by the spread of equal devices; what all nodes reach together is what
NCCL's model says of such a platform (fixtures/thresholds/nccl_model.py). The values describe no
real cluster; the records are as large and as detailed as real ones.
"""

# Length: one writer of one run directory; its parts share the recorded ranks that they vary.

from __future__ import annotations

import argparse
import datetime
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fixtures import hardware
from fixtures.cluster.population import Population
from fixtures.paths import CHECKOUT
from fixtures.plan.items import ALL, facts_of, planned_list
from fixtures.records.fields import Scalar
from fixtures.thresholds import loader, nccl_model
from fixtures.thresholds.contract import Contract
from fixtures.thresholds.loader import Criterion, Thresholds
from fixtures.thresholds.site_facts import facts_of_site
from tests.tools.fleet_models import RECORDED_MODEL, as_model, chip
from tests.tools.platforms import PLATFORMS, Platform
from tests.tools.rank_texts import filled, text_of

DATA = Path(__file__).parents[1] / "selftests" / "data"
NODE, PAIR, CPU = DATA / "h200-1x4", DATA / "h200-2x2", DATA / "sandbox-2x2-cpu"

LIMITS = CHECKOUT / "thresholds.yaml"

VERSIONS = 12
"""Number of versions of a recorded rank that the devices share."""
SIGMA = 0.003
"""Relative standard deviation between equal devices."""

NODE_WORKLOADS = (
    "allgather", "allreduce", "allreduce_ring", "alltoall", "broadcast", "environment", "gemm",
    "health", "hostcopy", "identical", "inventory", "memory", "nvlink", "p2p", "reducescatter",
    "sendrecv", "under_load",
)  # fmt: skip
FLOPS_PER_TOKEN = 9025499136.0
"""Of the shape that every GPU trains alone, and the GPUs of a node together."""
OVER_ALL_NODES = {
    "allgather": "all_gather", "allreduce": "all_reduce", "allreduce_ring": "all_reduce",
    "alltoall": "all_to_all", "broadcast": "broadcast", "reducescatter": "reduce_scatter",
    "sendrecv": "send_recv",
}  # fmt: skip
"""Collective over all nodes -> the operation of NCCL's model."""
TREE_NODES = 16
"""From so many nodes on NCCL takes a tree for a large all-reduce."""


OF_MODEL = (
    "inventory", "memory", "nvlink", "gemm", "hostcopy", "p2p", "allreduce", "allreduce_ring",
    "allgather", "reducescatter", "alltoall", "broadcast", "sendrecv",
)  # fmt: skip
"""Workloads whose figures another GPU has of its own, and limits as shipped."""
MADE_UP = (
    "binding", "memory_whole", "p2p_together", "host",
    "host_errors", "host_speed", "host_clock", "tenant",
    "wiring", "wiring_rails",
    "training_single", "training_ddp", "training_fsdp", "training_resume", "training_finetune",
)  # fmt: skip
"""Workloads that were recorded on no four H200."""

ADDED = ("health", "nvlink", "under_load")
"""Workloads that measure more today than when they were recorded."""

Change = Callable[[dict[str, Any]], None]


class Fleet:
    """A generated run directory; write() makes its files."""

    def __init__(self, root: Path, nodes: int, gpus: int, platform: Platform | None = None) -> None:
        self.root = root
        self.platform = platform or Platform(gpus=gpus)
        self.nodes = [f"gpu{k:04d}" for k in range(1, nodes + 1)]
        self.gpus = gpus
        self._random = random.Random(0)
        self._written = 0
        self.run = json.loads((PAIR / "run.json").read_text(encoding="utf-8"))
        self._began = datetime.datetime.fromisoformat(self.run["created"]).timestamp() + 5
        self._device = json.loads((NODE / "records" / "gemm@node0.json").read_text())["ranks"][0]
        self._device["device"] |= chip(self.platform)

    def write(self) -> None:
        (self.root / "records").mkdir(parents=True)
        (self.root / "jobs").mkdir()
        for workload in NODE_WORKLOADS:
            base = _read(NODE, f"{workload}@node0")
            if workload == "inventory":
                base = _read(PAIR, f"{workload}@worker0")  # of a run with a contract
            ranks = [base["ranks"][k % len(base["ranks"])] for k in range(self.gpus)]
            ranks = [{**rank, "local_rank": k} for k, rank in enumerate(ranks)]
            if workload == "inventory":
                ranks = [self._with_all_gpus(rank) for rank in ranks]
            if workload in ADDED:
                ranks = [self._with_all_metrics(rank, workload) for rank in ranks]
            if workload in OF_MODEL and self.platform.gpu_model != RECORDED_MODEL:
                ranks = [as_model(rank, workload, self._of_model) for rank in ranks]
            versions = self._versions(ranks, self._to_node)
            for node in self.nodes:
                self._record(workload, node, [node], base, versions)
        for workload in OVER_ALL_NODES:
            base = _read(NODE, f"{workload}@node0")
            versions = self._versions(
                base["ranks"], lambda rank, w=workload: self._to_nodes(rank, w, len(self.nodes))
            )
            self._record(workload, "all", self.nodes, base, versions)
        for workload in ("connectivity", "drift", "filesystem", "identical"):
            base = _read(PAIR, f"{workload}@all")
            versions = self._versions(base["ranks"][:1], self._without_facts)
            self._record(
                workload, "all", self.nodes, base, versions, of_nodes=workload != "identical"
            )
        self._rails()
        self._nics()
        self._partial_node_jobs()
        self._login()
        self._made_up()
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
        """Write a record from JSON texts; `of_nodes`: only the first rank of each node measures."""
        head = {
            "run_id": self.run["id"], "nonce": self.run["nonce"], "workload": workload,
            "placement": placement, "attempt": 1, "nodes": nodes,
            "world_size": len(nodes) * self.gpus, "schema": 1,
            "job": {**base["job"], "name": f"node-{placement}", "id": str(4000 + len(nodes)),
                    "submitted": self._began - 3},
            "provenance": base["provenance"],
        }  # fmt: skip
        text = json.dumps(head, separators=(",", ":")).removesuffix("}") + ',"ranks":['
        path = self.root / "records" / f"{workload}@{placement}.json"
        with path.open("w", encoding="utf-8") as file:
            file.write(text)
            for i, node in enumerate(nodes):
                for k in range(self.gpus):
                    # In the order of the recorded ranks: rank 0 keeps what it alone measures.
                    choices = versions[k % len(versions)]
                    if of_nodes and k:
                        choices = [self._rank_without_measurements]
                    rank = self._random.choice(choices)
                    self._written += 1
                    rank = filled(
                        rank, rank=i * self.gpus + k, k=k, node=node,
                        number=self.nodes.index(node), written=self._written,
                    )  # fmt: skip
                    file.write(("," if i or k else "") + rank)
            file.write("]}\n")

    @property
    def _rank_without_measurements(self) -> str:
        return self._text({**self._device, "measurements": [], "facts": {}})

    def _versions(self, ranks: list[dict[str, Any]], change: Change) -> list[list[str]]:
        """Return JSON texts of each recorded rank, with samples scaled by a random factor."""
        texts_of_ranks = []
        for rank in ranks:
            changed = json.loads(json.dumps(rank))
            changed["facts"].pop("telemetry", None)
            change(changed)
            texts = []
            for _ in range(VERSIONS):
                factor = self._random.gauss(1, SIGMA)
                copy = json.loads(json.dumps(changed))
                for m in copy["measurements"]:
                    if len(m.get("samples", [])) > 1:  # a single sample is a size, not a rate
                        m["samples"] = [float(f"{s * factor:.6g}") for s in m["samples"]]
                texts.append(self._text(copy))
            texts_of_ranks.append(texts)
        return texts_of_ranks

    def _text(self, rank: dict[str, Any]) -> str:
        return text_of(rank, {**self._device["device"], **self._product()}, self._began)

    def _product(self) -> dict[str, str]:
        """Return what NVML calls the GPUs."""
        names = self._device["device"]
        return {name: self.platform.product for name in ("name", "model") if name in names}

    def _without_facts(self, rank: dict[str, Any]) -> None:
        rank["facts"] = {}
        if any(m["metric"] == "write.alone" for m in rank["measurements"]):
            stalls = {"metric": "stalls", "unit": "%", "value": 5.0, "checks": {"rounds": 10.0}}
            rank["measurements"].append({**stalls, "at": {"part": "write.alone"}})
        facts = [m for m in rank["measurements"] if m["metric"] == "fact"]
        if facts:
            for k in range(2):
                at = {"fact": f"memory of NUMA node{k}"}
                memory = {**facts[0], "metric": "numa_memory", "unit": "MiB", "at": at}
                rank["measurements"].append({**memory, "value": 1031800})
            for k in range(self.platform.nics):
                at = {"fact": "firmware", "part": f"mlx5_{k}"}
                firmware = {**facts[0], "metric": "firmware", "unit": "devices", "at": at}
                rank["measurements"].append({**firmware, "value": "28.42.1000"})

    def _to_node(self, rank: dict[str, Any]) -> None:
        """Adapt a recorded rank to the number of GPUs and NICs in a node."""
        links: dict[tuple[str, str], dict[str, Any]] = {}
        for m in rank["measurements"]:
            _conditions(m, {"gpus_per_domain": self.gpus})
            if m["metric"] == "gpus":
                m["value"] = self.gpus
                nics = {**m, "metric": "nics", "unit": "NICs", "value": self.platform.nics}
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

    def _with_all_gpus(self, rank: dict[str, Any]) -> dict[str, Any]:
        """Return a rank of an inventory, of whose facts those on the node name all of its GPUs."""
        facts = rank["facts"]
        if not facts.get("gpus"):
            return rank
        gpus = [
            {**facts["gpus"][0], **self._product(), "uuid": f"@UUID{k}@",
             "pci": f"00000000:{k + 6:02X}:00.0"}
            for k in range(self.gpus)
        ]  # fmt: skip
        return {**rank, "facts": {**facts, "gpus": gpus}}

    def _rails_facts(self) -> dict[str, Any]:
        """Return which NICs are nearest to each GPU, as a node's first rank says it."""
        nearest: dict[str, list[str]] = {}
        for k in range(most := max(self.gpus, self.platform.nics)):
            gpu, nic = k * self.gpus // most, k * self.platform.nics // most
            nearest.setdefault(f"gpu{gpu}", []).append(f"mlx5_{nic}")
        return {"rails": nearest}

    def _domains(self, nodes: int) -> dict[str, int]:
        """Return k and g of NVLink domains over so many nodes."""
        size = min(nodes, self.platform.domain_nodes)
        return {"domains": -(-nodes // size), "gpus_per_domain": size * self.gpus}

    def _facts(self, nodes: int, size: int, **more: Scalar) -> dict[str, Scalar]:
        """Return the facts of a collective over so many nodes, by which the model is asked."""
        platform = self.platform
        return {
            "model": platform.gpu_model, "nodes": nodes, "gpus": nodes * self.gpus, "size": size,
            "gpus_per_node": self.gpus, "nics_per_node": platform.nics,
            "nic_gbps": platform.nic_gbps, **self._domains(nodes), **more,
        }  # fmt: skip

    def _to_nodes(self, rank: dict[str, Any], workload: str, nodes: int) -> None:
        """Adapt a recorded rank to what so many nodes reach together."""
        # Between nodes only rates are measured, no latencies.
        rank["measurements"] = [m for m in rank["measurements"] if m["unit"] != "us"]
        domains = self._domains(nodes)
        transport = self.platform.transport if domains["domains"] > 1 else "MNNVL"
        operation = OVER_ALL_NODES[workload]
        for m in rank["measurements"]:
            _conditions(m, {"transport": transport, **domains})
            if workload == "allreduce" and nodes >= TREE_NODES:
                _conditions(m, {"algorithm": "tree"})
            if m["metric"] == "transport":
                m["value"] = transport
            if m["unit"] == "GB/s":
                algorithm = m.get("conditions", {}).get("algorithm", "")
                facts = self._facts(nodes, m["at"]["size"], algorithm=algorithm)
                _scale(m, nccl_model.attainable(operation, facts))
        rank["facts"].pop("table", None)
        template = {"conditions": rank["measurements"][-1].get("conditions", {})}
        over_nics = domains["domains"] > 1
        used = self.platform.nics if over_nics else 0
        nics = {**template, "metric": "nics", "unit": "NICs", "value": used}
        gdr = {**template, "metric": "gdr", "unit": "state"}
        gdr["value"] = "on" if over_nics else "no NIC is used"
        rank["measurements"] += [gdr, nics]
        if not any(m["metric"] == "errors" for m in rank["measurements"]):
            none = {**template, "metric": "errors", "unit": "elements", "value": 0}
            rank["measurements"].append(none)

    def _rails(self) -> None:
        self._rails_as("rails", self.platform.domain_nodes)
        if self.platform.domain_nodes > 1:
            self._rails_as("rails_nic", 1)
        base, nodes = _read(PAIR, "rails@all"), self.nodes
        change = self._rail_change(2, self._domains(2), "send_recv", sizes=(2**28,))
        versions = self._versions(base["ranks"], change)
        for pair in zip(nodes[::2], nodes[1::2], strict=False):
            place = "all" if len(nodes) == 2 else "--".join(pair)
            self._record("rails_alone", place, list(pair), base, versions)

    def _rails_as(self, workload: str, domain_nodes: int) -> None:
        base = _read(PAIR, "rails@all")
        nodes = len(self.nodes)
        per_domain = min(nodes, domain_nodes)
        domains = {"domains": -(-nodes // per_domain), "gpus_per_domain": per_domain}
        change = self._rail_change(nodes, domains, "rail", gpus=nodes)
        self._record(workload, "all", self.nodes, base, self._versions(base["ranks"], change))

    def _rail_change(
        self, nodes: int, domains: dict[str, int], operation: str,
        sizes: Sequence[int] = (2**24, 2**28, 2**30), **more: Scalar,
    ) -> Change:  # fmt: skip
        """Return what makes a recorded rank one of a rail over so many nodes."""

        def change(rank: dict[str, Any]) -> None:
            (bandwidth,) = [m for m in rank["measurements"] if m["metric"] == "busbw"][:1]
            others = [m for m in rank["measurements"] if m["metric"] != "busbw"]
            # Recorded over TCP, whose batches differ far more than those of a fabric.
            median = sorted(bandwidth["samples"])[len(bandwidth["samples"]) // 2]
            steady = [median * (1 + 0.01 * (s / median - 1)) for s in bandwidth["samples"]]
            rank["measurements"] = others
            for size in sizes:
                m = {**bandwidth, "samples": list(steady), "at": {"size": size}}
                facts = self._facts(nodes, size, **domains, **more)
                _scale(m, nccl_model.attainable(operation, facts))
                rank["measurements"].append(m)
            transport = self.platform.transport if domains["domains"] > 1 else "MNNVL"
            for m in rank["measurements"]:
                _conditions(m, {"transport": transport, **domains})
            rank["facts"].pop("table", None)

        return change

    def _nics(self) -> None:
        of_ports = [self._of_port(workload) for workload in ("infiniband", "ib_counters")]

        def to_ordered_nics(rank: dict[str, Any]) -> None:
            first_nic = [m for m in rank["measurements"] if m["at"]["part"] == "mlx5_0"]
            recorded = {(m["metric"], m["at"].get("counter")) for m in first_nic}
            of_counters = any(counter for _, counter in recorded)
            first_nic += [
                m for m in of_ports[of_counters]
                if (m["metric"], m["at"].get("counter")) not in recorded
            ]  # fmt: skip
            stated: dict[str, Scalar] = {"fabric": self.platform.fabric}
            if any(m["metric"] == "state" for m in first_nic):
                stated["rate"] = self.platform.nic_gbps
            rank["measurements"] = [
                {**m, "at": {**m["at"], "part": f"mlx5_{k}"}}
                | ({"value": stated[m["metric"]]} if m["metric"] in stated else {})
                for k in range(self.platform.nics)
                for m in first_nic
            ]
            gpudirect = [m for m in rank["measurements"] if m["metric"] == "gpudirect"]
            rank["measurements"] += gpudirect
            rank["facts"] = {} if of_counters else self._rails_facts()

        base = _read(CPU, "infiniband@worker0")
        base["ranks"][0]["measurements"] = [
            {**m, "at": m.get("at") or {"part": "mlx5_0"}} for m in base["ranks"][0]["measurements"]
        ]
        versions = self._versions(base["ranks"][:1], to_ordered_nics)
        for node in self.nodes:
            self._record("infiniband", node, [node], base, versions, of_nodes=True)
        base = _read(CPU, "ib_counters@all")
        versions = self._versions(base["ranks"][:1], to_ordered_nics)
        self._record("ib_counters", "all", self.nodes, base, versions, of_nodes=True)

    def _of_port(self, workload: str) -> list[dict[str, Any]]:
        """Return what a workload measures of each port of this fabric, within the limits."""
        limits, population = self._limits_and_population()
        held = facts_of_site(population)
        return [
            self._within_limit(criterion, population.nodes[:1], limits, population)
            for criterion in limits.criteria.values()
            if criterion.workload == workload and criterion.over == "nics"
            and held.issuperset(criterion.when)
        ]  # fmt: skip

    def _partial_node_jobs(self) -> None:
        """Write the records of jobs that use a part of a node, and of pairs of nodes."""
        gpus, self.gpus = self.gpus, 2
        base = _read(PAIR, "isolation@worker0")
        versions = self._versions(base["ranks"], self._without_facts)
        for node in self.nodes:
            self._record("isolation", node, [node], base, versions)
        pairs = list(zip(self.nodes[::2], self.nodes[1::2], strict=False))
        for workload in ("placement", "memory_limit"):
            base = _read(PAIR, f"{workload}@worker0--worker1")
            self.gpus = base["world_size"] // 2
            versions = self._versions(base["ranks"], self._without_facts)
            for pair in pairs:
                self._record(workload, "--".join(pair), list(pair), base, versions)
        self.gpus = gpus
        base = _read(NODE, "allreduce@node0")
        versions = self._versions(base["ranks"], lambda rank: self._to_nodes(rank, "allreduce", 2))
        for pair in pairs if len(self.nodes) > 2 else ():
            self._record("allreduce", "--".join(pair), list(pair), base, versions)

    def _login(self) -> None:
        base = _read(PAIR, "slurm@login")
        summary = next(
            r for r in base["ranks"] if any(m["metric"] == "nodes" for m in r["measurements"])
        )
        node_rank = next(
            r for r in base["ranks"] if r["node"] in ("worker0", "worker1") and r is not summary
        )
        ranks = []
        for k, (node, template) in enumerate(
            [(summary["node"], summary), *((n, node_rank) for n in self.nodes)]
        ):
            rank = json.loads(json.dumps({**template, "rank": k, "node": node}))
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

    def _made_up(self) -> None:
        """Write records just within the limits of what is not recorded on such GPUs."""
        limits, population = self._limits_and_population()
        wanted: dict[tuple[str, str], dict[str, Criterion]] = {}
        for item in planned_list(limits, population):
            if item.workload in MADE_UP and not item.not_applicable:
                kind = (item.workload, ALL if item.placement == ALL else "")
                wanted.setdefault(kind, {})[item.criterion] = limits.criteria[item.criterion]
        base = _read(NODE, "gemm@node0")
        for (workload, placement), criteria in wanted.items():
            nodes = population.nodes if placement else population.nodes[:1]
            measured = [self._within_limit(c, nodes, limits, population) for c in criteria.values()]
            rank = {**base["ranks"][0], "measurements": measured, "facts": {}}
            versions = self._versions([rank], lambda rank: None)
            for place, of_place in (
                [(placement, self.nodes)] if placement else [(n, [n]) for n in self.nodes]
            ):
                self._record(
                    workload,
                    place,
                    of_place,
                    base,
                    versions,
                    of_nodes=workload.startswith(("host", "wiring")),
                )

    def _with_all_metrics(self, rank: dict[str, Any], workload: str) -> dict[str, Any]:
        """Return a recorded rank with what it would measure today, within the limits."""
        limits, population = self._limits_and_population()
        recorded = {m["metric"] for m in rank["measurements"]}
        added = [
            self._within_limit(criterion, population.nodes[:1], limits, population)
            for criterion in limits.criteria.values()
            if criterion.workload == workload
            and criterion.metric not in recorded
            and ("rack" not in criterion.when or population.gpu_model in hardware.RACK_SCALE)
        ]
        return {**rank, "measurements": [*rank["measurements"], *added]}

    def _of_model(self, criterion: Criterion, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return a measurement within the limit of a row for this platform's GPU; None where the
        limit is none for it, or the platform has not what the criterion is about."""
        limits, population = self._limits_and_population()
        if "rack" in criterion.when and population.gpu_model not in hardware.RACK_SCALE:
            return None
        given = {**given, **({"gpus_per_domain": self.gpus} if "gpus_per_domain" in given else {})}
        of_node = tuple(population.nodes[:1])
        facts = {**self._device["device"], "model": population.gpu_model, **criterion.at}
        facts |= facts_of(criterion, of_node, population)
        row = criterion.limit_for(
            {**facts, "flops_per_token": FLOPS_PER_TOKEN, "dtype": "bf16", **given}
        )
        of_model = row.model or criterion.metric == "gpu_model"
        if not of_model or row.calibrate or row.recorded:
            return None
        return self._within_limit(criterion, of_node, limits, population, given)

    def _within_limit(
        self, criterion: Criterion, nodes: Sequence[str], limits: Thresholds,
        population: Population, given: Mapping[str, Any] = MappingProxyType({}),
    ) -> dict[str, Any]:  # fmt: skip
        conditions = {"dtype": "bf16", "flops_per_token": FLOPS_PER_TOKEN, **given}
        facts = {**facts_of(criterion, tuple(nodes), population), **self._device["device"]}
        facts = {**facts, **conditions, "model": population.gpu_model}
        limit = criterion.limit_for(facts)
        resolved = limit.resolve(
            criterion.bound(facts), limits.cluster, criterion.model_for(limit, facts)
        )
        unjudged = resolved.kind in ("recorded", "calibrate")
        value: Any = 100.0 if unjudged else resolved.value
        if resolved.kind in ("below", "above"):
            value = value * (1.06 if resolved.kind == "below" else 0.5)
        measurement = {"metric": criterion.metric, "unit": criterion.unit, "at": dict(criterion.at)}
        checks = {
            name: (low + high) / 2 if low is not None and high is not None else 1.1 * (low or 0)
            for name, (low, high) in criterion.valid_for(limit, facts).items()
        }
        if criterion.statistic == "value":
            return {**measurement, "value": value, "checks": checks}
        count = next((math.ceil(checks[c]) for c in ("steps", "batches") if c in checks), 10)
        samples = [value] * count
        checks |= {c: float(count) for c in ("steps", "batches") if c in checks}
        return {**measurement, "samples": samples, "conditions": conditions, "checks": checks}

    def _limits_and_population(self) -> tuple[Thresholds, Population]:
        run = self._contract_and_population()
        limits = loader.load(LIMITS)
        population = Population.from_json(run["population"])
        return replace(limits, cluster=Contract(**run["contract"])), population

    def _contract_and_population(self) -> dict[str, Any]:
        contract = {
            **self.run["contract"], "nodes": len(self.nodes), "gpus_per_node": self.gpus,
            "gpu_model": self.platform.gpu_model, "nics_per_node": self.platform.nics,
            "nic_gbps": self.platform.nic_gbps, "nic_fabric": self.platform.fabric,
            "nvls": {"disabled": "the recorded GPUs have no multicast"},
        }  # fmt: skip
        population = {
            **self.run["population"], "origin": "cluster", "nodes": self.nodes,
            "installed": ["finetune"],
            "gpus_per_node": self.gpus, "nics_per_node": self.platform.nics,
            "nic_gbps": self.platform.nic_gbps, "nic_fabric": self.platform.fabric,
            "gpu_model": self.platform.gpu_model, "partition": "gpu", "bindable": True,
        }  # fmt: skip
        return {"contract": contract, "population": population}

    def _run_json(self) -> None:
        data = {
            **self.run, **self._contract_and_population(), "plan": [], "origin": "cluster",
            "session": {"expected": [], "missing_from": 0}, "durations": {},
            "ended": datetime.datetime.fromtimestamp(self._began + 3600, datetime.UTC).isoformat(),
        }  # fmt: skip
        data["scope"] = [list(i.key) for i in planned_list(*self._limits_and_population())]
        data["planned"] = len(data["scope"])
        (self.root / "run.json").write_text(json.dumps(data))


def _conditions(m: dict[str, Any], changed: dict[str, Any]) -> None:
    """Change the conditions that a measurement has; others are not added."""
    if given := m.get("conditions"):
        m["conditions"] = {**given, **{k: v for k, v in changed.items() if k in given}}


def _scale(m: dict[str, Any], attainable: nccl_model.Attainable | None) -> None:
    """Scale a rate's samples so that their median is what is attainable."""
    if attainable is not None and (samples := m.get("samples")):
        median = sorted(samples)[len(samples) // 2]
        m["samples"] = [float(f"{s * attainable.busbw / median:.6g}") for s in samples]


def _read(run: Path, name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run / "records" / f"{name}.json").read_text())
    return record


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.fleet_run")
    parser.add_argument("out", type=Path)
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--platform", choices=PLATFORMS, default="hgx")
    options = parser.parse_args()
    platform = PLATFORMS[options.platform]
    Fleet(options.out, options.nodes, options.gpus or platform.gpus, platform).write()


if __name__ == "__main__":
    main()
