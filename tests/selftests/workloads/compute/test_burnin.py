"""The burn-in of a GPU: its ramps, its steadiness, and how long it lasts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.files import read_lines
from fixtures.verdict.model import Outcome
from fixtures.workloads.compute import burnin
from fixtures.workloads.devices.known import Known
from fixtures.workloads.timing.timing import Batches
from tests.selftests.gemm_judging import verdict_on
from tests.selftests.rank_job import TORCH, Job, clean_environment
from tests.selftests.support import CHECKOUT

pytestmark = pytest.mark.cpu


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
    assert job.run(warm=TORCH) == [0, 0], job.output()
    record = job.record("burnin")
    for rank in record.ranks:
        # After each stretch, and again after its ramps.
        assert rank.facts["stretches"] == 2  # by what was asked for, not by the host's speed
        assert rank.facts["compared"] == 1 + 2 * rank.facts["stretches"]
        assert rank.facts["ramps"] == burnin.RAMPS * rank.facts["stretches"]
        found = {m.metric: m for m in rank.measurements}
        rates = found["bf16"]
        assert 0 < rates.checks["seconds"] <= rank.end - rank.start  # a busy host loads for less
        # How many batches there are is the host's speed. Each has a sample, of both stretches.
        batches = max(rank.facts["stretches"], rates.checks["batches"])
        assert len(rates.samples) == len(rates.ended) >= batches
        assert rates.ended == sorted(rates.ended)
    assert verdict_on("burnin.products", record).outcome is Outcome.PASS
    # On a busy host there are fewer batches, and the rates are not steady.
    enough = {"overlap": 1.0, "batches": 77.0}
    ranks = [
        replace(rank, measurements=[
            replace(m, value=99.0, checks={**m.checks, **enough}) for m in rank.measurements
            if m.metric == "steadiness"
        ])
        for rank in record.ranks
    ]  # fmt: skip
    found = verdict_on("burnin.steadiness", replace(record, ranks=ranks))
    assert found.outcome is Outcome.PASS, found.line


def test_all_ranks_of_a_node_go_from_idle_to_full_together(monkeypatch) -> None:
    events: list[str] = []
    ranks = SimpleNamespace(barrier=lambda: events.append("together"))
    monkeypatch.setattr(burnin.timing, "synchronize", lambda ranks: events.append("done"))
    monkeypatch.setattr(burnin.time, "sleep", lambda seconds: events.append(f"idle {seconds}"))
    monkeypatch.setattr(
        burnin.timing, "warm", lambda ranks, launch, seconds: events.append(f"full {seconds}")
    )
    burnin._ramp(ranks, lambda: None, 1.0)
    assert events == burnin.RAMPS * ["done", "together", "idle 1.0", "together", "full 1.0"]


def test_by_hand_a_burnin_may_last_longer_than_its_own_deadline(tmp_path: Path) -> None:
    """Here the other way round, which takes less time: its rank is ended at the given one."""
    command = [sys.executable, "-m", "fixtures.workloads", "burnin", "--cpu", "--out",
               str(tmp_path), "--param", "seconds=600", "--deadline", "3"]  # fmt: skip
    done = subprocess.run(command, cwd=CHECKOUT, env=clean_environment(), timeout=900)
    assert done.returncode != 0
    lines = list(read_lines(tmp_path / "jobs" / "burnin" / "rank0.jsonl"))
    (error,) = [line for line in lines if line["event"] == "error"]
    assert (error["kind"], error["workload"]) == ("hung", "burnin")


# --- stretches


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the workload on nothing; returns the measurements by metric, facts and what it did."""
    seen = SimpleNamespace(ramps=[], windows=[], edge=0)

    class FakeProduct:
        flops, c = 2e12, None

        def __init__(self, ranks: Any, dtype: str, shape: Any) -> None:
            seen.edge = shape[0]

        def launch(self) -> None:
            pass

        def check(self) -> Any:
            return {"operand_std": 1.0}, {"a": 1}

    def together(ranks: Any, launch: Any, *, window_s: float, **how: Any) -> Batches:
        seen.windows.append(window_s)
        return Batches(
            seconds=[1.0, 2.0], started=10.0, ended=[11.0, 13.0], launches=1,
            wall_over_marks=1.0, overlap=0.9, inside=2,
        )  # fmt: skip

    monkeypatch.setattr(burnin, "MatMul", FakeProduct)
    monkeypatch.setattr(burnin.timing, "warm", lambda ranks, launch, seconds: 0.1)
    monkeypatch.setattr(burnin.timing, "measure_together", together)
    monkeypatch.setattr(burnin, "_counters", lambda ranks: {})
    monkeypatch.setattr(burnin, "conditions", lambda ranks, dtype: {"dtype": dtype})
    monkeypatch.setattr(burnin, "_ramp", lambda ranks, launch, half: seen.ramps.append(half))
    throttling = SimpleNamespace(measurements={"thermal": "thermal"}, absent=lambda metrics: [])
    monkeypatch.setattr(burnin, "_throttling", lambda *given: throttling)

    def start(metrics: list[str], *, on_gpu: bool = False, flip_at: int = -1, **how: Any) -> Any:
        seen.ramps.clear()
        seen.windows.clear()
        count = iter(range(1000))
        monkeypatch.setattr(burnin, "checksum", lambda c: 8 if next(count) == flip_at else 7)
        ranks: Any = SimpleNamespace(on_gpu=on_gpu)
        result = burnin.run(ranks, metrics, **how)
        return result.measurements, result.facts, seen

    return start


