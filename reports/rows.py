"""The rows of the report's table: one criterion on one subject each (login side).

Cells are made with Markup.format, which escapes every argument: pytest-html itself escapes no
cell, and its page hands them to innerHTML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from fixtures.records.files import read_lines
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds.conditions import digits
from fixtures.verdict.model import Outcome, Verdict

COLUMNS = ("Outcome", "Criterion", "Where", "Measured", "Limit", "Margin", "Result")

RESULT = {
    Outcome.PASS: "Passed",
    Outcome.FAIL: "Failed",
    Outcome.NOT_MEASURED: "Error",
    Outcome.NOT_APPLICABLE: "Skipped",
    Outcome.WAIVED: "XFailed",
}
"""pytest-html's word for each outcome; its filters and colours know no others."""

RANK = {"Failed": 0, "Error": 1, "XPassed": 1, "XFailed": 2, "Passed": 3, "Skipped": 4}
"""What a reader wants to see first."""

_LOOSE = re.compile(r"(.*?) \(loose: (.*)\)", re.DOTALL)
_NOTHING = Markup("&ndash;")


Key = tuple[str, str]
"""Criterion and subject."""


def attempts_of(
    directory: RunDirectory, wanted: Container[Key] | None = None
) -> dict[Key, list[dict[str, Any]]]:
    """The last ledger line of each attempt at a row, in the order in which they were judged."""
    found: dict[Key, dict[Any, dict[str, Any]]] = {}
    for line in read_lines(directory.ledger):
        key = (str(line.get("criterion")), str(line.get("subject")))
        if line.get("event") == "verdict" and (wanted is None or key in wanted):
            found.setdefault(key, {})[line.get("attempt")] = line
    return {key: list(attempts.values()) for key, attempts in found.items()}


def words(outcome: str) -> str:
    """An outcome as a person writes it: NOT MEASURED."""
    return outcome.replace("_", " ")


def split_limit(limit: str) -> tuple[str, str]:
    """A limit's own text, and why it may be loose ("" where it is not)."""
    match = _LOOSE.fullmatch(limit)
    return (match[1], match[2]) if match else (limit, "")


def header() -> list[str]:
    """The table's head; pytest-html sorts by what stands in a sortable cell."""
    sortable = ("Outcome", "Criterion", "Where", "Result")
    return [
        f'<th class="sortable" data-column-type="{name.lower()}">{name}</th>'
        if name in sortable
        else f"<th>{name}</th>"
        for name in COLUMNS
    ]


def shown_outcome(result: str, verdict: Verdict | None) -> Outcome | None:
    """The outcome to print: the verdict's, unless what became of the test is worse."""
    if result in ("Passed", "Skipped", "XFailed"):
        return verdict.outcome if verdict is not None else None
    if verdict is not None and RESULT[verdict.outcome] == result:
        return verdict.outcome
    return Outcome.FAIL if result == "Failed" and verdict is not None else Outcome.NOT_MEASURED


def cells(verdict: Verdict, result: str) -> list[str]:
    """The cells of a verdict, in the order of COLUMNS."""
    outcome = shown_outcome(result, verdict)
    limit, loose = split_limit(verdict.limit)
    at = verdict.criterion, verdict.subject
    return [
        _outcome_cell(outcome),
        _cell("criterion", _pair(verdict.criterion, verdict.title)),
        _cell(
            "where",
            _pair(verdict.subject, _device(verdict)),
            at=at,
        ),
        _cell("measured", _measured(verdict)),
        _cell("limit", _pair(limit, f"loose: {loose}" if loose else "") if limit else _NOTHING),
        _cell("margin", _margin(verdict)),
        _result_cell(result),
    ]


def cells_without_verdict(nodeid: str, said: str, result: str) -> list[str]:
    """The cells of a test that left no verdict: its worker died, or it judges no criterion."""
    name = test_id(nodeid) or nodeid
    return [
        _outcome_cell(shown_outcome(result, None)),
        _cell("criterion", _pair(name, nodeid if name != nodeid else "")),
        _cell("where", _NOTHING),
        _cell("measured", Markup("<span class=why>{}</span>").format(one_line(said))),
        _cell("limit", _NOTHING),
        _cell("margin", _NOTHING),
        _result_cell(result),
    ]


