"""pytest plug-in: progress of the run while its tests wait: stages, jobs, first verdicts.

On a terminal a few lines below pytest's own, redrawn by rich; else a plain line when the states of
a stage's jobs change. Nothing with -q, -s or --pdb, and nothing in a pytest-xdist worker. pytest's
reporter is not changed: the lines are erased before each hook in which it writes; the thread draws
them again.
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

from fixtures.background import BackgroundThread
from fixtures.records.run_directory import RunDirectory
from reports.console.progress import JobProgress, Progress

PERIOD_S = 0.5
PLAIN_PERIOD_S = 1.0
JOIN_TIMEOUT_S = 5.0
MAX_JOBS = 6
MAX_PROBLEMS = 3

STATE_STYLE = {"running": "cyan", "done": "green", "failed": "red"}


def pytest_configure(config: pytest.Config) -> None:
    option = config.option
    silent = config.get_verbosity() < 0 or option.usepdb or option.capture == "no"
    if not hasattr(config, "workerinput") and not silent:
        display = Display(config)
        config.pluginmanager.register(display, "acceptance-live")
        config.pluginmanager.register(PhaseHooks(display), "acceptance-live-phases")


def render(progress: Progress, now: float) -> RenderableType:
    """Return a table of the stages, the running jobs, and the problems so far."""
    table = Table.grid(padding=(0, 2))
    for stage, jobs in progress.stages.items():
        table.add_row(
            Text(stage, "bold"), Text(_state_counts(jobs)), Text(_elapsed_and_estimate(jobs, now))
        )
        running = [j for j in jobs if j.state == "running"]
        for job in running[:MAX_JOBS]:
            table.add_row(
                "",
                Text(f"{job.name}: {job.workload}", STATE_STYLE["running"]),
                _workloads_done(job),
            )
        if len(running) > MAX_JOBS:
            table.add_row("", Text(f"and {len(running) - MAX_JOBS} more"), "")
    settled = sum(progress.counts.values())
    parts = [Text(f"rows {settled} of {progress.planned}: {_outcome_counts(progress)}")]
    parts += [Text(line, "red") for line in progress.problems[:MAX_PROBLEMS]]
    if len(progress.problems) > MAX_PROBLEMS:
        parts.append(Text(f"and {len(progress.problems) - MAX_PROBLEMS} more", "red"))
    return Group(table, *parts)


def _state_counts(jobs: list[JobProgress]) -> str:
    names = ("planned", "queued", "running", "done", "failed")
    tally = {name: sum(j.state == name for j in jobs) for name in names}
    return ", ".join(f"{n} {name}" for name, n in tally.items() if n)


def _elapsed_and_estimate(jobs: list[JobProgress], now: float) -> str:
    began = [j.began for j in jobs if j.began is not None]
    longest = max(j.estimated_s for j in jobs)
    if not began:
        return f"about {longest:.0f} s"
    ended = all(j.state in ("done", "failed") for j in jobs)
    end = max(j.last_time or now for j in jobs) if ended else now
    return f"{end - min(began):.0f} s" + ("" if ended else f" of about {longest:.0f} s")


def _workloads_done(job: JobProgress) -> str:
    return f"{job.done} of {len(job.workloads)} workloads"


def _outcome_counts(progress: Progress) -> str:
    parts = [f"{n} {name.lower().replace('_', ' ')}" for name, n in progress.counts.items() if n]
    return ", ".join(parts) or "nothing yet"


class Display:
    """The progress display of a session, in the process that owns the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._progress: Progress | None = None
        self._thread: BackgroundThread | None = None
        self._started = False
        self._stopped = threading.Event()
        self._lock = threading.RLock()
        self._lock_held = False
        self._live: Live | None = None
        self._console: Console | None = None
        self._file: TextIO | None = None
        self._printed_states: dict[str, str] = {}
        """Stage -> the line last printed for it."""
        self._printed_problems = 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_acceptance_started(self, session: pytest.Session, directory: RunDirectory) -> None:
        """Prepare the display and its thread.

        stdout is duplicated here because pytest captures it during a test.
        """
        reporter = self._reporter
        if reporter is None or self._config.getoption("cluster") == "replay":
            return
        self._progress = Progress(directory)
        if _interactive():
            self._file = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
            self._console = Console(file=self._file, force_terminal=True)
        self._thread = BackgroundThread(self._watch, name="live")

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
                    self._print_changes()
                else:
                    self._erase()
                    self._draw()

    def _print_changes(self) -> None:
        assert self._progress is not None
        for stage, jobs in self._progress.stages.items():
            line = f"{stage}: {_state_counts(jobs)}"
            if self._printed_states.get(stage) != line and any(j.state != "planned" for j in jobs):
                self._printed_states[stage] = line
                self._print_line(line)
        for line in self._progress.problems[self._printed_problems :]:
            self._printed_problems += 1
            self._print_line(line)

    def _print_line(self, text: str) -> None:
        reporter = self._reporter
        capture = self._config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            if self._column:  # with pytest-xdist ensure_newline does not know that a line has begun
                self._config.get_terminal_writer().line()
            reporter.write_line(text)
            reporter.flush()

    def _draw(self) -> None:
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

    def _erase(self) -> None:
        """Erase the lines, and put the cursor back to the end of what pytest wrote."""
        if self._live is None or self._console is None:
            return
        self._live.stop()
        self._live = None
        if self._column:
            self._console.file.write(f"\x1b[1A\x1b[{self._column + 1}G")
            self._console.file.flush()

    @property
    def _column(self) -> int:
        """Characters in pytest's unfinished line."""
        return int(self._config.get_terminal_writer().width_of_current_line)

    # --- hooks in which pytest writes while tests run: the lines are erased

    def _erased_meanwhile(self) -> Generator[None, Any, Any]:
        with self._lock:
            self._erase()
            try:
                return (yield)
            finally:
                if self._reporter is not None:
                    self._reporter.flush()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logstart(self) -> Generator[None, Any, Any]:
        if self._thread is not None and not self._started:
            self._started = True
            self._thread.start()
        return (yield from self._erased_meanwhile())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self) -> Generator[None, Any, Any]:
        return (yield from self._erased_meanwhile())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logfinish(self) -> Generator[None, Any, Any]:
        return (yield from self._erased_meanwhile())

    # --- phases of a test: locked while pytest starts and stops its capture, free in between

    def _locked_meanwhile(self) -> Generator[None, Any, Any]:
        self._acquire_lock()
        try:
            return (yield)
        finally:
            self._release_lock()

    def unlocked_meanwhile(self) -> Generator[None, Any, Any]:
        """Release the lock during a phase, so that the thread can write while a test waits."""
        self._release_lock()
        try:
            return (yield)
        finally:
            self._acquire_lock()

    def _acquire_lock(self) -> None:
        self._lock.acquire()
        self._lock_held = True

    def _release_lock(self) -> None:
        """Release the lock, unless Ctrl-C came before it was acquired."""
        if self._lock_held:
            self._lock_held = False
            self._lock.release()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        return (yield from self._locked_meanwhile())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        return (yield from self._locked_meanwhile())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
        return (yield from self._locked_meanwhile())

    # --- every way in which a session ends

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
            self._erase()
        if self._thread is not None:
            self._thread.join(JOIN_TIMEOUT_S)
        if self._file is not None:
            self._file.close()
            self._file = self._console = None


class PhaseHooks:
    """Hook wrappers inside those of pytest's capture: they release the lock during a phase.

    The display's thread suspends the capture to print a line. If it did so while the session starts
    or stops the capture, the line would be lost, or the report of a test captured.
    """

    def __init__(self, display: Display) -> None:
        self._display = display

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        return (yield from self._display.unlocked_meanwhile())

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        return (yield from self._display.unlocked_meanwhile())

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
        return (yield from self._display.unlocked_meanwhile())


def _interactive() -> bool:
    """Whether lines can be redrawn: stdout is a terminal, and neither TERM nor CI says otherwise.

    NO_COLOR is left to rich. isatty() is asked because rich takes FORCE_COLOR for a terminal.
    """
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown") or os.environ.get("CI"):
        return False
    return sys.stdout.isatty()
