"""The second judge's arithmetic: from samples to figures, and what healthy ones look like.

Standard library alone, and nothing of the suite.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reports.second_judge.absences import NONE, SILENT, gaps
from reports.second_judge.physics import TABLES, Cannot, Json, model_of

Point = tuple[Json, Json]
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
    c, found = row.c, []
    for rank in reporters(row, record):
        for m in rank["measurements"]:
            at = {} if metric else c["at"]
            if m["metric"] == (metric or c["metric"]):
                found += [(rank, m)] * all(m.get("at", {}).get(k) == v for k, v in at.items())
    return found


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


def certain(
    points: Sequence[tuple[Json, Json]], kind: str = "", limit: Any = None
) -> tuple[list[tuple[Json, Json]], bool]:
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


def split(
    figures: Sequence[list[float]], satisfies: Callable[[float], bool]
) -> tuple[list[list[float]], list[list[float]]]:
    """Return the figures that are bad in every round, and those that are bad in some."""
    bad = [[not satisfies(x) for x in rounds] for rounds in figures]
    pairs = list(zip(figures, bad, strict=True))
    return [f for f, b in pairs if all(b)], [f for f, b in pairs if any(b) and not all(b)]


def lowest_of_kind(
    siblings: Sequence[float], spread: Mapping[str, float], criteria: int, rounds: int
) -> float:
    """Return the least value of a round of a device that is not an outlier among its like.

    0.3 % of the runs of a healthy fleet may accuse anybody: `criteria` share that risk.
    """
    count = len(siblings)
    if count < 4:
        return -math.inf
    median, sigma, noise = (
        statistics.median(siblings), spread["device_sigma"], spread["run_sigma"]
    )  # fmt: skip
    if count >= 64:
        deviation = 1.4826 * statistics.median(abs(x - median) for x in siblings) / median
        sigma = math.sqrt(max(sigma**2, deviation**2 - noise**2))
    risk = 0.003 / criteria / count
    once, always = (-statistics.NormalDist().inv_cdf(risk ** (1 / k)) for k in (1, rounds))
    differs = math.exp(-once * math.hypot(sigma, noise / math.sqrt(rounds)))
    return min((1 - spread["delta"]) * math.exp(-always * noise), differs) * median


SlotValue = tuple[int | None, float]
"""A GPU's place in its node, None for what is not of one GPU; and its figure."""


def slot_of(c: Json, rank: Json) -> int | None:
    of_gpu = c["per"] == "node" and c["over"] not in ("ranks", "links")
    return rank["local_rank"] if of_gpu else None


def slot_shares(
    like: Sequence[SlotValue], spread: Mapping[str, float], criteria: int
) -> dict[int | None, float]:
    """Return what slots give that are slower on the whole fleet, over the others of their nodes.

    From eight nodes on, by the ranks of a node's GPUs: at most half of the slots are slower by a
    quarter of delta, and the sum of their ranks is one that chance shows in 0.3 % of runs at most.
    """
    slots = sorted({slot for slot, _ in like if slot is not None})
    nodes: list[dict[int | None, float]] = []
    for slot, value in like:
        if not nodes or slot is None or slot <= max(s for s in nodes[-1] if s is not None):
            nodes.append({})
        nodes[-1][slot] = value
    whole = [node for node in nodes if len(node) == len(slots)]
    if any(slot is None for slot, _ in like) or len(slots) < 2 or len(whole) < 8:
        return {}
    ranks = {s: sum(sum(v < node[s] for v in node.values()) + (list(node.values()).count(node[s])
             - 1) / 2 for node in whole) for s in slots}  # fmt: skip
    order, half = sorted(slots, key=lambda s: ranks[s]), len(slots) // 2
    bounds = [
        (_rank_bound(len(slots), n, sum(ranks[s] for s in order[:n]) / len(whole)) * len(whole)
         + math.log(math.comb(len(slots), n) * half), n)
        for n in range(1, half + 1)
    ]  # fmt: skip
    chance, count = min(bounds)

    fast = [statistics.median(node[s] for s in order[count:]) for node in whole]
    share = {s: statistics.median(n[s] / of for n, of in zip(whole, fast, strict=True))
             for s in slots}  # fmt: skip
    middle = (1 + statistics.median(share[s] for s in order[:count])) / 2
    if chance > math.log(0.003 / criteria / 4) or 2 * (1 - middle) < spread["delta"] / 4:
        return {}
    low = [s for s in slots if share[s] < middle]
    fast = [statistics.median(v for s, v in node.items() if s not in low) for node in whole]
    return {s: statistics.median(n[s] / of for n, of in zip(whole, fast, strict=True)) for s in low}


def _rank_bound(slots: int, count: int, mean: float) -> float:
    """Return Chernoff's bound, per node, for a mean rank sum as low as this; logarithm."""
    sums = Counter(map(sum, itertools.combinations(range(slots), count)))
    total, least = sum(sums.values()), min(sums)
    if mean >= sum(s * n for s, n in sums.items()) / total:
        return 0.0

    def bound(t: float) -> float:
        return math.log(sum(n * math.exp(t * (s - least)) for s, n in sums.items()) / total) - t * (
            mean - least
        )

    low, high = -64.0, 0.0
    for _ in range(90):
        third = (high - low) / 3
        low, high = (low, high - third) if bound(low + third) < bound(high - third) else (
            low + third, high
        )  # fmt: skip
    return bound((low + high) / 2)


def far_below(
    devices: Sequence[tuple[int | None, list[float]]],
    like: Sequence[SlotValue],
    spreads: tuple[Mapping[str, float], Mapping[str, float]],
    criteria: int,
) -> tuple[list[list[float]], list[list[float]]]:
    """Return the devices that are outliers in all of their rounds, and those in some.

    `spreads`: of the class, and of the model.
    """
    shares = slot_shares(like, spreads[0], criteria)
    values = [value / shares.get(slot, 1) for slot, value in like]
    found: tuple[list[list[float]], list[list[float]]] = [], []
    for count in {len(rounds) for _, rounds in devices}:
        least = lowest_of_kind(values, spreads[1], criteria, count)
        for slot, rounds in devices:
            if len(rounds) == count:
                below, partly = split([rounds], (least * shares.get(slot, 1)).__le__)
                found[0].extend(below)
                found[1].extend(partly)
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
