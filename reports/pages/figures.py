"""The parts of the report above its table: failures, figures, coverage, charts (login side)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fixtures.errors import ConfigError
from fixtures.paths import THRESHOLDS
from fixtures.records.files import RecordError
from fixtures.records.foreign_files import is_plain
from fixtures.records.model import RankResult, Record
from fixtures.records.run_directory import RunDirectory
from fixtures.run.reader import RunReader, unmeasured_parts
from fixtures.thresholds import loader
from fixtures.thresholds.definitions import shipped
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.model import Verdict
from fixtures.wording import digits, quantity
from reports.facts import causes
from reports.facts.areas import areas, coverage
from reports.facts.blame import noun_of, red_of
from reports.facts.key_figures import tiles
from reports.facts.limit_sources import LimitSources
from reports.facts.rows import low_is_bad
from reports.pages import banner
from reports.plots import charts, heat
from reports.plots.charts import Chart, DeviceValues
from reports.plots.tail_charts import tail_chart
from reports.plots.trainings import Trainings

MAX_NODES_IN_FULL = 32
"""Most nodes whose records are all drawn.

Of a larger run the records of SAMPLED_NODES nodes are drawn, and the verdicts of all nodes.
"""
SAMPLED_NODES = 4
MAX_RECORD_BYTES = 16_000_000
"""Largest record that is read for the charts of a large run, and for telemetry."""
MAX_FAILURES = 200
"""Most failures that are counted here; the table has all."""
MAX_SHOWN = 40
"""Most failures with their telemetry and their samples over time."""
MAX_MATRIX_ROWS = 160
"""Most nodes in the coverage matrix; those that did not pass come first."""

TELEMETRY = {
    "util": "utilisation %", "sm_mhz": "SM MHz", "power_w": "W", "temp_c": "C",
    "thermal_percent": "thermal slowdown %", "power_cap_percent": "power cap %",
}  # fmt: skip


@dataclass(frozen=True)
class Parts:
    """The HTML of two parts of the page."""

    failures: str
    """The failures; "" without any."""
    body: str
    """Key figures, coverage, maps, charts, trainings and recorded figures."""


def figures(
    directory: RunDirectory,
    verdict: Mapping[str, Any],
    run: Mapping[str, Any],
    thresholds: Path | None = None,
) -> str:
    """Return the HTML of both parts."""
    made = parts(directory, verdict, run, thresholds)
    return made.failures + made.body


def parts(
    directory: RunDirectory,
    verdict: Mapping[str, Any],
    run: Mapping[str, Any],
    thresholds: Path | None = None,
    reader: RunReader | None = None,
) -> Parts:
    """Return the HTML; an error in making the charts is shown as a line in their place.

    `thresholds`: the run's limits, where they are no longer at the path that run.json names.
    """
    reader = reader or RunReader.of(directory, run)
    criteria = verdict["criteria"]
    nodes = [str(n) for n in (verdict.get("scope") or {}).get("nodes") or []]
    matrix = coverage(criteria, nodes)
    subjects = list(matrix.rows)
    not_passed = set(matrix.not_passed)
    if len(subjects) > MAX_MATRIX_ROWS:
        subjects.sort(key=lambda name: name not in not_passed)
    drawn = _Drawn()
    limits: Thresholds | None = None
    try:
        limits = _limits(run, thresholds)
        drawn = _draw(reader, nodes, criteria, limits)
    except (ConfigError, OSError, RecordError, ImportError) as error:
        drawn.error = f"No charts: {error}"
    failed = [cause for cause in causes.found(criteria) if isinstance(cause, causes.Failure)]
    with_chart = {chart.key for chart in drawn.charts}
    entries = [_failure(reader, cause, limits) for cause in failed[:MAX_FAILURES]]
    for entry in entries:
        key = str(entry["criterion"])
        entry["chart"] = banner.anchor(key) if key in with_chart else ""
        entry["docs_url"] = _docs_url(run, str(entry["docs"]))
    trainings = drawn.trainings.shown
    body = banner.render(
        "figures.jinja2",
        tiles=tiles(criteria),
        coverage=matrix,
        areas=json.dumps(areas(criteria)),
        shown=subjects[:MAX_MATRIX_ROWS],
        not_shown=max(0, len(subjects) - MAX_MATRIX_ROWS),
        not_shown_not_passed=sum(n in not_passed for n in subjects[MAX_MATRIX_ROWS:]),
        heat=heat.heat_map(drawn.values, criteria) if drawn.values else None,
        racks=heat.racks(criteria, nodes) if len(nodes) > MAX_NODES_IN_FULL else [],
        rack_size=heat.RACK,
        fabric=banner.fabric(verdict),
        charts=[chart for chart in drawn.charts if chart.bullet is None],
        bullets=[chart for chart in drawn.charts if chart.bullet is not None],
        charts_error=drawn.error,
        trainings=trainings,
        training_columns=list(dict.fromkeys(title for t in trainings for title in t.figures)),
        loss=drawn.loss,
        recorded=_recorded(criteria),
    )
    failures = banner.render("failed_rows.jinja2", failed=entries, max_shown=MAX_SHOWN)
    return Parts(failures, body)


@dataclass
class _Drawn:
    """What was drawn of the records."""

    charts: list[Chart] = field(default_factory=list)
    values: DeviceValues | None = None
    trainings: Trainings = field(default_factory=Trainings)
    loss: Chart | None = None
    error: str = ""


def _draw(
    reader: RunReader,
    nodes: Sequence[str],
    criteria: Sequence[Mapping[str, Any]],
    limits: Thresholds,
) -> _Drawn:
    made = _Drawn(values=DeviceValues(limits, charts.values_by_criterion(criteria)))

    def records() -> Iterator[Record]:
        failed_nodes = dict.fromkeys(str(v["subject"]) for v in criteria if v["outcome"] == "FAIL")
        for record in _records_to_draw(reader, nodes, list(failed_nodes), criteria):
            made.trainings.add(record)
            yield record

    drawn = charts.charts(records(), criteria, limits, made.values)
    if len(nodes) > MAX_NODES_IN_FULL:
        drawn = charts.charts_of_verdicts(criteria, limits) + drawn
    sources = LimitSources.of(reader.directory)
    limit_of = {str(v["criterion"]): str(v["limit"]) for v in criteria if v["limit"]}
    made.charts = [
        replace(chart, source=sources.of_limit(chart.key, limit_of.get(chart.key, "")))
        for chart in drawn
    ]
    made.loss = made.trainings.chart()
    return made


@dataclass(frozen=True)
class RecordedRow:
    """A criterion whose values are not judged."""

    key: str
    title: str
    worst: str
    where: str
    best: str
    count: int


def _recorded(criteria: Sequence[Mapping[str, Any]]) -> list[RecordedRow]:
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for v in criteria:
        if v["outcome"] == "RECORDED" and v["value"] is not None:
            rows.setdefault(str(v["criterion"]), []).append(v)
    found = []
    for key, verdicts in rows.items():
        unit = str(verdicts[0]["unit"])
        numbers = all(isinstance(v["value"], (int, float)) for v in verdicts)
        ordered = sorted(verdicts, key=lambda v: v["value"] if numbers else 0)
        if not low_is_bad(unit):
            ordered.reverse()
        worst, best = (quantity(ordered[k]["value"], unit) for k in (0, -1))
        title, where = str(verdicts[0]["title"]), str(ordered[0]["subject"])
        found.append(RecordedRow(key, title, worst, where, best, len(verdicts)))
    return found


def _docs_url(run: Mapping[str, Any], page: str) -> str:
    """Return a link from the report to a page of the docs; "" for a run outside of a checkout."""
    parts = Path(str(run.get("path") or "")).parts
    return f"../../../{page}" if page and parts[-3:-1] == ("reports", "runs") else ""


def _limits(run: Mapping[str, Any], given: Path | None) -> Thresholds:
    """Return the thresholds by which the run was judged.

    Raises ConfigError where the file is missing or has changed since.
    """
    recorded = run.get("thresholds") or {}
    path = Path(str(recorded.get("path") or "no file"))
    # A run that was copied to another host names a path of the host that it was made on.
    for candidate in (given, path, THRESHOLDS):
        if candidate is not None and candidate.is_file():
            with suppress(ConfigError):
                limits = loader.load(candidate)
                if limits.sha256 == recorded.get("sha256"):
                    return limits
    raise ConfigError(f"{path} is missing, or has changed since")


def _records_to_draw(
    reader: RunReader,
    nodes: Sequence[str],
    failed: Sequence[str],
    criteria: Sequence[Mapping[str, Any]],
) -> Iterator[Record]:
    """Yield the records that charts are made of, as far as they count.

    Of a large run not all are read, so what only all of them show, such as the same samples twice,
    is known from the verdict: a part of which no row was measured is not drawn.
    """
    if len(nodes) <= MAX_NODES_IN_FULL:
        yield from reader.all_newest()
        return
    sampled = [n for n in failed if n in set(nodes)][:SAMPLED_NODES]
    sampled += [n for n in nodes if n not in sampled][: SAMPLED_NODES - len(sampled)]
    directory = reader.directory
    keys = [
        key
        for key in reader.record_keys()
        if key[1] in (*sampled, "all")
        and key[2] == reader.evidence.newest(*key[:2])
        and directory.record(*key).lstat().st_size <= MAX_RECORD_BYTES
    ]
    unmeasured = unmeasured_parts(criteria)
    for record in reader.every(keys):
        void = unmeasured.get(record.name, set())
        left = [rank for rank in record.ranks if rank.node not in void]
        if left and record.placement not in void:
            yield replace(record, ranks=left, nodes=[n for n in record.nodes if n not in void])


def _failure(
    reader: RunReader, failure: causes.Failure, limits: Thresholds | None
) -> dict[str, Any]:
    v = failure.rows[0]
    verdict = Verdict.from_json(v)
    criterion = limits.criteria.get(str(v["criterion"])) if limits is not None else None
    return {
        **v,
        "at": json.dumps((verdict.criterion, verdict.subject)),
        "noun": noun_of(verdict.criterion, limits),
        "where": failure.where,
        "said": failure.said,
        "uuid": (v.get("worst") or {}).get("uuid") or "",
        "red": red_of(verdict.criterion, limits),
        "docs": shipped().page_of(verdict.criterion),
        "record_url": quote(str(v.get("record") or ""), safe="", errors="replace"),
        "workload": str(v.get("record") or "").partition("@")[0],
        "telemetry": _telemetry(reader, v),
        "over_time": tail_chart(reader, v, criterion),
    }


def _telemetry(reader: RunReader, v: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return one row per GPU, measured while the workload ran, of the node that failed.

    For a failure of several nodes: of the first SAMPLED_NODES nodes of the record.
    """
    node = (v.get("worst") or {}).get("node") or v["subject"]
    with suppress(OSError, RecordError, KeyError, TypeError, AttributeError):
        name = str(v["record"])
        path = reader.directory.records / name
        if not is_plain(name) or path.lstat().st_size > MAX_RECORD_BYTES:
            return []
        record = reader.of_row(v)
        by_node: dict[str, list[RankResult]] = {}
        for rank in [] if record is None else record.ranks:
            by_node.setdefault(rank.node, []).append(rank)
        if node in by_node:
            return list(_gpu_rows(by_node[node]))
        sampled = list(by_node.items())[:SAMPLED_NODES]
        return [{"Node": name, **row} for name, ranks in sampled for row in _gpu_rows(ranks)]
    return []


def _gpu_rows(ranks: list[RankResult]) -> Iterator[dict[str, str]]:
    """Yield the telemetry of each GPU of a node, from the ranks of that node."""
    telemetry = next((r.facts["telemetry"] for r in ranks if "telemetry" in r.facts), None)
    names = {r.device.get("uuid"): f"gpu{r.local_rank}" for r in ranks}
    for uuid, values in telemetry["gpus"].items() if telemetry else ():
        yield {"GPU": names.get(uuid, str(uuid)), **telemetry_cells(values)}


def telemetry_cells(values: Mapping[str, Any]) -> dict[str, str]:
    """Return title -> mean and, in brackets, the largest of what a GPU showed."""
    cells = {}
    for name, title in TELEMETRY.items():
        value = values.get(name)
        if isinstance(value, Mapping):
            cells[title] = f"{digits(value['mean'])} ({digits(value['max'])})"
        else:
            cells[title] = "" if value is None else digits(value)
    return cells
