"""Matrix products: the rate per GHz, the shapes, the search for the best, and planted faults.

A fault of the workload is planted in a copy of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures import hardware
from fixtures.records.model import Measurement, Record
from fixtures.statistics.fleet_slots import Like
from fixtures.verdict.model import Outcome, Verdict
from fixtures.workloads.compute import gemm, gemm_search, sm_clock
from fixtures.workloads.compute.gemm import PER_GHZ, Round
from fixtures.workloads.devices import devices
from fixtures.workloads.runtime.identity import Identity
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.timing.timing import Batches
from tests.selftests import support
from tests.selftests.gemm_judging import LIMITS, verdict_on
from tests.selftests.rank_job import TORCH, Job
from tests.selftests.support import H200

pytestmark = pytest.mark.cpu


def alone(tmp_path: Path) -> Ranks:
    """The only rank of a job on the CPU."""
    job = Job(tmp_path)
    return Ranks(job.spec, Identity(rank=0, local_rank=0, world_size=1, node="worker0"))


# --- the product and its shapes


def test_a_product_of_any_shape_is_right_and_its_operands_take_turns(tmp_path: Path) -> None:
    from fixtures.workloads.compute.matmul import MatMul

    product = MatMul(alone(tmp_path), "fp32", (96, 160, 224), sets=4)
    assert product.flops == 2 * 96 * 160 * 224
    seen = []
    for _ in range(8):
        product.launch()
        seen.append(product.a.data_ptr())
        checks, _ = product.check()
        assert checks["relative_error"] < 2e-5
        assert checks["operand_std"] == pytest.approx(1, abs=0.05)
    assert len(set(seen)) == 4
    assert seen[:4] == seen[4:]


def test_one_seed_gives_all_ranks_the_same_operands_and_none_gives_each_its_own(
    tmp_path: Path,
) -> None:
    import torch

    from fixtures.workloads.compute.matmul import MatMul

    job = Job(tmp_path)
    two = [
        Ranks(job.spec, Identity(rank=k, local_rank=k, world_size=2, node="worker0"))
        for k in range(2)
    ]
    own = [MatMul(ranks, "bf16", (32, 32, 32)).a for ranks in two]
    same = [MatMul(ranks, "bf16", (32, 32, 32), seed=1).a for ranks in two]
    assert not torch.equal(*own)
    assert torch.equal(*same)


def test_the_published_shapes_are_of_known_gpus_and_fit_the_tensor_cores():
    for dtype, shapes in gemm.BEST_SHAPES.items():
        for model, shape in shapes.items():
            assert hardware.GPUS[model].peak(dtype)
            assert all(edge % 16 == 0 for edge in shape), "fp8 wants multiples of 16"
    assert gemm.BEST_SETS >= 4


# --- a CPU without bf16 instructions


CPU_INFO = "processor\t: 0\nmodel name\t: any\n{}\n\nprocessor\t: 1\n{}\n"


@pytest.mark.parametrize(
    ("line", "emulated"),
    [
        ("flags\t\t: fpu avx2 fma", True),
        ("flags\t\t: fpu avx512f avx512_bf16", False),
        ("flags\t\t: fpu amx_tile amx_bf16", False),
        ("Features\t: fp asimd", True),
        ("Features\t: fp asimd bf16", False),
        ("bugs\t\t: bf16", True),
    ],
)
def test_a_cpu_says_whether_it_multiplies_bf16(line, emulated):
    flags = devices.cpu_flags(CPU_INFO.format(line, line))
    cpu: Any = SimpleNamespace(on_gpu=False, device_facts=lambda: {"cpu_flags": flags})
    wanted = {"dtype": "bf16", **({"cpu_bf16": "emulated"} if emulated else {})}
    assert gemm.conditions(cpu, "bf16") == wanted
    assert gemm.conditions(cpu, "fp32") == {"dtype": "fp32"}
    assert devices.cpu_flags("") == []


@pytest.mark.parametrize("criterion", ["gemm.bf16", "burnin.bf16"])
@pytest.mark.parametrize(("found", "healthy"), [({}, 0.29), ({"cpu_bf16": "emulated"}, 0.0005)])
def test_a_demonstration_is_held_to_what_its_cpu_can_do(criterion, found, healthy):
    """A healthy CPU is above the floor, and a 50th of its rate below it."""
    limit = LIMITS.criteria[criterion].limit_for({"model": "cpu", **found})
    floor = limit.resolve(None, None).value
    assert isinstance(floor, float)
    assert healthy / 50 < floor < healthy / 5


# --- the rate per GHz, on an H200 that is not there


class H200Ranks:
    """Just enough of Ranks for what is computed from the device's facts."""

    on_gpu = True

    def device_facts(self) -> dict[str, Any]:
        return {**H200, "power_limit": "default", "uuid": "GPU-0"}


