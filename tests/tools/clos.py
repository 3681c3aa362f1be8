"""A two-tier Clos under load, simulated: what the ranks of `permutations` would measure.

Leaves are rail-optimised: LEAF_NODES nodes have a leaf switch for each of their rails, with as many
uplinks (1:1) or half (2:1), one to each spine. A flow within a leaf has its two ports for itself;
one to another leaf shares uplinks, and:

* ECMP: each of its queue pairs is hashed to an uplink, the same one for the same two ports each
  time; all queue pairs carry the same, so the flow is as fast as its slowest one. Links are shared
  max-min: what slower flows leave of a link goes to the others.
* adaptive routing: packets are spread over all uplinks; the flows of a leaf share their sum.

The noise, with its sources:

PORT_LASTING 0.3 %: recorded, collectives of two nodes of H200 (thresholds.yaml, class collective).
ROUND_NOISE 1 %: recorded, sendrecv of H100 and H200 at 256 MiB and more: 0.3 % to 0.8 % of calls
  (MAD), up to 2 % where all GPUs copy at once (tests/selftests/data, h*/sendrecv, hostcopy).
OUTLIERS 0.2 % of flows at 0.4 to 0.9: recorded, the slowest of 20 short sendrecv calls is at 0.4 to
  0.99 of their median; a round lasts as long as some hundred such calls.
ADAPTIVE_FLOW 3 %, ADAPTIVE_LEAF 1 %, SPREAD_LOSS 3 %: assumed. Of adaptive routing Geoffray and
  Hoefler (Hot Interconnects 2008) measured 100 % of the bisection on smaller and 77 % on a 512-node
  Clos, and 38 % with static routing; switches of today choose by packet.
Queue pairs: 4 of a connection (NCCL's default is 1, what clouds set on ECMP fabrics is more; Meta
  saw up to 40 % from hashing queue pairs, SIGCOMM 2024).
FLAP: a link that is down for some seconds stalls its flows; NCCL gives up after its time-out only.

numpy and the standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator

from fixtures.permutations.observations import FloatArray, IntArray, Observations, flow_rates
from fixtures.permutations.schedule import RESTS, UNKNOWN, Ports, schedule

LEAF_NODES = 32
RAILS = 8
LINE = 48.0
"""GB/s of a port of 400 Gbit/s, as ib_write_bw shows it (4 % are headers)."""
ROUND_S = 1.5
"""Seconds from one round to the next, barrier and share of the collectives included."""
SLICE_ROUNDS = 400
"""Rounds of a slice of ten minutes."""
PORT_LASTING = 0.003
LEAF_LASTING = 0.001
ROUND_NOISE = 0.01
OUTLIERS, OUTLIER_LOW, OUTLIER_HIGH = 0.002, 0.4, 0.9
ADAPTIVE_FLOW, ADAPTIVE_LEAF, SPREAD_LOSS = 0.03, 0.01, 0.03
SWEEPS = 3
"""Of max-min sharing: bounds of flows are refined so many times."""
FLAP_EVERY_S, FLAP_S = 120.0, 5.0

_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def rail_optimised(leaf_of_node: Sequence[int], rails: int) -> Ports:
    """Return the ports of nodes (rank = node * rails + rail), whose leaves are one per rail.

    The leaf of a port is leaf_of_node * rails + rail, or UNKNOWN.
    """
    places = [(n, r, leaf) for n, leaf in enumerate(leaf_of_node) for r in range(rails)]
    return Ports(
        node=tuple(n for n, _, _ in places),
        rail=tuple(r for _, r, _ in places),
        leaf=tuple(UNKNOWN if leaf < 0 else leaf * rails + r for _, r, leaf in places),
    )


@dataclass(frozen=True)
class Shape:
    nodes: int
    oversubscription: int = 1
    adaptive: bool = False
    queue_pairs: int = 4
    rails: int = RAILS
    leaf_nodes: int = LEAF_NODES
    renewed: bool = False
    """Whether each slice draws the hash anew, as new queue pairs do over RoCE; else never."""

    @property
    def uplinks(self) -> int:
        return self.leaf_nodes // self.oversubscription

    @property
    def ports(self) -> Ports:
        return rail_optimised([n // self.leaf_nodes for n in range(self.nodes)], self.rails)

    @property
    def name(self) -> str:
        routing = "adaptive" if self.adaptive else f"ECMP q={self.queue_pairs}"
        return f"{self.nodes} x {self.rails}, {self.oversubscription}:1, {routing}"


@dataclass
class Defects:
    """What is planted; rates relative to a healthy one."""

    uplink: dict[tuple[int, int], float] = field(default_factory=dict)
    """(leaf, spine) -> capacity, both directions; 0: dead, the routing knows it."""
    leaf: dict[int, float] = field(default_factory=dict)
    """Leaf -> rate of all flows to and from other leaves."""
    pair: dict[tuple[int, int], float] = field(default_factory=dict)
    """(leaf that sends, leaf that receives) -> rate."""
    port: list[tuple[int, int, float, float, float]] = field(default_factory=list)
    """(way: 0 out, 1 in, 2 both; port; rate; from second; to second)."""
    flapping: list[int] = field(default_factory=list)
    dead_nodes: dict[int, float] = field(default_factory=dict)
    """Node -> second of its death: from the next slice on it is left out."""
    absent: frozenset[int] = frozenset()
    """Ports that never take part."""


@dataclass
class Fabric:
    """One fabric: its lasting spread, its hash, its defects."""

    shape: Shape
    dice: Generator
    defects: Defects = field(default_factory=Defects)

    def __post_init__(self) -> None:
        count = self.shape.nodes * self.shape.rails
        self.lasting = np.exp(self.dice.normal(0, PORT_LASTING, (2, count)))
        self.leaf_of = np.asarray(self.shape.ports.leaf)
        leaves = int(self.leaf_of.max()) + 1
        self.capacity = np.ones((leaves, self.shape.uplinks))
        for (leaf, spine), left in self.defects.uplink.items():
            self.capacity[leaf, spine] = left
        self.leaf_lasting = np.exp(self.dice.normal(0, LEAF_LASTING, leaves))
        self.salt = np.uint64(self.dice.integers(2**63))

    def slice(self, targets: IntArray, start: FloatArray) -> Observations:
        """Return what the ranks measure in a slice of these rounds."""
        if self.shape.renewed:
            self.salt = np.uint64(self.dice.integers(2**63))
        rates = np.full(targets.shape, np.nan)
        sends = targets != RESTS
        row, port = np.nonzero(sends)
        to = targets[row, port]
        out, in_ = self._port_rates(start, targets)
        own = np.minimum(out[row, port], in_[row, to])
        crosses = self.leaf_of[port] != self.leaf_of[to]
        flow = own.copy()
        k = np.nonzero(crosses)[0]
        share = self._adaptive if self.shape.adaptive else self._ecmp
        flow[k] = share(row[k], port[k], to[k], own[k])
        for leaf, left in self.defects.leaf.items():
            ends = (self.leaf_of[port] == leaf) | (self.leaf_of[to] == leaf)
            flow[ends & crosses] *= left
        for (a, b), left in self.defects.pair.items():
            flow[(self.leaf_of[port] == a) & (self.leaf_of[to] == b)] *= left
        flow *= np.exp(self.dice.normal(0, ROUND_NOISE, len(flow)))
        odd = self.dice.random(len(flow)) < OUTLIERS
        flow[odd] *= self.dice.uniform(OUTLIER_LOW, OUTLIER_HIGH, int(odd.sum()))
        rates[row, port] = flow * LINE
        self._interrupt(rates, targets, start)
        for node, second in self.defects.dead_nodes.items():
            dead = np.asarray(self.shape.ports.node) == node
            rates[np.ix_(start >= second, dead)] = np.nan
            hit = np.isin(targets, np.nonzero(dead)[0]) & (start >= second)[:, np.newaxis]
            rates[hit] = np.nan
        return Observations(
            ports=self.shape.ports, target=targets,
            rates=flow_rates(rank_rates(rates, targets), targets),
            start=start, seconds=np.full(len(start), ROUND_S), expected=self.expected,
        )  # fmt: skip

    @property
    def expected(self) -> float:
        if self.shape.adaptive:
            return LINE * (1 - SPREAD_LOSS) / self.shape.oversubscription
        return LINE * 0.6 / self.shape.oversubscription

    def _port_rates(self, start: FloatArray, targets: IntArray) -> tuple[FloatArray, FloatArray]:
        out, in_ = (np.broadcast_to(side, targets.shape).copy() for side in self.lasting)
        for way, port, left, begin, end in self.defects.port:
            now = (start >= begin) & (start < end)
            if way in (0, 2):
                out[now, port] *= left
            if way in (1, 2):
                in_[now, port] *= left
        return out, in_

    def _adaptive(self, row: IntArray, port: IntArray, to: IntArray, own: FloatArray) -> FloatArray:
        """Return the rates of flows to other leaves; those of a pair share the sum of links."""
        a, b = self.leaf_of[port], self.leaf_of[to]
        unit, one, other = self._units(row, a, b)
        number = np.maximum(np.bincount(unit, minlength=len(one)), 1)
        total = np.minimum(self.capacity[one], self.capacity[other]).sum(axis=1)
        total *= np.minimum(self.leaf_lasting[one], self.leaf_lasting[other])
        total *= (1 - SPREAD_LOSS) * np.exp(self.dice.normal(0, ADAPTIVE_LEAF, len(one)))
        level = total / number
        for _ in range(SWEEPS):  # what slow ports leave goes to the others
            slow = own < level[unit]
            used = np.bincount(unit, weights=np.where(slow, own, 0), minlength=len(one))
            free = number - np.bincount(unit, weights=slow, minlength=len(one))
            level = np.where(free > 0, (total - used) / np.maximum(free, 1), np.inf)
        spread = np.exp(self.dice.normal(0, ADAPTIVE_FLOW, len(own)))
        return np.minimum(own, level[unit] * spread)

    def _ecmp(self, row: IntArray, port: IntArray, to: IntArray, own: FloatArray) -> FloatArray:
        """Return the rates of flows to other leaves, each of their queue pairs on one uplink."""
        q, spines = self.shape.queue_pairs, self.shape.uplinks
        a, b = self.leaf_of[port], self.leaf_of[to]
        unit, one, other = self._units(row, a, b)
        links = np.minimum(self.capacity[one], self.capacity[other])
        links *= np.minimum(self.leaf_lasting[one], self.leaf_lasting[other])[:, np.newaxis]
        alive = links > 0
        choice = np.argsort(~alive, axis=1, kind="stable") if not alive.all() else None
        number = alive.sum(axis=1)
        ports = np.uint64(len(self.leaf_of))
        on = np.empty((len(port), q), dtype=np.int64)
        flow_id = (port.astype(np.uint64) * ports + to.astype(np.uint64)) * np.uint64(64)
        for k in range(q):
            at = (_hash(flow_id + np.uint64(k), self.salt) % number[unit].astype(np.uint64)).astype(
                np.int64
            )
            on[:, k] = unit * spines + (at if choice is None else choice[unit, at])
        flat, cap = on.ravel(), links.ravel()
        load = np.bincount(flat, minlength=len(cap)) / q
        rate = np.minimum(own, (cap / np.maximum(load, 1e-9))[on].min(axis=1))
        for _ in range(SWEEPS - 1):
            share = cap / np.maximum(load, 1e-9)
            slow = rate[:, np.newaxis] < share[on] * (1 - 1e-9)
            used = np.bincount(flat, weights=np.where(slow, rate[:, np.newaxis] / q, 0).ravel(),
                               minlength=len(cap))  # fmt: skip
            free = np.bincount(flat, weights=~slow.ravel(), minlength=len(cap)) / q
            left = np.where(free > 0, (cap - used) / np.maximum(free, 1e-9), np.inf)
            cap, load = (
                np.where(np.isfinite(left), left, cap / np.maximum(load, 1e-9)),
                np.ones_like(cap),
            )
            rate = np.maximum(rate, np.minimum(own, cap[on].min(axis=1)))
        return rate

    def _units(
        self, row: IntArray, a: IntArray, b: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Return the pair of leaves of each flow in its round, and the leaves of the pairs.

        A leaf sends whole to one other leaf: the round and the leaf that sends are the pair.
        """
        leaves = len(self.capacity)
        unit = row * leaves + a
        size = int(row.max(initial=-1) + 1) * leaves
        other = np.zeros(size, dtype=np.int64)
        other[unit] = b
        return unit, np.arange(size) % leaves, other

    def _interrupt(self, rates: FloatArray, targets: IntArray, start: FloatArray) -> None:
        """Let the flows of a flapping port stand still for FLAP_S, in the round that this hits."""
        for port in self.defects.flapping:
            for k in np.nonzero(self.dice.random(len(start)) < ROUND_S / FLAP_EVERY_S)[0]:
                left = ROUND_S / (ROUND_S + FLAP_S * self.dice.uniform(0.5, 1.5))
                rates[k, port] *= left
                rates[k, targets[k] == port] *= left


