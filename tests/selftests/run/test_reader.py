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


ATTEMPTS = 700
"""More than calls can be nested: a burn-in of a month has thousands."""


def test_of_many_attempts_each_is_read_once_and_the_newest_counts(directory, records_read):
    for attempt in range(1, ATTEMPTS + 1):
        rates = 650.0 + attempt / 7, 660.0 + attempt / 7
        support.save(support.node_record(*rates, attempt=attempt), directory)
    run = reader.RunReader.of(directory, RUN)
    assert [r.attempt for r in run.every(run.record_keys("gemm"))] == [*range(1, ATTEMPTS + 1)]
    assert len(records_read) == len(set(records_read)) == ATTEMPTS
    alone = reader.RunReader.of(directory, RUN).newest("gemm", "worker0")
    assert alone is not None
    assert alone.attempt == ATTEMPTS


def test_a_lost_newest_attempt_leaves_none(directory):
    support.save(GOOD, directory)
    line = {"event": "verdict", "criterion": "gemm.bf16", "subject": "worker0", "outcome": "PASS",
            "record": "gemm@worker0.attempt2.json"}  # fmt: skip
    directory.ledger.write_text(json.dumps(line) + "\n")
    assert counted(directory) == []


def test_what_is_void_is_told_with_its_reason(directory):
    support.save(replace(GOOD, nonce="f" * 32), directory)
    support.save(with_device(replace(GOOD, attempt=2), uuid="GPU-x"), directory)
    run = reader.RunReader.of(directory, RUN)
    assert [r.workload for r in run.every()] == ["inventory"]
    first, second = (run.reasons[f"gemm@worker0{n}.json"] for n in ("", ".attempt2"))
    assert "is of another run" in first[""]
    assert "measured on GPU-x" in second["worker0"]
    assert run.reasons_of("gemm", "worker0") == [second["worker0"]]


def test_without_a_run_json_nothing_counts(directory):
    support.save(GOOD, directory)
    directory.run_json.unlink()
    assert reader.RunReader.of(directory).every() == []
    directory.run_json.write_text("[]")
    assert reader.RunReader.of(directory).all_newest() == []


def test_what_failed_on_an_unchanged_gpu_is_shown_though_its_neighbour_was_replaced(directory):
    row = {"record": "gemm@worker0.json", "reason": "too slow"}
    support.save(GOOD, directory)
    later = support.record(
        *(replace(r, measurements=[]) for r in with_device(GOOD, uuid="GPU-new").ranks),
        workload="inventory", attempt=2,
    )  # fmt: skip
    support.save(later, directory)
    run = reader.RunReader.of(directory, RUN)
    assert run.every(run.record_keys("gemm")) == []
    shown = run.of_row(row)
    assert shown is not None
    assert [r.device["uuid"] for r in shown.ranks] == ["GPU-worker0-1"]
    assert run.of_row({**row, "reason": "ledger.jsonl says so of attempt 1: gone"}) is None
    for name in (None, "gemm", "../x@y.json"):
        assert run.of_row({**row, "record": name}) is None


@pytest.mark.parametrize(
    ("rails", "nic", "rail"),
    [
        ({"gpu0": ["mlx5_7"], "gpu10": ["mlx5_0", "mlx5_1"]}, "mlx5_1", 10),
        ({"gpu0": ["mlx5_7"]}, "mlx5_7", 0),
        ({"gpu0": ["mlx5_0"], "gpu1": ["mlx5_0"]}, "mlx5_0", None),
        ({"gpu0": []}, "mlx5_0", None),
        ({"other": ["mlx5_0"]}, "mlx5_0", None),
        (5, "mlx5_0", None),
        ({"gpu0": None}, "mlx5_0", None),
        (None, "mlx5_0", None),
    ],
)
def test_a_nic_has_the_rail_of_the_gpu_that_is_nearest_to_it(directory, rails, nic, rail):
    first, second = GOOD.ranks
    ranks = [replace(first, facts={"rails": rails} if rails is not None else {}), second]
    made = replace(GOOD, workload="infiniband", ranks=ranks)
    support.save(made, directory)
    assert reader.RunReader.of(directory, RUN).rail_of("worker0", nic) == rail
    support.save(replace(made, nonce="f" * 32), directory)
    assert reader.RunReader.of(directory, RUN).rail_of("worker0", nic) is None


def test_parts_of_which_no_row_was_measured_are_told_with_the_nodes_that_they_lie_in():
    def row(record: str, subject: str, outcome: str, *cause_nodes: str) -> dict[str, object]:
        return {"record": record, "subject": subject, "outcome": outcome,
                "cause_nodes": [*cause_nodes]}  # fmt: skip

    assert reader.unmeasured_parts([]) == {}
    assert reader.unmeasured_parts([
        row("gemm@a", "a", "NOT_MEASURED"), row("gemm@a", "a", "NOT_MEASURED", "a"),
        row("copy@a", "a", "NOT_MEASURED"), row("copy@a", "a", "FAIL"),
        row("ring@all", "pair0", "NOT_MEASURED", "b", "c"), row("ring@all", "pair1", "PASS"),
        row("ring@all", "pair2", "NOT_MEASURED", "d"), row("", "a", "NOT_MEASURED", "a"),
    ]) == {"gemm@a": {"a"}, "ring@all": {"pair0", "b", "c", "pair2", "d"}}  # fmt: skip
