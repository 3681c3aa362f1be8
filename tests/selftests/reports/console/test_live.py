"""What a person sees while a run goes on: live on a terminal, in plain lines elsewhere; watch."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pyte
import pytest
from rich.console import Console

from fixtures.records.run_directory import RunDirectory
from reports.console import live
from reports.console.progress import JobProgress
from tests.selftests.support import CHECKOUT

pytestmark = pytest.mark.cpu

ROWS, COLUMNS = 60, 110
RUN = ["-m", "singlenode", "--cluster", "local", "--budget=12s", "-p", "no:cacheprovider",
       "-k", "environment or identical"]  # fmt: skip
"""Of what fits into the budget, what is there without torch and what has to wait for it."""


def environment(**more: str) -> dict[str, str]:
    gone = ("PYTEST_", "SLURM_", "CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(gone)}
    return {**kept, "TERM": "xterm-256color", **more}


def on_a_terminal(*command: str, **more: str) -> tuple[bytes, list[str], int]:
    """What a command wrote to a terminal, what stays on its screen, and its exit status."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdin=its, stdout=its, stderr=its, cwd=CHECKOUT,
        env=environment(**more),
    )  # fmt: skip
    os.close(its)
    written = b""
    while True:
        try:
            chunk = os.read(ours, 1 << 16)
        except OSError:  # the other side is closed
            break
        if not chunk:
            break
        written += chunk
    os.close(ours)
    screen = pyte.HistoryScreen(COLUMNS, ROWS, history=10_000)
    pyte.ByteStream(screen).feed(written)
    top = ["".join(line[x].data for x in range(COLUMNS)).rstrip() for line in screen.history.top]
    return written, top + [line.rstrip() for line in screen.display], process.wait(timeout=900)


def test_a_terminal_shows_stages_and_jobs_and_is_left_as_pytest_wrote_it(tmp_path):
    written, screen, status = on_a_terminal("pytest", *RUN, f"--run-dir={tmp_path / 'run'}")
    assert status == 0, "\n".join(screen)
    text = written.decode()
    assert "1 running" in text
    assert "of about" in text
    assert re.search(r"rows \d+ of \d+: ", text)
    shown = "\n".join(screen)
    assert "running" not in shown
    assert not re.search(r"rows \d+ of", shown)
    dots = [line for line in screen if line.startswith("tests/test_") and "%]" in line]
    assert dots
    assert all(line.split()[1].strip(".s") == "" for line in dots), dots
    assert "DEMONSTRATION" in shown


def test_where_lines_cannot_be_redrawn_they_are_plain(tmp_path):
    written, screen, status = on_a_terminal("pytest", *RUN, f"--run-dir={tmp_path}", TERM="dumb")
    assert status == 0, "\n".join(screen)
    assert b"\x1b[1A" not in written
    assert "node: 1 running" in [line.strip() for line in screen]


TALKATIVE = """
    import time

    from fixtures.background import BackgroundThread
    from reports.console import live

    class Display(live.Display):
        printed = 0

        def _watch(self):
            while not self._stopped.wait(0.0002):
                with self._lock:
                    if not self._stopped.is_set():
                        self._print_line(f"line {self.printed + 1}")
                        self.printed += 1

    def pytest_configure(config):
        display = Display(config)
        display._thread = BackgroundThread(display._watch, name="live")
        config.pluginmanager.register(display, "acceptance-live")
        config.pluginmanager.register(live.PhaseHooks(display), "acceptance-live-phases")
"""
TALKED_TO = """
    import time

    import pytest

    @pytest.mark.parametrize("number", range(1500))
    def test_is_one_of_many(number):
        pass

    def test_lasts_until_enough_was_said(pytestconfig):
        display = pytestconfig.pluginmanager.getplugin("acceptance-live")
        while display.printed <= 100:  # on a loaded host the thread may have had no turn yet
            time.sleep(0.001)
        display._stopped.set()

    def test_prints_after_the_last_line(pytestconfig):
        with pytestconfig.pluginmanager.getplugin("acceptance-live")._lock:
            print("not to be seen")  # the capture is on again
"""


def test_no_line_is_lost_where_pytest_begins_or_ends_to_capture(tmp_path):
    """Only lines that come at every instant show it: a run prints at most one line per second."""
    (tmp_path / "conftest.py").write_text(textwrap.dedent(TALKATIVE))
    (tmp_path / "test_it.py").write_text(textwrap.dedent(TALKED_TO))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", str(tmp_path)], cwd=CHECKOUT, env=environment(),
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    said = [int(n) for n in re.findall(r"^line (\d+)$", done.stdout, re.MULTILINE)]
    assert len(said) > 100
    assert said == list(range(1, len(said) + 1))
    assert "not to be seen" not in done.stdout