FLOPS = 2.0 * 8192**3
HEALTHY = {"operand_std": 1.0, "relative_error": 1e-3}


def a_round(tflops: float, mhz: float | None) -> Round:
    batches = Batches(
        seconds=[FLOPS / tflops / 1e12] * 20, started=100.0, ended=[100.25 + k for k in range(20)],
        launches=10, wall_over_marks=1.0, overlap=0.97, inside=20,
    )  # fmt: skip
    return Round(batches, [mhz] * 100 if mhz else [])


def on_h200(*devices: list[tuple[float, float | None]]) -> Record:
    """GPUs of one node: each with the rate and the SM clock of its rounds."""
    ranks = []
    for k, rounds in enumerate(devices):
        taken = [a_round(*figures) for figures in rounds]
        found = gemm._measurements(H200Ranks(), "bf16", FLOPS, taken, HEALTHY)  # type: ignore[arg-type]
        ranks.append(support.rank(k, "worker0", *found, gpus=len(devices)))
    return support.record(*ranks)


def h200(key: str, found: Record) -> Verdict:
    siblings = [gemm_value(m) for _, m in found.points(LIMITS.criteria[key].metric, {})]
    return verdict_on(key, found, model="H200 SXM", siblings=Like(tuple(siblings)))


def gemm_value(m: Measurement) -> float:
    return m.samples[0]


def test_the_rate_per_ghz_is_that_of_the_mean_clock_of_the_window():
    found = on_h200([(658, 1455)])
    verdict = h200("gemm.bf16_per_ghz", found)
    assert verdict.outcome is Outcome.PASS
    assert verdict.value == pytest.approx(658 / 1.455, rel=1e-5)
    assert verdict.unit == "TFLOPS/GHz"
    ((_, m),) = found.points(PER_GHZ, {})
    bound = 132 * 4096 / 1000
    assert m.checks["clock_ceiling"] == pytest.approx(658 / 1.455 / bound, rel=1e-5)
    assert m.conditions["dtype"] == "bf16"


NEIGHBOUR = 0.94
"""What a neighbour process at a few per cent duty leaves of the rate; the clock stays."""


def test_a_gpu_that_a_neighbour_slows_by_6_per_cent_is_red_per_ghz_and_not_in_tflops():
    good = [(658, 1455)]
    found = on_h200(good, good, good, [(658 * NEIGHBOUR, 1455)])
    verdict = h200("gemm.bf16_per_ghz", found)
    assert (verdict.outcome, verdict.worst["gpu"]) == (Outcome.FAIL, 3)
    assert h200("gemm.bf16", found).ok, "raw TFLOPS promise to find 12 %, no less"


def test_a_neighbour_on_every_gpu_is_below_the_floor():
    found = on_h200(*[[(658 * NEIGHBOUR, 1455)]] * 4)
    verdict = h200("gemm.bf16_per_ghz", found)
    assert (verdict.outcome, verdict.limit) == (Outcome.FAIL, ">= 434")


def test_a_slow_clock_is_not_what_the_rate_per_ghz_finds():
    """Throttle counters, application clocks and the power limit are criteria of their own."""
    good = [(658, 1455)]
    found = on_h200(good, good, good, [(658 * 0.9, 1455 * 0.9)])
    assert h200("gemm.bf16_per_ghz", found).ok
    assert h200("gemm.bf16", found).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("ratio", "outcome", "notes"),
    [(0.99, Outcome.PASS, 0), (1.03, Outcome.PASS, 1), (1.06, Outcome.NOT_MEASURED, 0)],
)
def test_more_than_the_mean_clock_allows_is_a_note_and_then_a_measurement_error(
    ratio, outcome, notes
):
    bound = 132 * 4096 / 1000  # TFLOPS at 1 GHz
    verdict = h200("gemm.bf16_per_ghz", on_h200([(ratio * bound * 1.2, 1200)]))
    assert verdict.outcome is outcome
    assert len(verdict.notes) == notes
    if outcome is Outcome.NOT_MEASURED:
        assert "clock_ceiling is 1.06" in verdict.reason


@pytest.mark.parametrize("clocks", [[None], [1455, None, 1455]])
def test_without_the_clock_of_every_round_there_is_no_rate_per_ghz(clocks):
    found = on_h200([(658, mhz) for mhz in clocks])
    verdict = h200("gemm.bf16_per_ghz", found)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason == "the record holds no bf16_per_ghz"
    # The second bound cannot be checked either, and a rate that may be too high is none.
    rate = h200("gemm.bf16", found)
    assert rate.outcome is Outcome.NOT_MEASURED
    assert "clock_ceiling was not recorded" in rate.reason


