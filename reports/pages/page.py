"""report.html: made of the run directory alone, in the form of pytest-html (login side).

The same evidence gives the same bytes, so `python -m reports verify` can make it again and compare.
pytest-html's template, style and script are used as they are; the rows come from the verdicts and
the ledger instead of from a session's reports, and the time on the page is that of the run.
"""

from __future__ import annotations

import datetime
import html
import importlib.metadata
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import pytest_html
from markupsafe import Markup

from fixtures.conclusion.node_lists import NodeLists
from fixtures.paths import version
from fixtures.records.ledger import RowKey, lines_of, row_of
from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import read_verdict
from fixtures.run.reader import RunReader
from fixtures.verdict.model import Outcome, Verdict
from reports.evidence import proof
from reports.facts import blame, groups, policy, rows
from reports.facts.limit_sources import LimitSources
from reports.pages import banner, cluster, drills, figures

NAME = "report.html"
TITLE = "GPU cluster acceptance"
TOOLS = ("pytest-html", "matplotlib", "Jinja2")
"""Packages whose version shows in the bytes of the page."""

LABELS = {
    "failed": "Failed", "passed": "Passed", "skipped": "Not applicable", "xfailed": "Waived",
    rows.RECORDED_FILTER.lower(): "Recorded", "error": "Not measured", "rerun": "Reruns",
    "retried": "Retried",
}  # fmt: skip
"""pytest-html's filters, with their meaning here."""
COLLAPSED = ("passed", "skipped", "xfailed", "xpassed", "error")
"""Rows of these filters are closed: the banner explains what was not measured, once a reason."""
TEST_RESULT = {"passed": "Passed", "skipped": "Skipped", "failed": "Failed", "error": "Error"}
_RESOURCES = Path(pytest_html.__file__).parent / "resources"


@dataclass
class Ledger:
    """What the page shows of ledger.jsonl."""

    attempts: dict[RowKey, dict[Any, dict[str, Any]]] = field(default_factory=dict)
    """The last line of each attempt at a row, in the order of judging."""
    texts: dict[RowKey, str] = field(default_factory=dict)
    """pytest's report of a test in which the suite itself failed."""
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By pytest's id: the newest line on a test that judges no criterion."""


def page(
    directory: RunDirectory,
    verdict: Mapping[str, Any] | None = None,
    *,
    thresholds: Path | None = None,
    run: Mapping[str, Any] | None = None,
    ledger: Ledger | None = None,
    lists: NodeLists | None = None,
    reader: RunReader | None = None,
) -> str:
    """Return the page.

    `thresholds`: the run's file of limits, where it is no longer at the path that run.json names.
    `run`, `ledger`, `lists`: what is in run.json, and what read_ledger() and blame.lists_of() give,
    where they are known.
    """
    run = directory.read_run() if run is None else run
    reader = reader or RunReader.of(directory, run)
    if verdict is None:
        verdict = read_verdict(directory)
    criteria = verdict["criteria"]
    scope = verdict.get("scope") or {}
    found = cluster.Cluster.of(directory, run, scope, reader)
    lists = lists or blame.lists_of(directory, verdict, run)
    blamed = blame.blame(verdict, lists).sentence
    parts = (
        _figures(directory, verdict, run, thresholds, reader) if criteria else figures.Parts("", "")
    )
    head = banner.banner(
        verdict, run, cluster=found.headline, found=found.answered, blamed=blamed,
        groups=groups.sentences(verdict), failures=parts.failures,
    )  # fmt: skip
    below = [
        cluster.section(found), banner.run_section(verdict, run), banner.notes(verdict),
        banner.challenge(proof.of_run(directory)), drills.section(directory),
    ]  # fmt: skip
    contents = banner.contents([head, parts.body, *below])
    prefix = [banner.style(), _stamp(), banner.script(), head, contents, parts.body]
    tests = _tests(
        criteria,
        ledger or read_ledger(directory, criteria),
        LimitSources.of(directory),
        summarise=_is_large(run),
    )
    data = {
        "environment": banner.environment(run, {}),
        "tests": {name: [row] for name, row in tests.items()},
        "renderCollapsed": list(COLLAPSED),
        "initialSort": "original",
        "title": f"{TITLE}: {verdict['verdict']}",
    }
    made = _moment(run)
    text = _template().render(
        title=data["title"],
        date=made.strftime("%d-%b-%Y"),
        time=made.strftime("%H:%M:%S UTC"),
        version=importlib.metadata.version("pytest-html"),
        styles=(_RESOURCES / "style.css").read_text(encoding="utf-8"),
        run_count="",
        running_state="finished",
        self_contained=True,
        outcomes=_counts_by_filter(tests.values()),
        test_data=json.dumps(data),
        table_head=rows.header(),
        additional_summary={
            "prefix": prefix,
            "summary": [],
            "postfix": below,
        },
    )  # fmt: skip
    # pytest-html's template does not say in which language a screen reader is to speak.
    text = text.replace("<html>", '<html lang="en">', 1)
    text = policy.in_page(text, banner.script_text(), _table_script())
    return text.encode("utf-8", "replace").decode("utf-8")


