"""A statistical burn-in: slices and failures of a run, judged by the plan of the order."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fixtures.errors import ConfigError
from fixtures.records.model import Record
from fixtures.records.run_directory import RunDirectory
from fixtures.run import burn_in, evidence, reader
from fixtures.run.devices_of_record import DeviceIndex
from fixtures.run.options import RunOptions
from fixtures.statistics import mtbf
from fixtures.statistics.mtbf import Decision
from fixtures.thresholds.contract import Contract
from reports.facts.power import lines
from tests.selftests import support
from tests.selftests.judged_runs import concluded

pytestmark = pytest.mark.cpu
NODES = [f"worker{k}" for k in range(8)]
NONCE = support.NONCE
SLICE = 720.0
"""Seconds: a slice on GPUs is ended after 900."""


def order(**more: Any) -> Contract:
    given = {"nodes": len(NODES), "gpus_per_node": 1, "gpu_model": "cpu", **more}
    return Contract.model_validate(given)


def slice_record(
    node: str, start: float, end: float, *, wrong: int = 0, attempt: int = 1,
    submitted: float | None = None,
) -> Record:  # fmt: skip
    """A slice on the two GPUs of a node; `submitted` is by the clock of the run's owner."""
    found = support.value("products", "products", wrong)
    ranks = [replace(support.rank(k, node, found), start=start, end=end) for k in (0, 1)]
    made = support.record(*ranks, workload="burnin", placement=node)
    job = {**made.job, "submitted": start if submitted is None else submitted}
    return replace(made, attempt=attempt, job=job)


def devices_of(directory: RunDirectory, **more: Any) -> DeviceIndex:
    directory.records.mkdir(parents=True, exist_ok=True)
    return DeviceIndex(directory, NONCE, **more)


def run_with_deaths(root: Path, mean_slices: float, slices: int, seed: int) -> DeviceIndex:
    """Slices on every node; a node dies at Poisson times and loses that slice."""
    rng = np.random.default_rng(seed)
    directory = RunDirectory(root)
    directory.records.mkdir(parents=True)
    directory.jobs.mkdir()
    missing = []
    killed = ("burnin", "burnin_memory")
    for node in NODES:
        attempt = 1
        for k in range(slices):
            start = k * SLICE
            death = rng.exponential(mean_slices) * SLICE
            if death < SLICE:
                for workload in killed:
                    missing.append({
                        "nonce": NONCE, "workload": workload, "placement": node,
                        "attempt": attempt, "kind": "node lost", "job": f"{node}{k}",
                        "time": start + death,
                    })  # fmt: skip
                continue
            support.save(slice_record(node, start, start + SLICE, attempt=attempt), directory)
            attempt += 1
    directory.missing.write_text("".join(json.dumps(line) + "\n" for line in missing))
    return devices_of(directory)


