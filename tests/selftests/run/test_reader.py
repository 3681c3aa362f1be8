"""What a run measured, for anything but its verdict: what the judge counts and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from fixtures.records.model import Record
from fixtures.records.run_directory import RunDirectory
from fixtures.run import reader
from tests.selftests import support

pytestmark = pytest.mark.cpu

RUN = {
    "schema": 2, "id": support.RUN_ID, "nonce": support.NONCE, "origin": "cluster",
    "created": "1970-01-01T00:00:01+00:00",
    "population": {"nodes": ["worker0"], "gpus_per_node": 2, "gpu_model": "H200 SXM"},
}  # fmt: skip
GOOD = support.node_record(650.0, 660.0)


@pytest.fixture
def directory(directory: RunDirectory) -> RunDirectory:
    directory.run_json.write_text(json.dumps(RUN))
    of_node = support.record(*(replace(r, measurements=[]) for r in GOOD.ranks),
                             workload="inventory")  # fmt: skip
    support.save(of_node, directory)
    return directory


def counted(directory: RunDirectory) -> list[tuple[str, int]]:
    found = reader.newest_records(directory, RUN)
    return [(r.workload, r.attempt) for r in found if r.workload != "inventory"]


def with_device(record: Record, **more: object) -> Record:
    ranks = [replace(record.ranks[0], device={**record.ranks[0].device, **more}), record.ranks[1]]
    return replace(record, ranks=ranks)


BROKEN: dict[str, Callable[[Record], Record]] = {
    "of another run": lambda r: replace(r, nonce="other"),
    "of another run's id": lambda r: replace(r, run_id="20200101-000000-0000"),
    "a GPU that the node does not have": lambda r: with_device(r, uuid="GPU-x"),
    "one GPU twice": lambda r: with_device(r, uuid="GPU-worker0-1"),
    "one GPU too few": lambda r: replace(r, ranks=r.ranks[:1], world_size=1),
    "another model": lambda r: replace(
        r, ranks=[replace(k, device={**k.device, "name": "NVIDIA H100"}) for k in r.ranks]
    ),
    "a CPU": lambda r: replace(
        r, ranks=[replace(k, device={**k.device, "name": "cpu"}) for k in r.ranks]
    ),
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=[*BROKEN])
def test_what_the_judge_does_not_count_nobody_counts(directory, change):
    support.save(GOOD, directory)
    assert counted(directory) == [("gemm", 1)]
    support.save(change(GOOD), directory)
    assert counted(directory) == []


def test_the_newest_attempt_counts_also_where_it_cannot_be_used(directory):
    support.save(GOOD, directory)
    support.save(support.node_record(655.0, 665.0, attempt=2), directory)
    assert counted(directory) == [("gemm", 2)]
    directory.record("gemm", "worker0", 3).write_text("{")
    assert counted(directory) == []
    run = reader.RunReader.of(directory, RUN)
    every = [r.attempt for r in run.every(run.record_keys("gemm"))]
    assert sorted(every) == [1, 2]


def test_a_record_under_another_name_is_none(directory):
    support.save(GOOD, directory, name="gemm@worker1.json")
    support.save(GOOD, directory, name="memory@worker0.json")
    support.save(GOOD, directory, name="gemm@worker0.attemptx.json")
    assert counted(directory) == []


def test_a_run_json_without_a_population_checks_what_it_can(directory):
    support.save(GOOD, directory)
    bare = {name: RUN[name] for name in ("id", "nonce")}
    assert [r.workload for r in reader.newest_records(directory, bare)] == ["gemm", "inventory"]
    assert reader.population_of(bare) is None
    assert reader.population_of({"population": {"nodes": None, "gpu_model": None}}) is None
