"""A rate that is measured once per node is judged like any rate: rounds, outliers, ceilings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fixtures import entry
from fixtures.cluster.population import Population
from fixtures.entry import Workload
from fixtures.errors import ConfigError
from fixtures.plan.items import Item
from fixtures.records.model import Measurement, Record
from fixtures.run.judge_item import judge_item
from fixtures.statistics.fleet_slots import NO_FLEET, Like
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.causes import Cause
from fixtures.verdict.model import Outcome, Verdict
from fixtures.verdict.outliers import of_fleet, sibling_values
from tests.selftests import small_thresholds, support

pytestmark = pytest.mark.cpu

LIMITS = """\
schema: 1
cluster: {}
criteria:
  scratch.write:
    title: The scratch disk of every node takes data at the agreed rate
    per: node
    over: nodes
    unit: GB/s
    ceiling: 7
    valid: {batches: [5, null]}
    spread: disk
    limits:
      - {expect: 5, fail_below: 4, source: datasheet}
spread:
  disk: {delta: 0.1, device_sigma: 0.02, run_sigma: 0.01, source: x}
"""
NODES = ("n0", "n1", "n2", "n3")


@pytest.fixture(scope="module")
def limits(tmp_path_factory: pytest.TempPathFactory) -> Thresholds:
    return small_thresholds.load(tmp_path_factory.mktemp("limits"), LIMITS)


def measured(*rounds: list[float]) -> Measurement:
    return Measurement(
        metric="write", unit="GB/s", samples=rounds[0], rounds=list(rounds[1:]),
        checks={"batches": float(len(rounds[0]))},
    )  # fmt: skip


def record_of(node: str, *by_rank: Measurement | None) -> Record:
    """A record of a node with 8 GPUs; usually its first rank alone has measured."""
    ranks = []
    for k in range(8):
        m = by_rank[k] if k < len(by_rank) else None
        rank = support.rank(k, node, gpus=8)
        ranks.append(dataclasses.replace(rank, measurements=[m] if m is not None else []))
    return support.record(*ranks, workload="scratch", placement=node)


def verdict_on(
    limits: Thresholds, record: Record, *, siblings: Like = NO_FLEET, node: str = "n1"
) -> Verdict:
    population = Population(origin="cluster", nodes=NODES, gpus_per_node=8, gpu_model="H200 SXM")
    item = Item(
        criterion="scratch.write", subject=node, nodes=(node,), workload="scratch", placement=node
    )
    return judge_item(item, record, thresholds=limits, population=population, siblings=siblings)


def test_of_several_rounds_the_fewest_batches_are_claimed(limits: Thresholds) -> None:
    """As repeat_rounds.worst_checks says it: a longer first round contradicts nothing."""
    found = measured([5.0] * 24, [5.0] * 21, [5.0] * 22)
    found.checks["batches"] = 21.0
    assert verdict_on(limits, record_of("n1", found)).outcome is Outcome.PASS
    found.checks["batches"] = 24.0
    verdict = verdict_on(limits, record_of("n1", found))
    assert verdict.reason == "n1: 21 samples of 24 batches"


def test_batches_outside_the_common_window_are_no_changed_record(limits: Thresholds) -> None:
    """Where too few lie in the window, the workload keeps all: too short, and nobody's forgery."""
    found = measured([5.0] * 24)
    found.checks["batches"] = 3.0
    verdict = verdict_on(limits, record_of("n1", found))
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason == "n1: batches is 3, a valid measurement has at least 5"
    assert verdict.cause is not Cause.RECORD


def test_one_value_per_node_is_the_whole_measurement(limits: Thresholds) -> None:
    verdict = verdict_on(limits, record_of("n1", measured([5.0] * 20)))
    assert (verdict.outcome, verdict.value) == (Outcome.PASS, 5.0)
    assert verdict.devices == {"planned": 1, "measured": 1}


def test_a_slow_disk_is_the_node_s_and_no_gpu_s(limits: Thresholds) -> None:
    verdict = verdict_on(limits, record_of("n1", measured([3.0] * 20)))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.worst == {
        "node": "n1", "gpu": None, "uuid": None, "part": "the node", "value": 3.0,
    }  # fmt: skip
    assert "gpu" not in verdict.line
    assert "compare it with the other nodes" in verdict.next_step


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (record_of("n1"), "the record holds no write"),
        (record_of("n1", measured([5.0] * 3)), "n1: batches is 3"),
        (record_of("n1", measured([7.5] * 20)), "above the physical ceiling of 7"),
        (record_of("n1", measured([5.0] * 9, [3.0] * 9, [5.0] * 9)), "unstable: n1 measured"),
        (record_of("n1", *[measured([5.0] * 20)] * 2), "2 ranks of n1 measured what one measures"),
        (record_of("n1", measured([5.0] * 19 + [float("nan")])), "a sample is not finite"),
    ],
    ids=["nothing", "too few batches", "above the ceiling", "rounds differ", "two ranks", "nan"],
)
def test_what_is_no_valid_rate_is_not_measured(
    limits: Thresholds, record: Record, says: str
) -> None:
    verdict = verdict_on(limits, record)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert says in verdict.reason


def test_a_disk_far_below_its_siblings_fails(limits: Thresholds) -> None:
    records = {n: record_of(n, measured([6.0 if n != "n1" else 5.0] * 20)) for n in NODES}
    values = [
        value
        for node in NODES
        for value in sibling_values(limits.criteria["scratch.write"], records[node], (node,), node)
    ]
    assert len(values) == len(NODES)
    siblings = of_fleet(limits.criteria["scratch.write"], values, limits)
    verdict = verdict_on(limits, records["n1"], siblings=siblings)
    assert verdict.outcome is Outcome.FAIL
    assert "the median of 4 like devices" in verdict.reason
    healthy = verdict_on(limits, records["n2"], siblings=siblings, node="n2")
    assert healthy.outcome is Outcome.PASS


def test_the_file_of_limits_takes_it_for_every_rate(tmp_path: Path) -> None:
    wrong = LIMITS.replace("over: nodes", "over: node")
    with pytest.raises(Exception, match="over 'node' is not known, did you mean 'nodes'"):
        small_thresholds.load(tmp_path, wrong)


def test_a_workload_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(workload: str) -> None:
        raise TypeError("metrics=('x',): expected a mapping, metric -> unit")

    monkeypatch.setattr(entry, "known", broken)
    with pytest.raises(ConfigError) as error:
        small_thresholds.load(tmp_path, f"{LIMITS}# a file that was not checked before\n")
    line = str(error.value)
    assert line.startswith("thresholds.yaml:4: criteria.scratch.write.measure: workload scratch")
    assert "TypeError: metrics=('x',)" in line


def test_metrics_without_units_are_refused() -> None:
    with pytest.raises(TypeError, match="expected a mapping, metric -> unit"):
        Workload(metrics=("x",), needs_torch=False, seconds=1, cpu_seconds=1, deadline_s=1)  # type: ignore[arg-type]
