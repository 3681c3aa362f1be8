"""Which products are measured, with which shape and pace, and what is said of the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.absence import Kind
from fixtures.records.model import Measurement
from fixtures.workloads.compute import gemm
from fixtures.workloads.timing.timing import Batches
from tests.selftests.support import whys

pytestmark = pytest.mark.cpu

BATCHES = Batches(
    seconds=[1.0, 2.0], started=10.0, ended=[11.0, 13.0], launches=3, wall_over_marks=1.0,
    inside=2,
)  # fmt: skip


def ranks_of(name: str | None = "NVIDIA H200", **more: Any) -> Any:
    """A rank on a GPU of this name, on a CPU without one."""
    facts = {"name": name or "cpu", "uuid": "GPU-1", "cpu_flags": ["bf16"], **more}
    if name:
        facts.setdefault("compute_capability", 9.0)
    return SimpleNamespace(
        on_gpu=name is not None, device_facts=lambda: facts, rank=0,
        agree=lambda item, choose: choose([item, 7]),
    )  # fmt: skip


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the workload on nothing; returns metrics, facts and what was made."""
    seen = SimpleNamespace(made=[], soaks=[], windows=[], clocks=[1500.0])

    def product(ranks: Any, dtype: str, shape: Any, *, sets: int = 1) -> Any:
        seen.made.append((dtype, shape, sets))
        return SimpleNamespace(flops=2e12, check=lambda: ({"operand_std": 1.0}, {"a": 1}))

    def soak(ranks: Any, seconds: float, edge: int) -> Any:
        seen.soaks.append((seconds, edge))
        return {"seconds": seconds}

    def rounds(ranks: Any, name: str, product: Any, pace: Any, window: float) -> Any:
        seen.windows.append(window)
        return [gemm.Round(BATCHES, seen.clocks)]

    def measurements(ranks: Any, name: str, *given: Any) -> list[Measurement]:
        names = [name, gemm.PER_GHZ] if name == "bf16" and seen.clocks else [name]
        return [Measurement(metric=n, unit="TFLOPS", samples=[1.0]) for n in names]

    monkeypatch.setattr(gemm, "MatMul", product)
    monkeypatch.setattr(gemm, "_soak", soak)
    monkeypatch.setattr(gemm, "_measure_rounds", rounds)
    monkeypatch.setattr(gemm, "_measurements", measurements)
    monkeypatch.setattr(gemm, "_cpu_size", lambda ranks, name: 512)

    def start(metrics: list[str], ranks: Any = None, **how: Any) -> Any:
        for noted in (seen.made, seen.soaks, seen.windows):
            noted.clear()
        result = gemm.run(ranks or ranks_of(), metrics, **how)
        seen.absent = whys(result, Kind.NOT_THERE)
        return [m.metric for m in result.measurements], result.facts, seen

    return start


CUBE = (8192, 8192, 8192)


def test_products_run_in_their_order_after_one_soak(started):
    metrics, facts, seen = started(["fp32", "bf16_best", "bf16"])
    assert metrics == ["bf16", "bf16_best", "fp32"]
    assert seen.made == [("bf16", CUBE, 1), ("bf16", (2048, 2048, 13312), 4), ("fp32", CUBE, 1)]
    assert (seen.soaks, seen.windows) == ([(30, 8192)], [5.75, 2.0, 5.75])
    assert (facts["soak"], seen.absent) == ({"seconds": 30}, {})
    assert facts["dtypes"]["bf16"]["sm_clock_mhz"] == [1500.0]
    _, _, seen = started(["fp32"], size=64, soak_s=1.0, window_s=0.5)
    assert (seen.made, seen.soaks, seen.windows) == (
        [("fp32", (64, 64, 64), 1)], [(1.0, 64)], [0.5],
    )  # fmt: skip


def test_the_rate_per_ghz_is_that_of_bf16(started):
    assert started(["bf16_per_ghz"])[0] == ["bf16_per_ghz"]
    assert started(["fp32", "bf16_per_ghz"])[2].made == [("bf16", CUBE, 1), ("fp32", CUBE, 1)]
    assert started(["bf16"])[0] == ["bf16"]
    _, facts, seen = started(["bf16", "bf16_per_ghz"])
    assert seen.absent == {}
    seen.clocks = []
    metrics, facts, _ = started(["bf16", "bf16_per_ghz"])
    assert metrics == ["bf16"]
    assert seen.absent == {"bf16_per_ghz": "the driver reported no SM clock"}
    assert facts["dtypes"]["bf16"]["sm_clock_mhz"] is None
    assert started(["bf16"])[2].absent == {}
    assert started(["fp32", "bf16_per_ghz"])[2].absent.keys() == {"bf16_per_ghz"}


