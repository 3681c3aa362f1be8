"""pytest plug-in: a run leaves the pages and files that people read (login side).

They are made of the run directory when the run has concluded (pages/artefacts.py), never of
pytest's reports of a session: so they can be made again, and compared. Files that the user asks
for with --html and --junitxml are pytest's own; the former begins with the verdict.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from typing import Any

import pytest

from fixtures.conclusion.run_verdict import RunVerdict
from fixtures.records.files import RecordError, replace_file
from fixtures.records.foreign_files import read_bytes
from fixtures.records.run_directory import RunDirectory
from fixtures.verdict.model import Outcome
from reports.console import terminal
from reports.evidence import statement
from reports.exports import junit, tables
from reports.facts import causes
from reports.pages import banner, page
from reports.pages.artefacts import NAMES, NODE_LISTS, Artefacts

PAGE_OF_PLUGIN = {page.NAME: "html", junit.NAME: "junitxml"}
"""Files that are not written where the plug-in that they stand for is off (-p no:html)."""


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register one writer per session, in the process that sees all reports: no xdist worker."""
    if not hasattr(config, "workerinput"):
        writer = Writer(config)
        config.pluginmanager.register(writer, "acceptance-report")
        config.pluginmanager.register(LastWord(writer), "acceptance-last-word")
        config.pluginmanager.register(NotMeasuredSection(), "acceptance-not-measured")


MAX_WIDTH = 100
"""Most characters of a line of the summary."""


class LastWord:
    """Prints the verdict when pytest has printed everything."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None]:
        yield
        self._writer.print_verdict()


class NotMeasuredSection:
    """Tells what was not measured once for each reason, instead of a block and a line a test."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None]:
        errors = terminalreporter.stats.get("error", [])
        rows_of = {id(report): _not_measured_rows(report) for report in errors}
        told = [row for rows in rows_of.values() for row in rows]
        if not told or terminalreporter.config.get_verbosity() > 1:
            return (yield)
        terminalreporter.stats["error"] = [r for r in errors if not rows_of[id(r)]]
        try:
            result = yield
        finally:
            terminalreporter.stats["error"] = errors  # pytest counts them in its last line
        terminalreporter.section("NOT MEASURED")
        for reason in causes.reasons(told):
            terminalreporter.write_line(reason.line)
        return result


def _not_measured_rows(report: Any) -> list[Mapping[str, Any]]:
    """Return the rows whose verdict is all that an error has to say; [] for any other error."""
    if report.when != "setup" or not isinstance(report.longrepr, str):
        return []
    if (test := getattr(report, "node_test", None)) is not None:
        rows = [verdict.row for verdict in test.verdicts]
    else:
        rows = [json.loads(str(v)) for name, v in report.user_properties if name == "verdict"]
    found = [row for row in rows if row["outcome"] == Outcome.NOT_MEASURED]
    return found if all(row["criterion"] in report.longrepr for row in found) else []


class Writer:
    """Writes what is made of a run, from its start to its verdict."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._directory: RunDirectory | None = None
        self._artefacts: Artefacts | None = None
        """The pages and files of this session's verdict, as soon as it has concluded."""
        self._unwritten: RunVerdict | None = None
        """The verdict of a run of which not everything could be written."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_acceptance_started(self, session: pytest.Session, directory: RunDirectory) -> None:
        """Remove what an earlier session left: if this one is killed, it would contradict it."""
        self._directory = directory
        if drills_file := self._config.getoption("drills", None):
            replace_file(directory.drills, (read_bytes(drills_file),))
        for name in NAMES:
            (directory.root / name).unlink(missing_ok=True)
        statement.remove(directory.root)

    @pytest.hookimpl(optionalhook=True)
    def pytest_acceptance_concluded(
        self, session: pytest.Session, directory: RunDirectory, verdict: Mapping[str, Any]
    ) -> None:
        """Keep the verdict for the pages; write all but those that pytest's plug-ins stand for."""
        self._artefacts = artefacts = Artefacts(directory, verdict)
        for name in artefacts.names:
            if name not in (*PAGE_OF_PLUGIN, *NODE_LISTS, statement.NAME):
                self._write(name, artefacts.write)

    @pytest.hookimpl(optionalhook=True)
    def pytest_acceptance_unwritten(
        self, session: pytest.Session, directory: RunDirectory, verdict: RunVerdict
    ) -> None:
        """Remove the pages of a verdict that does not hold: they must not be signed."""
        self._artefacts, self._unwritten = None, verdict
        for name in NAMES:
            with suppress(OSError):
                (directory.root / name).unlink(missing_ok=True)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write report.html and junit.xml, then the statement on all files.

        An OSError of the first two takes the verdict back.
        """
        if self._directory is None:
            return
        artefacts = self._shown(self._directory)
        for name, plugin in PAGE_OF_PLUGIN.items():
            if self._config.pluginmanager.hasplugin(plugin):
                self._write(name, artefacts.write, unless=OSError)
        if self._artefacts is not None and statement.NAME in artefacts.names:
            self._write(statement.NAME, artefacts.write)

    def _write(
        self, name: str, write: Callable[[str], None], unless: type[Exception] | tuple[()] = ()
    ) -> None:
        """Write a file; an error is only printed, because the verdict does not depend on it."""
        try:
            write(name)
        except unless:
            raise
        except Exception as error:
            reporter = self._config.pluginmanager.getplugin("terminalreporter")
            if reporter is not None:
                reporter.write_line(f"{name} was not written: {error!r}")

    def _shown(self, directory: RunDirectory) -> Artefacts:
        """Return the files of the session: INCOMPLETE without criteria unless it concluded."""
        if self._artefacts is not None:
            return self._artefacts
        run: Any = {}
        with suppress(OSError, RecordError):
            run = directory.read_run()
        return Artefacts(directory, page.without_verdict(directory, run))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the measured tables with -v, in the form of nccl-tests and nvbandwidth."""
        if self._directory is None or self._config.get_verbosity() < 1:
            return
        for record in tables.records_of(self._directory):
            if text := tables.table(record):
                terminalreporter.write_line(f"\n{text}")

    def print_verdict(self) -> None:
        """Print the verdict and the failures last, so that they stay on the screen."""
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is None:
            return
        width = min(reporter._tw.fullwidth, MAX_WIDTH)
        if self._unwritten is not None:
            self._print_word(self._unwritten.verdict, width)
            for line in (*self._unwritten.reasons, "there is no verdict.json and no certificate"):
                reporter.write_line(line)
        if self._artefacts is None:
            return
        verdict = self._artefacts.verdict
        for line in terminal.not_applicable(verdict["criteria"], width):
            reporter.write_line(line)
        self._print_word(str(verdict["verdict"]), width)
        try:
            lines = terminal.summary(self._artefacts, width)
        except (OSError, RecordError) as error:  # the verdict does not depend on its summary
            lines = [f"no summary: {error}"]
        for line in lines:
            reporter.write_line(line)

    def _print_word(self, word: str, width: int) -> None:
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        colour = terminal.COLOURS.get(word, "green")
        reporter.write_sep("=", word, fullwidth=width, **{colour: True, "bold": True})

    # --- a page of pytest-html that the user asked for

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_report_title(self, report: Any) -> None:
        report.title = page.TITLE

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_summary(self, prefix: list[str]) -> None:
        if self._directory is None:
            return
        shown = self._shown(self._directory)
        run: Any = {}
        with suppress(OSError, RecordError):
            run = shown.run
        prefix += [banner.style(), banner.banner(shown.verdict, run)]
