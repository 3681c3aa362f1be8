"""Processes of a sandbox: by pid and start time, ended until none is alive, found by rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fixtures.sandbox import processes as module
from fixtures.sandbox.errors import HeldError, SandboxError
from fixtures.sandbox.processes import (
    Process,
    is_rank,
    kill_all,
    one_line,
    pid_inside,
    reap,
    run,
    spawn,
    tail,
    wait_until,
)
from tests.selftests.sandbox.parts import DEAD, living

pytestmark = pytest.mark.cpu

STAT = "{pid} (a (b) c) {state} 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0"


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """Another /proc."""
    monkeypatch.setattr(module, "Path", lambda path: Path(path.replace("/proc", str(tmp_path))))
    return tmp_path


def entry(proc: Path, pid: int, state: str = "S", **files: str) -> None:
    (proc / str(pid)).mkdir(exist_ok=True)
    for name, text in {"stat": STAT.format(pid=pid, state=state), **files}.items():
        (proc / str(pid) / name).write_text(text)


def test_a_process_is_known_by_its_start_and_a_zombie_is_none(proc):
    for state, found in (("S", Process(42, 4711)), ("D", Process(42, 4711)), ("Z", None),
                         ("X", None)):  # fmt: skip
        entry(proc, 42, state)
        assert Process.of(42) == found, state
    entry(proc, 42)
    assert Process(42, 4711).alive is True
    assert Process(42, 4712).alive is False  # its pid was given to another
    assert Process.of(43) is None
    assert Process(43, 4711).alive is False


def test_what_a_process_does_names_what_it_waits_for(proc):
    for channel, waits in (("io_schedule", ", waits in io_schedule"), ("0", ""), ("", "")):
        entry(proc, 42, "D", wchan=channel)
        assert Process(42, 4711).state == f"42 (a (b) c), state D{waits}"
    assert Process(43, 4711).state == "43, ended now"


def test_only_the_same_process_is_killed(monkeypatch):
    sent = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    me = living()
    Process(me.pid, me.start - 1).kill()
    assert sent == []
    me.kill(signal.SIGCONT)
    me.kill()
    assert sent == [(me.pid, signal.SIGCONT), (me.pid, signal.SIGKILL)]


def test_a_daemon_writes_its_log_and_has_a_session_of_its_own(tmp_path):
    script = "echo said; echo wrong >&2; echo $ONLY; ps=$(cut -d' ' -f6 /proc/$$/stat); "
    script += "[ $ps = $$ ] && echo leads; exec sleep 60"
    started = spawn(["sh", "-c", script], env={"ONLY": "this", "PATH": os.environ["PATH"]},
                    log=tmp_path / "log")  # fmt: skip
    try:
        assert wait_until(lambda: "leads" in (tmp_path / "log").read_text(), timeout_s=20)
        assert (tmp_path / "log").read_text() == "said\nwrong\nthis\nleads\n"
        assert started.alive
    finally:
        kill_all(lambda: [started])
    assert not started.alive
    reap([started, DEAD])  # no child of ours any more, and none that ever was


def test_a_daemon_that_ends_at_once_has_a_pid_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(Process, "of", classmethod(lambda cls, pid: None))
    started = spawn(["true"], env={"PATH": os.environ["PATH"]}, log=tmp_path / "log")
    assert started.start == 0
    assert os.waitpid(started.pid, 0)[0] == started.pid


def test_killed_processes_that_do_not_end_are_named(monkeypatch) -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeping:
        process = Process.of(sleeping.pid)
        assert process is not None
        assert wait_until(lambda: "nanosleep" in process.state, timeout_s=60)
        expected = rf"1 killed processes .* {process.pid} \(sleep\), state S, waits in \w*nanosleep"
        with monkeypatch.context() as held:
            held.setattr(Process, "kill", lambda self: None)
            with pytest.raises(HeldError, match=expected):
                kill_all(lambda: [process], timeout_s=0)
        kill_all(lambda: [process])
    assert process.state == f"{process.pid}, ended now"


def test_killing_is_repeated_until_nothing_is_found(monkeypatch):
    now, until = [0.0], [60.0]

    class Held:
        pid, state = DEAD.pid, "12 (x), state D"
        alive = property(lambda self: now[0] < until[0])

        def kill(self) -> None:
            pass

    def sleep(seconds: float) -> None:
        now[0] += 10

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    kill_all(lambda: [Held()])  # it ends within the minute that a loaded host may take
    now[0], until[0] = 0.0, 1e9
    with pytest.raises(HeldError, match=r"1 killed processes had not ended after 60 s: 12 \(x\)"):
        kill_all(lambda: [Held()])
    assert now[0] == 70


# --- commands


def test_what_a_command_said_is_returned_or_is_the_error():
    sh = ["sh", "-c"]
    assert run([*sh, "cat; echo $A; echo aside >&2"], text="in ", env={"A": "b"}) == "in b\n"
    for script, said in (
        ("echo out; echo wrong >&2; exit 3", "failed: wrong"),
        ("echo out; exit 3", "failed: out"),
        ("exit 3", "failed: exit status 3"),
    ):
        with pytest.raises(SandboxError, match=said):
            run([*sh, script])
    with pytest.raises(SandboxError, match="/no/such/program is not on this host"):
        run(["/no/such/program"])


def test_a_command_without_an_answer_is_an_error(monkeypatch):
    def never(argv, *, timeout, **_):
        raise subprocess.TimeoutExpired(argv, timeout)

    monkeypatch.setattr(subprocess, "run", never)
    with pytest.raises(SandboxError, match="`sinfo -h` gave no answer in 30 s"):
        run(["sinfo", "-h"])


def test_waiting_ends_with_the_condition_or_the_time(monkeypatch):
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        assert now[0] < 100, "it waits for ever"

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    assert wait_until(lambda: now[0] >= 2 and "found", timeout_s=5, step_s=1) == "found"
    assert now[0] == 2
    assert wait_until(lambda: [], timeout_s=5, step_s=1) == []
    assert now[0] == 7
    assert wait_until(lambda: "at once", timeout_s=0) == "at once"


def test_the_end_of_a_log_is_one_line(tmp_path):
    assert one_line("a\n\n b \nc\nd\n") == "b | c | d"
    assert one_line("a\nb", lines=1) == "b"
    (tmp_path / "log").write_bytes(b"one\ntwo\xff\n")
    assert tail(tmp_path / "log", lines=2) == "one | two�"
    assert tail(tmp_path / "nothing") == ""


# --- ranks


def test_the_pid_on_the_node_is_the_last_of_its_namespaces(proc):
    entry(proc, 42, status="Name:\tx\nNSpid:\t42\t7\nVmRSS: 1\n")
    entry(proc, 43, status="Name:\tx\n")
    assert [pid_inside(Process(pid, 4711)) for pid in (42, 43, 44)] == [7, 0, 0]


@pytest.mark.parametrize(
    ("step", "expected"),
    [({"SLURM_STEP_ID": "0"}, True), ({}, False), ({"SLURM_STEP_ID": "-5"}, False)],
    ids=["a rank", "a batch script", "a batch script of 26.05"],
)
def test_a_batch_script_is_no_rank(step: dict[str, str], expected: bool) -> None:
    env = {"SLURM_PROCID": "0", "SLURM_JOB_ID": "7", **step}
    argv = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(argv, env=env, stdin=-1, stdout=-1) as started:
        assert started.stdout is not None
        started.stdout.readline()  # from here on it has its environment
        process = Process.of(started.pid)
        assert process is not None
        assert is_rank(process, 0, 7) is expected
        started.communicate(b"\n")


def test_a_rank_is_one_of_its_job(monkeypatch):
    env = {"SLURM_PROCID": "3", "SLURM_STEP_ID": "1", "SLURM_JOB_ID": "7"}
    monkeypatch.setattr(psutil, "Process", lambda pid: SimpleNamespace(environ=lambda: env))
    me = living()
    for rank, job, expected in ((3, 7, True), (3, None, True), (3, 8, False), (4, 7, False)):
        assert is_rank(me, rank, job) is expected, (rank, job)


def test_a_process_that_has_ended_is_no_rank():
    assert is_rank(DEAD, 0, None) is False
