"""What a person sees while a run goes on: live on a terminal, in plain lines elsewhere; watch."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
from pathlib import Path

import pyte
import pytest

from reports import live
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
    return written, top + [line.rstrip() for line in screen.display], process.wait(timeout=60)


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
    from reports import live

    class Display(live.Display):
        def _watch(self):
            number = 0
            while not self._stopped.wait(0.0002):
                number += 1
                with self._lock:
                    if not self._stopped.is_set():
                        self._print_line(f"line {number}")

    def pytest_configure(config):
        display = Display(config)
        display._thread = BackgroundThread(display._watch, name="live")
        config.pluginmanager.register(display, "acceptance-live")
        config.pluginmanager.register(live.PhaseHooks(display), "acceptance-live-phases")
"""
TALKED_TO = """
    import pytest

    @pytest.mark.parametrize("number", range(1500))
    def test_prints(number):
        print("not to be seen")
"""


def test_no_line_is_lost_where_pytest_begins_or_ends_to_capture(tmp_path):
    """Only lines that come at every instant show it: a run prints at most one line per second."""
    (tmp_path / "conftest.py").write_text(textwrap.dedent(TALKATIVE))
    (tmp_path / "test_it.py").write_text(textwrap.dedent(TALKED_TO))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", str(tmp_path)], cwd=CHECKOUT, env=environment(),
        capture_output=True, text=True, timeout=180,
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
        command, cwd=CHECKOUT, env=environment(), capture_output=True, text=True, timeout=180
    )


def test_with_q_nothing_is_added(tmp_path):
    run = piped("pytest", *RUN, "-q", f"--run-dir={tmp_path / 'run'}")
    assert run.returncode == 0, run.stdout
    assert "node: " not in run.stdout
    assert "\x1b" not in run.stdout


def test_the_controller_of_n_says_it_once_and_its_workers_nothing(tmp_path):
    run = piped("pytest", *RUN, "-n", "2", f"--run-dir={tmp_path / 'run'}")
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines().count("node: 1 running") == 1
