"""Matrix products: the rate per GHz, the shapes, identical bits, the burn-in, and planted faults.

A fault of the workload is planted in a copy of it, a fault of the device below it, in torch.mm.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures import hardware
from fixtures.records.files import read_lines
from fixtures.records.model import Measurement, Record
from fixtures.sandbox import Sandbox
from fixtures.thresholds import loader
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Case, Outcome, Verdict
from fixtures.workloads import burnin, gemm, gemm_search, identical
from fixtures.workloads.gemm import PER_GHZ, Round
from fixtures.workloads.runtime import devices, sm_clock
from fixtures.workloads.runtime.identity import Identity
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.runtime.timing import Batches
from tests.selftests import support
from tests.selftests.cluster import copy_checkout, on, suite
from tests.selftests.support import CHECKOUT, H200, SHIPPED
from tests.selftests.test_workloads import Job, clean_environment

pytestmark = pytest.mark.cpu

LIMITS = loader.load(SHIPPED)


def verdict_on(key: str, found: Record, *, model: str = "cpu", **more: Any) -> Verdict:
    """What the shipped limits say of a record of one node."""
    criterion = LIMITS.criteria[key]
    # The copy has another name than the workload that it is a copy of.
    found = replace(found, workload=criterion.workload)
    count = len(found.ranks)
    facts = {"model": model, "gpus": count, "nodes": 1, "gpus_per_node": count}
    case = Case(
        criterion=criterion, subject="worker0", nodes=("worker0",), together=("worker0",),
        devices=count, facts=facts | {"dtype": "fp32" if key.endswith("fp32") else "bf16"},
        record=found, **more,
    )  # fmt: skip
    return judge(case, LIMITS)


def alone(tmp_path: Path) -> Ranks:
    """The only rank of a job on the CPU."""
    job = Job(tmp_path)
    return Ranks(job.spec, Identity(rank=0, local_rank=0, world_size=1, node="worker0"))


# --- the product and its shapes


def test_a_product_of_any_shape_is_right_and_its_operands_take_turns(tmp_path: Path) -> None:
    from fixtures.workloads.runtime.matmul import Product

    product = Product(alone(tmp_path), "fp32", (96, 160, 224), sets=4)
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

    from fixtures.workloads.runtime.matmul import Product

    job = Job(tmp_path)
    two = [
        Ranks(job.spec, Identity(rank=k, local_rank=k, world_size=2, node="worker0"))
        for k in range(2)
    ]
    own = [Product(ranks, "bf16", (32, 32, 32)).a for ranks in two]
    same = [Product(ranks, "bf16", (32, 32, 32), seed=1).a for ranks in two]
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
    return verdict_on(key, found, model="H200 SXM", siblings=siblings)


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
    monkeypatch.setattr(sm_clock.devices, "ask", ask)
    with sm_clock.Clocks("GPU-0") as found:
        for _ in range(3):
            assert asked.acquire(timeout=30)
    assert set(found.between(0, 1e12)) == {1455.0}
    assert found.between(0, 1) == [], "of another window"
    assert not [t for t in threading.enumerate() if t.name == "clocks"]


def test_without_nvml_or_on_a_cpu_there_is_no_clock(monkeypatch):
    monkeypatch.setattr(sm_clock.devices, "nvml", lambda: None)
    with sm_clock.Clocks("GPU-0") as found:
        pass
    assert found.between(0, 1e12) == []
    monkeypatch.setattr(sm_clock.devices, "nvml", FakeNvml)
    with sm_clock.Clocks(None) as found:
        pass
    assert found.between(0, 1e12) == []


# --- faults of the workload, planted in a copy

ZEROS = '''
"""Products of zeros, which draw less power and run faster."""
import torch
from fixtures.workloads import gemm
from fixtures.workloads.runtime import matmul
WORKLOAD = gemm.WORKLOAD

def run(ranks, metrics, **params):
    honest = torch.randn
    torch.randn = lambda *shape, **how: honest(*shape, **how).zero_()
    return gemm.run(ranks, metrics, **params)
'''

NOT_WAITED_FOR = '''
"""Launches that are counted when they are queued: nobody waits for the device."""
import queue, threading
from fixtures.workloads import gemm
from fixtures.workloads.runtime import matmul
WORKLOAD = gemm.WORKLOAD

def run(ranks, metrics, **params):
    work, honest = queue.SimpleQueue(), matmul.Product.launch
    over = threading.Event()

    def device():
        while not over.is_set():
            honest(work.get())

    thread = threading.Thread(target=device)
    thread.start()
    check = matmul.Product.check
    matmul.Product.launch = lambda self: work.put(self)
    # The check waits, as it does on a GPU, and sees a product that is right.
    matmul.Product.check = lambda self: (honest(self), check(self))[1]
    one, found = matmul.Product(ranks, "fp32", (64, 64, 64)), None
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
    assert job.run() == [0], job.output()
    verdict = verdict_on("gemm.fp32", job.record("cheat"))
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert reason in verdict.reason


def test_the_honest_workload_is_measured(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.add("gemm", ["fp32"], soak_s=0.01, window_s=0.5, size=256)
    assert job.run() == [0], job.output()
    verdict = verdict_on("gemm.fp32", job.record("gemm"))
    assert verdict.outcome is not Outcome.NOT_MEASURED, verdict.line
    assert verdict.value is not None
    assert verdict.value < verdict.ceiling, "how fast depends on who else is at work here"


# --- identical products

SUMS = [7] * 20


@pytest.mark.parametrize(
    ("mine", "others", "wrong", "said"),
    [
        (SUMS, [SUMS] * 3, 0, ""),
        (SUMS, [], 0, ""),
        ([7] * 19 + [8], [], 1, "1 of 20 products differ: the same product gave another result"),
        ([8] + [7] * 19, [], 1, "1 of 20"),  # the first is not taken for right
        ([8] * 20, [SUMS] * 3, 20, "20 of 20 products differ: 3 of 4 like devices agree"),
        (SUMS, [[8] * 20, SUMS, SUMS], 0, ""),
        ([7] * 12 + [8] * 8, [SUMS], 8, "8 of 20 products differ: 2 of 2 like devices agree"),
        (SUMS, [[8] * 20], 20, "no majority: 2 results on 2 like devices"),
        (SUMS, [[8] * 20, [9] * 20], 20, "no majority: 3 results on 3 like devices"),
    ],
)
def test_the_minority_counts_its_wrong_products(mine, others, wrong, said):
    count, notes = identical.compare(mine, [mine, *others])
    assert count == wrong
    assert bool(notes) == bool(said)
    assert all(note.startswith(said) for note in notes)


@settings(deadline=None, max_examples=60)
@given(edge=st.sampled_from([4, 8, 32]), data=st.data())
def test_any_single_bit_changes_the_checksum(edge, data):
    import torch

    matrix = torch.randn(edge, edge, generator=torch.Generator().manual_seed(1)).bfloat16()
    before = identical.checksum(matrix)
    place = data.draw(st.integers(0, edge * edge - 1))
    bit = data.draw(st.integers(0, 15))
    raw = matrix.view(torch.int16).view(-1)
    mask = (1 << bit) - (1 << 16 if bit == 15 else 0)  # as int16 has it
    raw[place] ^= mask
    assert identical.checksum(matrix) != before
    raw[place] ^= mask
    assert identical.checksum(matrix) == before


def test_two_numbers_that_change_places_change_the_checksum():
    import torch

    matrix = torch.arange(64, dtype=torch.float32).reshape(8, 8).bfloat16()
    # Whole words: four bf16 each.
    swapped = matrix.reshape(16, 4)[[1, 0, *range(2, 16)]].reshape(8, 8)
    assert identical.checksum(swapped) != identical.checksum(matrix)


BIT_FLIP = '''
"""One bit of one product in twenty is wrong on one rank: below the workload, in torch.mm."""
import torch
from fixtures.workloads import identical, burnin
WORKLOAD = identical.WORKLOAD

def flip(rank, at):
    honest, done = torch.mm, []

    def mm(a, b, *, out):
        honest(a, b, out=out)
        done.append(1)
        if len(done) in at:
            out.view(torch.int16)[3, 5] ^= 1
        return out

    torch.mm = mm

def run(ranks, metrics, *, rank=1, at=(7,), workload="identical", **params):
    if ranks.rank == rank:
        flip(rank, at)
    return {"identical": identical, "burnin": burnin}[workload].run(ranks, metrics, **params)
'''


def test_healthy_ranks_get_identical_products(tmp_path: Path) -> None:
    job = Job(tmp_path, per_node=2)
    job.add("identical", ["products"])
    assert job.run() == [0, 0], job.output()
    record = job.record("identical")
    assert [rank.facts["like_devices"] for rank in record.ranks] == [2, 2]
    sums = {tuple(rank.facts["checksums"]) for rank in record.ranks}
    assert len(sums) == 1
    assert verdict_on("gemm.identical", record).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("ranks", "at", "value", "worst"),
    [(2, [7], 1, 1), (2, [1], 1, 1), (3, list(range(1, 21)), 20, 1), (1, [20], 1, 0)],
    ids=["one of two", "the first product", "always, of three", "alone"],
)
def test_a_bit_flip_names_the_device(
    tmp_path: Path, ranks: int, at: list[int], value: int, worst: int
) -> None:
    job = Job(tmp_path, per_node=ranks)
    (tmp_path / "flipped.py").write_text(BIT_FLIP, encoding="utf-8")
    job.add("flipped", ["products"], at=at, rank=worst)
    assert job.run() == [0] * ranks, job.output()
    verdict = verdict_on("gemm.identical", job.record("flipped"))
    assert (verdict.outcome, verdict.value) == (Outcome.FAIL, value)
    assert (verdict.worst["node"], verdict.worst["gpu"]) == ("worker0", worst)
    assert f"worker0-cpu{worst}" in verdict.next_step


def test_two_that_disagree_both_count_and_say_that_nobody_knows(tmp_path: Path) -> None:
    job = Job(tmp_path, per_node=2)
    (tmp_path / "flipped.py").write_text(BIT_FLIP, encoding="utf-8")
    job.add("flipped", ["products"], at=list(range(1, 21)))
    assert job.run() == [0, 0], job.output()
    record = job.record("flipped")
    assert [m.value for _, m in record.points("products", {})] == [20, 20]
    verdict = verdict_on("gemm.identical", record)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.notes == ["no majority: 2 results on 2 like devices"]


PLANTED = """