def generator(run: Mapping[str, Any] | None = None) -> str:
    """Return the versions that decide the bytes of a page: of the suite and of TOOLS."""
    versions: Mapping[str, Any] = _versions() if run is None else run.get("versions") or {}
    suite = version() if run is None else run.get("suite_version")
    tools = [f"{name} {versions.get(name)}" for name in TOOLS]
    return "; ".join([f"gpu-cluster-acceptance {suite}", *tools])


def other_tools(run: Mapping[str, Any]) -> str:
    """Return which other versions made the page of a run, "" where they are those of here."""
    of_run, here = generator(run), generator()
    return "" if of_run == here else f"{of_run}, here {here}"


def without_verdict(directory: RunDirectory, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict to show for a session that reached none."""
    planned = run.get("planned", 0)
    return {
        "verdict": "INCOMPLETE",
        "run_id": run.get("id", directory.root.name),
        "reasons": ["the run ended without a verdict"],
        "counts": {"planned": planned, "not_measured": planned},
        "criteria": [],
    }


# --- parts


@cache
def _template() -> jinja2.Template:
    return _environment().from_string(_template_text())


def _table_script() -> str:
    """Return what stands between the tags of pytest-html's script."""
    found = _SCRIPT.search(_template_text())
    return _environment().from_string(found[1]).render() if found else ""


_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


@cache
def _template_text() -> str:
    """Return pytest-html's page in the order in which it is read, with its parts in one landmark.

    It has no handlers in attributes, which the policy refuses: that of the one button that has one,
    and is hidden in a finished report.
    """
    text = (_RESOURCES / "index.jinja2").read_text(encoding="utf-8")
    text = re.sub(r'\s+on[a-z]+="[^"]*"', "", text)
    last = ""
    for part in _READ_LAST:
        found = part.search(text)
        if found is None:
            continue  # of another version, which has it elsewhere
        text = text.replace(found[0], "", 1)
        last += f"{found[0]}\n"
    text = text.replace("<body>", f"<body>\n{_SKIP}\n<main>", 1)
    return text.replace("<footer>", f"{last}</main>\n<footer>", 1)


_READ_LAST = (
    re.compile(r'<div class="additional-summary postfix">.*?</div>', re.DOTALL),
    re.compile(r'<div id="environment-header">.*?</div>', re.DOTALL),
    re.compile(r'<table id="environment">.*?</table>', re.DOTALL),
    re.compile(r"<p>Report generated.*?</p>", re.DOTALL),
)
"""Parts that pytest-html has above its table, and that are read after it."""
_SKIP = '<a class="skip" href="#rows">To the rows</a>'


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(loader=jinja2.FileSystemLoader(_RESOURCES), autoescape=True)


def _stamp() -> str:
    return str(Markup('<meta name="generator" content="{}">').format(generator()))


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in TOOLS}


def _moment(run: Mapping[str, Any]) -> datetime.datetime:
    """Return when the run ended, or began if it was killed: the page says no other time."""
    for name in ("ended", "created"):
        try:
            return datetime.datetime.fromisoformat(str(run.get(name))).astimezone(datetime.UTC)
        except ValueError:
            continue
    return datetime.datetime.fromtimestamp(0, datetime.UTC)


def _is_large(run: Mapping[str, Any]) -> bool:
    return int(run.get("planned") or 0) > rows.MAX_SINGLE_ROWS


def _figures(
    directory: RunDirectory,
    verdict: Mapping[str, Any],
    run: Mapping[str, Any],
    thresholds: Path | None,
    reader: RunReader | None = None,
) -> figures.Parts:
    """Return the HTML of failures and charts, or a line with the error that prevented them."""
    try:
        return figures.parts(directory, verdict, run, thresholds, reader)
    except Exception as error:
        message = f"Coverage and charts could not be drawn ({error!r}); the table below is whole."
        return figures.Parts("", str(Markup("<p>{}</p>").format(message)))


