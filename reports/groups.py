"""Common properties of failing nodes: place, GPU slot, or half of the fleet (login side).

A row names a node. Where nodes that stand next to each other, the same GPU of many nodes, or half
of all nodes fail one criterion, the cause is more likely something that they share than the nodes.
A group is reported only if chance shows it in at most CHANCE of runs, by the count of all
placements of as many failing nodes among those that were judged.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fixtures.slurm.hostlist import hostlist, natural_sort_key
from fixtures.wording import counted, plural

CHANCE = 0.003
"""Most often that a group of a criterion may be chance: the error budget of the fleet rule."""
MIN_NODES = 8
"""Fewest judged nodes from which a slot or a neighbourhood is meaningful."""
MIN_DENSITY = 0.75
"""Least share of the nodes of a place that fail."""
MAX_KEYS = 3
"""Most criteria named in a sentence."""
MAX_SENTENCES = 5

SHARED_BY = {
    "half": "Before any single node, check the limit, the measurement, and what all nodes share: "
    "image, driver, firmware, power, cooling.",
    "slot": "Look at what this slot has in common on all nodes: baseboard, riser, airflow, "
    "firmware.",
    "place": "Look at what these nodes share: rack, leaf switch, power, cooling, delivery.",
}


@dataclass(frozen=True)
class Group:
    """Nodes that fail for what may be one cause."""

    kind: str
    """half, slot or place."""
    where: str
    """The nodes, or the GPU and the nodes, in words."""
    failing: int
    """Nodes of the group that fail."""
    keys: tuple[str, ...]
    """Criteria that they fail."""

    @property
    def sentence(self) -> str:
        more = len(self.keys) - MAX_KEYS
        named = ", ".join(self.keys[:MAX_KEYS])
        if more > 0:
            named += f" and {more} more {plural(more, 'criterion')}"
        return f"{self.where}: {named}. {SHARED_BY[self.kind]}"


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
            failing[key][node] = (v.get("worst") or {}).get("gpu")
    keys_of: defaultdict[tuple[str, str, int], list[str]] = defaultdict(list)
    for key, gpus in failing.items():
        order = [node for node in nodes if node in judged[key]]
        for group in _of_criterion(order, gpus, int(scope.get("gpus_per_node") or 0)):
            keys_of[group].append(key)
    found = [Group(*group, tuple(keys)) for group, keys in keys_of.items()]
    return sorted(found, key=lambda g: (-g.failing, -len(g.keys), g.where))


def sentences(verdict: Mapping[str, Any]) -> list[str]:
    """Return the sentences on a run's groups, at most MAX_SENTENCES: first on those that fail."""
    found = [group.sentence for group in groups(verdict)]
    return [*found, *_slower(verdict)][:MAX_SENTENCES]


def _slower(verdict: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences on groups that are slower than the rest of the fleet, whether any row fails.

    They are those of verdict.json (fixtures/verdict/fleet_groups.py).
    """
    found: defaultdict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in verdict.get("fleet") or ():
        found[str(row["kind"]), str(row["where"])].append(row)
    for (kind, where), rows in sorted(found.items(), key=lambda item: -len(item[1])):
        named = ", ".join(f"{row['criterion']} {row['slower']:.1%}" for row in rows[:MAX_KEYS])
        more = len(rows) - MAX_KEYS
        if more > 0:
            named += f" and {more} more {plural(more, 'criterion')}"
        shared = SHARED_BY["half" if kind == "part" else kind]
        head = f"Slower than the rest of the fleet, judged by their limits: {where}"
        yield f"{head}: {named}. {shared}"


def _of_criterion(
    nodes: Sequence[str], gpus: Mapping[str, int | None], slots: int
) -> Iterator[tuple[str, str, int]]:
    """Yield (kind, where, failing nodes) of one criterion.

    `nodes`: those that were judged, in the order of their names; `gpus`: of each that failed, the
    slowest or otherwise worst GPU, None where the criterion names none.
    """
    if len(nodes) < MIN_NODES or not gpus:
        return
    slot = _common_slot(gpus, slots)
    if slot is not None:
        gpu, count = slot
        yield (
            "slot",
            f"GPU {gpu} is the one that fails on {count} of {counted(len(nodes), 'node')}",
            count,
        )
    if 2 * len(gpus) >= len(nodes):
        of_all = "half of the nodes or more"
        yield "half", f"{len(gpus)} of {counted(len(nodes), 'node')} fail, {of_all}", len(gpus)
    elif slot is None:
        for failed, place in _places(nodes, set(gpus)):
            words = f"{counted(len(place), 'node')} next to each other, {hostlist(place)}"
            if failed < len(place):
                words = f"{failed} of {words}"
            yield "place", f"{words}, fail together", failed


def _common_slot(gpus: Mapping[str, int | None], slots: int) -> tuple[int, int] | None:
    """Return the GPU that fails on far more nodes than others, and on how many; None for none."""
    named = [gpu for gpu in gpus.values() if gpu is not None]
    if not named or slots < 2:
        return None
    ((gpu, count),) = Counter(named).most_common(1)
    share = 1 / slots
    tail = sum(
        math.comb(len(named), k) * share**k * (1 - share) ** (len(named) - k)
        for k in range(count, len(named) + 1)
    )
    return (gpu, count) if slots * tail <= CHANCE else None


def _places(nodes: Sequence[str], failing: set[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield runs of neighbours that fail with at most one good node between two of them."""
    at = [k for k, node in enumerate(nodes) if node in failing]
    runs: list[list[int]] = []
    for k in at:
        if runs and k - runs[-1][-1] <= 2:
            runs[-1].append(k)
        else:
            runs.append([k])
    for run in runs:
        span = run[-1] - run[0] + 1
        dense = len(run) >= MIN_DENSITY * span
        if dense and _chance(len(nodes), len(at), span, len(run)) <= CHANCE:
            yield len(run), list(nodes[run[0] : run[-1] + 1])


def _chance(nodes: int, failing: int, span: int, found: int) -> float:
    """Return at most how often `span` neighbours anywhere hold `found` of the failing nodes.

    The hypergeometric tail of one place, times the number of places (Bonferroni).
    """
    ways = sum(
        math.comb(span, k) * math.comb(nodes - span, failing - k)
        for k in range(found, min(span, failing) + 1)
    )
    return (nodes - span + 1) * ways / math.comb(nodes, failing)