_honest_run = run

def run(ranks, metrics, **more):
    import torch
    honest, done = torch.mm, []

    def mm(a, b, *, out):
        honest(a, b, out=out)
        done.append(1)
        if ranks.node == "worker1" and ranks.local_rank == 1 and len(done) == 7:
            out.view(torch.int16)[3, 5] ^= 1
        return out

    torch.mm = mm
    try:
        return _honest_run(ranks, metrics, **more)
    finally:
        torch.mm = honest
"""


def test_a_bit_flip_in_one_product_is_red_on_its_node_and_in_the_cluster(
    shared_sandbox: Sandbox, tmp_path: Path
) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    copy_checkout(checkout)
    module = checkout / "fixtures" / "workloads" / "identical.py"
    with module.open("a", encoding="utf-8") as file:
        file.write(PLANTED)
    done = suite(checkout, tmp_path / "run", "tests/test_compute.py", "-k", "identical",
                 env=on(shared_sandbox))  # fmt: skip
    done.ended_as("REJECTED", 1)
    assert done.outcomes == {
        ("gemm.identical", "worker0"): "PASS", ("gemm.identical", "worker1"): "FAIL",
        ("gemm.identical.cluster", "cluster"): "FAIL",
    }  # fmt: skip
    for key in (("gemm.identical", "worker1"), ("gemm.identical.cluster", "cluster")):
        row = done.rows[key]
        assert row["value"] == 1
        assert (row["worst"]["node"], row["worst"]["gpu"]) == ("worker1", 1)
    assert (done.root / "bad-nodes.txt").read_text() == "worker1\n"


# --- the burn-in


@pytest.mark.parametrize(
    ("rates", "per_cent"),
    [([100.0] * 50, 100), ([100.0] * 10 + [98.0] * 40, 98), ([100.0] * 45 + [90.0] * 5, 90),
     ([50.0] * 2 + [100.0] * 48, 100), ([100.0, 80.0], 80)],
)  # fmt: skip
def test_the_ends_of_a_burnin_are_compared_by_their_medians(rates, per_cent):
    assert burnin.steadiness(rates) == pytest.approx(per_cent)


def test_a_burnin_holds_the_load_and_watches(tmp_path: Path) -> None:
    job = Job(tmp_path, per_node=2)
    job.add("burnin", ["bf16", "steadiness", "products"], seconds=1.5)
    assert job.run() == [0, 0], job.output()
    record = job.record("burnin")
    for rank in record.ranks:
        assert rank.facts["compared"] == 1 + rank.facts["stretches"] == 4
        found = {m.metric: m for m in rank.measurements}
        assert found["bf16"].checks["seconds"] > 1
        assert len(found["bf16"].samples) == len(found["bf16"].ended) > 10
    assert verdict_on("burnin.products", record).outcome is Outcome.PASS


def test_by_hand_a_burnin_may_last_longer_than_its_own_deadline(tmp_path: Path) -> None:
    """Here the other way round, which takes less time: its rank is ended at the given one."""
    command = [sys.executable, "-m", "fixtures.workloads", "burnin", "--cpu", "--out",
               str(tmp_path), "--param", "seconds=600", "--deadline", "3"]  # fmt: skip
    done = subprocess.run(command, cwd=CHECKOUT, env=clean_environment(), timeout=120)
    assert done.returncode != 0
    lines = list(read_lines(tmp_path / "jobs" / "burnin" / "rank0.jsonl"))
    (error,) = [line for line in lines if line["event"] == "error"]
    assert (error["kind"], error["workload"]) == ("hung", "burnin")


def test_a_bit_flip_in_a_burnin_names_the_device(tmp_path: Path) -> None:
    job = Job(tmp_path, per_node=2)
    (tmp_path / "flipped.py").write_text(BIT_FLIP, encoding="utf-8")
    # The first product is what the later ones are compared with.
    job.add("flipped", ["products"], workload="burnin", at=[1], seconds=1.0)
    assert job.run() == [0, 0], job.output()
    verdict = verdict_on("burnin.products", job.record("flipped"))
    assert (verdict.outcome, verdict.worst["gpu"]) == (Outcome.FAIL, 1)


@pytest.mark.parametrize(
    ("rises", "shares"),
    [((0, 0, 0), {"thermal": 0, "power_brake": 0}), ((1, 5, 2), {"thermal": 50, "power_brake": 20}),
     ((None, 5, 2), {"power_brake": 20}), ((0, 0, None), {"thermal": 0})],
)  # fmt: skip
def test_shares_of_time_come_from_the_counters_that_the_driver_has(rises, shares):
    names = ("sw_thermal_ns", "hw_thermal_ns", "power_brake_ns")
    known = {name: rise for name, rise in zip(names, rises, strict=True) if rise is not None}
    before = {"time": 100.0, "totals": dict.fromkeys(known, 10**9)}
    after = {"time": 110.0, "totals": {k: 10**9 + rise * 10**9 for k, rise in known.items()}}
    assert burnin._shares(before, after) == shares


# --- the search


def test_a_search_tries_a_hundred_shapes_at_most_and_measures_the_best_again(
    tmp_path: Path,
) -> None:
    gpu: Callable[[], Any] = type("Gpu", (), {"on_gpu": True})
    tried = gemm_search.shapes(gpu())
    assert len(set(tried)) == len(tried) <= 100
    job = Job(tmp_path, per_node=2)
    job.add("gemm_search", ["search", "cube"], soak_s=0.01)
    assert job.run() == [0, 0], job.output()
    record = job.record("gemm_search")
    for rank in record.ranks:
        found = {m.metric: m for m in rank.measurements}
        assert set(found) == {"search", "cube"}
        assert len(found["search"].samples) >= gemm_search.TURNS
        # 8192 cubed, or what stands for it, takes part whether it is among the best or not.
        assert len(rank.facts["finalists"]) in (gemm_search.FINALISTS, gemm_search.FINALISTS + 1)
        assert len(rank.facts["tried"]) == 8
    shapes = {only_note(rank.measurements) for rank in record.ranks}
    assert len(shapes) == 1, "all ranks measure the same shapes"


def only_note(measurements: list[Measurement]) -> str:
    (note,) = next(m.notes for m in measurements if m.metric == "cube")
    return note
