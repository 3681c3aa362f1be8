"""The second judge's reading of what a rank lacks: as records list it, or as earlier facts say it.

An absence has a metric ("" for all), a kind, and as `at` the point of the sweep that it is about.
"""

from __future__ import annotations

from collections.abc import Iterator

from reports.second_judge.physics import TABLES, Json

NONE, SILENT, FAULT, NO_TIME = "not there", "nothing reported", "fault of the node", "no time"
BOUND, DRIVER, GUEST, UNKNOWN = (
    "only a lower bound", "not offered by the driver", "refused by a guest", "not decided",
)  # fmt: skip
KINDS = {NONE, SILENT, FAULT, NO_TIME, BOUND, DRIVER, GUEST, UNKNOWN}


def is_sound(absence: Json) -> bool:
    """Whether an absence of a record has the fields that it must have."""
    texts = [absence.get(name) for name in ("metric", "kind", "why")]
    point = absence.get("at", {})
    return (
        all(isinstance(text, str) for text in texts)
        and isinstance(point, dict)
        and absence["kind"] in KINDS
        and absence.keys() <= {"metric", "kind", "why", "at"}
        and all(isinstance(scalar, (str, int, float)) for scalar in point.values())
    )


def typed(rank: Json) -> Json:
    """Return a rank of a record of schema 1 with what it lacks, and without its empty values."""
    if "absent" in rank:
        return rank
    left = [m for m in rank["measurements"] if not _is_empty(m)]
    return {**rank, "absent": list(_of_facts(rank)), "measurements": left}


def _of_facts(rank: Json) -> Iterator[Json]:
    """Yield what a rank of a record of schema 1 lacks, by its facts and its empty values."""
    facts = rank["facts"]
    said = {k: v for k, v in facts.items() if isinstance(v, dict)}
    for name in said.get("unsupported", {}):
        metric, _, counter = name.partition(" ")
        yield {"metric": metric, "kind": NONE, "at": {"counter": counter} if counter else {}}
    least = facts.get("at_least", [])
    if not isinstance(least, list) or not all(isinstance(name, str) for name in least):
        yield {"metric": "", "kind": FAULT}
        least = []
    for metric, why in {**said.get("not_measured", {}), **said.get("not_offered", {})}.items():
        none = why in TABLES["absent_value"] and metric not in least
        yield {"metric": metric, "kind": NONE if none else FAULT}
    yield from ({"metric": metric, "kind": BOUND} for metric in least)
    yield from ({"metric": metric, "kind": GUEST} for metric in said.get("refused", {}))
    sizes = said.get("left_out", {}).get("sizes")
    for size in sizes if isinstance(sizes, list) else ():
        yield {"metric": "", "kind": NO_TIME, "at": {"size": size}}
    for m in filter(_is_empty, rank["measurements"]):
        yield {"metric": m["metric"], "kind": UNKNOWN}


def _is_empty(m: Json) -> bool:
    """Whether a measurement of schema 1 has no value, and notes that say why."""
    return bool(m.get("notes")) and m.get("value") is None and not m.get("samples")


def gaps(rank: Json, metric: str, at: Json) -> list[str]:
    """Return the kinds of what a rank lacks of a metric at a point."""
    kinds = []
    for a in rank["absent"]:
        point = a.get("at", {})
        asked = {} if a["kind"] == NO_TIME else point
        same = all(at.get(name, asked.get(name)) == value for name, value in point.items())
        kinds += [a["kind"]] * (a["metric"] in (metric, "") and same)
    return kinds


def lacks(rank: Json, c: Json) -> bool:
    """Whether a rank says that its device has none of a criterion's value."""
    return NONE in gaps(rank, c["metric"], c["at"])
