"""What the load on the whole fabric costs the login node: the table of docs/scale.md.

    python -m tests.tools.bench_fabric [--nodes 1024] [--rails 8] [--slices 3]

Made-up records of slices (tests/selftests/loaded_fabrics.py) of nodes behind leaves of 32: seconds
of CPU to read one, to get its flows, to look for defects in all slices so far and for the smallest
ones that are found, and to put the answers into the record; and the bytes of a record. Then the
CPU of a session that adds the last of these slices: it plans, takes the inventory of its nodes,
plans again, judges and writes its verdict, and checks each slice against the devices of its nodes.
"""

from __future__ import annotations

import argparse
import gc
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fixtures.permutations.pace import ON_GPU, rounds_in
from fixtures.plan.items import ALL
from fixtures.records.fast_reader import read_record
from fixtures.records.files import write_json
from fixtures.records.model import Record
from fixtures.records.run_directory import RunDirectory
from fixtures.run import fabric_answers, fabric_load
from fixtures.run.devices_of_record import INVENTORY, DeviceIndex
from fixtures.run.evidence import Evidence
from fixtures.run.fabric_load import PERMUTATIONS, FabricLoad
from tests.selftests import support
from tests.selftests.loaded_fabrics import LoadedFabric

LEAF_NODES = 32


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench_fabric")
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--rails", type=int, default=8)
    parser.add_argument("--slices", type=int, default=3)
    options = parser.parse_args()
    rounds = rounds_in(ON_GPU, options.nodes * options.rails)
    leaf_of = {f"n{k:04}": f"leaf{k // LEAF_NODES:02}" for k in range(options.nodes)}
    fabric = LoadedFabric(leaf_of, rails=options.rails, rounds=rounds)
    spent: dict[str, list[float]] = {}
    timed(spent, "rounds computed again", fabric_load, "observed")
    timed(spent, "sums of a slice", fabric_load, "gather")
    timed(spent, "coverage", fabric_load, "coverage")
    timed(spent, "defects", fabric_answers, "find_in")
    timed(spent, "smallest defects", fabric_answers, "smallest_in")
    load = fabric.load()
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder))
        directory.records.mkdir()
        for attempt in range(1, options.slices + 1):
            path = directory.record("permutations", "all", attempt)
            write_json(path, fabric.record(attempt).to_json(), indent=None)
            with cpu(spent, "record read"):
                record = read_record(path, without_facts=True)
            with cpu(spent, "all of it, without reading"):
                load.decided(record, lambda number: None, lambda: None)
            print(f"slice {attempt}: {path.stat().st_size / 1e6:.1f} MB", flush=True)
        session(spent, directory, fabric, options.slices)
    for name, seconds in spent.items():
        each = "  ".join(f"{s:6.2f}" for s in seconds)
        print(f"{name:28} {each} s of CPU, {100 * seconds[-1] / ON_GPU.slice_s:.2f} % of a core")
    print(f"at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    return 0


def session(
    spent: dict[str, list[float]], directory: RunDirectory, fabric: LoadedFabric, slices: int
) -> None:
    """Read as a session does that adds the last slice: to plan, twice, to judge and for the
    verdict."""
    take_inventory(directory, fabric, 1)
    newest = directory.record(PERMUTATIONS, ALL, slices)
    aside = newest.rename(directory.root / newest.name)
    load = fabric.load()
    people = support.population(len(fabric.nodes), fabric.rails, "H200")
    devices = DeviceIndex(
        directory, support.NONCE, replace(people, nodes=fabric.nodes), created=500.0
    )
    gc.collect()
    gc.freeze()  # a session begins with nothing of this
    name = f"a session, {slices} slices"
    with cpu(spent, name):
        for _ in range(2 if slices > 1 else 0):
            read_once(directory, load, devices)
    take_inventory(directory, fabric, 2)
    with cpu(spent, name):
        for _ in range(2 if slices > 1 else 0):
            read_once(directory, load, devices)
    aside.rename(newest)
    with cpu(spent, name):
        for _ in ("judge", "verdict"):
            read_once(directory, load, devices)
    spent[name] = [sum(spent[name])]


def read_once(directory: RunDirectory, load: FabricLoad, devices: DeviceIndex) -> None:
    reader = Evidence(directory, support.NONCE, devices=devices, without_facts=True, fabric=load)
    assert reader.load_on_fabric() is not None
    found = reader.get(PERMUTATIONS, ALL)
    assert isinstance(found, Record), found
    assert not found.void


def take_inventory(directory: RunDirectory, fabric: LoadedFabric, attempt: int) -> None:
    for node in fabric.nodes:
        ranks = [
            support.later(support.rank(k, node, gpus=fabric.rails), 600.0)
            for k in range(fabric.rails)
        ]
        found = support.record(*ranks, workload=INVENTORY, placement=node, attempt=attempt)
        path = directory.record(INVENTORY, node, attempt)
        found = replace(found, job={"id": str(attempt), "submitted": 600.0})
        write_json(path, found.to_json(), indent=None)


def timed(spent: dict[str, list[float]], name: str, module: object, function: str) -> None:
    """Have the calls of a module's function timed."""
    honest: Callable[..., object] = getattr(module, function)

    def measured(*arguments: object, **more: object) -> object:
        with cpu(spent, name):
            return honest(*arguments, **more)

    setattr(module, function, measured)


@contextmanager
def cpu(spent: dict[str, list[float]], name: str) -> Iterator[None]:
    began = time.process_time()
    yield
    spent.setdefault(name, []).append(time.process_time() - began)


if __name__ == "__main__":
    raise SystemExit(main())
