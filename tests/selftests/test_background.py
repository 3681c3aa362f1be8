"""Threads: none is inherited from, none dies without its waiters, and no run hangs with one."""

from __future__ import annotations

import ast
import builtins
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.background import BackgroundThread, shielded
from fixtures.jobs.scheduler import Scheduler
from fixtures.jobs.watcher import JobState
from fixtures.records.files import read_json
from tests.selftests import support
from tests.selftests.fake_cluster import (
    RUNNING,
    Conduct,
    FakeCluster,
    FakeJob,
    conduct,
    dies_at_once,
    stays,
)
from tests.selftests.support import CHECKOUT

__all__ = ["conduct"]

pytestmark = pytest.mark.cpu

PATIENCE_S = 30
"""Ends a test that would hang; nothing is as slow as that."""

# --- what may be inherited from

MADE_TO_BE_INHERITED = {
    "abc.ABC", "argparse.ArgumentParser", "ctypes.Structure", "enum.Enum", "enum.Flag",
    "enum.IntEnum", "enum.IntFlag", "enum.StrEnum", "html.parser.HTMLParser",
    "http.server.SimpleHTTPRequestHandler", "typing.Generic", "typing.NamedTuple",
    "typing.Protocol", "typing.TypedDict",
}  # fmt: skip
"""Classes of the standard library that exist for their subclasses, beside built-in types, which
keep nothing in the instance. Any other one keeps state of its own there, or may in a release."""


def inherited_from_stdlib(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and full name of each base class that comes from the standard library."""
    tree = ast.parse(source)
    origin: dict[str, str] = {name: f"builtins.{name}" for name in dir(builtins)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for a in node.names:
                origin[a.asname or a.name.partition(".")[0]] = (
                    a.name if a.asname else a.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            origin |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                while isinstance(base, ast.Subscript):
                    base = base.value
                first, dot, rest = ast.unparse(base).partition(".")
                name = origin.get(first, "") + dot + rest
                if name.partition(".")[0] in sys.stdlib_module_names:
                    yield node.lineno, name


def not_to_be_inherited(source: str) -> list[tuple[int, str]]:
    return [
        (line, name)
        for line, name in inherited_from_stdlib(source)
        if name not in MADE_TO_BE_INHERITED and not name.startswith("builtins.")
    ]


@pytest.mark.parametrize(
    ("source", "base"),
    [
        ("import threading\nclass A(threading.Thread): pass", "threading.Thread"),
        ("from threading import Timer as T\nclass A(T): pass", "threading.Timer"),
        ("import multiprocessing as m\nclass A(m.Process): pass", "multiprocessing.Process"),
        ("from subprocess import Popen\nclass A(Popen[bytes]): pass", "subprocess.Popen"),
        (
            "import concurrent.futures\nclass A(concurrent.futures.Executor): pass",
            "concurrent.futures.Executor",
        ),
        ("def f():\n  from queue import Queue\n  class A(Queue[int]): pass", "queue.Queue"),
    ],
)
def test_a_class_that_inherits_state_is_found_however_it_is_written(source, base):
    assert [name for _, name in not_to_be_inherited(source)] == [base]


def test_what_is_made_to_be_inherited_is_let_through():
    assert not_to_be_inherited("import enum\nclass A(enum.StrEnum): pass") == []
    assert not_to_be_inherited("class A(ValueError): pass\nclass B(A): pass") == []
    assert not_to_be_inherited("import pytest\nclass A(pytest.Item): pass") == []


def test_nothing_inherits_the_state_of_a_standard_class():
    """Python 3.14 gave Thread a `_context`, and a scheduler that had one of its own never ran."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=CHECKOUT, capture_output=True, text=True,
    )  # fmt: skip
    names = listed.stdout.split() or [
        str(p.relative_to(CHECKOUT))
        for folder in ("fixtures", "reports", "training", "tests")
        for p in (CHECKOUT / folder).rglob("*.py")
    ]
    assert len(names) > 300
    found = [
        f"{name}:{line}: {base}"
        for name in names
        if (CHECKOUT / name).exists()
        for line, base in not_to_be_inherited((CHECKOUT / name).read_text(encoding="utf-8"))
    ]
    assert found == []


# --- a thread and its waiters


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), SystemExit(3), None])
def test_who_waits_for_a_thread_that_ends_waits_no_longer(error):
    def work() -> None:
        if error is not None:
            raise error

    thread, event = BackgroundThread(work, name="dies"), threading.Event()
    thread.start()
    assert thread.wait_for(event, PATIENCE_S)
    assert not event.is_set()
    assert thread.join(PATIENCE_S)
    assert thread.error is error
    assert not thread.alive


def test_a_thread_that_lives_is_waited_for():
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        go.wait(PATIENCE_S)
        done.set()

    thread = BackgroundThread(work, name="lives")
    assert thread.wait_for(done, 0.01)  # it was never started: nobody will set it
    thread.start()
    assert not thread.wait_for(done, 0.01)
    assert not thread.join(0.01)
    go.set()
    assert thread.wait_for(done, PATIENCE_S)
    assert done.is_set()


