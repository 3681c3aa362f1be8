"""Nobody is waited for: what hangs is left behind, named by what it asked last."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from fixtures.paths import CHECKOUT
from fixtures.ready import children
from fixtures.ready.children import ask
from fixtures.ready.readings import Emit

pytestmark = pytest.mark.cpu


def answers(emit: Emit) -> None:
    emit({"gpu": 0})


def hangs(emit: Emit) -> None:
    emit({"asking": "the driver to start"})
    emit({"gpu": 0})
    threading.Event().wait()


def fails(emit: Emit) -> None:
    emit({"asking": "the kernel"})
    raise OSError("an odd file")


def dies(emit: Emit) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def floods(emit: Emit) -> None:
    while True:
        emit({"text": "x" * 60_000})


def test_each_answers_for_itself():
    """They end by themselves, long before their time."""
    told = ask({"a": answers, "c": fails, "d": dies, "e": floods}, time.monotonic() + 60)
    assert {child.name: child.why for child in told} == {
        "a": "", "c": "the kernel: OSError: an odd file", "d": "d: the process that asked has died",
        "e": "e: more than 8 MiB",
    }  # fmt: skip
    assert [child.closed for child in told] == [True, True, True, False]


def test_what_hangs_is_said_and_what_it_told_before_counts():
    (child,) = ask({"b": hangs}, time.monotonic() + 3)
    assert (child.why, child.closed) == ("the driver to start: no answer in time", False)
    assert {"gpu": 0} in child.messages


def test_all_are_asked_at_once_and_none_longer_than_its_time():
    began = time.monotonic()
    ask({str(k): hangs for k in range(5)}, began + 0.3)
    assert time.monotonic() - began < 2


def test_without_time_nothing_is_known():
    (child,) = ask({"a": answers}, time.monotonic() - 1)
    assert child.why == "a: no answer in time"


LEAVES = """
import time
from fixtures.ready.children import ask
def hangs(emit):
    import signal
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
    while True:
        time.sleep(60)
import os
kill, os.kill = os.kill, lambda pid, number: print(pid, flush=True)  # as in state D
ask({"a": hangs}, time.monotonic() + 0.2)
"""


def test_who_is_left_behind_holds_no_output_that_slurm_waits_for():
    """slurmd reads a Prolog's output to its end; the process is not killed here, as in state D."""
    done = subprocess.run(
        [sys.executable, "-c", LEAVES], cwd=CHECKOUT, capture_output=True, text=True, timeout=20,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pid = int(done.stdout)
    try:
        assert os.getsid(pid) == pid, "a signal to the Prolog's group is none for it"
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_line_that_was_cut_off_is_not_read():
    child = children.Child("a", os.getpid(), os.open(os.devnull, os.O_RDONLY), closed=True)
    child.data = b'{"gpu": 0}\n[1]\n{"gpu": 1'
    children._end(child)
    assert child.messages == [{"gpu": 0}]
    assert child.why == "a: the process that asked has died"
