"""A test of the suite itself does not wait out a time-out: the guard that fails one which does.

A test in a sandbox waits for Slurm, and is left alone. Of any other, the seconds count in which
neither this process nor a child of it had anything to run (idle_watch.py): the load of the machine
adds nothing to them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

IDLE_S = 5.0
"""More than this is a time-out, or a sleep, that the test could have set, or waited for by a
condition."""
PATIENCE_S = 1.0
"""Most tests are over before: nothing is sampled until then."""
SANDBOX = "machine"
"""The fixture that all sandboxes take."""


class Watch:
    """The process beside this one that counts idle seconds."""

    def __init__(self, patience_s: float, root: int | None = None) -> None:
        watch = Path(__file__).with_name("idle_watch.py")
        command = [sys.executable, "-I", "-S", watch, str(root or os.getpid()), str(patience_s)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )

    def begin(self) -> None:
        self._write(b"begin\n")

    def end(self) -> None:
        self._write(b"end\n")

    def idle_s(self) -> float:
        """Idle seconds since `begin`, but for the first `patience_s`."""
        assert self._process.stdout is not None
        self._write(b"tell\n")
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _write(self, command: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command)


class IdleGuard:
    """Fails a `cpu` test outside a sandbox that was idle for more than `limit_s` seconds."""

    def __init__(self, limit_s: float = IDLE_S, patience_s: float = PATIENCE_S) -> None:
        self.limit_s, self.patience_s = limit_s, patience_s
        self._watch: Watch | None = None
        self._begun = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        self._begin(item)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        result = yield
        self._check(item)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        self._begin(item)
        result = yield
        self._check(item)
        if self._watch is not None:
            self._watch.end()
        return result

    def pytest_unconfigure(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def _begin(self, item: pytest.Item) -> None:
        if not watched(item):
            return
        if self._watch is None:
            self._watch = Watch(self.patience_s)
        self._watch.begin()
        self._begun = time.monotonic()

    def _check(self, item: pytest.Item) -> None:
        wall_s = time.monotonic() - self._begun
        if self._watch is None or not watched(item) or wall_s <= self.limit_s:
            return
        if (idle_s := self._watch.idle_s()) > self.limit_s:
            pytest.fail(
                f"{item.nodeid} waited: for {idle_s:.1f} of {wall_s:.1f} s neither it nor a child "
                f"of it had anything to run, at most {self.limit_s:g} s are expected outside a "
                "sandbox. Set the time-out that it waits out, or wait for a condition.",
                pytrace=False,
            )


def watched(item: pytest.Item) -> bool:
    """Whether the guard looks at this test: one of the suite's own, neither in a sandbox nor marked
    with what it waits for."""
    cpu = item.get_closest_marker("cpu") is not None
    if waits := item.get_closest_marker("waits"):
        assert "".join(map(str, waits.args)).strip(), f"{item.nodeid}: waits() without a reason"
        return False
    return cpu and SANDBOX not in getattr(item, "fixturenames", ())


def available() -> bool:
    """Whether this kernel says how long a task waited for a processor, and who its children are."""
    own = Path("/proc/thread-self")
    return (own / "schedstat").exists() and (own / "children").exists()