def test_each_round_has_the_clock_of_its_own_window():
    found = on_h200([(630, 1455), (700, 1600), (658, 1455)])
    ((_, m),) = found.points(PER_GHZ, {})
    assert [r[0] for r in (m.samples, *m.rounds)] == pytest.approx(
        [630 / 1.455, 700 / 1.6, 658 / 1.455], rel=1e-5
    )
    ((_, rates),) = found.points("bf16", {})
    assert [len(samples) for samples in (rates.samples, *rates.rounds)] == [20, 20, 20]


class FakeNvml:
    NVML_CLOCK_SM = 1


def test_the_clock_is_sampled_while_the_block_runs_and_by_its_time(monkeypatch):
    asked = threading.Semaphore(0)

    def ask(call: str, *arguments: Any) -> Any:
        if call == "nvmlDeviceGetHandleByUUID":
            return "handle"
        asked.release()
        return 1455

    monkeypatch.setattr(sm_clock.devices, "nvml", FakeNvml)
    monkeypatch.setattr(sm_clock.devices, "query_nvml", ask)
    with sm_clock.ClockSampler("GPU-0") as found:
        for _ in range(3):
            assert asked.acquire(timeout=30)
    assert set(found.between(0, 1e12)) == {1455.0}
    assert found.between(0, 1) == [], "of another window"
    assert not [t for t in threading.enumerate() if t.name == "clocks"]


def test_without_nvml_or_on_a_cpu_there_is_no_clock(monkeypatch):
    monkeypatch.setattr(sm_clock.devices, "nvml", lambda: None)
    with sm_clock.ClockSampler("GPU-0") as found:
        pass
    assert found.between(0, 1e12) == []
    monkeypatch.setattr(sm_clock.devices, "nvml", FakeNvml)
    with sm_clock.ClockSampler(None) as found:
        pass
    assert found.between(0, 1e12) == []


# --- faults of the workload, planted in a copy

ZEROS = '''
"""Products of zeros, which draw less power and run faster."""
import torch
from fixtures.workloads.compute import gemm
from fixtures.workloads.compute import matmul
WORKLOAD = gemm.WORKLOAD

def run(ranks, metrics, **params):
    honest = torch.randn
    torch.randn = lambda *shape, **how: honest(*shape, **how).zero_()
    return gemm.run(ranks, metrics, **params)
'''

NOT_WAITED_FOR = '''
"""Launches that are counted when they are queued: nobody waits for the device."""
import queue, threading
from fixtures.workloads.compute import gemm
from fixtures.workloads.compute import matmul
WORKLOAD = gemm.WORKLOAD

def run(ranks, metrics, **params):
    work, honest = queue.SimpleQueue(), matmul.MatMul.launch
    over = threading.Event()

    def device():
        while not over.is_set():
            honest(work.get())

    thread = threading.Thread(target=device)
    thread.start()
    check = matmul.MatMul.check
    matmul.MatMul.launch = lambda self: work.put(self)
    # The check waits, as it does on a GPU, and sees a product that is right.
    matmul.MatMul.check = lambda self: (honest(self), check(self))[1]
    one, found = matmul.MatMul(ranks, "fp32", (64, 64, 64)), None
    try:
        found = gemm.run(ranks, metrics, **params)
    finally:
        over.set()
        work.put(one)
        thread.join()
    return found
'''


@pytest.mark.parametrize(
    ("text", "reason"),
    [(ZEROS, "operand_std is 0"), (NOT_WAITED_FOR, "is above the physical ceiling of")],
    ids=["zeros", "not waited for"],
)
def test_a_workload_that_cheats_is_not_measured(tmp_path: Path, text: str, reason: str) -> None:
    job = Job(tmp_path)
    (tmp_path / "cheat.py").write_text(text, encoding="utf-8")
    job.add("cheat", ["fp32"], soak_s=0.01, window_s=0.5, size=512)
    assert job.run(warm=TORCH) == [0], job.output()
    verdict = verdict_on("gemm.fp32", job.record("cheat"))
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert reason in verdict.reason


def test_the_honest_workload_is_measured(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.add("gemm", ["fp32"], soak_s=0.01, window_s=0.5, size=256)
    assert job.run(warm=TORCH) == [0], job.output()
    verdict = verdict_on("gemm.fp32", job.record("gemm"))
    assert verdict.outcome is not Outcome.NOT_MEASURED, verdict.line
    assert verdict.value is not None
    assert verdict.value < verdict.ceiling, "how fast depends on who else is at work here"


# --- the search


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
