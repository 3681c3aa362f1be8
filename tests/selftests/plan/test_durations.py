"""How long workloads take, as recorded runs say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.plan import durations
from fixtures.records.files import read_json
from tests.selftests.support import DATA

pytestmark = pytest.mark.cpu

RUNS = [DATA / name for name in ("h200-2x2", "h200-1x4", "sandbox-2x2-cpu")]


def test_the_durations_are_those_of_the_recorded_runs():
    """Made again from the runs in data/, the file is the same: no number in it was thought up."""
    assert durations.durations_of_runs(RUNS) == read_json(durations.DURATIONS_FILE)


def test_recorded_times_are_looked_up_by_workload_and_device():
    known = read_json(durations.DURATIONS_FILE)["devices"]["cuda"]
    assert durations.recorded()["cuda"] == known
    assert durations.seconds("gemm", "cuda") == known["workloads"]["gemm"]
    assert durations.seconds("nothing", "cuda") is None
    assert durations.seconds("gemm", "abacus") is None
    assert durations.start_s("cuda", small=True) == known["start_s"]["small"]
    assert durations.start_s("cuda", small=False) == known["start_s"]["exclusive"]
    assert durations.sources("cuda") == known["sources"]


def run_of(
    root: Path, records: list[dict[str, Any]], *, model: str = "H200 SXM", nodes: int = 2,
    origin: str = "cluster",
) -> Path:  # fmt: skip
    """A run directory with nothing but what the durations are made of."""
    (root / "records").mkdir(parents=True)
    population = {"gpu_model": model, "nodes": [f"n{k}" for k in range(nodes)], "gpus_per_node": 8}
    run = {
        "population": population, "created": "2026-11-20T10:00:00+00:00", "origin": origin,
        "plan": [{"name": "small", "small": True}, {"name": "node", "small": False}],
    }  # fmt: skip
    (root / "run.json").write_text(json.dumps(run))
    for k, record in enumerate(records):
        (root / "records" / f"{k}.json").write_text(json.dumps(record))
    return root


def record(
    workload: str, *spans: tuple[float, float], placement: str = "n0", **job: Any
) -> dict[str, Any]:
    ranks = [{"start": start, "end": end} for start, end in spans]
    return {"workload": workload, "placement": placement, "ranks": ranks, "job": job}


def made(*runs: Path) -> dict[str, Any]:
    found = durations.durations_of_runs(runs)
    assert found["schema"] == 1
    devices: dict[str, Any] = found["devices"]
    return devices


def test_a_workload_takes_from_the_first_rank_to_the_last_rounded_up(tmp_path):
    run = run_of(tmp_path / "a", [
        record("gemm", (10, 12), (11, 13.01)), record("gemm", (0, 1)), record("copy", (0, 0.01)),
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
    assert found["cuda"]["sources"] == ["2 x 8 H200 SXM, 2026-11-20"]
    assert found["cpu"]["sources"] == ["1 x 8 cpu, 2026-11-20"]
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
