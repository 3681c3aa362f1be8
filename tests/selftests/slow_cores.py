"""Makes cores slow for the processes of one virtual node: a program of its own, for the drills.

    python -m tests.selftests.slow_cores INIT WHAT CORE RUN_MS STOP_MS

Processes below INIT (the node's first process) that measure WHAT (cores, memory) and are
bound to CORE (any where it is -1) run for RUN_MS and are stopped for STOP_MS, in turn, until
standard input ends. It runs at real-time priority where it may: a stop that comes late would leave
the core fast.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

import psutil

MEASURING = "host_speed_child.py"


def measuring(init: int, what: str, core: int) -> list[int]:
    """Return the pids of the node's processes that measure, and are bound to the core."""
    found = []
    with suppress(psutil.Error):
        for process in psutil.Process(init).children(recursive=True):
            with suppress(psutil.Error):
                line = " ".join(process.cmdline())
                cores = process.cpu_affinity()
                # Who is not bound yet will start those that are.
                bound = core == -1 or cores == [core] or len(cores) > 1
                if bound and MEASURING in line and f'"{what}"' in line:
                    found.append(process.pid)
    return found


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


def main(init: int, what: str, core: int, run_s: float, stop_s: float) -> None:
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    pids: list[int] = []
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        send(pids, signal.SIGSTOP)
        # While they are stopped: to look for new ones takes time, which they must not have.
        pids = measuring(init, what, core)
        send(pids, signal.SIGSTOP)
        if not pids:
            continue
        time.sleep(stop_s)
        send(pids, signal.SIGCONT)
        time.sleep(run_s)
    send(measuring(init, what, core), signal.SIGCONT)


if __name__ == "__main__":
    first, measured, number, run_ms, stop_ms = sys.argv[1:]
    main(int(first), measured, int(number), float(run_ms) / 1000, float(stop_ms) / 1000)
