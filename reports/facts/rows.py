"""The rows of the report's table, one per criterion and subject (login side).

Cells are made with filled(), which escapes every argument: pytest-html escapes no cell, and its
page hands them to innerHTML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

from fixtures.records.ledger import RowKey, verdict_lines
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds.definitions import shipped
from fixtures.verdict.model import Outcome, Verdict, device_of
from fixtures.wording import margin_text, quantity
from reports.facts.areas import WORST_FIRST

COLUMNS = ("Outcome", "Criterion", "Where", "Measured", "Limit", "Margin", "Result")

RESULT = {
    Outcome.PASS: "Passed",
    Outcome.FAIL: "Failed",
    Outcome.NOT_MEASURED: "Error",
    Outcome.NOT_APPLICABLE: "Skipped",
    Outcome.WAIVED: "XFailed",
    Outcome.RECORDED: "Passed",
}
"""pytest-html's result for each outcome; its filters and colours know no others."""

RECORDED_FILTER = "XPassed"
"""The filter of rows that are recorded: they passed as tests, but are not judged. No other row is
in it, because no acceptance test passes unexpectedly."""

SORT_RANK = {"Failed": 0, "Error": 1, "XFailed": 2, "Passed": 3, RECORDED_FILTER: 4, "Skipped": 5}
"""Order of the rows by result or filter, the most urgent first."""

_LOOSE = re.compile(r"(.*?) \(loose: (.*)\)", re.DOTALL)
_DASH = Markup("&ndash;")


def attempts_of(
    directory: RunDirectory, wanted: Container[RowKey] | None = None
) -> dict[RowKey, list[dict[str, Any]]]:
    """Return the last ledger line of each attempt at a row, in the order of judging.

    `wanted` restricts the rows.
    """
    by_row: dict[RowKey, dict[Any, dict[str, Any]]] = {}
    for key, line in verdict_lines(directory, wanted):
        by_row.setdefault(key, {})[line.get("attempt")] = line
    return {key: list(attempts.values()) for key, attempts in by_row.items()}


def outcome_text(outcome: str) -> str:
    """Return an outcome as it is shown, for example NOT MEASURED."""
    return outcome.replace("_", " ")


def split_limit(limit: str) -> tuple[str, str]:
    """Return a limit's text without the reason why it is loose, and that reason ("" if none)."""
    match = _LOOSE.fullmatch(limit)
    return (match[1], match[2]) if match else (limit, "")


HIGH_IS_BAD = ("us", "s", "peers", "errors", "elements")
"""Units of times and of counts of what should not be."""


def low_is_bad(unit: str) -> bool:
    """Whether the lower of two values in this unit is worse, where no limit tells."""
    return unit not in HIGH_IS_BAD


def header() -> list[str]:
    """Return the cells of the table's head; pytest-html sorts by the cells of sortable columns."""
    sortable = ("Outcome", "Criterion", "Where", "Result")
    return [
        f'<th class="sortable" data-column-type="{name.lower()}">{name}</th>'
        if name in sortable
        else f"<th>{name}</th>"
        for name in COLUMNS
    ]


def shown_outcome(result: str, verdict: Verdict | None) -> Outcome | None:
    """Return the outcome to show: the verdict's, unless the test's result is worse.

    None for a test that ended without a verdict and without an error.
    """
    if result in ("Passed", "Skipped", "XFailed"):
        return verdict.outcome if verdict is not None else None
    if verdict is not None and RESULT[verdict.outcome] == result:
        return verdict.outcome
    return Outcome.FAIL if result == "Failed" and verdict is not None else Outcome.NOT_MEASURED


def cells(verdict: Verdict, result: str) -> list[str]:
    """Return the cells of a verdict, in the order of COLUMNS."""
    outcome = shown_outcome(result, verdict)
    limit, loose = split_limit(verdict.limit)
    at = verdict.criterion, verdict.subject
    return [
        _outcome_cell(outcome),
        _cell("criterion", _two_lines(verdict.criterion, _said_of(verdict, outcome))),
        _cell(
            "where",
            _two_lines(verdict.subject, _device_name(verdict)),
            at=at,
        ),
        _cell("measured", _measured(verdict)),
        _cell("limit", _two_lines(limit, f"loose: {loose}" if loose else "") if limit else _DASH),
        _cell("margin", _margin(verdict)),
        _result_cell(result),
    ]


def cells_without_verdict(nodeid: str, message: str, result: str) -> list[str]:
    """Return the cells of a test without a verdict: its worker died, or it judges no criterion."""
    name = test_id(nodeid) or nodeid
    return [
        _outcome_cell(shown_outcome(result, None)),
        _cell("criterion", _two_lines(name, nodeid if name != nodeid else "")),
        _cell("where", _DASH),
        _cell("measured", filled("<span class=why>%s</span>", one_line(message))),
        _cell("limit", _DASH),
        _cell("margin", _DASH),
        _result_cell(result),
    ]


