"""The burn-in of a GPU: its ramps, its steadiness, and how long it lasts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures.records.files import read_lines
from fixtures.verdict.model import Outcome
from fixtures.workloads.compute import burnin
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
        assert rank.facts["compared"] == 1 + 2 * rank.facts["stretches"] == 5
        assert rank.facts["ramps"] == burnin.RAMPS * rank.facts["stretches"]
        found = {m.metric: m for m in rank.measurements}
        assert found["bf16"].checks["seconds"] > 1
        assert len(found["bf16"].samples) == len(found["bf16"].ended) > rank.facts["compared"]
    assert verdict_on("burnin.products", record).outcome is Outcome.PASS


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
    done = subprocess.run(command, cwd=CHECKOUT, env=clean_environment(), timeout=120)
    assert done.returncode != 0
    lines = list(read_lines(tmp_path / "jobs" / "burnin" / "rank0.jsonl"))
    (error,) = [line for line in lines if line["event"] == "error"]
    assert (error["kind"], error["workload"]) == ("hung", "burnin")
