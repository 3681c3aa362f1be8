"""The search for the best shape of a product."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
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


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the search on nothing: the deeper a product, the faster."""
    seen = SimpleNamespace(soaks=[], asked=[])
    product = SimpleNamespace(launch=None)
    monkeypatch.setattr(gemm_search, "MatMul", lambda *given, **how: product)
    monkeypatch.setattr(
        gemm_search.timing, "warm", lambda ranks, launch, seconds: seen.soaks.append(seconds)
    )
    monkeypatch.setattr(gemm_search, "best_shape", lambda ranks, dtype: (2048, 2048, 13312))

    def rates(ranks: Any, shape: Any) -> list[float]:
        seen.asked.append(shape)
        return [shape[2] + shape[0] / 1e6 + shape[1] / 1e9] * 5

    monkeypatch.setattr(gemm_search, "rates", rates)

    def start(metrics: list[str], *, on_gpu: bool = True, **how: Any) -> Any:
        seen.soaks.clear()
        seen.asked.clear()
        ranks: Any = SimpleNamespace(on_gpu=on_gpu, agree=lambda item, choose: choose([item]))
        result = gemm_search.run(ranks, metrics, **how)
        return {m.metric: m for m in result.measurements}, result.facts, seen

    return start


def test_five_finalists_are_measured_again_four_times(searched):
    found, facts, seen = searched(["search", "published", "cube"])
    assert list(found) == ["search", "published", "cube"]
    assert (found["search"].notes, found["cube"].notes) == (
        ["16384x16384x13312"], ["8192x8192x8192"],
    )  # fmt: skip
    assert found["published"].notes == ["2048x2048x13312"]
    assert len(found["search"].samples) == 4 * 5
    assert (seen.soaks, len(facts["tried"])) == ([30.0], 100)
    assert len(facts["finalists"]) == 5 + 2
    assert len(seen.asked) == 100 + 4 * 7
    assert facts["tried"][0] == {
        "m": 16384, "n": 16384, "k": 13312, "tflops": pytest.approx(13312.016),
    }  # fmt: skip
    assert {s[2] for s in seen.asked[:100]} == {2048, 4096, 8192, 13312}
    assert list(searched(["cube"], soak_s=1.0)[0]) == ["cube"]
    assert seen.soaks == [1.0]


def test_a_cpu_has_no_published_shape(searched):
    found, facts, seen = searched(["search", "published", "cube"], on_gpu=False)
    assert list(found) == ["search", "cube"]
    assert (seen.soaks, len(facts["tried"])) == ([0.1], 8)
    assert {edge for shape in seen.asked for edge in shape} == {128, 256}


def test_a_shape_is_measured_over_five_batches(monkeypatch):
    asked: dict[str, Any] = {}
    product = SimpleNamespace(launch=None, flops=3e12)

    def made(ranks: Any, dtype: str, shape: Any, *, sets: int) -> Any:
        asked.update(sets=sets)
        return product

    def together(ranks: Any, launch: Any, **how: Any) -> Any:
        asked.update(how)
        return SimpleNamespace(seconds=[1.0, 2.0])

    monkeypatch.setattr(gemm_search, "MatMul", made)
    monkeypatch.setattr(gemm_search.timing, "warm", lambda *given: 0.001)
    monkeypatch.setattr(gemm_search.timing, "measure_together", together)
    ranks: Any = SimpleNamespace(on_gpu=True)
    assert gemm_search.rates(ranks, (1, 2, 3)) == [3.0, 1.5]
    assert (asked["minimum"], asked["window_s"], asked["sets"]) == (5, 0.25, 4)