@pytest.mark.parametrize(
    ("on_gpu", "how", "stretches", "window_s", "half_s", "edge"),
    [
        (True, {}, 17, 30.0, 1.0, 8192),  # ten minutes: of 36 s each, ramps included
        (False, {}, 4, 0.5, 0.03, 256), (True, {"seconds": 72.0}, 2, 30.0, 1.0, 8192),
        (False, {"seconds": 0.1, "size": 64}, 1, 0.5, 0.03, 64),
    ],
)  # fmt: skip
def test_a_burnin_has_stretches_of_load_and_ramps_between(
    on_gpu, how, stretches, window_s, half_s, edge, started
):
    _, facts, seen = started(["bf16"], on_gpu=on_gpu, **how)
    assert seen.windows == [window_s] * stretches
    assert seen.ramps == [half_s] * stretches
    assert (facts["stretches"], facts["ramps"]) == (stretches, 3 * stretches)
    assert (facts["size"], seen.edge, facts["compared"]) == (edge, edge, 1 + 2 * stretches)


def test_products_that_differ_from_the_first_are_counted(started):
    (products,), _, _ = started(["products"])
    assert (products.value, products.notes, products.checks) == (0, [], {"compared": 9.0})
    (products,), _, _ = started(["products"], flip_at=4)
    assert (products.value, products.notes) == (1, ["1 of 9 products differ from the first"])
    rate, steady, thermal = started(["bf16", "steadiness", "thermal", "power_brake"])[0]
    assert (rate.samples[:2], rate.checks["overlap"], rate.checks["batches"]) == ([2, 1], 0.9, 8.0)
    assert (steady.metric, thermal) == ("steadiness", "thermal")


@pytest.mark.parametrize(
    ("library", "handle", "found"),
    [
        ("nvml", "handle", "read"),
        (None, "handle", False),
        ("nvml", None, True),
        (None, None, False),
    ],
)
def test_counters_are_read_where_there_is_a_driver_and_a_gpu(library, handle, found, monkeypatch):
    monkeypatch.setattr(burnin.devices, "nvml", lambda: library)
    monkeypatch.setattr(burnin.devices, "gpu_handle", lambda rank: (handle, "no GPU"))
    monkeypatch.setattr(burnin.gpu_counters, "read", lambda library, handle: "read")
    monkeypatch.setattr(burnin.gpu_counters, "unread", lambda missing: missing)
    ranks: Any = SimpleNamespace(local_rank=0)
    counters: Any = burnin._counters(ranks)
    assert (counters if found == "read" else counters.of_node) == found


def test_throttling_is_told_for_each_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(burnin.devices, "nvml_facts_of_rank", lambda rank: {"uuid": "GPU-1"})
    monkeypatch.setattr(burnin.gpu_samples, "recorded", lambda path, uuid, *clocks: uuid)
    monkeypatch.setattr(burnin.gpu_samples, "throttled", lambda name, *given: Known(2.5))
    ranks: Any = SimpleNamespace(local_rank=0, directory=tmp_path, node="worker0")
    reading: Any = {"clock": 0.0}
    found = burnin._throttling(ranks, reading, reading)
    assert set(found.measurements) == set(burnin.gpu_samples.THROTTLING)
