"""Forgeries of the log of a patrol: what its visits left in their folders says otherwise."""

from __future__ import annotations

import copy
import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.files import append_line
from fixtures.records.run_directory import RunDirectory
from fixtures.statistics import cusum
from reports import __main__ as command
from reports.evidence.run_files import read_verdict
from reports.handover import patrol
from tests.selftests import support
from tests.selftests.forgeries import Forgery, change, read, write
from tests.selftests.support import result_line

Json = Any
LOG = "visits.jsonl"
HOURS, VISITS = 6 * 3600.0, 20
"""Between two visits of a node, and how many there were."""
SICK, SILENT = 1, "gpu0002"


def _leave(folder: Path, values: list[Json]) -> None:
    """Leave in a visit's folder what its ranks wrote."""
    for k in {v["gpu"] for v in values}:
        path = folder / "run" / "jobs" / "gemm-memory" / f"rank{k}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        append_line(path, support.line("started", k))
        for v in values:
            if v["gpu"] != k:
                continue
            workload, _, metric = v["metric"].partition(".")
            measured = [{"metric": metric, "unit": "x", "samples": [v["value"]]}]
            append_line(path, {**result_line(k), "workload": workload, "measurements": measured,
                               "device": {"uuid": v["uuid"]}})  # fmt: skip


@dataclass
class Patrolled:
    """The state of a patrol of two nodes with two GPUs each, and what is said of it."""

    root: Path
    healthy: Path
    """The log of the same visits with nothing wrong."""
    certificate: Path
    status: int = 0

    @classmethod
    def make(cls, base: str, certificate: Path, folder: Path) -> Patrolled:
        made = cls(folder / base / "state", folder / base / "healthy" / LOG, certificate)
        made.root.mkdir(parents=True)
        made.healthy.parent.mkdir()
        streams = patrol.certified_streams(RunDirectory(certificate))
        # The last visit was some hours ago: no node is silent for its age.
        rng, began = random.Random(1), time.time() - VISITS * HOURS
        uuids = sorted({uuid for uuid, _ in streams})
        for visit in range(VISITS):
            for n, node in enumerate(("gpu0001", "gpu0002")):
                start = round(began + visit * HOURS + n * 60, 3)
                head = {"node": node, "job": str(2 * visit + n), "start": start}
                healthy = [
                    {"uuid": uuid, "gpu": gpu, "metric": metric,
                     "value": value * rng.gauss(1, 0.004)}
                    for (uuid, metric), (value, (of, gpu)) in streams.items() if of == node
                ]  # fmt: skip
                values = BASES[base](visit, node, uuids, copy.deepcopy(healthy))
                for log, these in ((made.healthy, healthy), (made.root / LOG, values)):
                    if these is None:
                        continue
                    append_line(log, {**head, "outcome": "begun"})
                    append_line(log, {**head, "end": start + 30, "outcome": "done",
                                      "values": these})  # fmt: skip
                if values is not None:
                    _leave(made.root / "visits" / f"{start:.0f}-{node}", values)
        well = made.reported(made.healthy.parent)
        assert well[0] == 0, "the forger's goal is one"
        made.status = made.reported(made.root)[0]
        shutil.rmtree(made.root / "history")
        assert made.status, "something is wrong"
        return made

    def reported(self, root: Path) -> tuple[int, list[str]]:
        """Return the exit status of a report, and what it prints."""
        out = StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            status = command.main(["patrol", str(root), f"--certificate={self.certificate}"])
        return status, out.getvalue().splitlines()


def _drifting(visit: int, _: str, uuids: list[str], values: list[Json]) -> list[Json]:
    for v in values:
        if v["uuid"] == uuids[SICK] and visit >= 12:
            v["value"] *= 0.97
    return values


def _lost_gpu(visit: int, _: str, uuids: list[str], values: list[Json]) -> list[Json]:
    return [v for v in values if v["uuid"] != uuids[SICK] or visit < 12]


def _silent_node(visit: int, node: str, _: list[str], values: list[Json]) -> list[Json] | None:
    return None if node == SILENT and visit >= 4 else values


BASES: dict[str, Callable[[int, str, list[str], list[Json]], list[Json] | None]] = {
    "drifting": _drifting, "a GPU is lost": _lost_gpu, "a node is silent": _silent_node,
}  # fmt: skip


