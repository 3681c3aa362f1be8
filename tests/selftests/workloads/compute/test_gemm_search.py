"""The search for the best shape of a product."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.model import Measurement
from fixtures.workloads.compute import gemm_search
from tests.selftests.rank_job import TORCH, Job

pytestmark = pytest.mark.cpu


def test_a_search_tries_a_hundred_shapes_at_most_and_measures_the_best_again(
    tmp_path: Path,
) -> None:
    gpu: Callable[[], Any] = type("Gpu", (), {"on_gpu": True})
    tried = gemm_search.shapes(gpu())
    assert len(set(tried)) == len(tried) <= 100
    job = Job(tmp_path, per_node=2)
    job.add("gemm_search", ["search", "cube"], soak_s=0.01)
    assert job.run(warm=TORCH) == [0, 0], job.output()
    record = job.record("gemm_search")
    for rank in record.ranks:
        found = {m.metric: m for m in rank.measurements}
        assert set(found) == {"search", "cube"}
        assert len(found["search"].samples) >= gemm_search.REPEATS
        # 8192 cubed, or what stands for it, takes part whether it is among the best or not.
        assert len(rank.facts["finalists"]) in (gemm_search.FINALISTS, gemm_search.FINALISTS + 1)
        assert len(rank.facts["tried"]) == 8
    shapes = {only_note(rank.measurements) for rank in record.ranks}
    assert len(shapes) == 1, "all ranks measure the same shapes"


def only_note(measurements: list[Measurement]) -> str:
    (note,) = next(m.notes for m in measurements if m.metric == "cube")
    return note
