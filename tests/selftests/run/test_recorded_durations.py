"""The times of recorded runs, as durations.json has them: of what counts and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.plan import durations
from fixtures.records.files import read_json
from fixtures.records.model import Record
from fixtures.records.run_directory import RunDirectory
from fixtures.run.recorded_durations import durations_of_runs
from tests.selftests import support
from tests.selftests.plain_records import RUN, plain_record
from tests.selftests.support import DATA

pytestmark = pytest.mark.cpu

RUNS = [DATA / name for name in ("h200-2x2", "h200-1x4", "sandbox-2x2-cpu")]


def test_the_durations_are_those_of_the_recorded_runs():
    """Made again from the runs in data/, the file is the same: no number in it was thought up."""
    assert durations_of_runs(RUNS) == read_json(durations.DURATIONS_FILE)


def run_of(
    root: Path, records: list[Record], *, model: str = "H200 SXM", nodes: int = 2,
    origin: str = "cluster",
) -> Path:  # fmt: skip
    """A run directory with nothing but what the durations are made of."""
    directory = RunDirectory(root)
    directory.records.mkdir(parents=True)
    population = {"gpu_model": model, "nodes": [f"n{k}" for k in range(nodes)], "gpus_per_node": 2}
    run = {
        **RUN, "population": population, "created": "1970-01-01T00:00:00+00:00", "origin": origin,
        "plan": [{"name": "small", "small": True}, {"name": "node", "small": False}],
    }  # fmt: skip
    directory.run_json.write_text(json.dumps(run))
    for one in records:
        support.save(one, directory)
    return root


def record(
    workload: str, *spans: tuple[float, float], placement: str = "n0", attempt: int = 1, **job: Any
) -> Record:
    """A record of two GPUs; of one span both have it."""
    both = spans if len(spans) == 2 else spans * 2
    made = plain_record(
        f"{workload}@{placement}.attempt{attempt}.json",
        *({"node": "n0", "device": {"uuid": f"GPU-{k}"}} for k in (0, 1)), job=job,
    )  # fmt: skip
    ranks = [replace(r, start=a, end=b) for r, (a, b) in zip(made.ranks, both, strict=True)]
    return replace(made, ranks=ranks)


def made(*runs: Path) -> dict[str, Any]:
    found = durations_of_runs(runs)
    assert found["schema"] == 1
    devices: dict[str, Any] = found["devices"]
    return devices


def test_a_workload_takes_from_the_first_rank_to_the_last_rounded_up(tmp_path):
    run = run_of(tmp_path / "a", [
        record("gemm", (0, 1)), record("gemm", (10, 12), (11, 13.01), attempt=2),
        record("copy", (0, 0.01)),
    ])  # fmt: skip
    assert made(run)["cuda"]["workloads"] == {"copy": 0.1, "gemm": 3.1}


def test_a_job_starts_with_its_first_workload(tmp_path):
    run = run_of(tmp_path / "a", [
        record("x", (14, 20), name="node", submitted=10), record("y", (12, 13), name="node",
                                                                submitted=10),
        record("z", (6, 7), name="small", submitted=5), record("v", (100, 101), name="other"),
    ])  # fmt: skip
    assert made(run)["cuda"]["start_s"] == {"small": 1.0, "exclusive": 2.0}


def test_runs_of_one_device_are_taken_together_and_each_source_is_named_once(tmp_path):
    runs = [
        run_of(tmp_path / "a", [record("gemm", (0, 1))]),
        run_of(tmp_path / "b", [record("gemm", (0, 2))]),
        run_of(tmp_path / "c", [record("gemm", (0, 9))], model="cpu", nodes=1),
    ]
    found = made(*runs)
    assert found["cuda"]["sources"] == ["2 x 2 H200 SXM, 1970-01-01"]
    assert found["cpu"]["sources"] == ["1 x 2 cpu, 1970-01-01"]
    assert [found[d]["workloads"]["gemm"] for d in ("cuda", "cpu")] == [2.0, 9.0]


@pytest.mark.parametrize(
    ("more", "counts"),
    [
        ({"origin": "sandbox"}, False),
        ({"origin": "sandbox", "nodes": 1}, True),
        ({"origin": "sandbox", "model": "cpu"}, True),
        ({"origin": "cluster"}, True),
    ],
)
def test_what_virtual_nodes_of_a_gpu_host_measure_together_is_no_duration(tmp_path, more, counts):
    run = run_of(
        tmp_path / "a", [record("x", (0, 1), placement="all"), record("y", (0, 1))], **more
    )
    (found,) = made(run).values()
    assert set(found["workloads"]) == ({"x", "y"} if counts else {"y"})


@pytest.mark.parametrize(
    "change",
    [
        lambda r: replace(r, nonce="f" * 32),
        lambda r: replace(r, ranks=r.ranks[:1], world_size=1),
        lambda r: replace(r, ranks=[replace(k, device=r.ranks[0].device) for k in r.ranks]),
    ],
    ids=["of another run", "of one GPU of two", "of one GPU twice"],
)
def test_what_is_void_took_no_time(tmp_path, change):
    good, long = record("gemm", (0, 1)), record("gemm", (10, 99), attempt=2)
    run = run_of(tmp_path / "a", [good, change(long)])
    assert made(run)["cuda"]["workloads"] == {"gemm": 1.0}
