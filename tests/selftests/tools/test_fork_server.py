"""A fork of the warmed process is to pytest what a start of Python is."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.selftests.support import run_pytest

pytestmark = pytest.mark.cpu

LOOK = """
import json, os, signal, sys, threading

def test_look():
    names = [name for name in sys.modules if name.split(".")[0] in ("fixtures", "reports")]
    main = sys.modules["__main__"]
    found = {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "folder": os.getcwd(),
        "env": dict(os.environ), "main": [main.__name__, main.__spec__.name], "ours": names,
        "files": sorted(os.listdir("/proc/self/fd"), key=int), "tty": os.isatty(1),
        "signals": [str(signal.getsignal(s)) for s in (2, 15, 17)], "group": os.getpgrp(),
        "threads": threading.active_count(), "mask": os.umask(0), "flags": str(sys.flags),
        "encoding": [sys.__stdout__.encoding, sys.__stderr__.encoding],
    }
    print(json.dumps(found, sort_keys=True))
    print("to stderr", file=sys.stderr)
    assert not found
"""


@pytest.fixture
def project(tmp_path: Path) -> Callable[[str], Path]:
    def make(text: str) -> Path:
        (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
        (tmp_path / "test_x.py").write_text(text, encoding="utf-8")
        return tmp_path

    return make


def shown(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    lines = [line for line in done.stdout.splitlines() if not re.search(r" in \d+\.\d+s", line)]
    return done.returncode, "\n".join(lines), done.stderr


def test_it_finds_what_a_start_finds(project):
    found = [
        run_pytest("-s", "-q", "test_x.py", checkout=project(LOOK), process=process, GIVEN="yes")
        for process in (False, True)
    ]
    forked, started = (json.loads(done.stdout.splitlines()[0]) for done in found)
    assert forked == started
    assert (forked["env"]["GIVEN"], forked["ours"]) == ("yes", [])
    assert "to stderr" in found[0].stderr
    assert found[0].returncode == 1
    assert found[0].args == found[1].args
    assert shown(found[0]) == shown(found[1])


@pytest.mark.parametrize(
    "arguments", [("--cluster", "sandbox", "--plan", "-q"), ("--cluster", "replay")]
)
def test_the_suite_says_the_same(arguments):
    forked, started = (run_pytest(*arguments, process=process) for process in (False, True))
    assert forked.stdout + forked.stderr
    assert shown(forked) == shown(started)


def test_forks_share_no_chance_and_no_module(project):
    text = "import random\nimport yaml\ndef test_x():\n"
    text += "    assert not hasattr(yaml, 'x')\n    yaml.x = 1\n    print(random.random())"
    folder = project(text)
    said = [run_pytest("-s", "-q", checkout=folder) for _ in range(2)]
    assert [done.returncode for done in said] == [0, 0], said[1].stdout
    assert said[0].stdout.split()[0] != said[1].stdout.split()[0]


def test_a_signal_is_the_exit_status_and_a_time_out_kills(project):
    folder = project("import os\ndef test_x(): os.kill(os.getpid(), 9)")
    assert run_pytest(checkout=folder).returncode == -signal.SIGKILL
    project("import signal\ndef test_x():\n    print('here', flush=True)\n    signal.pause()")
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        run_pytest("-s", checkout=folder, timeout_s=3)
    assert "here" in str(caught.value.output)
    project("def test_x(): pass")
    assert run_pytest(checkout=folder).returncode == 0, "the next one is not held up by it"


def test_what_python_reads_when_it_starts_is_a_start_of_its_own(project):
    folder = project("import sys\ndef test_x(): print(sys.flags.utf8_mode, sys.flags.optimize)")
    for mode in ("0", "1"):  # one of them is not that of this process
        assert f"{mode} 0" in run_pytest("-s", checkout=folder, PYTHONUTF8=mode).stdout
