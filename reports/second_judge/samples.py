"""The second judge's arithmetic: from samples to figures, and what healthy ones look like."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reports.second_judge.absences import NONE, SILENT, gaps
from reports.second_judge.physics import TABLES, Cannot, Json, model_of

Point = tuple[Json, Json]
Rounds = list[list[float]]
"""A rank's entry, and one of its measurements."""


def rounds_of(m: Json) -> list[list[float]]:
    return [m.get("samples", []), *m.get("rounds", [])]


def medians(m: Json) -> list[float]:
    """Return the median of each round; Cannot unless all samples are positive."""
    if any(not samples or min(samples) <= 0 for samples in rounds_of(m)):
        raise Cannot("no samples, or one that is not positive")
    return [statistics.median(samples) for samples in rounds_of(m)]


def mean_over_ranks(values: Sequence[float], unit: str) -> float:
    """Return the mean of times; of rates that of the times that they stand for."""
    return statistics.fmean(values) if unit == "us" else statistics.harmonic_mean(values)


def check(m: Json, bounds: Mapping[str, Any]) -> None:
    """Cannot where a check of validity is missing or out of bounds, or samples are missing."""
    checks = m.get("checks", {})
    fewest = min(len(samples) for samples in rounds_of(m))
    counts = [checks[name] for name in ("batches", "steps") if name in checks]
    if fewest and any(count != fewest for count in counts):
        raise Cannot("not as many samples as it says")
    if fewest and m.get("ended") and len(m["ended"]) != len(m["samples"]):
        raise Cannot("not as many times as samples")
    if sorted(m.get("ended", [])) != m.get("ended", []):
        raise Cannot("times that go backwards")
    for name, (low, high) in bounds.items():
        low, high = -math.inf if low is None else low, math.inf if high is None else high
        if not low <= checks.get(name, math.nan) <= high:
            raise Cannot(f"{name} is not valid")


def ranks_of(row: Any, record: Json) -> list[Json]:
    """Return the ranks of the row's nodes, in the order of the record."""
    found = [rank for node in row.nodes for rank in record["of_node"].get(node, ())]
    return sorted(found, key=lambda rank: int(rank["rank"]))


def reporters(row: Any, record: Json) -> list[Json]:
    ranks = ranks_of(row, record) if row.c["per"] == "node" else record["ranks"]
    of_rail = row.c["per"] == "rail"
    return [r for r in ranks if not of_rail or row.subject == f"rail{r['local_rank']}"]


def points_of(row: Any, record: Json, metric: str = "") -> list[Point]:
    metric, at = metric or row.c["metric"], {} if metric else row.c["at"]
    return [(rank, m) for rank in reporters(row, record) for m in rank["measurements"]
            if m["metric"] == metric
            and all(m.get("at", {}).get(k) == v for k, v in at.items())]  # fmt: skip


def satisfies(kind: str, limit: Any, value: Any) -> bool:
    """Whether a value is within a limit; written so that NaN is not."""
    if kind in ("calibrate", ""):
        raise Cannot("the limit is not set")
    if kind == "equals" and limit in TABLES["gpus"]:
        value = model_of(value)
    return kind == "recorded" or bool(
        value >= limit if kind == "below" else value <= limit if kind == "above" else value == limit
    )


def has_value(m: Json) -> bool:
    """Whether a measurement has one: else its rank says why."""
    return m.get("value") is not None or bool(m.get("samples"))


def certain(points: list[Point], kind: str = "", limit: Any = None) -> tuple[list[Point], bool]:
    """Return the points that can be judged, and whether these are all of them; Cannot without any.

    A lower bound shows only that a value is above a limit.
    """
    kept = []
    for rank, m in points:
        value, higher = m.get("value"), kind in ("above", "equals")
        numbers = isinstance(value, (int, float)) and isinstance(limit, (int, float))
        least = {*gaps(rank, m["metric"], m.get("at", {}))} - {NONE, SILENT}
        if has_value(m) and (not least or (higher and numbers and value > limit)):
            kept.append((rank, m))
    if not kept:
        raise Cannot("no value")
    return kept, len(kept) == len(points)


def most_alike(values: Sequence[Any], within: float | None) -> int:
    """Return how many values are the same as one of them, at most; or no further apart."""
    if within is None:
        return max(list(values).count(v) for v in values)
    return max(len([w for w in values if abs(v - w) <= within]) for v in values)


def split(figures: Rounds, satisfies: Callable[[float], bool]) -> tuple[Rounds, Rounds]:
    """Return the figures that are bad in every round, and those that are bad in some."""
    bad = [[not satisfies(x) for x in rounds] for rounds in figures]
    pairs = list(zip(figures, bad, strict=True))
    return [f for f, b in pairs if all(b)], [f for f, b in pairs if any(b) and not all(b)]


def lowest_of_kind(siblings: Sequence[float], spread: Json, criteria: int, rounds: int) -> float:
    """Return the least value of a round of a device that is not an outlier among its like.

    0.3 % of the runs of a healthy fleet may accuse anybody: `criteria` share that risk.
    """
    count = len(siblings)
    if count < 4:
        return -math.inf
    median, sigma, noise = statistics.median(siblings), spread["device_sigma"], spread["run_sigma"]
    if count >= 64:
        deviation = 1.4826 * statistics.median(abs(x - median) for x in siblings) / median
        sigma = math.sqrt(max(sigma**2, deviation**2 - noise**2))
    risk = 0.003 / criteria / count
    once, always = (-statistics.NormalDist().inv_cdf(risk ** (1 / k)) for k in (1, rounds))
    differs = math.exp(-once * math.hypot(sigma, noise / math.sqrt(rounds)))
    return float(min((1 - spread["delta"]) * math.exp(-always * noise), differs) * median)


