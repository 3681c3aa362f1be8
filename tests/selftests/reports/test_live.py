"""What a person sees while a run goes on: live on a terminal, in plain lines elsewhere; watch."""

from __future__ import annotations

import fcntl
import json
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

from fixtures.records.files import append_line, write_json
from fixtures.records.run_directory import RunDirectory
from fixtures.records.run_schema import RUN_SCHEMA
from reports import live, watch
from reports.progress import Progress
from tests.selftests.support import CHECKOUT, DATA

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


# --- progress and watch


def a_run(root: Path) -> RunDirectory:
    """A run of two nodes in the middle of its node jobs."""
    run = RunDirectory(root)
    plan = [
        {"name": f"node-worker{k}", "stage": "node", "placement": f"worker{k}",
         "nodes": [f"worker{k}"], "estimated_s": 30, "workloads": [{"name": "gemm"}]}
        for k in (0, 1)
    ]  # fmt: skip
    write_json(run.run_json, {"schema": RUN_SCHEMA, "id": "r", "planned": 4, "plan": plan})
    for k in (0, 1):
        folder = run.job(f"node-worker{k}")
        folder.mkdir(parents=True)
        append_line(folder / "rank0.jsonl", {"event": "started", "workload": "gemm", "time": 100.0})
        for t in (0, 1):
            gpu = {
                "util": 90 + k, "sm_mhz": 1500, "power_w": 650.0, "temp_c": 60, "mem_mib": 2048,
                "reasons": 0x4, "nvlink_tx": t * 5 * 10**9, "nvlink_rx": t * 10**9,
            }  # fmt: skip
            sample = {"t": 100.0 + t, "gpus": {f"GPU-{k}": gpu},
                      "nics": {"mlx5_0": [t * 2 * 10**9, 0], "mlx5_1": [t * 10**9, 0]},
                      "cpu": [100 * t, 200 * t]}  # fmt: skip
            append_line(folder / f"telemetry-worker{k}.jsonl", sample)
    return run


def test_progress_follows_the_files_of_a_run(tmp_path):
    run = a_run(tmp_path)
    progress = Progress(run)
    progress.refresh()
    assert [(j.state, j.workload) for j in progress.jobs.values()] == [("running", "gemm")] * 2
    rank0 = run.job("node-worker0") / "rank0.jsonl"
    append_line(rank0, {"event": "result", "workload": "gemm", "time": 120.0})
    append_line(rank0, {"event": "end", "time": 121.0})
    append_line(run.job("node-worker1") / "rank0.jsonl", {"event": "error", "time": 110.0})
    verdict = {"event": "verdict", "criterion": "gemm.bf16", "subject": "worker1"}
    append_line(run.ledger, {**verdict, "outcome": "NOT_MEASURED"})
    append_line(run.ledger, {**verdict, "outcome": "PASS"})
    progress.refresh()
    assert [(j.state, j.done) for j in progress.jobs.values()] == [("done", 1), ("failed", 0)]
    assert {k: n for k, n in progress.counts.items() if n} == {"PASS": 1}
    assert progress.problems == ["NOT MEASURED worker1 gemm.bf16"]
    assert progress.verdict == ""
    append_line(run.ledger, {"event": "end", "verdict": "INCOMPLETE"})
    progress.refresh()
    assert progress.verdict == "INCOMPLETE"


def test_a_torn_line_is_read_when_it_is_whole(tmp_path):
    run = a_run(tmp_path)
    progress = Progress(run)
    with run.ledger.open("a") as file:
        file.write('{"event": "end", ')
        file.flush()
        progress.refresh()
        assert progress.verdict == ""
        file.write('"verdict": "PARTIAL"}\n')
    progress.refresh()
    assert progress.verdict == "PARTIAL"


def test_watch_shows_every_node_and_gpu_with_rates(tmp_path):
    run = piped("reports", "watch", a_run(tmp_path).root, "--once")
    assert run.returncode == 0, run.stderr
    for k in (0, 1):
        (row,) = [line for line in run.stdout.splitlines() if line.startswith(f"worker{k}")]
        fields = row.split()
        # node, GPU, bar, then the figures
        assert fields[3:12] == [str(90 + k), "2", "60", "650", "1500", "power", "cap", "5.0/1.0",
                                "3.0/0.0"]  # fmt: skip
    assert "2 running" in run.stdout


def test_rates_are_unknown_where_a_counter_began_anew_and_never_negative(tmp_path):
    run = a_run(tmp_path)
    path = run.job("node-worker0") / "telemetry-worker0.jsonl"
    last = json.loads(path.read_text().splitlines()[-1])
    last["t"], last["gpus"]["GPU-0"]["nvlink_tx"], last["nics"]["mlx5_0"] = 102.0, 0, [0, 0]
    append_line(path, last)
    telemetry = watch.Telemetry(run)
    telemetry.refresh()
    assert telemetry.frame["worker0"].gpus["GPU-0"].nvlink_gb_s is None
    assert telemetry.frame["worker0"].nics_gb_s is None
    assert telemetry.frame["worker1"].gpus["GPU-1"].nvlink_gb_s == (5.0, 1.0)


def test_a_recorded_run_without_telemetry_files_is_shown_from_its_records():
    run = piped("reports", "watch", DATA / "h200-2x2", "--once")
    assert run.returncode == 0, run.stderr
    assert "1 done" in run.stdout
    assert "the highest of" in run.stdout
    assert len([n for n in run.stdout.splitlines() if n.startswith("worker")]) == 4


def test_a_run_is_played_again_frame_by_frame(tmp_path):
    run = piped("reports", "watch", a_run(tmp_path).root, "--speed=1000")
    assert run.stdout.count("power cap") == 4, run.stdout  # two nodes at two seconds


def test_a_terminal_that_watches_ends_with_the_run(tmp_path):
    run = a_run(tmp_path)
    append_line(run.ledger, {"event": "end", "verdict": "REJECTED"})
    _, screen, status = on_a_terminal("reports", "watch", str(tmp_path))
    assert status == 0
    assert any("REJECTED" in line for line in screen)
    assert any(line.startswith("worker1") for line in screen)


def test_hostile_names_stay_text(tmp_path):
    run = a_run(tmp_path)
    name = run.job("node-worker0") / "telemetry-worker0.jsonl"
    name.rename(name.with_name("telemetry-[red]x[:boom:].jsonl"))
    shown = piped("reports", "watch", run.root, "--once")
    assert "[red]x[:boom:]" in shown.stdout


@pytest.mark.parametrize("arguments", [["/nowhere"], [".", "--once"]])
def test_what_is_no_run_is_refused_in_a_line(arguments):
    run = piped("reports", "watch", *arguments)
    assert run.returncode == 4
    assert len(run.stderr.strip().splitlines()) == 1
