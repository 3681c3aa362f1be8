"""What an exchange among many ranks costs the store's process, and what 8,192 ranks would cost.

    python -m tests.tools.bench_gather [--ranks 224 448 896]

The ranks are threads of a few processes, each with its own connection to the store, as real ranks
have. The figure is CPU time of the store's process, which is one thread; the wall clock of this
host says nothing, because the clients share its cores. 8,192 ranks are computed: requests grow with
the ranks, and the bytes of a gather's answers with their square.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing.connection import Connection

import psutil

TIMEOUT = timedelta(seconds=300)
PROCESSES = 4
REPEATS = 3
ITEM = [["P2P/CUMEM", "NET/IB"], [0, 1, 2, 3, 4, 5, 6, 7], True]
"""What each rank of a sweep says of its links: the largest item that all ranks read."""
TARGET = 8192


def serve(port: int, pipe: Connection) -> None:
    """Keep the store until told to end."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", port, None, True, timeout=TIMEOUT, wait_for_workers=False)
    pipe.send("ready")
    pipe.recv()
    del store


def clients(port: int, ranks: Sequence[int], size: int, gather: bool, pipe: Connection) -> None:
    """Let ranks take part in REPEATS exchanges, once all have connected."""
    from torch.distributed import TCPStore

    from fixtures.workloads.runtime.meetings import Meetings

    threading.stack_size(256 * 1024)

    def connect(rank: int) -> Meetings:
        store = TCPStore("127.0.0.1", port, None, False, timeout=TIMEOUT, wait_for_workers=False)
        return Meetings(store, range(size), rank, TIMEOUT, f"{gather}{size}")

    with ThreadPoolExecutor(64) as pool:  # each looks up its own host name first
        meetings = list(pool.map(connect, ranks))
    pipe.send("connected")
    pipe.recv()

    def take_part(meeting: Meetings) -> None:
        for _ in range(REPEATS):
            meeting.agree(ITEM if gather else None, list if gather else len)

    threads = [threading.Thread(target=take_part, args=(meeting,)) for meeting in meetings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send("done")


def cpu_seconds(size: int, *, gather: bool) -> float:
    """Return the CPU seconds of the store's process for one exchange among `size` ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    pipe, other_end = context.Pipe()
    server = context.Process(target=serve, args=(port, other_end))
    server.start()
    pipe.recv()
    pipes, processes = [], []
    for k in range(PROCESSES):
        own, theirs = context.Pipe()
        arguments = (port, range(k, size, PROCESSES), size, gather, theirs)
        processes.append(context.Process(target=clients, args=arguments))
        processes[-1].start()
        pipes.append(own)
    for own in pipes:
        own.recv()
    before = psutil.Process(server.pid).cpu_times()
    for own in pipes:
        own.send("go")
    for own in pipes:
        own.recv()
    after = psutil.Process(server.pid).cpu_times()
    for process in processes:
        process.join()
    pipe.send("end")
    server.join()
    return (after.user + after.system - before.user - before.system) / REPEATS


def extrapolated(sizes: Sequence[int], seconds: Sequence[float], *, power: int) -> float:
    """Return the seconds of TARGET ranks from the largest size, by a power of the ranks."""
    return seconds[-1] * (TARGET / sizes[-1]) ** power


def show(what: str, size: int, seconds: float, how: str) -> None:
    print(f"{what:8} {size:6} ranks  {seconds:7.3f} s of one core  ({how})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench_gather")
    parser.add_argument("--ranks", type=int, nargs="+", default=[224, 448, 896])
    options = parser.parse_args()
    for what, gather, power in (("barrier", False, 1), ("gather", True, 2)):
        seconds = []
        for size in options.ranks:
            seconds.append(cpu_seconds(size, gather=gather))
            print(
                f"{what:8} {size:6} ranks  {seconds[-1]:7.3f} s of one core  (measured)", flush=True
            )
        computed = extrapolated(options.ranks, seconds, power=power)
        print(
            f"{what:8} {TARGET:6} ranks  {computed:7.3f} s of one core  (computed, power {power})"
        )


if __name__ == "__main__":
    main()
