"""How long a process and its children had nothing to run: a process of its own, for idle_guard.py.

Started with the number of that process, and the seconds at the start of a period that are not
looked at. Reads commands from standard input: `begin` starts a
period, `tell` answers with the seconds of it in which no task of the tree ran, waited for a
processor or waited for a disk, `end` stops looking.
Standard library only: it is started without site-packages.

Waiting for a processor counts as work: `schedstat` of a task says how long it ran and how long it
stood in a run queue, so a loaded machine makes nothing idle. What cannot be told counts as work
too: the time up to a sample in which a task ended, or was seen running; so does a sandbox.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator

INTERVAL_S = 0.25
SANDBOX = "slurm"
"""How the daemons of a sandbox are called."""
BUSY = "RD"
"""States of a task that runs, waits for a processor, or waits for a disk."""

Task = tuple[int, int]


def tasks_of(pid: int) -> list[int]:
    """The threads of a process; none where it has ended."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208
    except OSError:
        return []


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return ""


class Tree:
    """The tasks below a process, and what each has been given so far."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.seen: dict[Task, int] = {}
        self.at = time.monotonic()
        self.idle_s = 0.0
        self._known: set[int] = set()

    def _processes(self) -> Iterator[int]:
        """The root, its descendants, and who was one when it was last looked at."""
        waiting, done = [self.root, *self._known], {os.getpid()}
        while waiting:
            pid = waiting.pop()
            if pid in done:
                continue
            done.add(pid)
            tasks = tasks_of(pid)
            if not tasks:
                continue
            self._known.add(pid)
            yield pid
            for task in tasks:
                waiting += map(int, read(f"/proc/{pid}/task/{task}/children").split())

    def look(self) -> None:
        """Add the idle seconds since the last look; the first one only counts from here on."""
        found: dict[Task, int] = {}
        busy = not self.seen
        for pid in self._processes():
            for task in tasks_of(pid):
                counted = read(f"/proc/{pid}/task/{task}/schedstat").split()
                before, _, after = read(f"/proc/{pid}/task/{task}/stat").rpartition(") ")
                name, state = before.partition("(")[2], after[:1]
                if len(counted) < 2 or not state:
                    busy = True
                    continue
                if state == "Z":
                    continue
                # Slurm's daemons start, lose and end jobs in times of their own.
                busy |= name.startswith(SANDBOX)
                found[pid, task] = int(counted[0]) + int(counted[1])
                busy |= state in BUSY
        self._known = {pid for pid, _ in found}
        now = time.monotonic()
        ended = self.seen.keys() - found.keys()
        if not busy and not ended:
            work = sum(total - self.seen.get(task, 0) for task, total in found.items())
            self.idle_s += max(0.0, now - self.at - work / 1e9)
        self.seen, self.at = found, now


def main(root: int, patience_s: float) -> None:
    tree: Tree | None = None
    begun = 0.0
    commands = os.fdopen(0, "rb", buffering=0)
    rest = b""
    while True:
        timeout = None
        if tree is not None:
            timeout = max(INTERVAL_S, begun + patience_s - time.monotonic())
        if not select.select([commands], [], [], timeout)[0]:
            if tree is not None:
                tree.look()
            continue
        got = commands.read(4096)
        if not got:
            return
        *lines, rest = (rest + got).split(b"\n")
        for line in lines:
            if line == b"begin":
                tree, begun = Tree(root), time.monotonic()
            elif line == b"end":
                tree = None
            elif tree is not None:
                tree.look()
                print(tree.idle_s, flush=True)
            else:
                print(0.0, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
