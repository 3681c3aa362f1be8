"""What a report shows between verdict and table: failures, coverage, charts (login side)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fixtures.errors import ConfigError
from fixtures.records.fast_reader import read_record
from fixtures.records.files import RecordError, read_json
from fixtures.records.model import Record
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds import loader
from fixtures.thresholds.conditions import digits
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.model import Verdict
from reports import banner, charts
from reports.areas import areas, coverage
from reports.tables import records_of

ALL_NODES = 32
"""Records of so many nodes are all drawn; of more only those of some, and the verdicts of all."""
SOME_NODES = 4
LARGEST = 16_000_000
"""Bytes of a record that is read for its charts in a large run."""
ROWS = 160
"""So many nodes stand in the matrix, those that did not pass first."""

TELEMETRY = {
    "util": "utilisation %", "sm_mhz": "SM MHz", "power_w": "W", "temp_c": "C",
    "thermal_percent": "thermal slowdown %", "power_cap_percent": "power cap %",
}  # fmt: skip


def figures(directory: RunDirectory, verdict: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """HTML; what cannot be drawn is said in a line, and never costs the report."""
    criteria = verdict["criteria"]
    nodes = [str(n) for n in (verdict.get("scope") or {}).get("nodes") or []]
    matrix = coverage(criteria, nodes)
    order = list(matrix.rows)
    bad = set(matrix.not_whole)
    if len(order) > ROWS:
        order = [n for n in order if n in bad] + [n for n in order if n not in bad]
    drawn: list[charts.Chart] = []
    why = ""
    try:
        limits = _limits(run)
        failed_nodes = dict.fromkeys(str(v["subject"]) for v in criteria if v["outcome"] == "FAIL")
        drawn = charts.charts(_records(directory, nodes, list(failed_nodes)), criteria, limits)
        if len(nodes) > ALL_NODES:
            drawn = charts.of_verdicts(criteria, limits) + drawn
    except (ConfigError, OSError, RecordError, ImportError) as error:
        why = f"There are no charts: {error}"
    return banner.render(
        "figures.jinja2",
        failed=[_failure(directory, v) for v in criteria if v["outcome"] == "FAIL"][:200],
        coverage=matrix,
        areas=json.dumps(areas(criteria)),
        shown=order[:ROWS],
        rest=max(0, len(order) - ROWS),
        hidden=sum(n in bad for n in order[ROWS:]),
        charts=drawn,
        why=why,
    )


def _limits(run: Mapping[str, Any]) -> Thresholds:
    """Those that the run was judged by, where they are still at hand."""
    said = run.get("thresholds") or {}
    found = loader.load(Path(str(said.get("path") or "no file")))
    if found.sha256 != said.get("sha256"):
        raise ConfigError(f"{found.path} has changed since")
    return found


def _records(
    directory: RunDirectory, nodes: Sequence[str], failed: Sequence[str]
) -> Iterator[Record]:
    if len(nodes) <= ALL_NODES:
        yield from records_of(directory)
        return
    some = [n for n in failed if n in set(nodes)][:SOME_NODES]
    some += [n for n in nodes if n not in some][: SOME_NODES - len(some)]
    for path in sorted(directory.records.glob("*.json")):
        placement = path.stem.partition("@")[2]
        if (placement in some or placement == "all") and path.stat().st_size <= LARGEST:
            with suppress(OSError, ValueError):
                yield read_record(path)


def _failure(directory: RunDirectory, v: Mapping[str, Any]) -> dict[str, Any]:
    worst = v.get("worst") or {}
    part = worst.get("part") or (f"gpu{worst['gpu']}" if worst.get("gpu") is not None else "")
    told = Verdict.from_json(v)
    return {
        **v,
        "measured": told.measured,
        "device": " ".join(str(x) for x in (part, worst.get("uuid") or "") if x),
        "workload": str(v.get("record") or "").partition("@")[0],
        "telemetry": _telemetry(directory, v),
    }


def _telemetry(directory: RunDirectory, v: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row a GPU while the workload ran: of the node that failed, or of those that did together.

    Of many nodes the first SOME_NODES.
    """
    node = (v.get("worst") or {}).get("node") or v["subject"]
    with suppress(OSError, RecordError, KeyError, TypeError, AttributeError):
        path = directory.records / str(v["record"])
        if path.stat().st_size > LARGEST:
            return []
        by_node: dict[str, list[dict[str, Any]]] = {}
        for rank in read_json(path)["ranks"]:
            by_node.setdefault(rank["node"], []).append(rank)
        if node in by_node:
            return list(_gpus(by_node[node]))
        some = list(by_node.items())[:SOME_NODES]
        return [{"Node": name, **row} for name, ranks in some for row in _gpus(ranks)]
    return []


def _gpus(ranks: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """What a node's telemetry says of its GPUs, from the ranks of that node."""
    own = next((f["telemetry"] for r in ranks if "telemetry" in (f := r["facts"])), None)
    names = {r["device"].get("uuid"): f"gpu{r['local_rank']}" for r in ranks}
    for uuid, of_gpu in own["gpus"].items() if own else ():
        yield {"GPU": names.get(uuid, str(uuid)), **_cells(of_gpu)}


def _cells(of_gpu: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name, title in TELEMETRY.items():
        value = of_gpu.get(name)
        if isinstance(value, Mapping):
            found[title] = f"{digits(value['mean'])} ({digits(value['max'])})"
        else:
            found[title] = "" if value is None else digits(value)
    return found
