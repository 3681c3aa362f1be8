"""junit.xml: made of verdict.json and the ledger, one test case per verdict (login side).

Not by pytest: its file holds times, a host name and only the tests of one session, and could not be
made again to compare. It follows verdict.json: FAIL is a failure, NOT_MEASURED an error,
NOT_APPLICABLE and WAIVED are skipped, PASS and RECORDED pass. Above MAX_CASES verdicts a test case
stands for one subject and area, as a test of a large fleet does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from xml.etree import ElementTree

from fixtures.verdict.model import Outcome, Verdict
from reports.facts import rows
from reports.facts.areas import areas

NAME = "junit.xml"
MAX_CASES = rows.MAX_SINGLE_ROWS
_UNPRINTABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, not even escaped."""

TAG = {Outcome.FAIL: "failure", Outcome.NOT_MEASURED: "error", Outcome.NOT_APPLICABLE: "skipped",
       Outcome.WAIVED: "skipped"}  # fmt: skip
WORST_FIRST = (Outcome.FAIL, Outcome.NOT_MEASURED, Outcome.WAIVED)
TEST_TAG = {"failed": "failure", "error": "error", "skipped": "skipped"}


def text(
    verdict: Mapping[str, Any], tests: Iterable[Mapping[str, Any]], *, created: str = ""
) -> str:
    """Return the text of junit.xml; `tests` are ledger lines on tests that judge no criterion."""
    criteria = [Verdict.of_row(v) for v in verdict["criteria"]]
    area_of_criterion = areas(verdict["criteria"])
    cases = [
        *(_large_cases if len(criteria) > MAX_CASES else _cases)(criteria, area_of_criterion),
        *map(_test_case, tests),
    ]
    counts = {
        name: str(sum(case.find(tag) is not None for case in cases))
        for name, tag in (("errors", "error"), ("failures", "failure"), ("skipped", "skipped"))
    }
    attributes = {"name": f"acceptance: {verdict['verdict']}", **counts, "tests": str(len(cases))}
    if created:
        attributes["timestamp"] = created
    suite = ElementTree.Element("testsuite", {k: _printable(v) for k, v in attributes.items()})
    suite.extend(cases)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, "unicode") + "\n"


def _cases(
    criteria: Iterable[Verdict], area_of_criterion: Mapping[str, str]
) -> Iterator[ElementTree.Element]:
    for v in criteria:
        case = _case(area_of_criterion[v.criterion], f"{v.criterion}-{v.subject}")
        properties = ElementTree.SubElement(case, "properties")
        _property(properties, "verdict", json.dumps(v.to_json()))
        if v.outcome is Outcome.RECORDED:
            _property(properties, "recorded", f"RECORDED {v.measured}")
        _result(case, v.outcome, [v])
        yield case


def _large_cases(
    criteria: Iterable[Verdict], area_of_criterion: Mapping[str, str]
) -> Iterator[ElementTree.Element]:
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for v in criteria:
        groups.setdefault((area_of_criterion[v.criterion], v.subject), []).append(v)
    for (area, subject), verdicts in groups.items():
        case = _case(area, f"area[{subject}]")
        outcomes = {v.outcome for v in verdicts}
        worst = next((o for o in WORST_FIRST if o in outcomes), Outcome.PASS)
        if outcomes == {Outcome.NOT_APPLICABLE}:
            worst = Outcome.NOT_APPLICABLE
        _result(case, worst, [v for v in verdicts if v.outcome is worst])
        yield case


def _case(area: str, name: str) -> ElementTree.Element:
    attributes = {"classname": f"acceptance.{area}", "name": name}
    return ElementTree.Element("testcase", {k: _printable(v) for k, v in attributes.items()})


def _property(properties: ElementTree.Element, name: str, value: str) -> None:
    ElementTree.SubElement(properties, "property", name=name, value=_printable(value))


def _result(case: ElementTree.Element, outcome: Outcome, verdicts: list[Verdict]) -> None:
    tag = TAG.get(outcome)
    if tag is None:
        return
    skipped = tag == "skipped"
    lines = [v.reason if skipped else v.line for v in verdicts]
    lines = list(dict.fromkeys(_printable(line) for line in lines))
    message = lines[0].partition("\n")[0]
    element = ElementTree.SubElement(case, tag, message=message)
    if skipped:
        element.set("type", "pytest.xfail" if outcome is Outcome.WAIVED else "pytest.skip")
    element.text = "\n".join(lines)


def _test_case(line: Mapping[str, Any]) -> ElementTree.Element:
    case = _case("other tests", str(line.get("test")))
    said = _printable(str(line.get("text") or ""))
    if tag := TEST_TAG.get(str(line.get("outcome"))):
        last = said.strip().splitlines()[-1:] or [""]
        ElementTree.SubElement(case, tag, message=last[0]).text = said
    return case


def _printable(value: str) -> str:
    return _UNPRINTABLE.sub("?", value)