MANY = 3000
"""Above so many verdicts (20 nodes and more) a row stands for all of a node that passed, and one
for all that was not measured there for the same reason: with a row for each of the 19 141 of 128
nodes a browser takes more than a minute to open the page. What failed has a row for each."""

Sum = tuple[str, str]
"""The subject of a row that stands for several verdicts, and why they were not measured, if so."""


def sum_of(verdict: Verdict, *, many: bool) -> Sum | None:
    """The row that a verdict is summed up in; None where it has one of its own."""
    alone = verdict.outcome in (Outcome.FAIL, Outcome.WAIVED)
    if not many or alone or verdict.devices.get("planned", 0) > 16:
        return None
    lost = verdict.outcome is Outcome.NOT_MEASURED
    return verdict.subject, verdict.reason or "no reason given" if lost else ""


def cells_of_sum(sum_: Sum, found: Sequence[Verdict]) -> list[str]:
    """The cells of one row for everything that passed on a node, or was not measured there."""
    subject, reason = sum_
    if reason:
        said = Markup("<b>{} not measured</b><span class=why>{}</span>").format(
            len(found), one_line(reason)
        )
        outcome, result, closest = Outcome.NOT_MEASURED, "Error", None
    else:
        real = [v for v in found if v.outcome is Outcome.PASS]
        outcome, result = Outcome.PASS, "Passed"
        closest = min(
            (v for v in real if v.margin is not None), key=lambda v: v.margin or 0.0, default=None
        )
        said = Markup("<b>{} passed</b>").format(len(real))
        if len(found) > len(real):
            said += Markup("<span class=why>{} not applicable</span>").format(
                len(found) - len(real)
            )
    return [
        _outcome_cell(outcome),
        _cell("criterion", _pair("several", (closest and f"closest: {closest.criterion}") or "")),
        _cell("where", _pair(subject, ""), at=("", subject)),
        _cell("measured", said),
        _cell("limit", _NOTHING),
        _cell("margin", _margin(closest) if closest else _NOTHING),
        _result_cell(result),
    ]


def details_of_sum(found: Sequence[Verdict]) -> str:
    """What was not measured, by name, and what to do; of what passed, where each of it stands."""
    lost = [v for v in found if v.outcome is Outcome.NOT_MEASURED]
    steps = dict.fromkeys(v.next_step for v in lost if v.next_step)
    names = ", ".join(v.criterion for v in lost) or "Each of them stands in results.csv."
    text = one_line("; ".join([names, *(f"next: {step}" for step in steps)]))
    return str(Markup('<div class="why-row">{}</div>').format(text))


def test_id(nodeid: str) -> str:
    """What stands in brackets at the end of a node id: criterion-subject."""
    return nodeid.rpartition("[")[2].rstrip("]") if nodeid.endswith("]") else ""


def details(verdict: Verdict, earlier: Sequence[Mapping[str, Any]] = ()) -> str:
    """What opens below a row: the verdict's line, the evidence, earlier attempts."""
    told = verdict.outcome in (Outcome.FAIL, Outcome.NOT_MEASURED, Outcome.WAIVED)
    pairs: list[tuple[str, Any]] = [
        ("Why", "" if told else verdict.reason),
        ("Next step", verdict.next_step),
        ("Evidence", _evidence(verdict)),
        ("Devices", _devices(verdict)),
        ("Ceiling", f"{digits(verdict.ceiling)} {verdict.unit}" if verdict.ceiling else ""),
        *(("Note", "" if told else note) for note in verdict.notes),
        ("Attempt", verdict.attempt if verdict.attempt > 1 else ""),
        *(("Earlier", _attempt(line)) for line in earlier),
        ("Criterion id", verdict.id),
    ]
    rows = Markup("").join(
        Markup("<dt>{}</dt><dd>{}</dd>").format(name, one_line(value))
        for name, value in pairs
        if value
    )
    line = Markup("")
    if told:
        # Its second line, evidence and next step, is in the list below.
        head = verdict.line.rpartition("\n  ")[0] or verdict.line
        line = Markup('<p class="line">{}</p>').format(one_line(head))
    return str(Markup('<div class="why-row">{}<dl>{}</dl></div>').format(line, rows))