@contextmanager
def tools() -> Iterator[None]:
    """A certificate that stands, and the design of a test once for the same numbers."""
    patch = pytest.MonkeyPatch()
    patch.setattr(command, "confirmed_verdict", lambda source, *_: read_verdict(source))
    patch.setattr(cusum, "design", cache(cusum.design))
    try:
        yield
    finally:
        patch.undo()


def _as_healthy(rng: random.Random, lines: list[Json], healthy: list[Json]) -> str:
    """Take lines of the same visits of a fleet with nothing wrong: one, some, all."""
    share = rng.choice([0.05, 0.3, 1.0])
    twin = {(x["node"], x["start"], x["outcome"]): x for x in healthy}
    for k, line in enumerate(lines):
        if rng.random() < share:
            lines[k] = copy.deepcopy(twin.get((line["node"], line["start"], line["outcome"]), line))
    if rng.random() < 0.5:  # the visits that there were not, too
        known = {(x["node"], x["start"], x["outcome"]) for x in lines}
        lines += [x for key, x in twin.items() if key not in known]
    return f"share {share}"


def _some_dropped(rng: random.Random, lines: list[Json], _: list[Json]) -> str:
    """Drop what is after a visit, or the lines of a node since then, or those of some outcome."""
    since = rng.choice(lines)["start"]
    node = rng.choice(["gpu0001", "gpu0002", ""])
    outcome = rng.choice(["begun", "done", ""])
    lines[:] = [x for x in lines if x["start"] < since or node not in x["node"]
                or outcome not in x["outcome"]]  # fmt: skip
    return f"{node} {outcome} since {since}"


def _as_other_outcome(rng: random.Random, lines: list[Json], _: list[Json]) -> str:
    """Say that visits gave way, or failed."""
    since, outcome = rng.choice(lines)["start"], rng.choice(["gave way", "failed", "stopped"])
    for line in lines:
        if line["outcome"] == "done" and line["start"] >= since:
            line |= {"outcome": outcome, "values": []}
    return f"{outcome} since {since}"


def _of_the_other_node(rng: random.Random, lines: list[Json], _: list[Json]) -> str:
    """Copy visits of one node as those of the other, at the same or another time."""
    by = rng.choice([0, 1, 3600, -3600, 86400])
    nodes = rng.choice([("gpu0001", "gpu0002"), ("gpu0002", "gpu0001")])
    copies = json.loads(json.dumps([x for x in lines if x["node"] == nodes[0]]))
    uuids = sorted({v["uuid"] for x in lines for v in x.get("values", ())})
    other = dict(zip(uuids, [*uuids[2:], *uuids[:2]], strict=True))
    for line in copies:
        line |= {"node": nodes[1], "start": line["start"] + by}
        if "end" in line:
            line["end"] += by
        for value in line.get("values", ()):
            value["uuid"] = other[value["uuid"]]
    lines += copies[-rng.choice([2, 8, len(copies)]) :]
    return f"{nodes} by {by} s"


WAYS = (_as_healthy, _some_dropped, _as_other_outcome, _of_the_other_node)


def attempt(patrolled: Patrolled, number: int, folder: Path) -> tuple[Forgery, int, list[str]]:
    """Forge the log of a copy; return the forgery, the exit status, and what is printed."""
    rng = random.Random(number)
    root = folder / f"patrol{number}"
    shutil.copytree(patrolled.root, root)
    reported_before = rng.random() < 0.4
    try:
        if reported_before:
            patrolled.reported(root)
        lines: Json = read(root / LOG)
        operation = rng.choice([*OPERATIONS, *WAYS, *WAYS])
        if callable(operation):
            where = operation(rng, lines, read(patrolled.healthy))
            name = operation.__name__
        else:
            done = change(rng, lines, operation)
            name = operation
            lines, where = done if done is not None else (lines[:-1], "the last line")
        write(root / LOG, lines)
        forgery = Forgery(LOG, name, f"{where}, reported before: {reported_before}")
        return forgery, *patrolled.reported(root)
    finally:
        shutil.rmtree(root)


OPERATIONS = (
    "changed", "changed", "dropped", "emptied", "doubled", "exchanged", "put in another place",
    "moved in time", "exchanged between nodes", "exchanged between devices",
)  # fmt: skip
