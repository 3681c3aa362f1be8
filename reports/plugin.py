"""pytest plug-in: pytest-html's page becomes the report that a customer gets (login side).

The run directory is known when the run starts, after collection; pytest-html and JUnit decide in
pytest_configure whether they write anything. So their plug-in objects are made late, by another
call of their pytest_configure, and started by their pytest_sessionstart. Files that the user asks
for with --html and --junitxml are written as well, and not changed.
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


def _existing_file(text: str) -> Path:
    """Return the path of an existing file, for argparse."""
    if not (path := Path(text)).is_file():
        raise argparse.ArgumentTypeError(f"{text} is no file; `make drills` writes one")
    return path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("acceptance").addoption(
        "--drills",
        type=_existing_file,
        metavar="FILE",
        help="the table that `make drills` wrote: the report shows it, as the proof that the "
        "criteria can fail",
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register one page per session, in the process that sees all reports: no xdist worker."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Page(config), "acceptance-report")


class Page:
    """The suite's part of pytest-html's report, from the start of the run to its verdict."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._directory: RunDirectory | None = None
        self._concluded = False
        self._summarise = False
        """Whether the verdicts are too many for a row each (rows.MAX_SINGLE_ROWS)."""
        self._verdict: Mapping[str, Any] = {}
        self._reports: list[Any] = []
        """pytest-html's report data: of report.html, and of the user's --html file if any."""
        self._attempts: dict[rows.RowKey, list[dict[str, Any]]] = {}

    # --- the run

    @pytest.hookimpl(optionalhook=True)
    def pytest_acceptance_started(self, session: pytest.Session, directory: RunDirectory) -> None:
        """Let pytest-html and JUnit write report.html and junit.xml into the run directory."""
        self._directory = directory
        if drills_file := self._config.getoption("drills"):
            directory.drills.write_bytes(drills_file.read_bytes())
        for name in ("report.html", "junit.xml", "results.csv", certificate.NAME):
            # If this session is killed, files of the session that it resumes would contradict it.
            (directory.root / name).unlink(missing_ok=True)
        self._attempts = rows.attempts_of(directory)
        with suppress(OSError, RecordError):
            self._summarise = read_json(directory.run_json).get("planned", 0) > rows.MAX_SINGLE_ROWS
        option = self._config.option
        user_paths = {name: getattr(option, name, None) for name in ("htmlpath", "xmlpath")}
        self_contained = getattr(option, "self_contained_html", False)
        option.htmlpath = str(directory.root / "report.html")
        option.xmlpath = str(directory.root / "junit.xml")
        option.self_contained_html = True
        try:
            _start_late("html", session)
            _start_late("junitxml", session)
        finally:
            option.self_contained_html = self_contained
            vars(option).update(user_paths)

    @pytest.hookimpl(optionalhook=True)
    def pytest_acceptance_concluded(
        self, session: pytest.Session, directory: RunDirectory, verdict: Mapping[str, Any]
    ) -> None:
        """Keep the verdict of this session for the page; write results.csv and the certificate."""
        self._concluded = True
        self._verdict = verdict
        self._write("results.csv", lambda: export.write_results(directory, verdict))
        if "replay" not in verdict:
            self._write(certificate.NAME, lambda: certificate.write(directory, verdict))

    def _write(self, name: str, write: Callable[[], object]) -> None:
        """Write a file; an error is only printed, because the verdict does not depend on it."""
        try:
            write()
        except Exception as error:
            reporter = self._config.pluginmanager.getplugin("terminalreporter")
            if reporter is not None:
                reporter.write_line(f"{name} was not written: {error!r}")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the measured tables with -v, in the form of nccl-tests and nvbandwidth."""
        if self._directory is None or self._config.get_verbosity() < 1:
            return
        for record in tables.records_of(self._directory):
            if text := tables.table(record):
                terminalreporter.write_line(f"\n{text}")

    # --- pytest-html

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_report_title(self, report: Any) -> None:
        """Keep the report's data, because its title is known only at the end."""
        report.title = TITLE
        self._reports.append(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_header(self, cells: list[str]) -> None:
        cells[:] = rows.header()

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_row(self, report: Any, cells: list[str]) -> None:
        if getattr(report, "area", None) is not None or (self._summarise and verdict_of(report)):
            cells.clear()  # rows are made of the verdicts at the end
            return
        result = cells[0].partition(">")[2].partition("<")[0]
        verdict = verdict_of(report)
        if verdict is not None:
            cells[:] = rows.cells(verdict, result)
        else:
            lines = report.longreprtext.strip().splitlines() if result != "Passed" else []
            cells[:] = rows.cells_without_verdict(report.nodeid, lines[-1] if lines else "", result)

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_html(self, report: Any, data: list[str]) -> None:
        """Fill what opens below a row; pytest's text is kept if the verdict does not explain it."""
        verdict = verdict_of(report)
        if verdict is None:
            return
        # Not longreprtext: with pytest-xdist it begins with the worker and the path of its Python.
        explained = not report.failed or str(report.longrepr).strip() == verdict.line.strip()
        details = rows.details(verdict, self._attempts_before(verdict))
        data[:] = [details] if explained else [details, *data]

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_summary(
        self, prefix: list[str], summary: list[str], postfix: list[str], session: pytest.Session
    ) -> None:
        """Fill the page just before it is written: verdict, title, banner, order of rows."""
        prefix.append(banner.style())
        if self._directory is None:
            return
        verdict, run = self._verdict_and_run(self._directory)
        prefix.append(banner.banner(verdict, run))
        if verdict["criteria"]:
            prefix.append(self._figures(self._directory, verdict, run))
        postfix.append(banner.notes(verdict))
        postfix.append(drills.section(self._directory))
        for report in self._reports:
            report.title = f"{TITLE}: {verdict['verdict']}"
            report.set_data("environment", banner.environment(run, _versions()))
            self._add_missing_rows(report, verdict["criteria"])

    def _figures(
        self, directory: RunDirectory, verdict: Mapping[str, Any], run: Mapping[str, Any]
    ) -> str:
        """Return the HTML of coverage and charts, or a line with the error that prevented them."""
        try:
            return figures.figures(directory, verdict, run)
        except Exception as error:
            message = (
                f"Coverage and charts could not be drawn ({error!r}); the table below is whole."
            )
            return str(Markup("<p>{}</p>").format(message))

    def _verdict_and_run(
        self, directory: RunDirectory
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return verdict.json and run.json.

        For a session that did not conclude the verdict is INCOMPLETE, without criteria.
        """
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

    def _add_missing_rows(self, report: Any, criteria: list[dict[str, Any]]) -> None:
        """Add rows for verdicts without a test in this session; sort all rows, failures first."""
        tests: dict[str, list[dict[str, Any]]] = report.data["tests"]
        in_table = {rows.test_id(nodeid) for nodeid, test_rows in tests.items() if test_rows}
        plan_index = {}
        summarised: dict[rows.SummaryKey, list[Verdict]] = {}
        for index, data in enumerate(criteria):
            name = f"{data['criterion']}-{data['subject']}"
            plan_index[name] = index
            if name in in_table:
                continue
            verdict = Verdict.from_json(data)
            if (key := rows.summary_key(verdict, summarise=self._summarise)) is not None:
                summarised.setdefault(key, []).append(verdict)
            else:
                self._add_row(report, f"[{name}]", verdict)
        for key, verdicts in summarised.items():
            self._add_summary_row(report, key, verdicts)

        def rank(nodeid: str) -> tuple[int, int]:
            worst = min((rows.SORT_RANK.get(row["result"], 1) for row in tests[nodeid]), default=9)
            return worst, plan_index.get(rows.test_id(nodeid), len(plan_index))

        report.set_data("tests", {nodeid: tests[nodeid] for nodeid in sorted(tests, key=rank)})
        report.set_data("initialSort", "original")
        # The banner explains what was not measured, once for each reason.
        report.set_data("renderCollapsed", ["passed", "skipped", "xfailed", "error"])
        for name, label in (
            ("error", "Not measured"),
            ("skipped", "Not applicable"),
            ("xfailed", "Waived"),
        ):
            report.outcomes[name]["label"] = label

    def _add_row(self, report: Any, nodeid: str, verdict: Verdict) -> None:
        """Add the row of a verdict without a test in this session: not run, or judged earlier."""
        result = rows.RESULT[verdict.outcome]
        cells = rows.cells(verdict, result)
        data = {"extras": [], "result": result, "resultsTableRow": cells, **rows.sort_keys(cells)}
        details = rows.details(verdict, self._attempts_before(verdict))
        test = SimpleNamespace(nodeid=nodeid, when="call", outcome=result.lower(), sections=[])
        report.add_test(data, test, result, [details])

    def _add_summary_row(self, report: Any, key: rows.SummaryKey, verdicts: list[Verdict]) -> None:
        """Add a row for several verdicts on a node of a large run; results.csv has each of them."""
        result = "Error" if key[1] else "Passed"
        cells = rows.summary_cells(key, verdicts)
        data = {"extras": [], "result": result, "resultsTableRow": cells, **rows.sort_keys(cells)}
        nodeid = f"[{' '.join(key)}]"
        test = SimpleNamespace(nodeid=nodeid, when="call", outcome=result.lower(), sections=[])
        report.add_test(data, test, result, [rows.summary_details(verdicts)])

    def _attempts_before(self, verdict: Verdict) -> list[dict[str, Any]]:
        lines = self._attempts.get((verdict.criterion, verdict.subject), [])
        return [line for line in lines if line.get("attempt", 1) < verdict.attempt]


def verdict_of(report: Any) -> Verdict | None:
    """Return the verdict that fixtures.plugin.verdict_fixture attached to a report, or None."""
    for name, value in report.user_properties:
        if name == "verdict":
            with suppress(ValueError, TypeError, KeyError):
                return Verdict.from_json(json.loads(str(value)))
    return None


def _start_late(name: str, session: pytest.Session) -> None:
    """Let a reporting plug-in create its object now, and call the hooks that it has missed."""
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
