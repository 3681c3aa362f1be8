"""Any change of one measurement of a recorded run is noticed, or the changed value is a good one.

The property, the changes and what may pass: mutations.py. `make soak` draws ten times as many.
"""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.selftests.mutations import CHANGES, Mutated, Target
from tests.selftests.support import DATA

pytestmark = pytest.mark.cpu

RUNS = ("h200-1x4", "h200-2x2", "h200-2x2-scaling", "sandbox-2x2-cpu")
"""Whole runs, whose devices an inventory names; and one that has records over two nodes only."""
WHOLE = 50
UNJUDGED = {
    # points of a curve, below the sizes from which on it is judged
    "allreduce.busbw", "allreduce.latency", "allgather.busbw", "reducescatter.busbw",
    "alltoall.busbw", "broadcast.busbw", "sendrecv.busbw", "allreduce_ring.busbw",
    "allreduce.graph_latency",
    # a second look at both ends of a fall, which counts where it is the smaller one (dip)
    "allreduce.busbw_again", "allgather.busbw_again", "reducescatter.busbw_again",
    # beside the judged rate of the same training
    "training_fsdp.mfu_half", "training_fsdp.sharded",
}  # fmt: skip
"""Measurements that no criterion is about; of all others one says at least `recorded:`."""


@pytest.fixture(scope="module")
def mutated(tmp_path_factory):
    @cache
    def load(run: str) -> tuple[Mutated, tuple[Target, ...]]:
        loaded = Mutated(DATA / run, tmp_path_factory.mktemp(run) / "run")
        return loaded, tuple(loaded.targets())

    return load


@pytest.mark.parametrize("drawn", [500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_a_changed_measurement_does_not_pass_unnoticed(drawn, mutated):
    @settings(
        max_examples=drawn, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def check(data):
        run, targets = mutated(data.draw(st.sampled_from(RUNS)))
        target = data.draw(st.sampled_from(targets))
        kind = data.draw(st.sampled_from(sorted(CHANGES)))
        assert run.survives(target, kind) == []

    check()


def test_judged_whole_a_changed_run_comes_to_the_same(mutated):
    """The rows that read the record, judged again, are what the whole run would have there."""

    @settings(
        max_examples=WHOLE, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def check(data):
        run, targets = mutated(data.draw(st.sampled_from(RUNS)))
        target = data.draw(st.sampled_from(targets))
        kind = data.draw(st.sampled_from(sorted(CHANGES)))
        readers = run.readers(target)
        if not run.change(target, kind):
            return
        try:
            whole = run.judge(run.run.scope)
            assert {k: v.outcome for k, v in run.judge(readers).items()} == {
                item.key: whole[item.key].outcome for item in readers
            }
        finally:
            run.restore()

    check()


@pytest.mark.parametrize("metric", ["bf16", "fp16", "tf32", "fp32", "fp8"])
def test_a_fast_and_wrong_product_is_not_measured(metric, mutated):
    run, targets = mutated("h200-1x4")
    of_metric = [t for t in targets if run.measurement(t)["metric"] == metric]
    target = next(t for t in of_metric if t.record == "gemm@node0.json")

    def wrong(ranks, target):
        checks = ranks[target.rank]["measurements"][target.measurement]["checks"]
        checks["relative_error"] = 10.0
        return True

    assert run.apply(target, wrong)
    try:
        row = run.judge(run.readers(target))[f"gemm.{metric}", "node0"]
    finally:
        run.restore()
    assert row.outcome.name == "NOT_MEASURED"
    assert "relative_error is 10" in row.reason


@pytest.mark.parametrize("run", RUNS)
def test_what_nobody_judges_is_declared(run, mutated):
    loaded, targets = mutated(run)
    unread = {
        f"{target.record.partition('@')[0]}.{loaded.measurement(target)['metric']}"
        for target in targets
        if not loaded.is_read(target)
    }
    assert unread <= UNJUDGED
