"""Made-up records of the workload `permutations`: slices of load on a fabric of a few nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fixtures.permutations.named_leaves import ports_of
from fixtures.permutations.observations import FloatArray, IntArray
from fixtures.permutations.schedule import RESTS, schedule, seed_of
from fixtures.records.absence import Kind, of_metrics
from fixtures.records.model import Measurement, Record, Result
from fixtures.run.fabric_load import FabricLoad
from tests.selftests import support
from tests.tools.clos import rank_rates

RATE = 40.0
"""GB/s of a healthy flow."""
SLICE_S = 600.0
SEED = seed_of(support.NONCE)
LEFT_OPEN = ("ports", "flaps", "uplinks", "pairs", "coverage")
Slow = Callable[[FloatArray, IntArray, Sequence[str]], None]
"""Changes the rates of flows (rounds x ranks), given their targets and the node of each rank."""


@dataclass
class LoadedFabric:
    """Nodes behind leaves, and the slices of a run on them."""

    leaf_of: Mapping[str, str]
    rails: int = 2
    rounds: int = 120
    noise: float = 0.01
    seed: int = 1
    stated: str = "topology"
    """Who says where the nodes are: of the order a rank states the same."""
    slow: Slow | None = None
    down: frozenset[tuple[str, int]] = frozenset()
    """(node, rail) of ports of which no rate is known."""
    more: dict[str, Any] = field(default_factory=dict)
    """What the first rank states otherwise."""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.leaf_of)

    def record(self, attempt: int = 1, without: Sequence[str] = ()) -> Record:
        """Return the record of a slice, in which some nodes are not."""
        nodes = [n for n in self.nodes if n not in without]
        of_rank = [n for n in nodes for _ in range(self.rails)]
        rails = [r for _ in nodes for r in range(self.rails)]
        leaves = {n: self.leaf_of[n] for n in nodes} if self.stated else {}
        ports = ports_of(of_rank, rails, leaves, by_rail=False)
        first = (attempt - 1) * self.rounds
        targets = np.array(schedule(ports, SEED, first, self.rounds))
        dice = np.random.default_rng([self.seed, attempt])
        rates = RATE * np.exp(dice.normal(0, self.noise, targets.shape))
        rates[targets == RESTS] = np.nan
        if self.slow is not None:
            self.slow(rates, targets, of_rank)
        of_ranks = rank_rates(rates, targets)
        began = 1000.0 + (attempt - 1) * 2 * SLICE_S
        step = SLICE_S / self.rounds
        stated = {
            "seed": SEED, "first": first, "planned": self.rounds, "nodes": of_rank, "rails": rails,
            "leaves": leaves, "by_rail": False, "bytes": 1 << 30,
            "started": [began + k * step for k in range(self.rounds)],
            "seconds": [step] * self.rounds, **self.more,
        }  # fmt: skip
        ranks = []
        for k, node in enumerate(of_rank):
            samples = [float(f"{x:.4g}") for x in of_ranks[:, k] if np.isfinite(x)]
            found: list[Any] = [Measurement(metric="errors", unit="words", value=0)]
            if (node, rails[k]) not in self.down:
                found.append(Measurement(metric="rate", unit="GB/s", samples=samples))
            if rails[k] == 0:
                found.append(Measurement(metric="steadiness", unit="%", value=97.0))
                why = dict.fromkeys(LEFT_OPEN, "left open")
                found += of_metrics(Kind.UNKNOWN, why)
            own = support.rank(k, node, *found, gpus=self.rails)
            facts = {"schedule": stated} if k == 0 else {}
            ranks.append(replace(own, start=began, end=began + SLICE_S, facts=facts))
        made = support.record(*ranks, workload="permutations", placement="all")
        job = {"id": str(100 + attempt), "submitted": began - 1}
        return replace(made, attempt=attempt, ranks=ranks, job=job)

    def load(self, **more: Any) -> FabricLoad:
        leaf_of = dict(self.leaf_of) if self.stated == "order" else {}
        return FabricLoad(self.nodes, self.rails, leaf_of, **more)

    def decided(
        self, *slices: Record, load: FabricLoad | None = None, wiring: Any = None
    ) -> Record:
        """Return the last of these slices with what all of them show."""
        by_attempt = {record.attempt: record for record in slices}
        load = self.load() if load is None else load
        return load.decided(slices[-1], by_attempt.get, lambda: wiring)


def in_leaves(leaves: int, size: int) -> dict[str, str]:
    return {f"n{leaf}{k}": f"leaf{leaf}" for leaf in range(leaves) for k in range(size)}


def of_node(record: Record, node: str) -> Result:
    """Return what the first rank of a node reports."""
    (own,) = [r for r in record.ranks if r.node == node and r.local_rank == 0]
    return Result(measurements=own.measurements, absent=own.absent, facts=own.facts)


def value(record: Record, node: str, metric: str) -> Any:
    """Return the value of a metric on a node, or why there is none."""
    found = of_node(record, node)
    values = [m.value for m in found.measurements if m.metric == metric]
    return values[0] if values else next(a.why for a in found.absent if a.metric == metric)
