"""Ranks that are forked from a process which has imported torch, instead of importing it each.

The import is most of what a small rank costs. A rank differs from one that Python starts in this
alone: environment, folder, output, warnings and end are those of a process of its own. Tests of
what a rank does before it needs torch start cold ones.

    python -W error -m tests.selftests.warm_ranks MODULE...    what Warm starts
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]


class Warm:
    """The process that has the modules, with pipes to it; it ends with the tests that use it."""

    def __init__(self, *modules: str) -> None:
        command = [sys.executable, "-W", "error", "-m", __name__, *modules]
        # Without buffers: a line that lies in one is none that select sees.
        process = subprocess.Popen(
            command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._orders, self._answers = process, process.stdin, process.stdout
        atexit.register(self.close)

    def close(self) -> None:
        """At the end of what it reads it ends; it does so too where its tests are killed."""
        self._orders.close()
        self._answers.close()
        self._process.wait(10)

    def run(self, ranks: list[dict[str, Any]], timeout_s: float) -> list[int]:
        """Exit status of every rank as subprocess has it; TimeoutExpired leaves none behind."""
        self._orders.write(json.dumps(ranks).encode() + b"\n")
        pids = json.loads(self._answers.readline())
        late = not select.select([self._answers], [], [], timeout_s)[0]
        if late:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        statuses: list[int] = json.loads(self._answers.readline())
        if late:
            raise subprocess.TimeoutExpired("warm ranks", timeout_s)
        return statuses


@functools.cache
def warm(*modules: str) -> Warm:
    """The one process of these tests that has these modules."""
    return Warm(*modules)


def main() -> None:
    """Fork the ranks of each line, say their ids, then how they ended; a rank returns from here."""
    # A start of Python has the folder of -m on its path; a rank has those of its own environment.
    path = [entry for entry in sys.path if Path(entry or ".").resolve() != CHECKOUT]
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for line in sys.stdin:
        pids = []
        for rank in json.loads(line):
            with warnings.catch_warnings():
                # Python 3.12 and later warn of threads: those of a BLAS, which it makes anew.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                become(rank, path)
                return
            pids.append(pid)
        print(json.dumps(pids), flush=True)
        ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(ended), flush=True)


def become(rank: dict[str, Any], path: list[str]) -> None:
    """In the fork: what its start would have made of this process, then the job's spec."""
    os.environ.clear()
    os.environ.update(rank["env"])
    os.chdir(rank["cwd"])
    out = os.open(rank["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    for taken, by in ((0, null), (1, out), (2, out)):
        os.dup2(by, taken)
    sys.path[:] = ["", *rank["env"].get("PYTHONPATH", "").split(":"), *path]
    sys.argv[:] = ["-c"]
    random.seed()
    from fixtures import entry

    entry.run(rank["spec"])


if __name__ == "__main__":
    main()