def test_a_command_that_is_shielded_outlives_ctrl_c():
    script = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    with shielded():
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert said.stdout.strip() == "True"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


# --- a scheduler that dies

ERRORS = [ZeroDivisionError("a bug of ours"), SystemExit("a bug of ours")]


def breaks(error: BaseException) -> Any:
    def raising(*_: object, **__: object) -> object:
        raise error

    return raising


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("step", ["_run_stages", "_submit_queued", "_tick", "_apply_gates"])
def test_whatever_breaks_a_scheduler_is_the_reason_of_what_is_missing(
    conduct: Conduct, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    monkeypatch.setattr(Scheduler, step, breaks(error))
    done = conduct()
    assert done.scheduler.error is error
    assert all(job.state.ended for job in done.cluster.jobs.values())
    assert done.missing
    assert all("a bug of ours" in line["reason"] for line in done.missing.values())
    assert {line["kind"] for line in done.missing.values()} == {"not run"}
    assert done.scheduler.settled


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("step", ["_wait_for_exits", "_settle_unseen"])
def test_what_breaks_while_it_ends_leaves_no_job_behind(
    conduct: Conduct, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    done = conduct({"node-worker0": stays(RUNNING)}, finish=False)
    assert done.cluster.asked.wait(PATIENCE_S)
    monkeypatch.setattr(Scheduler, step, breaks(error))
    done.scheduler.stop("interrupted")
    done.finish()
    assert all(job.state.ended for job in done.cluster.jobs.values())
    assert done.scheduler.settled


def test_a_cancel_that_fails_leaves_no_row_without_a_reason(conduct, monkeypatch):
    monkeypatch.setattr(FakeCluster, "cancel", breaks(OSError("no scancel here")))
    done = conduct({"node-worker0": stays(RUNNING)}, finish=False)
    assert done.cluster.asked.wait(PATIENCE_S)
    done.scheduler.stop("interrupted")
    done.finish()
    assert "no scancel here" in done.scheduler.suite_error


def test_nobody_waits_for_the_jobs_of_a_broken_scheduler_for_long(conduct, monkeypatch):
    """Slurm does not answer any more: the last word comes all the same."""
    monkeypatch.setattr("fixtures.jobs.scheduler.BROKEN_CANCEL_TIMEOUT_S", 0.1)
    monkeypatch.setattr(FakeCluster, "cancel", lambda *_: None)
    monkeypatch.setattr(Scheduler, "_tick", breaks(ZeroDivisionError("a bug of ours")))
    done = conduct({"node-worker0": stays(RUNNING)})
    assert not done.cluster.named("node-worker0").state.ended
    assert done.scheduler.settled


def test_a_second_interrupt_does_not_wait_for_cancelled_jobs(conduct, monkeypatch):
    monkeypatch.setattr(FakeCluster, "cancel", lambda *_: None)
    done = conduct({"node-worker0": stays(RUNNING)}, finish=False)
    assert done.cluster.asked.wait(PATIENCE_S)
    done.scheduler.hurried = True
    done.scheduler.stop("interrupted")
    assert not done.scheduler.alive
    done.finish()


def test_what_fails_of_the_interrupt_itself_is_charged_to_nobody(conduct):
    """Ctrl-C reaches the ranks of this host, and Slurm's commands, at the same time as us."""
    interrupted = threading.Event()

    def dies_of_it(job: FakeJob) -> JobState:
        assert interrupted.wait(PATIENCE_S)
        return dies_at_once(job)

    done = conduct({"node-worker0": dies_of_it}, finish=False)
    done.scheduler.interrupted = True
    interrupted.set()
    done.scheduler.stop("interrupted")
    done.finish()
    assert {line["kind"] for line in done.missing.values()} <= {"not run"}


DEAD = """
def dies(self):
    raise SystemExit("killed")

def pytest_configure():
    from fixtures.jobs.scheduler import Scheduler

    Scheduler.{step} = dies
"""


@pytest.mark.waits("for jobs that were cancelled, as long as after any error of the suite")
@pytest.mark.parametrize(
    ("step", "workers"), [("_run_stages", ()), ("_run", ("-n", "1"))],
    ids=["plan", "first-line-workers"],
)  # fmt: skip
def test_a_run_whose_scheduler_dies_ends_incomplete_and_accuses_nobody(
    tmp_path: Path, step: str, workers: tuple[str, ...]
) -> None:
    (tmp_path / "kills_scheduler.py").write_text(DEAD.format(step=step))
    run = tmp_path / "run"
    done = support.run_pytest(
        "tests/test_inventory.py", "-k", "environment and not drift", "--cluster=local",
        f"--run-dir={run}", "-p", "kills_scheduler", *workers,
        PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    verdict = read_json(run / "verdict.json")
    assert verdict["verdict"] == "INCOMPLETE"
    assert "suite error" in verdict["reasons"][0]
    assert "killed" in verdict["reasons"][0]
    assert (run / "bad-nodes.txt").read_text() == ""
    assert all(not row["cause_nodes"] for row in verdict["criteria"])
    assert "to look at" not in done.stdout
