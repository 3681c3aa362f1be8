"""Matrix products: the rate per GHz, the shapes, the search for the best, and planted faults.

A fault of the workload is planted in a copy of it.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures import hardware
from fixtures.records.model import Measurement, Record
from fixtures.statistics.fleet_slots import Like
from fixtures.verdict.model import Outcome, Verdict
from fixtures.workloads.compute import gemm
from fixtures.workloads.compute.gemm import PER_GHZ, Round
from fixtures.workloads.devices import devices
from fixtures.workloads.timing.timing import Batches
from tests.selftests import support
from tests.selftests.gemm_judging import LIMITS, verdict_on
from tests.selftests.rank_job import TORCH, Job
from tests.selftests.support import H200

pytestmark = pytest.mark.cpu


# --- the product and its shapes


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