SlotValue = tuple[int | None, float]
"""A GPU's place in its node, None for what is not of one GPU; and its figure."""


def slot_of(c: Json, rank: Json) -> int | None:
    of_gpu = c["per"] == "node" and c["over"] not in ("ranks", "links")
    return rank["local_rank"] if of_gpu else None


def slot_shares(like: Sequence[SlotValue], spread: Json, criteria: int) -> dict[Any, float]:
    """Return what slots give that are slower on the whole fleet, over the others of their nodes.

    From eight nodes on, by a quarter of delta: half of the slots at most, whose ranks in the nodes
    are chance in 0.3 % of runs (shared by four kinds of groups)."""
    slots, nodes = sorted({slot for slot, _ in like if slot is not None}), list[dict[Any, float]]()
    for slot, value in like:
        nodes += [] if nodes and slot is not None and slot > max(nodes[-1]) else [{}]
        nodes[-1][slot or 0] = value
    nodes = [node for node in nodes if len(node) == len(slots)]
    if len(nodes) < 8 or len(slots) < 2 or None in {slot for slot, _ in like}:
        return {}
    ranks = [statistics.fmean(sum((v < n[s]) + (v == n[s]) / 2 for v in n.values()) for n in nodes)
             for s in slots]  # fmt: skip
    order, tested = [s for _, s in sorted(zip(ranks, slots, strict=True))], len(slots) // 2
    chance, j = min((math.log(math.comb(len(slots), j) * tested) + len(nodes) * _chance(len(slots),
        j, sum(sorted(ranks)[:j]) - j / 2), j) for j in range(1, tested + 1))  # fmt: skip
    share = _shares(nodes, slots, order[j:])
    middle = (1 + statistics.median(share[s] for s in order[:j])) / 2
    if chance > math.log(0.003 / criteria / 4) or 2 * (1 - middle) < spread["delta"] / 4:
        return {}
    low = [s for s in slots if share[s] < middle]
    return _shares(nodes, low, [s for s in slots if s not in low])


def _shares(nodes: Any, slots: Sequence[int], others: Sequence[int]) -> dict[Any, float]:
    of = [statistics.median(node[s] for s in others) for node in nodes]
    return {s: statistics.median(n[s] / m for n, m in zip(nodes, of, strict=True)) for s in slots}


def _chance(slots: int, count: int, mean: float) -> float:
    """Return Chernoff's bound for a mean sum of `count` of a node's ranks: a logarithm per node."""
    sums = [sum(ranks) - mean for ranks in itertools.combinations(range(slots), count)]
    return min(0.0, *(math.log(statistics.fmean(math.exp(t * (sums[0] - s)) for s in sums))
                      - t * sums[0] for t in (1.03**k for k in range(-200, 140))))  # fmt: skip


def far_below(devices: Sequence[tuple[int | None, list[float]]], like: Sequence[SlotValue],
              spreads: tuple[Json, Json], criteria: int) -> tuple[Rounds, Rounds]:  # fmt: skip
    """Return the devices that are outliers in all of their rounds, and those in some.

    `spreads`: of the class, and of the model.
    """
    shares = slot_shares(like, spreads[0], criteria)
    values = [value / shares.get(slot, 1) for slot, value in like]
    found: tuple[Rounds, Rounds] = [], []
    for count in {len(rounds) for _, rounds in devices}:
        least = lowest_of_kind(values, spreads[1], criteria, count)
        for slot, rounds in devices:
            if len(rounds) == count:
                low = split([rounds], (least * shares.get(slot, 1)).__le__)
                found = found[0] + low[0], found[1] + low[1]
    return found


OVER_BOUND, SAMPLE_OVER_BOUND = 1.02, 1.2
"""A median, or a single sample, above this multiple of a physical bound is a measurement error."""


def beyond(typical: Sequence[float], single: Sequence[float], bound: float, least: bool) -> bool:
    """Whether a median, or a single sample, is beyond what physics allows; `least`: below it."""
    pairs = ((typical, OVER_BOUND), (single, SAMPLE_OVER_BOUND))
    if least:
        return any(value * over < bound for values, over in pairs for value in values)
    return any(value > over * bound for values, over in pairs for value in values)


def is_steady(samples: Sequence[float], tail: Json, time: bool) -> bool:
    """Whether what samples gave together, and the share of slow ones, is what healthy ones give."""
    if len(samples) < 10:
        return True
    rates = sorted((1 / x if time else x for x in samples), reverse=True)
    median = 1 / statistics.median(samples) if time else statistics.median(samples)
    good = median if tail["shared"] else rates[math.ceil(len(rates) / 4) - 1]
    slow = sum(rate < tail["slow"] * good for rate in rates)
    together = statistics.harmonic_mean([min(rate, good) for rate in rates])
    usual = median if time else good
    return bool(together >= tail["together"] * usual and slow <= max(1, tail["share"] * len(rates)))


def each_and_all(rounds: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the rounds of a device, and where there are several, all of them as one."""
    return [*map(list, rounds), *([[x for r in rounds for x in r]] if len(rounds) > 1 else [])]
