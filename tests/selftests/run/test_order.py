"""What was to be measured follows from order and evidence: run.json is only compared."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fixtures.cluster.population import contract_json
from fixtures.errors import ConfigError
from fixtures.plan.items import planned_list
from fixtures.records.files import append_line
from fixtures.run import order as module
from fixtures.thresholds import loader
from fixtures.thresholds.contract import Contract
from fixtures.thresholds.order import order_of
from tests.selftests.run.small_run import PEOPLE, TEXT
from tests.selftests.support import NONCE, SHIPPED, load, run_directory

pytestmark = pytest.mark.cpu

ORDERED = replace(PEOPLE, ordered=True, installed=())


@pytest.fixture
def source(tmp_path):
    return run_directory(tmp_path / "source")


@pytest.fixture
def limits(tmp_path):
    return load(tmp_path, TEXT)


def derived(source, limits, *, measured=(), origin="cluster", **said: Any):
    people = {**ORDERED.to_json(), **said}
    run = {"origin": origin, "contract": contract_json(limits.cluster), "population": people}
    return module.derive(run, order_of(limits, run), source, NONCE, measured)


def test_a_run_as_ordered_differs_in_nothing(source, limits):
    found = derived(source, limits)
    assert found.differences == ()
    assert found.population == ORDERED


@pytest.mark.parametrize(
    "said",
    [
        {"gpus_per_node": 1}, {"nics_per_node": 4}, {"nvls": True}, {"shared_directory": True},
        {"ordered": False}, {"emulated": True},
        {"light": True}, {"gpu_model": "H100 SXM"}, {"shared_tb": 5}, {"nic_fabric": "EFA"},
        {"rail_optimized": True}, {"bindable": False}, {"memory_control": False},
    ],
    ids=lambda said: next(iter(said)),
)  # fmt: skip
def test_the_nodes_are_those_of_the_order_and_what_differs_is_said(source, limits, said):
    found = derived(source, limits, **said)
    (name,) = said
    assert found.population == ORDERED
    assert found.differences == (
        f"run.json says of its nodes {name} {said[name]!r}, where its order means "
        f"{getattr(ORDERED, name)!r}",
    )


def test_an_origin_that_differs_from_that_of_the_nodes_is_said(source, limits):
    (line,) = derived(source, limits, origin="local").differences
    assert line == "run.json says of its origin 'local' and, of its nodes, 'cluster'"
    assert derived(source, limits, origin="replay").differences == ()


def test_virtual_nodes_are_as_their_run_says(source, limits):
    sandbox = {"origin": "sandbox", "bindable": False, "population": {}}
    people = {**ORDERED.to_json(), "origin": "sandbox", "bindable": False}
    run = {**sandbox, "contract": contract_json(limits.cluster), "population": people}
    found = module.derive(run, order_of(limits, run), source, NONCE, ())
    assert (found.population.bindable, found.differences) == (False, ())


def test_a_population_that_cannot_be_read_is_refused():
    for people in ({}, {"gpu_model": None}, None):
        with pytest.raises(ConfigError, match="there: population: "):
            module.stated_population({"population": people}, "there")


def test_a_run_without_an_order_has_ordered_nothing():
    assert module.as_ordered(ORDERED, None).ordered is False
    by_hand = replace(ORDERED, origin="by-hand")
    assert module.as_ordered(by_hand, Contract(nodes=1, gpus_per_node=1, gpu_model="cpu")) is (
        by_hand
    )


# --- installed


def test_what_records_show_was_installed(source):
    limits = loader.load(SHIPPED)
    name = "training_finetune"
    assert module.installed_by({name}, limits) == ("finetune", "zero3")
    assert module.is_shown("zero3", source, limits, set()) is False
    path = source.records / f"{name}@n1.json"
    path.write_text(json.dumps({"metric": "loss"}))
    assert module.is_shown("finetune", source, limits, {name}) is True, "nothing else needs less"
    assert module.is_shown("zero3", source, limits, {name}) is False
    path.write_text(json.dumps({"metric": "zero3_loss"}))
    assert module.is_shown("zero3", source, limits, {name}) is True


def test_what_records_show_beyond_run_json_is_said(source, limits, monkeypatch):
    monkeypatch.setattr(module, "is_shown", lambda fact, *_: fact == "zero3")
    found = derived(source, limits, installed=["finetune"])
    assert found.population.installed == ("finetune", "zero3")
    assert "does not say that zero3 was installed" in found.differences[0]
    assert derived(source, limits, installed=["zero3"]).differences == ()


@pytest.mark.parametrize(
    ("said", "workload", "metric"),
    [
        ({"bindable": False}, "binding", "cpus"),
        ({"bindable": False}, "binding", "numa"),
        ({"memory_control": False}, "memory_limit", "limit"),
        ({"light": True}, "tenant", "processes_left"),
        ({"whole_nodes": True}, "isolation", "shared"),
    ],
)
def test_virtual_nodes_are_not_released_from_what_their_records_have(
    source, said, workload, metric
):
    limits = replace(loader.load(SHIPPED), cluster=None)
    people = {**ORDERED.to_json(), "origin": "sandbox", "ordered": False, **said}
    (field,) = said
    run = {"origin": "sandbox", "contract": None, "population": people}
    order = order_of(limits, run)
    assert getattr(module.derive(run, order, source, NONCE, ()).population, field) is said[field]
    needed = [
        c.metric
        for c in limits.criteria.values()
        if c.workload == workload
        and {f for f, (name, _) in module.WORDS.items() if name == field} & {*c.when}
    ]
    assert needed
    metric = metric if metric in needed else needed[0]
    (source.records / f"{workload}@n1.json").write_text(json.dumps({"metric": metric}))
    found = module.derive(run, order, source, NONCE, {workload})
    assert getattr(found.population, field) is not said[field]
    assert f"run.json says of its nodes {field} {said[field]}, and records" in found.differences[-1]


def test_whatever_a_run_left_is_of_a_workload(source):
    assert module.workloads_of(source, NONCE, {("d", "n")}) == {"d"}
    (source.records / "a@n.json").touch()
    append_line(source.missing, {"workload": "b", "nonce": NONCE})
    append_line(source.missing, {"workload": "c", "nonce": "another"})
    assert module.workloads_of(source, NONCE, ()) == {"a", "b"}


# --- what Slurm said


def test_slurm_s_own_answer_decides_whether_nodes_are_shared(source, limits):
    record = {"nonce": NONCE, "ranks": [{"facts": {"partition": {"OverSubscribe": "NO"}}}]}
    assert derived(source, limits, whole_nodes=True).population.whole_nodes is True
    path = source.record("slurm", "login", 1)
    path.write_text(json.dumps(record))
    found = derived(source, limits, whole_nodes=True)
    assert found.population.whole_nodes is False
    assert "Slurm's own answer" in found.differences[0]
    record["ranks"][0]["facts"]["partition"]["OverSubscribe"] = "EXCLUSIVE"
    path.write_text(json.dumps(record))
    assert derived(source, limits, whole_nodes=True).differences == ()
    of_slurm = record["ranks"][0]["facts"]["partition"]
    of_slurm |= {"OverSubscribe": "NO", "SelectType": "select/linear"}
    path.write_text(json.dumps(record))
    assert derived(source, limits, whole_nodes=True).differences == (), "as the run itself had it"
    path.write_text(json.dumps({**record, "nonce": "another"}))
    assert module.answer_of_slurm(source, NONCE) == {}


@pytest.mark.parametrize(
    ("select", "sharing", "gpus", "linear", "uncounted"),
    [
        ("select/linear", "NO", 8, True, False),
        ("select/linear", "NO", 0, True, True),
        ("select/cons_tres", "EXCLUSIVE", 0, False, True),
        ("select/cons_tres", "EXCLUSIVE", 8, False, False),
        ("select/cons_tres", "NO", 0, False, False),  # two jobs would share GPUs
    ],
)
def test_slurm_s_own_answer_decides_whether_it_gives_out_gpus(
    source, limits, select, sharing, gpus, linear, uncounted
):
    said = {"SelectType": select, "OverSubscribe": sharing}
    facts = [{"partition": said}, {"gpus": 0}, {"gpus": gpus}]
    record = {"nonce": NONCE, "ranks": [{"facts": one} for one in facts]}
    source.record("slurm", "login", 1).write_text(json.dumps(record))
    found = derived(source, limits, linear=True, uncounted=True)
    assert (found.population.linear, found.population.uncounted) == (linear, uncounted)
    assert len(found.differences) == 2 - linear - uncounted
    assert all("Slurm's own answer in slurm@login does not" in n for n in found.differences)


# --- the plan


def test_a_row_is_not_released_while_records_of_its_workload_lie_there(limits):
    items = planned_list(limits, ORDERED)
    away = [replace(i, not_applicable="no") if i.workload == "gemm" else i for i in items]
    assert module.planned_again(away, limits, {"allreduce"}, "cluster") == (away, ())
    found, lines = module.planned_again(away, limits, {"gemm"}, "cluster")
    assert all(i.not_applicable is None for i in found if i.workload == "gemm")
    assert lines == ("records of gemm lie there, and the plan of run.json has no such rows",)
    assert module.planned_again(away, limits, {"gemm"}, "sandbox") == (away, ())
    some = [replace(i, not_applicable=None) if i is away[0] else i for i in items]
    assert module.planned_again(some, limits, {"gemm"}, "cluster") == (some, ())