def test_what_a_device_cannot_do_is_said_and_not_tried(started):
    cpu = ranks_of(None)
    metrics, _, seen = started(["bf16", "fp16", "fp8_best"], cpu)
    assert metrics == ["bf16"]
    assert seen.made == [("bf16", (512, 512, 512), 1)]
    assert (seen.soaks, seen.windows) == ([(0.3, 512)], [1.5])
    assert seen.absent == {
        "fp16": "not on a CPU", "fp8_best": "no best shape was published for this device",
    }  # fmt: skip
    old = ranks_of("NVIDIA A100-SXM4-80GB", compute_capability=8.0)
    assert list(started(["fp8", "fp8_best", "bf16_best"], old)[2].absent) == [
        "fp8", "fp8_best",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "size"),
    [([0.02], 1024), ([0.021, 0.02], 768), ([1, 1, 0.01], 512), ([1, 1, 1, 0.01], 384),
     ([1, 1, 1, 1, 1], 256)],
)  # fmt: skip
def test_a_cpu_takes_the_largest_size_within_20_ms(seconds, size, monkeypatch):
    times = iter(seconds)
    product = SimpleNamespace(launch=None)
    monkeypatch.setattr(gemm, "MatMul", lambda ranks, name, shape: product)
    monkeypatch.setattr(gemm.timing, "warm", lambda *given: next(times))
    assert gemm._cpu_size(ranks_of(None), "fp32") == size


def test_other_ranks_take_the_size_of_the_first(monkeypatch):
    monkeypatch.setattr(gemm, "MatMul", lambda *given: pytest.fail("it is not measured"))
    ranks = ranks_of(None)
    ranks.rank = 1
    ranks.agree = lambda item, choose: choose([384, item])
    assert gemm._cpu_size(ranks, "fp32") == 384


def test_a_soak_tells_the_rate_before_and_after(monkeypatch):
    launched: list[int] = []
    product = SimpleNamespace(launch=lambda: launched.append(1), flops=2e12)
    monkeypatch.setattr(gemm, "MatMul", lambda *given: product)
    monkeypatch.setattr(
        gemm.timing, "warm", lambda ranks, launch, seconds: 1.0 if seconds < 1 else 4.0
    )
    found = gemm._soak(ranks_of(), 30.0, 8192)
    assert found == {"seconds": 30.0, "cold_bf16_tflops": 2.0, "hot_bf16_tflops": 0.5}


@pytest.mark.parametrize(
    ("name", "clocks", "spans", "expected"),
    [
        ("bf16", [1500.0], [], {"bf16": [2.0, 1.0], "bf16_per_ghz": [2 / 1.5, 1 / 1.5]}),
        ("bf16", [], [], {"bf16": [2.0, 1.0]}), ("fp32", [1500.0], [], {"fp32": [2.0, 1.0]}),
        ("bf16", [2000.0], [(1.0, 2.0), (3.0, 4.0)],
         {"bf16": [2.0, 1.0], "bf16_per_ghz": [1.0, 0.5]}),
    ],
)  # fmt: skip
def test_a_round_has_the_clock_of_its_spans(name, clocks, spans, expected, monkeypatch):
    asked: list[Any] = []

    class Sampler:
        def __init__(self, uuid: str | None) -> None:
            assert uuid == "GPU-1"

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def between(self, start: float, end: float) -> list[float]:
            asked.append((start, end))
            return clocks

    def measure(ranks: Any, *, measure_once: Any, load: Any, samples: Any) -> Any:
        found = measure_once()
        return [samples(found), found.batches]

    done = SimpleNamespace(spans=spans, started=10.0, ended=[11.0, 13.0], seconds=[1.0, 2.0])
    monkeypatch.setattr(gemm, "ClockSampler", Sampler)
    monkeypatch.setattr(gemm.timing, "warm", lambda *given: 0.001)
    monkeypatch.setattr(gemm.timing, "measure_together", lambda *given, **how: done)
    monkeypatch.setattr(gemm.repeat_rounds, "measure", measure)
    product: Any = SimpleNamespace(launch=None, flops=2e12)
    found, _ = gemm._measure_rounds(ranks_of(), name, product, gemm.ON_GPU, 1.0)
    assert found == {k: pytest.approx(v) for k, v in expected.items()}  # type: ignore[comparison-overlap]
    assert asked == (spans or [(10.0, 13.0)])