@pytest.mark.parametrize("mean_slices", [12.0, 100.0, 2000.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nodes_that_die_at_random_times_are_judged_as_the_plan_says(tmp_path, mean_slices, seed):
    slices, ordered = 72, order(mtbf_node_days=0.4)
    found = burn_in.read(run_with_deaths(tmp_path, mean_slices, slices, seed), NODES)
    plan = burn_in.plan_of(ordered)
    said = burn_in.judge(found, NODES, ordered)
    assert plan is not None
    assert said is not None
    deaths = sum(burn_in.FAILURES.issuperset({kind}) for _, _, kind in found.failures)
    assert deaths == len(found.failures)
    # By hand: what is survived is time of all nodes, up to each death.
    times = []
    for death, _, _ in found.failures:
        whole = sum(min(max(0.0, death - a), b - a) for _, a, b in found.slices)
        times.append(whole / 86400)
    decision, _, failures = plan.decide(times, found.days())
    assert (said["decision"], said["failures"]) == (decision, failures)
    if mean_slices != 100.0:
        assert decision is (Decision.REJECT if mean_slices < 100 else Decision.ACCEPT)


def test_a_job_that_ends_is_one_failure_and_a_cancelled_one_is_none(tmp_path):
    devices = run_with_deaths(tmp_path, 1e9, 2, 1)
    line = {"nonce": NONCE, "placement": "worker0", "attempt": 3, "job": "7", "time": 100.0}
    written = [
        {**line, "workload": "burnin", "kind": "rank hung"},
        {**line, "workload": "burnin_memory", "kind": "rank hung"},
        {**line, "workload": "burnin", "kind": "cancelled", "job": "8"},
        {**line, "workload": "inventory", "kind": "node lost", "job": "9"},
        {**line, "workload": "burnin", "kind": "node lost", "job": "10", "nonce": "other"},
    ]
    text = "".join(json.dumps(entry) + "\n" for entry in written)
    devices.directory.missing.write_text(text)
    found = burn_in.read(devices, NODES)
    assert [(node, kind) for _, node, kind in found.failures] == [("worker0", "rank hung")]
    assert found.days() == pytest.approx(len(NODES) * 2 * SLICE / 86400)


def test_a_wrong_result_is_a_failure_of_its_own_kind(tmp_path):
    devices = run_with_deaths(tmp_path, 1e9, 1, 1)
    support.save(slice_record("worker3", 0.0, SLICE, wrong=2), devices.directory)
    said = burn_in.judge(burn_in.read(devices, NODES), NODES, order())
    assert said is not None
    assert said["kinds"] == {burn_in.WRONG_RESULT: 1}
    assert said["sentence"].endswith("after 8 nodes x 0.2 h with 1 failure")


def test_without_an_order_the_bound_is_that_of_the_time_and_nothing_is_decided(tmp_path):
    said = burn_in.judge(burn_in.read(run_with_deaths(tmp_path, 1e9, 30, 1), NODES), NODES, order())
    assert said is not None
    assert said["decision"] == ""
    assert said["bound_days"] == pytest.approx(mtbf.lower_bound(2.0, 0, 0.9), rel=1e-4)


def test_an_ordered_mtbf_without_any_burn_in_is_not_accepted(tmp_path):
    said = burn_in.judge(burn_in.BurnIn(), NODES, order(mtbf_node_days=2.0))
    assert said is not None
    assert said["decision"] == "go on"
    dead = burn_in.BurnIn([], [(1.0, "worker0", "node lost")])
    said = burn_in.judge(dead, NODES, order(mtbf_node_days=2.0))
    assert said is not None
    assert said["decision"] == "go on"


@pytest.mark.parametrize(
    ("decision", "verdict"),
    [("accept", "PARTIAL"), ("go on", "INCOMPLETE"), ("reject", "REJECTED"), ("", "PARTIAL")],
)
def test_the_plan_decides_on_the_run(decision, verdict):
    from fixtures.verdict.model import Outcome, Verdict

    row = Verdict(criterion="c", title="", subject="s", outcome=Outcome.PASS)
    said = {"decision": decision, "ordered_days": 30.0, "sentence": "MTBF of a node >= 5 days"}
    found = concluded([row], whole_scope=False, mtbf=said)
    assert found.verdict == verdict
    assert found.basis["mtbf"] == said


@pytest.mark.parametrize(
    "given",
    [{"mtbf_customer_risk": 0.1}, {"mtbf_node_days": 30, "mtbf_design_days": 40},
     {"mtbf_node_days": 30, "mtbf_supplier_risk": 0.6}, {"mtbf_node_days": 0}],
)  # fmt: skip
def test_an_order_that_cannot_be_tested_is_refused(given):
    with pytest.raises(ValidationError):
        order(**given)


@pytest.mark.parametrize("risk", [0.05, 0.4])
def test_every_order_that_is_taken_has_a_plan(risk):
    plan = burn_in.plan_of(order(
        mtbf_node_days=10, mtbf_design_days=15, mtbf_customer_risk=risk, mtbf_supplier_risk=risk
    ))  # fmt: skip
    assert plan is not None
    assert plan.accepts(10) <= risk


def test_a_run_is_burnt_in_again_until_its_hours_are_reached(tmp_path):
    """Every session adds a slice, as a further attempt, to nodes that have not reached them."""
    run = tmp_path / "run"
    common = ("-q", "-k", "burnin.products")
    first = support.run_pytest(
        "--cluster", "local", "--tier", "burnin", f"--run-dir={run}", *common
    )
    assert (run / "verdict.json").exists(), first.stdout + first.stderr
    records = sorted(path.name for path in (run / "records").glob("burnin@*"))
    assert len(records) == 1
    support.run_pytest("--cluster", "local", f"--resume={run}", "--hours=0.0001", *common)
    assert sorted(path.name for path in (run / "records").glob("burnin@*")) == records
    again = support.run_pytest("--cluster", "local", f"--resume={run}", "--hours=1", *common)
    names = sorted(path.name for path in (run / "records").glob("burnin@*"))
    assert len(names) == 2, again.stdout + again.stderr
    assert any("attempt2" in name for name in names)
    verdict = json.loads((run / "verdict.json").read_text())
    said = verdict["basis"]["mtbf"]
    assert said["failures"] == 0
    stated = json.loads((run / "run.json").read_text())
    devices = reader.devices_of(RunDirectory(run), stated)
    both = burn_in.read(devices, stated["population"]["nodes"])
    assert len(both.slices) == 2
    assert said["node_days"] == pytest.approx(both.days(), rel=1e-4)
    assert next(row["from"] for row in lines(verdict)).endswith("none may be faulty")


def test_the_loads_take_turns(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.records.mkdir(parents=True)
    planned = [(workload, "worker0") for workload in sorted(burn_in.BURN_IN)]
    seen = []
    for _ in range(2 * len(burn_in.LOADS)):
        chosen = burn_in.slices_to_add(directory, burn_in.BurnIn(), planned, 1.0)
        seen.append(frozenset(workload for workload, _ in chosen))
        for key in chosen:
            attempt = directory.latest_attempt(*key) + 1
            directory.record(*key, attempt).write_text("{}")
    assert seen == 2 * [frozenset(load) for load in burn_in.LOADS]
    enough = burn_in.BurnIn([("worker0", 0.0, 3600.0)])
    assert burn_in.slices_to_add(directory, enough, planned, 1.0) == set()


def test_the_plan_says_what_hours_can_prove(tmp_path):
    run = support.run_pytest(
        "--cluster", "local", "--tier", "burnin", "--hours", "72", "--plan", "-q"
    )
    assert "MTBF of a node >= 1.3 days at 90 % after 1 node x 72 h with 0 failures" in run.stdout


def test_hours_are_of_the_tier_burnin(tmp_path):
    options = RunOptions(cluster="local", hours=72, run_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match="--hours is a positive number, and of --tier burnin"):
        support.opened(options)


# --- what counts, and how sure the bound is


def test_only_records_of_this_run_on_these_nodes_are_slices(tmp_path):
    devices = devices_of(RunDirectory(tmp_path))
    good = slice_record("worker0", 0.0, SLICE, wrong=1)
    support.save(good, devices.directory)
    support.save(replace(good, nonce="other", attempt=2), devices.directory)
    support.save(replace(good, placement="gone", attempt=3), devices.directory)
    support.save(replace(good, attempt=4), devices.directory, name="burnin@worker0.attempt5.json")
    found = burn_in.read(devices, ["worker0"])
    assert found.slices == [("worker0", 0.0, SLICE)]
    assert {kind for _, _, kind in found.failures} == {burn_in.WRONG_RESULT}, "one wrong product"


@pytest.mark.parametrize("loaded", [NODES[1:], NODES[:4], NODES[:1]])
def test_nodes_without_a_slice_that_counts_are_named(loaded):
    done = burn_in.BurnIn([(node, 0.0, 3600.0) for node in loaded])
    said = burn_in.judge(done, NODES, order())
    assert said is not None
    assert f"; no burn-in of {next(n for n in NODES if n not in loaded)}" in said["sentence"]
    whole = burn_in.judge(burn_in.BurnIn([(n, 0.0, 1.0) for n in NODES]), NODES, order())
    assert whole is not None
    assert "no burn-in of" not in whole["sentence"]


def test_each_record_is_read_once_also_those_of_wrong_results(tmp_path, records_read, monkeypatch):
    devices = devices_of(RunDirectory(tmp_path))
    for k in range(1, 4):
        made = slice_record("worker0", 2 * SLICE * k, 2 * SLICE * k + SLICE, attempt=k, wrong=k % 2)
        support.save(made, devices.directory)
    monkeypatch.setattr(burn_in, "read_json", evidence.read_record)
    found = burn_in.read(devices, ["worker0"])
    assert (len(found.slices), len(found.failures)) == (3, 2)
    assert sorted(records_read) == sorted(set(records_read)), "each once"


@pytest.mark.parametrize("change", ["rank", "device", "attempt"])
def test_a_wrong_result_in_a_record_that_does_not_count_is_a_failure(tmp_path, change):
    devices = devices_of(RunDirectory(tmp_path))
    made = slice_record("worker0", 0.0, SLICE, wrong=1)
    data = made.to_json()
    if change == "rank":
        data["ranks"][0]["start"] = "early"
    elif change == "device":
        data["ranks"][0]["device"] = 5
    else:
        data["attempt"] = 7
    devices.directory.record("burnin", "worker0").write_text(json.dumps(data))
    found = burn_in.read(devices, ["worker0"])
    assert (found.slices, [kind for _, _, kind in found.failures]) == ([], ["wrong result"])


# --- whose time it is


CREATED, ENDED = 1_795_000_000.0, 1_795_001_800.0
"""A run of half an hour."""
INVENTORY = support.record(*(support.rank(k, "worker0") for k in (0, 1)), workload="inventory")


def hours(directory: RunDirectory, *slices: Record, clock: float = 0.0) -> float:
    """Burn-in hours of worker0, whose inventory is by a clock that is ahead by `clock`."""
    directory.records.mkdir(parents=True)
    at = CREATED + 10 + clock
    ranks = [replace(rank, start=at, end=at + 5) for rank in INVENTORY.ranks]
    support.save(replace(INVENTORY, ranks=ranks), directory)
    for one in slices:
        support.save(one, directory)
    found = burn_in.read(devices_of(directory, created=CREATED, ended=ENDED), ["worker0"], ENDED)
    return found.hours_of("worker0")


def began(after: float, *, runs: float = SLICE, clock: float = 0.0, attempt: int = 1) -> Record:
    """A slice that is submitted so many seconds after the run was created; `clock`: ahead by."""
    start = CREATED + after + clock
    return slice_record("worker0", start + 5, start + 5 + runs, attempt=attempt,
                        submitted=CREATED + after)  # fmt: skip


@pytest.mark.parametrize(
    "stepped",
    [{"runs": 30 * 86400.0}, {"runs": 1500.0}, {"runs": 899.0, "after": 1795.0}, {"runs": -60.0}],
    ids=["30 days", "longer than its job may run", "longer than the run", "backwards"],
)
def test_a_slice_whose_clock_was_set_meanwhile_counts_nothing(tmp_path, stepped):
    after = stepped.pop("after", 60.0)
    assert hours(RunDirectory(tmp_path / "run"), began(after, **stepped)) == 0.0


@pytest.mark.parametrize("copies", [2, 3, 40])
def test_copies_of_a_slice_are_one(tmp_path, copies):
    slices = [replace(began(60.0), attempt=k + 1) for k in range(copies)]
    assert hours(RunDirectory(tmp_path / "run"), *slices) == pytest.approx(SLICE / 3600)


def test_slices_of_gpus_that_the_node_does_not_have_count_nothing(tmp_path):
    good = began(60.0)
    for name, uuids in (("one", ["GPU-x", "GPU-worker0-1"]), ("all", ["GPU-x", "GPU-y"]),
                        ("twice", ["GPU-worker0-0", "GPU-worker0-0"])):  # fmt: skip
        ranks = [replace(rank, device={**rank.device, "uuid": uuid})
                 for rank, uuid in zip(good.ranks, uuids, strict=True)]  # fmt: skip
        assert hours(RunDirectory(tmp_path / name), replace(good, ranks=ranks)) == 0.0


@pytest.mark.parametrize("clock", [-80_000.0, -40.0, 0.0, 40.0, 80_000.0])
def test_the_time_of_a_node_is_by_the_owners_clock(tmp_path, clock):
    slices = [began(30.0, clock=clock), began(900.0, clock=clock, attempt=2)]
    done = hours(RunDirectory(tmp_path / "run"), *slices, clock=clock)
    assert done == pytest.approx(2 * SLICE / 3600)


def test_a_slice_ends_before_the_next_job_of_its_node_is_submitted(tmp_path):
    """Slices that overlap are of another clock, or are not slices: neither is time twice."""
    slices = [began(30.0), began(60.0, attempt=2), began(90.0, attempt=3)]
    assert hours(RunDirectory(tmp_path / "run"), *slices) <= SLICE / 3600


def test_without_nodes_or_any_burn_in_nothing_is_said():
    done = burn_in.BurnIn([("worker0", 0.0, 3600.0)])
    assert burn_in.judge(done, [], order()) is None
    assert burn_in.judge(burn_in.BurnIn(), [], order(mtbf_node_days=2.0)) is None
    assert burn_in.judge(burn_in.BurnIn(), NODES, order()) is None
    assert burn_in.judge(burn_in.BurnIn(), NODES, None) is None


def test_the_bound_is_as_sure_as_the_order_asks_for_or_nine_in_ten():
    assert burn_in.confidence_of(None) == 0.9
    assert burn_in.confidence_of(order(mtbf_node_days=2.0, mtbf_customer_risk=0.2)) == 0.8
    (of_hours, *_) = burn_in.plan_lines(NODES, None, 72)
    assert of_hours.startswith("burn-in  MTBF of a node")
    assert "90 % after 8 nodes x 72 h" in of_hours
    # One slice on GPUs takes 13 minutes.
    (of_slice, *_) = burn_in.plan_lines(NODES, None, None)
    assert "8 nodes x 0.2167 h" in of_slice
