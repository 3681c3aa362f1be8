"""What failing nodes have in common: a GPU slot, a place, a part of the fleet (login side).

A row names a node. Where nodes that stand next to each other, the same GPU of many nodes, or half
of all nodes fail one criterion, the cause is more likely something that they share than the nodes.
A group is reported only if chance shows it in at most CHANCE of runs: by the count of all
placements of as many failing nodes among those that were judged, and of all slots. The different
sets of failing nodes of a run share CHANCE (Bonferroni).

The kinds are those of rates that are lower (fixtures/verdict/fleet_groups.py), as is the rule for
places (fixtures/statistics/neighbours.py).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fixtures.slurm.hostlist import hostlist, natural_sort_key
from fixtures.statistics.fleet_rule import ENOUGH
from fixtures.statistics.fleet_slots import SLOT_NODES
from fixtures.statistics.neighbours import (
    CHANCE,
    EXPLAINED,
    can_be_a_place,
    places,
    smallest_place,
)
from fixtures.verdict.fleet_groups import LEAST_MODES
from fixtures.wording import abbreviated, counted

MIN_NODES = 8
"""Fewest judged nodes from which a slot or a neighbourhood is meaningful."""
MAX_KEYS = 3
"""Most criteria named in a sentence."""
MAX_SENTENCES = 5

SHARED_BY = {
    "part": "Before any single node, check the limit, the measurement, and what these nodes share: "
    "image, driver, firmware, power, cooling.",
    "slot": "Look at what this slot has in common on all nodes: baseboard, riser, airflow, "
    "firmware.",
    "place": "Look at what these nodes share: rack, leaf switch, power, cooling, delivery.",
    "gpus": "Compare the part numbers and firmware (VBIOS) of both kinds of GPUs with the order.",
}
SAYS_WHY = {
    "inventory.gpu_model": "They have another GPU than ordered: compare the delivery with the "
    "order; their rates are not judged.",
    "scheduler.node_state": "They are out of service in Slurm: `sinfo -R` says since when and why.",
}
"""Criteria that say by themselves what failing nodes have in common."""


@dataclass(frozen=True)
class Group:
    """Nodes that fail for what may be one cause."""

    kind: str
    """slot, place or part: a key of SHARED_BY."""
    where: str
    """The nodes, or the GPU and the nodes, in words."""
    failing: int
    """Nodes of the group that fail."""
    keys: tuple[str, ...]
    """Criteria that they fail."""

    @property
    def sentence(self) -> str:
        named = abbreviated(self.keys, MAX_KEYS, "criterion")
        why = next((text for key, text in SAYS_WHY.items() if key in self.keys), "")
        return f"{self.where}: {named}. {why or SHARED_BY[self.kind]}"


def groups(verdict: Mapping[str, Any]) -> list[Group]:
    """Return the groups of a run, the largest first, each with all criteria that show it."""
    scope = verdict.get("scope") or {}
    nodes = sorted(map(str, scope.get("nodes") or ()), key=natural_sort_key)
    known = set(nodes)
    judged: defaultdict[str, set[str]] = defaultdict(set)
    failing: defaultdict[str, dict[str, int | None]] = defaultdict(dict)
    for v in verdict["criteria"]:
        key, node = str(v["criterion"]), str(v["subject"])
        if node not in known or v["outcome"] not in ("PASS", "FAIL", "WAIVED"):
            continue
        judged[key].add(node)
        if v["outcome"] == "FAIL":
            failing[key][node] = _only_gpu(v.get("worst") or {})
    per_node = int(scope.get("gpus_per_node") or 0)
    several = {frozenset(gpus) for gpus in failing.values() if len(gpus) > 1}
    slots = {
        key: slot for key, gpus in failing.items()
        if len(judged[key]) >= MIN_NODES
        and (slot := _common_slot(gpus, per_node, CHANCE / max(1, len(several))))
    }  # fmt: skip
    sets = {
        frozenset(gpus) for key, gpus in failing.items()
        if key not in slots and can_be_a_place(len(judged[key]), len(gpus))
    }  # fmt: skip
    chance = CHANCE / max(1, len(sets))
    keys_of: defaultdict[tuple[str, str, int], list[str]] = defaultdict(list)
    for key, gpus in failing.items():
        order = [node for node in nodes if node in judged[key]]
        for group in _of_criterion(order, gpus, slots.get(key), chance):
            keys_of[group].append(key)
    found = [Group(*group, tuple(keys)) for group, keys in keys_of.items()]
    return sorted(found, key=lambda g: (-g.failing, -len(g.keys), g.where))


def _only_gpu(worst: Mapping[str, Any]) -> int | None:
    """Return the GPU that fails on a node, None if it is several or none."""
    return worst.get("gpu") if worst.get("failing", 1) == 1 else None


def sentences(verdict: Mapping[str, Any]) -> list[str]:
    """Return the sentences on a run's groups, at most MAX_SENTENCES: first on those that fail."""
    found = [group.sentence for group in groups(verdict)]
    return [*found, *_slower(verdict)][:MAX_SENTENCES]