MAX_SINGLE_ROWS = 3000
"""Most verdicts with a row each, about those of 20 nodes.

Of more verdicts one row per node summarises those that passed, and one those that were not measured
for the same reason: with a row for each of the 19 141 verdicts of 128 nodes a browser takes more
than a minute to open the page. Each failure keeps its row.
"""

SummaryKey = tuple[str, str]
"""Key of a summary row: subject, and why its verdicts were not measured ("" if they were)."""


def summary_key(verdict: Verdict, *, summarise: bool) -> SummaryKey | None:
    """Return the key of the summary row of a verdict; None where it has a row of its own."""
    has_own_row = verdict.outcome in (Outcome.FAIL, Outcome.WAIVED)
    if not summarise or has_own_row or verdict.devices.get("planned", 0) > 16:
        return None
    unmeasured = verdict.outcome is Outcome.NOT_MEASURED
    return verdict.subject, verdict.reason or "no reason given" if unmeasured else ""


def summary_outcome(verdicts: Sequence[Verdict]) -> Outcome:
    """Return the outcome of a summary row: PASS only where something passed."""
    return Outcome(min((v.outcome for v in verdicts), key=WORST_FIRST.index))


def summary_cells(key: SummaryKey, verdicts: Sequence[Verdict]) -> list[str]:
    """Return the cells of a row for all verdicts of a node that passed, or were not measured."""
    subject, reason = key
    outcome, closest = summary_outcome(verdicts), None
    if reason:
        measured = filled(
            "<b>%s not measured</b><span class=why>%s</span>", len(verdicts), one_line(reason)
        )
    else:
        passed = [v for v in verdicts if v.outcome is Outcome.PASS]
        closest = min(
            (v for v in passed if v.margin is not None), key=lambda v: v.margin or 0.0, default=None
        )
        measured = filled("<b>%s passed</b>", len(passed))
        recorded = sum(v.outcome is Outcome.RECORDED for v in verdicts)
        not_applicable = len(verdicts) - len(passed) - recorded
        others = {"recorded": recorded, "not applicable": not_applicable}
        if others := {name: n for name, n in others.items() if n}:
            measured += filled(
                "<span class=why>%s</span>", ", ".join(f"{n} {name}" for name, n in others.items())
            )
    return [
        _outcome_cell(outcome),
        _cell(
            "criterion", _two_lines("several", (closest and f"closest: {closest.criterion}") or "")
        ),
        _cell("where", _two_lines(subject, ""), at=("", subject)),
        _cell("measured", measured),
        _cell("limit", _DASH),
        _cell("margin", _margin(closest) if closest else _DASH),
        _result_cell(RESULT[outcome]),
    ]


def _said_of(verdict: Verdict, outcome: Outcome | None) -> str:
    """Return what a row requires, or, where it is red, what it checks: "FAIL ... Xid errors"."""
    noun = shipped().noun_of(verdict.criterion)
    return noun if noun and outcome is Outcome.FAIL else verdict.title


def summary_details(verdicts: Sequence[Verdict]) -> str:
    """Return what opens below a summary row: the unmeasured criteria and the next steps."""
    unmeasured = [v for v in verdicts if v.outcome is Outcome.NOT_MEASURED]
    steps = dict.fromkeys(v.next_step for v in unmeasured if v.next_step)
    names = ", ".join(v.criterion for v in unmeasured) or "Each of them stands in results.csv."
    text = one_line("; ".join([names, *(f"next: {step}" for step in steps)]))
    return str(filled('<div class="why-row">%s</div>', text))


def test_id(nodeid: str) -> str:
    """Return the part in brackets at the end of a node id: criterion-subject."""
    return nodeid.rpartition("[")[2].rstrip("]") if nodeid.endswith("]") else ""


def details(
    verdict: Verdict, earlier: Sequence[Mapping[str, Any]] = (), *, red: str = "", source: str = ""
) -> str:
    """Return the HTML that opens below a row: the verdict's line, evidence, earlier attempts.

    `red` is what a red row usually means, `source` where the limit is from.
    """
    has_line = verdict.outcome in (Outcome.FAIL, Outcome.NOT_MEASURED, Outcome.WAIVED)
    pairs: list[tuple[str, Any]] = [
        ("Required", verdict.title if verdict.outcome is Outcome.FAIL else ""),
        ("Why", "" if has_line else verdict.reason),
        ("Usually", red if verdict.outcome is Outcome.FAIL else ""),
        ("Next step", verdict.next_step),
        ("Limit's source", source),
        ("Evidence", _evidence(verdict)),
        ("Devices", _device_counts(verdict)),
        ("Ceiling", quantity(verdict.ceiling, verdict.unit) if verdict.ceiling else ""),
        *(("Note", "" if has_line else note) for note in verdict.notes),
        ("Attempt", verdict.attempt if verdict.attempt > 1 else ""),
        *(("Earlier", _attempt_text(line)) for line in earlier),
        ("Area", shipped().title_of(verdict.criterion)),
    ]
    rows = Markup("").join(
        filled("<dt>%s</dt><dd>%s</dd>", name, one_line(value)) for name, value in pairs if value
    )
    line = Markup("")
    if has_line:
        # The second line of verdict.line, evidence and next step, is in the list below.
        head = verdict.line.rpartition("\n  ")[0] or verdict.line
        line = filled('<p class="line">%s</p>', one_line(head))
    return str(filled('<div class="why-row">%s<dl>%s</dl></div>', line, rows))