def one_line(value: Any) -> str:
    """Text without line breaks: pytest-html looks into cells and logs line by line."""
    return value if isinstance(value, Markup) else " ".join(str(value).split())


def _cell(name: str, content: str, *, at: tuple[str, str] | None = None) -> str:
    """`at`: criterion and subject, by which the matrix above the table finds its rows."""
    more = Markup(' data-at="{}"').format(json.dumps(at)) if at else ""
    return str(
        Markup('<td class="col-{}" data-label="{}"{}>{}</td>').format(
            name, name.capitalize(), more, content
        )
    )


def _outcome_cell(outcome: Outcome | None) -> str:
    # A test that passed without a verdict has judged nothing, and must not look as if it had.
    name = words(outcome.value) if outcome is not None else "NO VERDICT"
    style = outcome.value.lower() if outcome is not None else "no_verdict"
    return _cell("outcome", Markup('<span class="badge {}">{}</span>').format(style, name))


def _result_cell(result: str) -> str:
    return str(Markup('<td class="col-result">{}</td>').format(result))


def _pair(main: str, small: str) -> Markup:
    """A line to read, and a smaller one below it."""
    head = Markup("<b>{}</b>").format(one_line(main))
    return head + Markup("<small>{}</small>").format(one_line(small)) if small else head


def _device(verdict: Verdict) -> str:
    worst = verdict.worst
    if not worst:
        return ""
    node = "" if worst.get("node") in (None, verdict.subject) else f"{worst['node']} "
    if "part" in worst:
        return f"{node}{worst['part']}"
    return f"{node}gpu{worst.get('gpu')} {worst.get('uuid') or ''}".strip()


def _measured(verdict: Verdict) -> Markup:
    if verdict.outcome is Outcome.NOT_APPLICABLE:
        return Markup("<span class=why>{}</span>").format(one_line(verdict.reason))
    shown = Markup("<b>{}</b>").format(one_line(verdict.measured))
    why = Markup("<span class=why>{}</span>").format(one_line(verdict.reason))
    return shown + why if verdict.reason else shown


def _margin(verdict: Verdict) -> Markup:
    if verdict.margin is None:
        return _NOTHING
    side = "good" if verdict.margin >= 0 else "bad"
    return Markup('<span class="{}">{}</span>').format(side, f"{100 * verdict.margin:+.1f} %")


def _devices(verdict: Verdict) -> str:
    planned, measured = verdict.devices.get("planned", 0), verdict.devices.get("measured", 0)
    return f"{measured} of {planned} measured" if planned else ""


def _evidence(verdict: Verdict) -> Markup:
    parts = []
    if verdict.job:
        parts.append(Markup("job {}").format(one_line(verdict.job)))
    if verdict.record:
        # Relative on purpose: the run directory travels as a whole.
        parts.append(
            Markup('<a href="records/{}">records/{}</a>').format(
                quote(verdict.record, safe="", errors="replace"), one_line(verdict.record)
            )
        )
    return Markup(", ").join(parts)


def _attempt(line: Mapping[str, Any]) -> str:
    value = line.get("value")
    said = f"attempt {line.get('attempt')}: {words(str(line.get('outcome')))}"
    if value is not None:
        said += f", {digits(value)} {line.get('unit')}"
    return f"{said}; {line.get('reason')}" if line.get("reason") else said


def sort_keys(made: Sequence[str]) -> dict[str, str]:
    """What pytest-html sorts a row by; it reads this out of the cells of the rows that it makes."""
    found = {}
    for name, cell in zip(COLUMNS, made, strict=True):
        found[name.lower()] = cell.partition(">")[2].removesuffix("</td>")
    return {name: found[name] for name in ("outcome", "criterion", "where")}