def rank_rates(rates: FloatArray, targets: IntArray) -> FloatArray:
    """Return what ranks measure: the slower one of their sending and their receiving."""
    found = rates.copy()
    row, port = np.nonzero(targets != RESTS)
    to = targets[row, port]
    received = np.full_like(rates, np.nan)
    received[row, to] = rates[row, port]
    both = np.isfinite(received) & np.isfinite(found)
    alone = np.where(targets != RESTS, found, received)
    return np.asarray(np.where(both, np.minimum(found, received), alone))


def targets_of(
    shape: Shape, seed: int, first: int, count: int, alive: frozenset[int] | None = None
) -> IntArray:
    """Return the rounds as an array (count, ports)."""
    return np.asarray(schedule(shape.ports, seed, first, count, alive), dtype=np.int32)


def starts(number: int, rounds: int = SLICE_ROUNDS) -> FloatArray:
    """Return when the rounds of a slice start: slices follow each other."""
    return number * (rounds * ROUND_S) + np.arange(rounds) * ROUND_S


def _hash(value: IntArray, salt: np.uint64) -> IntArray:
    """Return 64 bits of splitmix64."""
    with np.errstate(over="ignore"):
        z = value + salt * _MIX[0]
        z = (z ^ (z >> np.uint64(30))) * _MIX[1]
        z = (z ^ (z >> np.uint64(27))) * _MIX[2]
        return z ^ (z >> np.uint64(31))