def read_ledger(directory: RunDirectory, criteria: Iterable[Mapping[str, Any]]) -> Ledger:
    """Return what the page and junit.xml show of the ledger of a run with these rows.

    The lines of rows that were judged once are not kept: they say what the row says.
    """
    ledger = Ledger()
    texts: dict[RowKey, str] = {}
    repeated = {
        (str(v["criterion"]), str(v["subject"])) for v in criteria if v.get("attempt", 1) > 1
    }
    for line in lines_of(directory):
        key = row_of(line)
        if line.get("event") == "verdict":
            if key in repeated:
                ledger.attempts.setdefault(key, {})[line.get("attempt")] = line
            # The line on the test comes just before that on its verdict.
            if text := texts.pop(key, ""):
                ledger.texts[key] = text
            else:
                ledger.texts.pop(key, None)
        elif line.get("event") == "test":
            if line.get("criterion"):
                texts[key] = str(line.get("text") or "")
            else:
                ledger.tests[str(line.get("test"))] = line
    return ledger


# --- the table

Row = dict[str, Any]


def _tests(
    criteria: Iterable[Mapping[str, Any]],
    ledger: Ledger,
    sources: LimitSources,
    *,
    summarise: bool,
) -> dict[str, Row]:
    """Return the rows of the table by name, the most urgent first."""
    found: list[tuple[str, Row]] = []
    summarised: dict[rows.SummaryKey, list[Verdict]] = {}
    for data in criteria:
        verdict = Verdict.of_row(data)
        if (key := rows.summary_key(verdict, summarise=summarise)) is not None:
            summarised.setdefault(key, []).append(verdict)
        else:
            found.append(
                (f"[{verdict.criterion}-{verdict.subject}]", _row(verdict, ledger, sources))
            )
    found += [(f"[{' '.join(key)}]", _summary_row(key, v)) for key, v in summarised.items()]
    found += [(name, _test_row(name, line)) for name, line in ledger.tests.items()]
    # Sorting keeps the order of the plan where two rows are equally urgent.
    return dict(sorted(found, key=lambda item: rows.SORT_RANK.get(item[1]["result"], 1)))


def _row(verdict: Verdict, ledger: Ledger, sources: LimitSources) -> Row:
    key = verdict.criterion, verdict.subject
    attempts = ledger.attempts.get(key, {}).values() if verdict.attempt > 1 else ()
    earlier = [line for line in attempts if line.get("attempt", 1) < verdict.attempt]
    log = rows.details(
        verdict,
        earlier,
        red=blame.red_of(verdict.criterion),
        source=sources.of_limit(verdict.criterion, verdict.limit) if verdict.limit else "",
    )
    if verdict.outcome in (Outcome.FAIL, Outcome.NOT_MEASURED) and ledger.texts.get(key):
        log += "\n" + html.escape(ledger.texts[key])
    recorded = verdict.outcome is Outcome.RECORDED
    result = rows.RESULT[verdict.outcome]
    made = _cells_and_log(rows.cells(verdict, result), log)
    return {**made, "result": rows.RECORDED_FILTER if recorded else result}


def _summary_row(key: rows.SummaryKey, verdicts: list[Verdict]) -> Row:
    """Return the row of several verdicts on a node of a large run; results.csv has each of them."""
    outcome = rows.summary_outcome(verdicts)
    recorded = outcome is Outcome.RECORDED
    result = rows.RECORDED_FILTER if recorded else rows.RESULT[outcome]
    made = _cells_and_log(rows.summary_cells(key, verdicts), rows.summary_details(verdicts))
    return {**made, "result": result}


def _test_row(name: str, line: Mapping[str, Any]) -> Row:
    result = TEST_RESULT.get(str(line.get("outcome")), "Error")
    text = str(line.get("text") or "").strip()
    message = text.splitlines()[-1] if text and result != "Passed" else ""
    cells = rows.cells_without_verdict(name, message, result)
    return {
        **_cells_and_log(cells, html.escape(text) or "No log output captured."),
        "result": result,
    }


def _cells_and_log(cells: list[str], log: str) -> Row:
    return {"extras": [], "resultsTableRow": cells, "log": log, **rows.sort_keys(cells)}


def _counts_by_filter(tests: Iterable[Row]) -> dict[str, dict[str, Any]]:
    counts = dict.fromkeys(LABELS, 0)
    for row in tests:
        counts[row["result"].lower()] += 1
    return {name: {"label": label, "value": counts[name]} for name, label in LABELS.items()}
