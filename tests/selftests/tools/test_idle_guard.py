"""A test that waits is told from one that works, however loaded the machine is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.selftests.idle_guard import IdleGuard, Watch, available, watched

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not available(), reason="this kernel does not say what a task waited for"),
]

WAIT_S = 1.0
WORK = "import time\nwhile time.process_time() < 0.2: pass"
SPIN = "while True: pass"


@pytest.fixture
def watch() -> Iterator[Watch]:
    found = Watch(patience_s=0)
    yield found
    found.close()


def python(text: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", text]


def test_a_sleep_is_idle_and_one_in_a_child_is(watch):
    for wait in (
        lambda: time.sleep(WAIT_S),
        lambda: subprocess.run(python(f"import time; time.sleep({WAIT_S})"), check=True),
    ):
        watch.begin()
        wait()
        assert watch.idle_s() > 0


def test_work_is_not_idle_where_others_take_the_processor(watch):
    """A child gets a quarter of a processor: its parent sleeps, it stands in the run queue."""
    one = {min(os.sched_getaffinity(0))}

    def start(text: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(python(text))
        os.sched_setaffinity(process.pid, one)
        return process

    others = [start(SPIN) for _ in range(3)]
    try:
        begun = time.monotonic()
        with start(WORK) as work:
            # The others are children of this test as well: only this one's tree is looked at.
            alone = Watch(patience_s=0, root=work.pid)
            alone.begin()
            while work.poll() is None:
                idle_s = alone.idle_s()
                time.sleep(0.05)
        alone.close()
        assert idle_s < 0.1 * (time.monotonic() - begun)
    finally:
        for other in others:
            other.kill()
            other.wait()


def item(*fixtures: str, cpu: bool = True) -> Any:
    return SimpleNamespace(
        nodeid="test_x.py::test_x",
        fixturenames=fixtures,
        get_closest_marker=lambda name: object() if cpu and name == "cpu" else None,
    )


def failure(found: Any) -> str:
    """What the guard says of a test that sleeps."""
    guard = IdleGuard(limit_s=0.2, patience_s=0)
    setup = guard.pytest_runtest_setup(found)
    call = guard.pytest_runtest_call(found)
    next(setup)
    with pytest.raises(StopIteration):
        setup.send(None)
    next(call)
    time.sleep(WAIT_S)
    try:
        call.send(None)
    except pytest.fail.Exception as failed:
        return str(failed)
    finally:
        guard.pytest_unconfigure()
    raise AssertionError("it was not failed")


def test_one_that_mostly_waits_fails_but_in_a_sandbox():
    assert failure(item()).startswith("test_x.py::test_x waited: for ")
    assert watched(item("tmp_path"))
    assert not watched(item("machine", "sandbox"))
    assert not watched(item(cpu=False))


def test_the_guard_looks_at_these_tests(request):
    assert request.config.pluginmanager.hasplugin("idle-guard")
