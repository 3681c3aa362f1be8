"""The second judge's list of attempts: what the ledger says of them, and whose a failure is.

Standard library alone, and nothing of the suite.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from reports.second_judge.physics import TABLES, Json

_FILE = re.compile(r"([A-Za-z0-9._-]+)@([A-Za-z0-9._-]+?)(?:\.attempt(\d{1,4}))?\.json")
FAILED = ("FAIL", "WAIVED")
DEVICE_CHANGED = "device replaced"


def named(file: str) -> tuple[str, str, int] | None:
    """Return workload, placement and attempt of a record by its file's name."""
    match = _FILE.fullmatch(file)
    return (match[1], match[2], int(match[3] or 1)) if match else None


class Told:
    """What the ledgers of a run say: `newest` attempt of a record, `failed` attempts of a row."""

    def __init__(self, root: Path, read: Callable[[Path], str],
                 folders: Iterable[Path] = ()) -> None:  # fmt: skip
        self.newest: dict[tuple[str, str], int] = {}
        self.failed: dict[tuple[str, str], dict[int, Json]] = {}
        for folder in (*folders, root):
            with suppress(OSError, ValueError):
                for text in read(folder / "ledger.jsonl").split("\n"):
                    with suppress(ValueError, KeyError, TypeError, AttributeError):
                        self._add(json.loads(text))

    def _add(self, line: Json) -> None:
        record = named(line["record"]) if line["event"] == "verdict" else None
        if record is None:
            return
        key, attempt = (line["criterion"], line["subject"]), record[2]
        self.newest[record[:2]] = max(attempt, self.newest.get(record[:2], 0))
        of_row, cause = self.failed.setdefault(key, {}), line.get("cause")
        if line["outcome"] in FAILED:
            of_row[attempt] = line
        elif line["outcome"] != "NOT_MEASURED" or cause == "repetition":
            of_row.pop(attempt, None)
        elif cause == DEVICE_CHANGED and attempt in of_row and not _gpu(of_row[attempt]):
            del of_row[attempt]


def _gpu(line: Json) -> Any:
    return (line.get("worst") or {}).get("uuid")


def of_attempt(
    judge: Any, row: Any, record: Json | None, line: Json | None, *, earlier: bool = False
) -> tuple[str, Any]:
    """Return outcome and value of an attempt: by its record, and by the failure in the ledger.

    `judge`: the SecondJudge. `line`: of the ledger, None where it has no failure.
    """
    outcome, value = judge.judge(row, record)
    changed = [n for n in row.nodes if record is not None and n in record["changed"]]
    if outcome == "NOT_MEASURED" and record is not None and changed:
        others = unchanged(row, record) if earlier and not row.c["together"] else None
        found = judge.judge(row, others)[0] if others is not None else outcome
        return (found, None) if found in FAILED else (outcome, value)
    if line is None or outcome in FAILED:
        return outcome, value
    if outcome != "NOT_MEASURED":
        if record is not None and not is_another(row, record, line):
            return outcome, value
    elif record is None and is_gone(line, judge.records.gpus_of):
        return outcome, value
    waived = line["outcome"] == "WAIVED" and is_waived(judge, row)
    return "WAIVED" if waived else "FAIL", line.get("value")


def is_waived(judge: Any, row: Any) -> bool:
    """Whether a waiver of the row's subject holds on the day of the run."""
    day = str(judge.run.get("ended") or datetime.date.today())[:10]
    return any(w["criterion"] == row.c["key"] and w["node"] == row.subject and day <= w["expires"]
               for w in judge.limits["waivers"])  # fmt: skip


def is_gone(line: Json, gpus_of: Callable[[str], Any]) -> bool:
    """Whether the GPU that failed is known not to be in its node any more."""
    uuid = _gpu(line)
    there = gpus_of(line["worst"]["node"]) if str(uuid).startswith(("GPU-", "MIG-")) else ()
    return bool(there) and uuid not in there


def is_another(row: Any, record: Json, line: Json) -> bool:
    """Whether a record that passes is not the one that failed: the fleet does not explain it."""
    c, margin = row.c, line.get("margin")
    compares = c["spread"] and c["statistic"] == "median" and c["per"] in ("node", "rail")
    job = record["job"].get("id")
    other_job = line.get("job") != (None if job is None else str(job))
    return not compares or other_job or (isinstance(margin, (int, float)) and margin < 0)


def unchanged(row: Any, record: Json) -> Json | None:
    """Return a record that is void for some devices as it would be of the others alone.

    Those that were changed have the measurements of an unchanged GPU of their node. None where
    it cannot be told apart.
    """
    changed = record["changed"]
    if any(changed.get(node, (1,))[0] is None for node in row.nodes if node not in record["left"]):
        return None
    c, parts = row.c, {n: of for n, of in changed.items() if of[0] is not None}
    of_node = {**record["of_node"], **{node: ranks for node, (_, ranks) in parts.items()}}
    by_row = c["over"] in ("nodes", "tasks", "half") or c["statistic"] == "alike"
    by_row |= c["statistic"] == "value" and c["over"] == "slowest"
    if by_row and (c["per"] != "node" or c["workload"] in TABLES["rows_of_gpus"]):
        return None
    for node, (gone, ranks) in parts.items():
        if c["over"] == "nics":
            of_node[node] = [_without(r, gone) for r in ranks]
        elif not by_row:
            if all(r["device"].get("uuid") in gone for r in ranks):
                return None
            of_node[node] = [*_stand_ins(ranks, gone)]
    every = sorted((r for ranks in of_node.values() for r in ranks), key=lambda r: int(r["rank"]))
    return {**record, "of_node": of_node, "ranks": every, "left": {*record["left"], *parts}}


def _without(rank: Json, gone: set[str]) -> Json:
    kept = [m for m in rank["measurements"] if str(m.get("at", {}).get("part")) not in gone]
    return {**rank, "measurements": kept}


def _stand_ins(ranks: list[Json], gone: set[str]) -> Iterable[Json]:
    left = [r for r in ranks if r["device"].get("uuid") not in gone]
    slots = {r["local_rank"] for r in ranks} - {r["local_rank"] for r in left}
    links = {m["metric"]: m for r in left for m in r["measurements"]
             if m.get("at", {}).get("to", min(slots)) not in slots}  # fmt: skip
    for rank in ranks:
        of = left[0] if rank["local_rank"] in slots else rank
        found = [m for m in of["measurements"] if "to" not in m.get("at", {})]
        for m in rank["measurements"]:
            if "to" in m.get("at", {}):
                sound = rank["local_rank"] not in slots and m["at"]["to"] not in slots
                found += [m] if sound else [
                    {**links[m["metric"]], "at": m["at"]} for _ in "1" if m["metric"] in links
                ]  # fmt: skip
        yield {**rank, "device": of["device"], "absent": of["absent"], "measurements": found}
