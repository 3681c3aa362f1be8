"""pytest plug-in: what the run does while its tests wait: stages, jobs, first verdicts.

On a terminal a few lines below pytest's own, redrawn by rich; else a plain line where a stage's
jobs change. Nothing with -q, -s or --pdb, and nothing in a worker of -n. pytest's reporter is not
touched: the lines are taken away before a hook in which it writes, and put back after.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Generator
from typing import Any, TextIO

import pytest
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fixtures.records.run_directory import RunDirectory
from reports.progress import JobProgress, Progress

PERIOD_S = 0.5
PLAIN_PERIOD_S = 1.0
SHOWN_JOBS = 6
SHOWN_RED = 3

STYLE = {"running": "cyan", "done": "green", "failed": "red"}


def pytest_configure(config: pytest.Config) -> None:
    option = config.option
    silent = config.get_verbosity() < 0 or option.usepdb or option.capture == "no"
    if not hasattr(config, "workerinput") and not silent:
        display = Display(config)
        config.pluginmanager.register(display, "acceptance-live")
        config.pluginmanager.register(Phases(display), "acceptance-live-phases")


def render(progress: Progress, now: float) -> RenderableType:
    """A table of the stages, the jobs that run, and what is red so far."""
    table = Table.grid(padding=(0, 2))
    for stage, jobs in progress.stages.items():
        table.add_row(Text(stage, "bold"), Text(_states(jobs)), Text(_times(jobs, now)))
        running = [j for j in jobs if j.state == "running"]
        for job in running[:SHOWN_JOBS]:
            table.add_row("", Text(f"{job.name}: {job.workload}", STYLE["running"]), _part(job))
        if len(running) > SHOWN_JOBS:
            table.add_row("", Text(f"and {len(running) - SHOWN_JOBS} more"), "")
    judged = sum(progress.counts.values())
    parts = [Text(f"judged {judged} of {progress.planned}: {_counts(progress)}")]
    parts += [Text(line, "red") for line in progress.red[:SHOWN_RED]]
    if len(progress.red) > SHOWN_RED:
        parts.append(Text(f"and {len(progress.red) - SHOWN_RED} more", "red"))
    return Group(table, *parts)


def _states(jobs: list[JobProgress]) -> str:
    names = ("planned", "queued", "running", "done", "failed")
    tally = {name: sum(j.state == name for j in jobs) for name in names}
    return ", ".join(f"{n} {name}" for name, n in tally.items() if n)


def _times(jobs: list[JobProgress], now: float) -> str:
    began = [j.began for j in jobs if j.began is not None]
    longest = max(j.estimated_s for j in jobs)
    if not began:
        return f"about {longest:.0f} s"
    over = all(j.state in ("done", "failed") for j in jobs)
    end = max(j.last or now for j in jobs) if over else now
    return f"{end - min(began):.0f} s" + ("" if over else f" of about {longest:.0f} s")


def _part(job: JobProgress) -> str:
    return f"{job.done} of {len(job.workloads)} workloads"


def _counts(progress: Progress) -> str:
    said = [f"{n} {name.lower().replace('_', ' ')}" for name, n in progress.counts.items() if n]
    return ", ".join(said) or "nothing yet"


class Display:
    """One a session, in the process that owns the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._progress: Progress | None = None
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._lock = threading.RLock()
        self._taken = False
        self._live: Live | None = None
        self._console: Console | None = None
        self._file: TextIO | None = None
        self._said: dict[str, str] = {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_acceptance_started(self, session: pytest.Session, directory: RunDirectory) -> None:
        """Take the terminal before the first test: during one, pytest's capture holds stdout."""
        reporter = self._reporter
        if reporter is None or self._config.getoption("cluster") == "replay":
            return
        self._progress = Progress(directory)
        if _interactive():
            self._file = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
            self._console = Console(file=self._file, force_terminal=True)
        self._thread = threading.Thread(target=self._watch, name="live", daemon=True)

    @property
    def _reporter(self) -> Any:
        return self._config.pluginmanager.getplugin("terminalreporter")

    # --- the thread

    def _watch(self) -> None:
        period = PERIOD_S if self._console is not None else PLAIN_PERIOD_S
        while not self._stopped.wait(period):
            assert self._progress is not None
            self._progress.refresh()
            with self._lock:
                if self._stopped.is_set():
                    return
                if self._console is None:
                    self._say_plainly()
                else:
                    self._hide()
                    self._show()

    def _say_plainly(self) -> None:
        assert self._progress is not None
        for stage, jobs in self._progress.stages.items():
            said = f"{stage}: {_states(jobs)}"
            if self._said.get(stage) != said and any(j.state != "planned" for j in jobs):
                self._said[stage] = said
                self._line(said)
        for line in self._progress.red[len(self._said.setdefault("red", "")) :]:
            self._said["red"] += "."
            self._line(line)

    def _line(self, text: str) -> None:
        reporter = self._reporter
        capture = self._config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            if self._column:  # under -n pytest does not know that it has begun a line
                self._config.get_terminal_writer().line()
            reporter.write_line(text)
            reporter.flush()

    def _show(self) -> None:
        assert self._progress is not None
        assert self._console is not None
        if self._column:
            self._console.file.write("\n")
        self._live = Live(
            render(self._progress, time.time()),
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._live.start(refresh=True)

    def _hide(self) -> None:
        """Take the lines away, and put the cursor back behind what pytest wrote."""
        if self._live is None or self._console is None:
            return
        self._live.stop()
        self._live = None
        if self._column:
            self._console.file.write(f"\x1b[1A\x1b[{self._column + 1}G")
            self._console.file.flush()

    @property
    def _column(self) -> int:
        """How far pytest's unfinished line reaches."""
        return int(self._config.get_terminal_writer().width_of_current_line)

    # --- around all in which pytest writes while tests run

    def _aside(self) -> Generator[None, Any, Any]:
        with self._lock:
            self._hide()
            try:
                return (yield)
            finally:
                if self._reporter is not None:
                    self._reporter.flush()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logstart(self) -> Generator[None, Any, Any]:
        thread = self._thread
        if thread is not None and not thread.is_alive() and not self._stopped.is_set():
            thread.start()
        return (yield from self._aside())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self) -> Generator[None, Any, Any]:
        return (yield from self._aside())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logfinish(self) -> Generator[None, Any, Any]:
        return (yield from self._aside())

    # --- around all in which pytest captures or lets go; within a phase of a test the lock is free

    def _switching(self) -> Generator[None, Any, Any]:
        self._take()
        try:
            return (yield)
        finally:
            self._give()

    def in_a_phase(self) -> Generator[None, Any, Any]:
        """Let the thread have the terminal while a test waits."""
        self._give()
        try:
            return (yield)
        finally:
            self._take()

    def _take(self) -> None:
        self._lock.acquire()
        self._taken = True

    def _give(self) -> None:
        """Nothing to give where Ctrl-C came while the lock was waited for."""
        if self._taken:
            self._taken = False
            self._lock.release()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        return (yield from self._switching())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        return (yield from self._switching())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
        return (yield from self._switching())

    # --- the end, whatever it is

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self) -> None:
        self._stop()

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        self._stop()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._stop()

    def _stop(self) -> None:
        with self._lock:
            self._stopped.set()
            self._hide()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout=5)
        if self._file is not None:
            self._file.close()
            self._file = self._console = None


class Phases:
    """Inside of what pytest's own capture does at the begin and the end of a phase.

    The display's thread takes the capture off for a line. Were it to do so while the session puts
    it on or off, the line would be lost, or the report of a test captured.
    """

    def __init__(self, display: Display) -> None:
        self._display = display

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        return (yield from self._display.in_a_phase())

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        return (yield from self._display.in_a_phase())

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
        return (yield from self._display.in_a_phase())


def _interactive() -> bool:
    """Whether lines can be redrawn: a terminal that a person looks at. NO_COLOR only goes by rich.

    Taken from the file itself: rich alone would take FORCE_COLOR for a terminal.
    """
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown") or os.environ.get("CI"):
        return False
    return sys.stdout.isatty()
