"""What an exchange among many ranks costs the store's process, and what 8,192 ranks would cost.

    python -m tests.tools.bench_gather [--ranks 224 448 896]

The ranks are threads of a few processes, each with its own connection to the store, as real ranks
have. The figure is CPU time of the store's process, which is one thread; the wall clock of this
host says nothing, because the clients share its cores. In a gather each rank says as much as its
share of 8,192 ranks would, so that every answer has the length that it has with 8,192; what is left
to compute is the number of requests and answers, which grows with the ranks.
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

    def take_part(meeting: Meetings, rank: int) -> None:
        items = [[*ITEM, rank * k] for k in range(TARGET // size)] if gather else None
        for _ in range(REPEATS):
            meeting.agree(items, list if gather else len)

    threads = [
        threading.Thread(target=take_part, args=pair) for pair in zip(meetings, ranks, strict=True)
    ]
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


def show(what: str, size: int, seconds: float, how: str) -> None:
    print(f"{what:8} {size:6} ranks  {seconds:7.3f} s of one core  ({how})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench_gather")
    parser.add_argument("--ranks", type=int, nargs="+", default=[224, 448, 896])
    options = parser.parse_args()
    for what, gather in (("barrier", False), ("gather", True)):
        seconds = 0.0
        for size in options.ranks:
            seconds = cpu_seconds(size, gather=gather)
            show(what, size, seconds, "measured")
        show(what, TARGET, seconds * TARGET / options.ranks[-1], "computed")


if __name__ == "__main__":
    main()
