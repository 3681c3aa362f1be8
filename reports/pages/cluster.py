"""The cluster that a run measured: parties, hardware, software, and differences (login side).

From the contract in run.json and from the nodes' own facts in the newest records of `environment`
and `inventory`, as far as the judge counts them. A node without such records has no facts here;
none are invented.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fixtures.records.run_directory import RunDirectory
from fixtures.run.reader import RunReader
from fixtures.slurm.hostlist import hostlist
from fixtures.thresholds.contract import PARTIES
from fixtures.wording import counted
from reports.pages.banner import render

MAX_NODES_WITH_GPUS = 64
"""Most nodes whose GPUs the report lists; the certificate's inventory has all."""

SOURCES = ("environment", "inventory")
"""Workloads whose facts are shown."""

MAX_HEADLINE = 60
"""Most characters of the host list in the headline."""

FACTS = {
    "driver": "Driver", "cuda": "CUDA", "nccl": "NCCL", "torch": "torch", "python": "Python",
    "kernel": "Kernel", "os": "Operating system", "slurm": "Slurm", "cpu": "CPU",
    "sockets": "CPU sockets", "cpus": "CPU cores", "memory_gib": "Memory, GiB",
}  # fmt: skip
"""Facts of a node that are shown unchanged -> their titles."""

PARTY_TITLES = {
    "customer": "Customer", "supplier": "Supplier", "site": "Site", "order_number": "Order number",
}  # fmt: skip


@dataclass
class NodeFacts:
    """The facts that one node reported."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    gpus: list[dict[str, Any]] = field(default_factory=list)
    """Each with name, uuid, serial, pci, vbios, as far as NVML says them."""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nics(self) -> list[Mapping[str, Any]]:
        return [nic for nic in self.facts.get("nics") or [] if isinstance(nic, Mapping)]

    @property
    def topology(self) -> list[list[str]]:
        """How each GPU reaches each other one, [] where that is unknown."""
        rows = self.facts.get("topology") or []
        return [[str(cell) for cell in row] for row in rows if row]


@dataclass(frozen=True)
class Fact:
    """One property of the nodes: each value with the nodes that have it."""

    title: str
    values: Sequence[tuple[str, str]]
    """(value, host list), the most common first."""

    @property
    def differs(self) -> bool:
        return len(self.values) > 1


@dataclass(frozen=True)
class Cluster:
    """The hardware and software of the nodes of a run."""

    contract: Mapping[str, Any]
    nodes: Sequence[str]
    found: Mapping[str, NodeFacts]
    planned: str = ""
    """The planned GPUs, for a run whose nodes reported no facts."""
    not_counted: Sequence[str] = ()
    """Why records of nodes without facts do not count, one line each."""

    @staticmethod
    def of(
        directory: RunDirectory,
        run: Mapping[str, Any],
        scope: Mapping[str, Any],
        reader: RunReader | None = None,
    ) -> Cluster:
        """Read the records of the nodes in the scope of a verdict."""
        reader = reader or RunReader.of(directory, run)
        nodes = [str(node) for node in scope.get("nodes") or []]
        found = {node: facts for node in nodes if (facts := node_facts(reader, node))}
        count, model = scope.get("gpus_per_node"), scope.get("gpu_model")
        planned = f"{len(nodes) * count} x {model}" if count and model else ""
        why = dict.fromkeys(
            reason
            for node in nodes
            if node not in found
            for workload in SOURCES
            for reason in reader.reasons_of(workload, node)
        )
        return Cluster(run.get("contract") or {}, nodes, found, planned, [*why])

    @property
    def parties(self) -> list[tuple[str, str]]:
        """(title, value) of customer, supplier, site and order number, as far as they are given."""
        return [
            (PARTY_TITLES[name], str(self.contract[name]))
            for name in PARTIES
            if self.contract.get(name)
        ]

    @property
    def gpu_names(self) -> Counter[str]:
        """Name of a GPU model, as its driver says it -> how many there are."""
        return Counter(str(gpu.get("name")) for n in self.found.values() for gpu in n.gpus)

    @property
    def hardware(self) -> str:
        """Nodes and GPUs in a line: "2 nodes, 4 x NVIDIA H200"."""
        count = len(self.nodes)
        parts = [counted(count, "node")]
        parts += [f"{n} x {name}" for name, n in self.gpu_names.most_common(3)]
        if len(parts) == 1 and self.planned:
            parts.append(self.planned)
        return ", ".join(parts)

    @property
    def answered(self) -> str:
        """The same of the nodes that reported what they have; "" where none did."""
        gpus = [f"{n} x {name}" for name, n in self.gpu_names.most_common(3)]
        return ", ".join([counted(len(self.found), "node"), *gpus]) if self.found else ""

    @property
    def headline(self) -> str:
        """Which cluster this is, in a line."""
        names = hostlist(self.nodes)
        where = [names] if 0 < len(names) <= MAX_HEADLINE else []
        return ", ".join([*(value for _, value in self.parties), self.hardware, *where])

    @property
    def facts(self) -> list[Fact]:
        """The facts of the nodes; those that differ come first."""
        facts = [
            self._fact(title, lambda n, k=name: n.facts.get(k)) for name, title in FACTS.items()
        ]
        facts += [
            self._fact("GPUs", _gpus_text),
            self._fact("GPU firmware (VBIOS)", lambda n: _alike(g.get("vbios") for g in n.gpus)),
            self._fact(
                "GPU power limit, W", lambda n: _alike(g.get("power_limit_w") for g in n.gpus)
            ),
            self._fact("NICs", _nics_text),
            self._fact("NIC firmware", lambda n: _alike(nic.get("fw_ver") for nic in n.nics)),
            self._fact("Between the GPUs", lambda n: _links_text(n.topology)),
        ]
        known = [fact for fact in facts if fact.values]
        return sorted(known, key=lambda fact: not fact.differs)

    def _fact(self, title: str, value_of: Any) -> Fact:
        nodes_by_value: dict[str, list[str]] = {}
        for node, facts in self.found.items():
            if (value := value_of(facts)) not in (None, "", [], {}):
                nodes_by_value.setdefault(str(value), []).append(node)
        ordered = sorted(nodes_by_value.items(), key=lambda item: -len(item[1]))
        return Fact(title, [(value, hostlist(nodes)) for value, nodes in ordered])

    @property
    def silent(self) -> list[str]:
        """Nodes without facts."""
        return [node for node in self.nodes if node not in self.found]

    @property
    def topologies(self) -> list[tuple[str, list[list[str]]]]:
        """(host list, matrix) of each topology that there is, that of most nodes first."""
        nodes_by_matrix: dict[str, list[str]] = {}
        matrices: dict[str, list[list[str]]] = {}
        for node, facts in self.found.items():
            if len(facts.topology) > 1:
                key = str(facts.topology)
                matrices[key] = facts.topology
                nodes_by_matrix.setdefault(key, []).append(node)
        ordered = sorted(nodes_by_matrix.items(), key=lambda item: -len(item[1]))
        return [(hostlist(nodes), matrices[key]) for key, nodes in ordered]


def node_facts(reader: RunReader, node: str) -> NodeFacts | None:
    """Return the facts of a node from its newest records that count; None without any."""
    found = NodeFacts()
    seen = False
    for workload in SOURCES:
        record = reader.newest(workload, node)
        ranks = [] if record is None else record.ranks
        if record is None or not ranks:
            continue
        with suppress(KeyError, TypeError, IndexError, AttributeError):
            first = ranks[0].facts
            gpus = [_gpu(g) for g in first.get("gpus") or []]
            gpus = _merged([_gpu(rank.device) for rank in ranks], gpus)
            facts = {**found.facts, **{k: v for k, v in first.items() if k != "nics" or v}}
            if workload == "inventory" and found.facts.get("nics"):
                facts["nics"] = found.facts["nics"]  # the inventory has their names only
            provenance = {**found.provenance, **record.provenance}
            found = NodeFacts(facts, _merged(found.gpus, gpus), provenance)
            seen = True
    return found if seen else None


def _gpu(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: facts[name] for name in GPU if facts.get(name) not in (None, "")}


def _merged(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the GPUs of both lists; those with the same UUID are one."""
    old = {gpu.get("uuid"): gpu for gpu in before}
    return [{**old.get(gpu.get("uuid"), {}), **gpu} for gpu in now] or before


