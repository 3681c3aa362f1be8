"""pytest plug-in: pytest-html's page becomes the report that a customer gets (login side).

The run directory is known when the run starts, after collection; pytest-html and JUnit decide at
the start of pytest whether they write anything. So their own plug-in objects are made late, by
their own pytest_configure, and started by their own pytest_sessionstart. Files that the user
asks for with --html and --junitxml are left alone: these are made beside them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from markupsafe import Markup

from fixtures.records.files import RecordError, read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.verdict.model import Verdict
from reports import banner, certificate, drills, export, figures, rows, tables

TITLE = "GPU cluster acceptance"


def _file(text: str) -> Path:
    """A file that is there."""
    if not (path := Path(text)).is_file():
        raise argparse.ArgumentTypeError(f"{text} is no file; `make drills` writes one")
    return path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("acceptance").addoption(
        "--drills",
        type=_file,
        metavar="FILE",
        help="the table that `make drills` wrote: the report shows it, as the proof that the "
        "criteria can fail",
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """One page a session, in the process that sees all reports: never in an xdist worker."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Page(config), "acceptance-report")


class Page:
    """Our part of pytest-html's report, from the start of the run to its last word."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._directory: RunDirectory | None = None
        self._concluded = False
        self._many = False
        """Whether the verdicts are too many for a row each."""
        self._verdict: Mapping[str, Any] = {}
        self._reports: list[Any] = []
        """pytest-html's report data: ours, and the user's with --html."""
        self._earlier: dict[rows.Key, list[dict[str, Any]]] = {}

    # --- the run

    @pytest.hookimpl(optionalhook=True)
    def pytest_acceptance_started(self, session: pytest.Session, directory: RunDirectory) -> None:
        """Have report.html and junit.xml written into the run directory."""
        self._directory = directory
        if given := self._config.getoption("drills"):
            directory.drills.write_bytes(given.read_bytes())
        for name in ("report.html", "junit.xml", "results.csv", certificate.NAME):
            # Those of the session that is resumed would outlive a killed one, and contradict it.
            (directory.root / name).unlink(missing_ok=True)
        self._earlier = rows.attempts_of(directory)
        with suppress(OSError, RecordError):
            self._many = read_json(directory.run_json).get("planned", 0) > rows.MANY
        option = self._config.option
        paths = {name: getattr(option, name, None) for name in ("htmlpath", "xmlpath")}
        contained = getattr(option, "self_contained_html", False)
        option.htmlpath = str(directory.root / "report.html")
        option.xmlpath = str(directory.root / "junit.xml")
        option.self_contained_html = True
        try:
            _start_late("html", session)
            _start_late("junitxml", session)
        finally:
            option.self_contained_html = contained
            vars(option).update(paths)

    @pytest.hookimpl(optionalhook=True)
    def pytest_acceptance_concluded(
        self, session: pytest.Session, directory: RunDirectory, verdict: Mapping[str, Any]
    ) -> None:
        """verdict.json is of this session: the page may say it, and results.csv is made of it."""
        self._concluded = True
        self._verdict = verdict
        self._write("results.csv", lambda: export.write_results(directory, verdict))
        if "replay" not in verdict:
            self._write(certificate.NAME, lambda: certificate.write(directory, verdict))

    def _write(self, name: str, write: Callable[[], object]) -> None:
        """The verdict stands without its spreadsheet, so the session goes on and says so."""
        try:
            write()
        except Exception as error:
            reporter = self._config.pluginmanager.getplugin("terminalreporter")
            if reporter is not None:
                reporter.write_line(f"{name} was not written: {error!r}")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """With -v the tables of what was measured, as nccl-tests and nvbandwidth print theirs."""
        if self._directory is None or self._config.get_verbosity() < 1:
            return
        for record in tables.records_of(self._directory):
            if text := tables.table(record):
                terminalreporter.write_line(f"\n{text}")

    # --- pytest-html

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_report_title(self, report: Any) -> None:
        """Keep the report's data: only at the end is its title known."""
        report.title = TITLE
        self._reports.append(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_header(self, cells: list[str]) -> None:
        cells[:] = rows.header()

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_row(self, report: Any, cells: list[str]) -> None:
        if getattr(report, "area", None) is not None or (self._many and verdict_of(report)):
            cells.clear()  # rows are made of the verdicts at the end
            return
        result = cells[0].partition(">")[2].partition("<")[0]
        verdict = verdict_of(report)
        if verdict is not None:
            cells[:] = rows.cells(verdict, result)
        else:
            said = report.longreprtext.strip().splitlines() if result != "Passed" else []
            cells[:] = rows.cells_without_verdict(report.nodeid, said[-1] if said else "", result)

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_html(self, report: Any, data: list[str]) -> None:
        """What opens below a row; pytest's own text only where the verdict does not explain it."""
        verdict = verdict_of(report)
        if verdict is None:
            return
        # Not longreprtext: under -n it begins with the worker, and where its Python lies.
        explained = not report.failed or str(report.longrepr).strip() == verdict.line.strip()
        told = rows.details(verdict, self._attempts_before(verdict))
        data[:] = [told] if explained else [told, *data]

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_summary(
        self, prefix: list[str], summary: list[str], postfix: list[str], session: pytest.Session
    ) -> None:
        """The last moment before the page is written: verdict, title, banner, order of rows."""
        prefix.append(banner.style())
        if self._directory is None:
            return
        verdict, run = self._last_word(self._directory)
        prefix.append(banner.banner(verdict, run))
        if verdict["criteria"]:
            prefix.append(self._figures(self._directory, verdict, run))
        postfix.append(banner.remarks(verdict))
        postfix.append(drills.section(self._directory))
        for report in self._reports:
            report.title = f"{TITLE}: {verdict['verdict']}"
            report.set_data("environment", banner.environment(run, _versions()))
            self._complete(report, verdict["criteria"])

    def _figures(
        self, directory: RunDirectory, verdict: Mapping[str, Any], run: Mapping[str, Any]
    ) -> str:
        """Whatever goes wrong in a drawing, the table with the verdicts is written."""
        try:
            return figures.figures(directory, verdict, run)
        except Exception as error:
            said = f"Coverage and charts could not be drawn ({error!r}); the table below is whole."
            return str(Markup("<p>{}</p>").format(said))

    def _last_word(self, directory: RunDirectory) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """verdict.json and run.json; a session that did not conclude has no verdict but this."""
        run: Any = {}
        with suppress(OSError, RecordError):
            run = read_json(directory.run_json)
        if self._concluded:
            return self._verdict, run
        verdict = {
            "verdict": "INCOMPLETE",
            "run_id": run.get("id", directory.root.name),
            "reasons": ["the run ended without a verdict"],
            "counts": {"planned": run.get("planned", 0), "not_measured": run.get("planned", 0)},
            "criteria": [],
        }
        return verdict, run

    def _complete(self, report: Any, criteria: list[dict[str, Any]]) -> None:
        """A row for each criterion of the plan, also where no test ran; what failed comes first."""
        tests: dict[str, list[dict[str, Any]]] = report.data["tests"]
        have = {rows.test_id(nodeid) for nodeid, found in tests.items() if found}
        place = {}
        summed: dict[rows.Sum, list[Verdict]] = {}
        for index, data in enumerate(criteria):
            name = f"{data['criterion']}-{data['subject']}"
            place[name] = index
            if name in have:
                continue
            verdict = Verdict.from_json(data)
            if (sum_ := rows.sum_of(verdict, many=self._many)) is not None:
                summed.setdefault(sum_, []).append(verdict)
            else:
                self._add_row(report, f"[{name}]", verdict)
        for sum_, found in summed.items():
            self._add_sum(report, sum_, found)

        def rank(nodeid: str) -> tuple[int, int]:
            worst = min((rows.RANK.get(row["result"], 1) for row in tests[nodeid]), default=9)
            return worst, place.get(rows.test_id(nodeid), len(place))

        report.set_data("tests", {nodeid: tests[nodeid] for nodeid in sorted(tests, key=rank)})
        report.set_data("initialSort", "original")
        # What is not measured is explained in the banner, once for each reason.
        report.set_data("renderCollapsed", ["passed", "skipped", "xfailed", "error"])
        for name, label in (
            ("error", "Not measured"),
            ("skipped", "Not applicable"),
            ("xfailed", "Waived"),
        ):
            report.outcomes[name]["label"] = label

    def _add_row(self, report: Any, nodeid: str, verdict: Verdict) -> None:
        """What no test of this session judged: never run, or judged by an earlier session."""
        result = rows.RESULT[verdict.outcome]
        made = rows.cells(verdict, result)
        data = {"extras": [], "result": result, "resultsTableRow": made, **rows.sort_keys(made)}
        told = rows.details(verdict, self._attempts_before(verdict))
        test = SimpleNamespace(nodeid=nodeid, when="call", outcome=result.lower(), sections=[])
        report.add_test(data, test, result, [told])

    def _add_sum(self, report: Any, sum_: rows.Sum, found: list[Verdict]) -> None:
        """Several verdicts on a node of a large fleet; each of them is in results.csv."""
        result = "Error" if sum_[1] else "Passed"
        made = rows.cells_of_sum(sum_, found)
        data = {"extras": [], "result": result, "resultsTableRow": made, **rows.sort_keys(made)}
        nodeid = f"[{' '.join(sum_)}]"
        test = SimpleNamespace(nodeid=nodeid, when="call", outcome=result.lower(), sections=[])
        report.add_test(data, test, result, [rows.details_of_sum(found)])

    def _attempts_before(self, verdict: Verdict) -> list[dict[str, Any]]:
        lines = self._earlier.get((verdict.criterion, verdict.subject), [])
        return [line for line in lines if line.get("attempt", 1) < verdict.attempt]


def verdict_of(report: Any) -> Verdict | None:
    """The verdict that fixtures.plugin.verdict_fixture attached to a report, if it came so far."""
    for name, value in report.user_properties:
        if name == "verdict":
            with suppress(ValueError, TypeError, KeyError):
                return Verdict.from_json(json.loads(str(value)))
    return None


def _start_late(name: str, session: pytest.Session) -> None:
    """Let a reporting plug-in make its object now, and begin as it would have at the start."""
    manager = session.config.pluginmanager
    module = manager.getplugin(name)
    if module is None:  # -p no:html
        return
    before = set(manager.get_plugins())
    module.pytest_configure(session.config)
    new = set(manager.get_plugins()) - before
    others = [plugin for plugin in manager.get_plugins() if plugin not in new]
    manager.subset_hook_caller("pytest_sessionstart", others)(session=session)
    manager.subset_hook_caller("pytest_collection_finish", others)(session=session)


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("pytest", "pytest-html")}