@pytest.mark.parametrize(
    ("terminal", "more", "redrawn"),
    [(True, {}, True), (False, {}, False), (True, {"CI": "true"}, False),
     (True, {"TERM": "dumb"}, False), (True, {"NO_COLOR": "1"}, True),
     (False, {"FORCE_COLOR": "1"}, False)],
)  # fmt: skip
def test_only_a_terminal_that_a_person_looks_at_is_redrawn(monkeypatch, terminal, more, redrawn):
    for name, value in {"CI": "", "TERM": "xterm", **more}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    assert live._interactive() is redrawn


def piped(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.run(
        command, cwd=CHECKOUT, env=environment(), capture_output=True, text=True, timeout=900
    )


def test_with_q_nothing_is_added(tmp_path):
    run = piped("pytest", *RUN[:-1], "environment", "-q", f"--run-dir={tmp_path / 'run'}")
    assert run.returncode == 0, run.stdout
    assert "node: " not in run.stdout
    assert "\x1b" not in run.stdout


def test_the_controller_of_n_says_it_once_and_its_workers_nothing(tmp_path):
    run = piped("pytest", *RUN, "-n", "2", f"--run-dir={tmp_path / 'run'}")
    assert run.returncode == 0, run.stdout + run.stderr
    # Which states a look falls into is a matter of time; each is said by one process.
    said = [line for line in run.stdout.splitlines() if line.startswith("node: ")]
    assert said
    assert len(said) == len(set(said)), said


# --- parts of the display


def a_job(state: str, **more) -> JobProgress:
    given = {"name": "j", "stage": "node", "nodes": ["a"], "placement": "a", "estimated_s": 30.0,
             "workloads": ["gemm", "p2p"]}  # fmt: skip
    return JobProgress(state=state, **{**given, **more})


def a_progress(jobs, problems=(), counts=None) -> SimpleNamespace:
    return SimpleNamespace(
        stages={"node": list(jobs)}, problems=list(problems), counts=counts or {}, planned=9
    )


def rendered(progress) -> str:
    out = io.StringIO()
    Console(file=out, width=120).print(live.render(progress, 130.0))
    return out.getvalue()


def test_six_running_jobs_and_three_problems_are_shown_and_the_others_counted():
    jobs = [a_job("running", name=f"job{k}", workload="gemm", done=1, began=100.0)
            for k in range(7)]  # fmt: skip
    text = rendered(a_progress(jobs, [f"problem {k}" for k in range(4)]))
    assert [f"job{k}: gemm" in text for k in range(7)] == [True] * 6 + [False]
    assert [f"problem {k}" in text for k in range(4)] == [True] * 3 + [False]
    assert text.count("and 1 more") == 2
    assert "1 of 2 workloads" in text
    assert "rows 0 of 9: nothing yet" in text
    counts = {"PASS": 2, "NOT_MEASURED": 1, "FAIL": 0}
    text = rendered(a_progress([*jobs[:6], a_job("done")], ["problem"] * 3, counts))
    assert "more" not in text
    assert "6 running, 1 done" in text
    assert "rows 3 of 9: 2 pass, 1 not measured" in text


def test_a_stage_says_how_long_it_takes_and_took():
    told = live._elapsed_and_estimate
    waiting, running = a_job("queued"), a_job("running", began=100.0, estimated_s=50.0)
    done = a_job("done", began=110.0, last_time=125.0)
    failed = a_job("failed", began=105.0, last_time=120.0)
    assert told([waiting], 130.0) == "about 30 s"
    assert told([waiting, running, done], 130.0) == "30 s of about 50 s"
    assert told([done, failed], 999.0) == "20 s"
    assert told([a_job("done", began=100.0)], 130.0) == "30 s"


def a_display(*, reporter=True, cluster="cluster", column=0) -> live.Display:
    flushed = SimpleNamespace(flush=lambda: None)
    return live.Display(SimpleNamespace(
        pluginmanager=SimpleNamespace(getplugin=lambda _: flushed if reporter else None),
        getoption=lambda _: cluster,
        get_terminal_writer=lambda: SimpleNamespace(width_of_current_line=column),
    ))  # fmt: skip


def test_only_what_changes_is_printed_and_nothing_of_what_is_only_planned(monkeypatch):
    display, lines = a_display(), list[str]()
    monkeypatch.setattr(display, "_print_line", lines.append)
    job = a_job("planned")
    display._progress = a_progress([job])
    display._print_changes()
    assert lines == []
    job.state = "running"
    display._print_changes()
    display._progress.problems.append("FAIL a x")
    display._print_changes()
    assert lines == ["node: 1 running", "FAIL a x"]


def test_a_replay_or_a_session_without_a_reporter_has_no_display(monkeypatch, tmp_path):
    monkeypatch.setattr(live, "_interactive", lambda: False)
    for given, there in (({}, True), ({"cluster": "replay"}, False), ({"reporter": False}, False)):
        display = a_display(**given)
        display.pytest_acceptance_started(None, RunDirectory(tmp_path))
        assert (display._thread is not None) is there


def test_lines_are_drawn_twice_a_second_and_printed_once_a_second():
    for console, period in ((None, 1.0), (object(), 0.5)):
        display, periods = a_display(), list[float]()
        display._console = console
        display._stopped = SimpleNamespace(wait=lambda p, to=periods: to.append(p) or True)
        display._watch()
        assert periods == [period]


@pytest.mark.parametrize("terminal", [False, True])
def test_each_look_at_the_run_is_shown_as_the_terminal_allows(monkeypatch, terminal):
    display, done, looks = a_display(), list[str](), iter([False, False, True])
    display._progress = SimpleNamespace(refresh=lambda: done.append("refresh"))
    display._console = object() if terminal else None
    display._stopped = SimpleNamespace(wait=lambda _: next(looks), is_set=lambda: False)
    for name in ("_print_changes", "_erase", "_draw"):
        monkeypatch.setattr(display, name, lambda name=name: done.append(name))
    display._watch()
    each = ["refresh", "_erase", "_draw"] if terminal else ["refresh", "_print_changes"]
    assert done == each * 2


def test_what_was_drawn_is_erased_and_the_cursor_is_where_pytest_left_it():
    for column, written in ((0, ""), (7, "\x1b[1A\x1b[8G")):
        display, stopped, out = a_display(column=column), list[int](), io.StringIO()
        display._erase()
        display._live = SimpleNamespace(stop=lambda to=stopped: to.append(1))
        display._erase()
        assert stopped == []
        display._console = SimpleNamespace(file=out)
        display._erase()
        assert (stopped, display._live, out.getvalue()) == ([1], None, written)
        display._erase()
        assert stopped == [1]


def test_a_display_draws_its_progress_below_pytest_s_line():
    display, out = a_display(column=7), io.StringIO()
    display._console = Console(file=out, width=80, force_terminal=True)
    display._progress = a_progress([a_job("running", workload="gemm")])
    display._draw()
    display._live.stop()
    assert out.getvalue().startswith("\n")
    assert "j: gemm" in out.getvalue()


def passed_on(hook) -> str:
    """What a hook returns whose inner hooks returned "result"."""
    next(hook)
    with pytest.raises(StopIteration) as end:
        hook.send("result")
    return end.value.value


def test_hooks_pass_on_what_pytest_s_own_return_and_start_the_thread_once():
    for reporter in (True, False):
        display, starts = a_display(reporter=reporter), list[int]()
        for name in ("logstart", "logreport", "logfinish", "setup", "call", "teardown"):
            assert passed_on(getattr(display, f"pytest_runtest_{name}")()) == "result"
        display._thread = SimpleNamespace(start=lambda to=starts: to.append(1))
        for _ in range(2):
            assert passed_on(display.pytest_runtest_logstart()) == "result"
        assert starts == [1]
    phases = live.PhaseHooks(display)
    display._acquire_lock()
    for name in ("setup", "call", "teardown"):
        assert passed_on(getattr(phases, f"pytest_runtest_{name}")()) == "result"
    display._release_lock()


def test_the_end_of_a_session_waits_five_seconds_for_the_thread_and_closes_its_file():
    display, waited = a_display(), list[float]()
    display._stop()
    display._thread = SimpleNamespace(join=waited.append)
    display._file = display._console = io.StringIO()
    file = display._file
    display._stop()
    assert (waited, file.closed, display._file) == ([5.0], True, None)


def test_a_quiet_session_and_a_worker_have_no_display():
    for verbosity, usepdb, capture, worker, there in (
        (0, False, "fd", False, True), (1, False, "fd", False, True),
        (-1, False, "fd", False, False), (0, True, "fd", False, False),
        (0, False, "no", False, False), (0, False, "fd", True, False),
    ):  # fmt: skip
        names: list[str] = []
        config = SimpleNamespace(
            option=SimpleNamespace(usepdb=usepdb, capture=capture),
            get_verbosity=lambda v=verbosity: v,
            pluginmanager=SimpleNamespace(register=lambda _, name, to=names: to.append(name)),
            **({"workerinput": {}} if worker else {}),
        )
        live.pytest_configure(config)
        assert bool(names) is there
