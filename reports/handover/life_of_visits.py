"""What the links of GPUs counted between the visits of a patrol: days, where a job has minutes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fixtures.records.ledger import BY_LIFE, LIFE
from fixtures.statistics import life
from fixtures.statistics.life import Part
from fixtures.wording import counted, digits
from reports.facts.silence import Row

SHARE = 0.5
"""Of the risk, of each of the two counters that a visit reads."""


def is_counter(row: Row) -> bool:
    """Whether a row of the history is what a counter of a GPU stands at."""
    return str(row["metric"] or "").startswith(LIFE)


def life_lines(rows: Sequence[Row]) -> Iterable[str]:
    """Yield a line for each GPU whose links or lanes have counted far more errors over the visits
    than those of its siblings."""
    seen: dict[tuple[str, str, int, str], list[tuple[float, float]]] = {}
    for row in rows:
        if row["value"] is not None:
            key = (row["node"], row["uuid"], row["gpu"], row["metric"].removeprefix(LIFE))
            seen.setdefault(key, []).append((row["end"], row["value"]))
    parts: dict[str, list[Part]] = {}
    for (node, _, gpu, name), values in seen.items():
        counter, _, part = name.partition("/")
        (first, low), (last, high) = min(values), max(values)
        if first == last:
            continue  # one visit shows no rise, not that there is none
        # A counter that has fallen was reset, and began anew at 0.
        rise = high if high < low else high - low
        hours = (last - first) / 3600
        if not part:
            parts.setdefault(counter, []).append(Part(node, f"gpu{gpu}", "", rise, hours))
    for counter, of_counter in sorted(parts.items()):
        for found in life.accused(of_counter, share=SHARE):
            names = _links(seen, found.part, counter)
            hours = found.part.hours or 0.0
            yield (
                f"{BY_LIFE}: {found.part.node} {found.part.device}{names}: {counter} rose by "
                f"{digits(found.part.count)} in {hours / 24:.1f} days, of "
                f"{counted(found.siblings, 'sibling')} by at most {digits(found.most)}: look at it "
                "before it takes a job down"
            )


def _links(
    seen: Mapping[tuple[str, str, int, str], Sequence[tuple[float, float]]], gpu: Part, counter: str
) -> str:
    """Return the links of a GPU that count, in brackets."""
    names = sorted(
        name.partition("/")[2] for node, _, k, name in seen
        if (node, f"gpu{k}") == (gpu.node, gpu.device) and name.startswith(f"{counter}/")
    )  # fmt: skip
    return f" ({', '.join(names[:4])})" if names else ""