def _alike(values: Iterable[Any]) -> str:
    """Return the different values of a node, with their number if there are several."""
    counted = Counter(str(v) for v in values if v not in (None, ""))
    if len(counted) == 1:
        return next(iter(counted))
    return ", ".join(f"{n} x {value}" for value, n in sorted(counted.items()))


def _gpus_text(node: NodeFacts) -> str:
    counted = Counter(str(gpu.get("name")) for gpu in node.gpus)
    return ", ".join(f"{n} x {name}" for name, n in counted.items())


def _nics_text(node: NodeFacts) -> str:
    kinds = Counter(
        " ".join(str(nic[k]) for k in ("hca_type", "link_layer", "rate") if nic.get(k)) or "NIC"
        for nic in node.nics
    )
    return ", ".join(f"{n} x {kind}" for kind, n in kinds.items())


def _links_text(matrix: list[list[str]]) -> str:
    kinds = Counter(cell for row in matrix for cell in row if cell != "self")
    return ", ".join(sorted(kinds))


def section(cluster: Cluster) -> str:
    """Return the HTML of the section "The cluster"."""
    with_gpus = [(name, facts) for name, facts in cluster.found.items() if facts.gpus]
    facts = cluster.facts
    return render(
        "cluster.jinja2",
        cluster=cluster,
        differing=[fact for fact in facts if fact.differs],
        alike=[fact for fact in facts if not fact.differs],
        with_gpus=[
            (name, NodeFacts({**f.facts, "nics": [_blank(n, NIC) for n in f.nics]},
                             [_blank(g, GPU) for g in f.gpus]))
            for name, f in with_gpus[:MAX_NODES_WITH_GPUS]
        ],
        not_listed=max(0, len(with_gpus) - MAX_NODES_WITH_GPUS),
    )  # fmt: skip


GPU = ("index", "name", "uuid", "serial", "pci", "vbios", "power_limit_w")
NIC = ("name", "hca_type", "rate", "node_guid", "fw_ver")
"""What is shown of a device."""


def _blank(device: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: "" if device.get(name) is None else device[name] for name in names}