def filled(form: str, *values: Any) -> Markup:
    """Return HTML in which each %s is one of these values, escaped unless it is HTML itself.

    As Markup.format, in less than half of the time: a page of a large cluster has a million.
    """
    return Markup(form % tuple(map(escape, values)))


def one_line(value: Any) -> str:
    """Return text without line breaks, because pytest-html searches cells and logs by line."""
    return value if isinstance(value, Markup) else " ".join(str(value).split())


def _cell(name: str, content: str, *, at: tuple[str, str] | None = None) -> str:
    """Return a table cell.

    `at` is (criterion, subject), by which a click in the coverage matrix finds the row.
    """
    more = filled(' data-at="%s"', json.dumps(at)) if at else ""
    return str(
        filled(
            '<td class="col-%s" data-label="%s"%s>%s</td>', name, name.capitalize(), more, content
        )
    )


def _outcome_cell(outcome: Outcome | None) -> str:
    # A test that passed without a verdict judged nothing, and must not be shown as PASS.
    name = outcome_text(outcome.value) if outcome is not None else "NO VERDICT"
    style = outcome.value.lower() if outcome is not None else "no_verdict"
    return _cell("outcome", filled('<span class="badge %s">%s</span>', style, name))


def _result_cell(result: str) -> str:
    return str(filled('<td class="col-result">%s</td>', result))


def _two_lines(main: str, small: str) -> Markup:
    """Return a line of text, and a smaller one below it."""
    head = filled("<b>%s</b>", one_line(main))
    return head + filled("<small>%s</small>", one_line(small)) if small else head


def _device_name(verdict: Verdict) -> str:
    worst = verdict.worst
    if not worst:
        return ""
    node = "" if worst.get("node") in (None, verdict.subject) else f"{worst['node']} "
    return f"{node}{device_of(worst)}".strip()


def _measured(verdict: Verdict) -> Markup:
    if verdict.outcome is Outcome.NOT_APPLICABLE:
        return filled("<span class=why>%s</span>", one_line(verdict.reason))
    shown = filled("<b>%s</b>", one_line(verdict.measured))
    why = filled("<span class=why>%s</span>", one_line(verdict.reason))
    return shown + why if verdict.reason else shown


def _margin(verdict: Verdict) -> Markup:
    if verdict.margin is None:
        return _DASH
    side = "good" if verdict.margin >= 0 else "bad"
    text = margin_text(verdict.margin)
    return filled('<span class="%s">%s</span>', side, text)


def _device_counts(verdict: Verdict) -> str:
    planned, measured = verdict.devices.get("planned", 0), verdict.devices.get("measured", 0)
    return f"{measured} of {planned} measured" if planned else ""


def _evidence(verdict: Verdict) -> Markup:
    parts = []
    if verdict.job:
        parts.append(filled("job %s", one_line(verdict.job)))
    if verdict.record:
        # A relative link, so that it still works in a copy of the run directory.
        parts.append(
            filled(
                '<a href="records/%s">records/%s</a>',
                quote(verdict.record, safe="", errors="replace"),
                one_line(verdict.record),
            )
        )
    return Markup(", ").join(parts)


def _attempt_text(line: Mapping[str, Any]) -> str:
    value = line.get("value")
    text = f"attempt {line.get('attempt')}: {outcome_text(str(line.get('outcome')))}"
    if value is not None:
        text += f", {quantity(value, str(line.get('unit') or ''))}"
    return f"{text}; {line.get('reason')}" if line.get("reason") else text


def sort_keys(cells: Sequence[str]) -> dict[str, str]:
    """Return the values by which pytest-html sorts a row.

    For rows of tests pytest-html reads them from the cells itself.
    """
    keys = {}
    for name, cell in zip(COLUMNS, cells, strict=True):
        keys[name.lower()] = cell.partition(">")[2].removesuffix("</td>")
    return {name: keys[name] for name in ("outcome", "criterion", "where")}