def looked_for(nodes: int, gpus: int) -> str:
    """Return which groups a run of this size can show; "" for none."""
    parts = []
    if nodes >= SLOT_NODES and gpus > 1:
        parts.append("a GPU slot of all nodes")
    if (least := smallest_place(nodes)) is not None:
        parts.append(f"{least} neighbours or more")
    if nodes >= LEAST_MODES:
        parts.append("a quarter to half of the nodes")
    if gpus > 1 and nodes * gpus >= ENOUGH:
        parts.append("a quarter to half of the GPUs")
    return "; ".join(parts)


def _slower(verdict: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences on groups that are slower than the rest of the fleet, whether any row fails.

    They are those of verdict.json (fixtures/verdict/fleet_groups.py).
    """
    found: defaultdict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in verdict.get("fleet") or ():
        found[str(row["kind"]), str(row["where"])].append(row)
    for (kind, where), rows in sorted(found.items(), key=lambda item: -len(item[1])):
        slower = [f"{row['criterion']} {row['slower']:.1%}" for row in rows]
        named = abbreviated(slower, MAX_KEYS, "criterion")
        shared = SHARED_BY[kind]
        head = f"Slower than the rest of the fleet, judged by their limits: {where}"
        yield f"{head}: {named}. {shared}"


def _of_criterion(
    nodes: Sequence[str], failing: Collection[str], slot: tuple[int, int] | None, chance: float
) -> Iterator[tuple[str, str, int]]:
    """Yield (kind, where, failing nodes) of one criterion.

    `nodes`: those that were judged, in the order of their names; `slot`: the GPU that alone fails
    on the failing nodes, and on how many.
    """
    if len(nodes) < MIN_NODES or not failing:
        return
    explained = 0
    if slot is not None:
        gpu, explained = slot
        of = counted(len(nodes), "node")
        yield "slot", f"GPU {gpu} is the only one that fails on {explained} of {of}", explained
    else:
        for start, end in places([node in failing for node in nodes], chance):
            place = nodes[start:end]
            failed = sum(node in failing for node in place)
            words = f"{counted(len(place), 'node')} next to each other, {hostlist(place)}"
            if failed < len(place):
                words = f"{failed} of {words}"
            explained += failed
            yield "place", f"{words}, fail together", failed
    if 2 * len(failing) >= len(nodes) and explained < EXPLAINED * len(failing):
        of_all = "half of the nodes or more"
        yield (
            "part",
            f"{len(failing)} of {counted(len(nodes), 'node')} fail, {of_all}",
            len(failing),
        )


def _common_slot(
    gpus: Mapping[str, int | None], slots: int, chance: float = CHANCE
) -> tuple[int, int] | None:
    """Return the GPU that alone fails on far more nodes than others do, and on how many.

    None where there is none, or where most nodes fail with several GPUs or without naming one.
    """
    named = [gpu for gpu in gpus.values() if gpu is not None]
    if not named or slots < 2:
        return None
    ((gpu, count),) = Counter(named).most_common(1)
    share = 1 / slots
    tail = sum(
        math.comb(len(named), k) * share**k * (1 - share) ** (len(named) - k)
        for k in range(count, len(named) + 1)
    )
    return (gpu, count) if slots * tail <= chance and 2 * count > len(gpus) else None
