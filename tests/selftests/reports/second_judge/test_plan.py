"""The second judge's plan: where each criterion applies, and which limit holds there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from reports.second_judge.physics import Cannot
from reports.second_judge.plan import FACTS, choose, facts_of, planned, unresolved

pytestmark = pytest.mark.cpu


def population(nodes: int = 2, gpus: int = 8, **more: object) -> SimpleNamespace:
    return SimpleNamespace(**{
        "nodes": tuple(f"n{k}" for k in range(nodes)), "gpus_per_node": gpus, "nics_per_node": 8,
        "nic_gbps": 400, "nic_fabric": "InfiniBand", "gpu_model": "H200 SXM", "ordered": True,
        "nvls": False, "virtual": False, "on_cpu": False, "emulated": False, "nvlink": 450,
        "capability": 9.0, "origin": "cluster", "whole_nodes": True, "bindable": True,
        "linear": False, "uncounted": False,
        "memory_control": True, "light": False, "shared_directory": True, "shared_tb": 1,
        "rail_optimized": False, "installed": [], "measured": set(), **more,
    })  # fmt: skip


def criterion(key: str = "gemm.bf16", **more: object) -> dict[str, object]:
    return {
        "key": key, "per": "node", "tier": "standard", "statistic": "median", "over": "devices",
        "facts": [], "workload": key.partition(".")[0], "metric": key.partition(".")[2], "at": {},
        "unit": "TFLOPS", **more,
    }  # fmt: skip


def rows(c: dict[str, object], p=None, run=None, exempt=()):
    limits = {"criteria": [c], "not_applicable": list(exempt)}
    return list(planned(run or {}, limits, p or population()))


def subjects(*given, **more) -> list[str]:
    return [row.subject for row in rows(*given, **more)]


# --- conditions


def test_a_condition_is_true_false_or_open():
    for want, fact, holds in (
        ([1, 2], 2, True), ([1, 2], 3, False), ("a", "a", True), ("a", "b", False),
        (True, True, True), (True, 1, False), (1, True, False), (1, 1, True),
        ({"min": 2, "max": 5}, 2, True), ({"min": 2, "max": 5}, 5, True),
        ({"min": 2, "max": 5}, 1, False), ({"min": 2, "max": 5}, 6, False),
        ({"min": None, "max": 5}, 0, True), ({"min": 2, "max": None}, 9999, True),
        ({"min": None, "max": 5}, True, False), ({"min": None, "max": None}, "3", False),
    ):  # fmt: skip
        assert unresolved({"x": want}, {"x": fact}) == ([] if holds else None), (want, fact)
    assert unresolved({"x": 1, "nvls": True}, {"x": 1}) == ["nvls"]
    for proven in ("algorithm", "cpu_bf16", "domains"):
        assert unresolved({proven: 1}, {}) is None


def test_the_limit_with_the_most_true_conditions_holds():
    general, model = {"when": {}}, {"when": {"model": "H200 SXM"}}
    both = {"when": {"model": "H200 SXM", "nodes": 2}}
    of_model = {"model": "H200 SXM", "nodes": 4}
    assert choose([general, model, both], {"model": "B200", "nodes": 2}) is general
    assert choose([general, model, both], of_model) is model
    assert choose([both, model, general], {**of_model, "nodes": 2}) is both


def test_no_limit_several_or_one_that_hangs_on_an_unknown_fact_cannot_be_chosen():
    general, of_nvls = {"when": {}}, {"when": {"nvls": True}}
    for given in ([], [of_nvls], [general, of_nvls], [general, {"when": {}}]):
        with pytest.raises(Cannot):
            choose(given, {})


# --- facts of a definition

CPU = {"on_cpu": True, "gpu_model": "cpu"}


@pytest.mark.parametrize(
    ("fact", "true", "false"),
    [
        ("fabric", [{"nics_per_node": 1}], [{"nics_per_node": 0}, {"virtual": True}]),
        ("order", [{}], [{"ordered": False}]),
        ("gpu", [{}], [CPU]),
        ("nics", [{"nics_per_node": 1}], [{"nics_per_node": 0}]),
        ("ib_ports", [{}], [{"nic_fabric": "RoCE"}]),
        ("port_states", [{}, {"nic_fabric": "RoCE"}], [{"nic_fabric": "EFA"}]),
        ("roce", [{"nic_fabric": "RoCE"}], [{}]),
        ("efa", [{"nic_fabric": "EFA"}], [{}]),
        ("rack", [{"gpu_model": "GB200"}, {"gpu_model": "GB300"}], [{}]),
        ("nvml", [{}, {**CPU, "emulated": True}], [CPU]),
        ("nvlink", [{"nvlink": 1, "gpus": 2}, {**CPU, "emulated": True}],
         [{"gpus": 1}, {"nvlink": 0}, CPU]),
        ("nvls", [{"nvls": True, "gpus": 2}], [{}, {"nvls": True, "gpus": 1},
                                               {"nvls": True, **CPU}]),
        ("multinode", [{"nodes": 2}], [{"nodes": 1}]),
        ("multigpu", [{"gpus": 2}], [{"gpus": 1}]),
        ("several", [{"nodes": 2, "gpus": 1}, {"nodes": 1, "gpus": 2}], [{"nodes": 1, "gpus": 1}]),
        ("fp8", [{"capability": 8.9}, {}], [{"capability": 8.6}, CPU]),
        ("slurm", [{}, {"origin": "sandbox"}], [{"origin": "by-hand"}]),
        ("shared_nodes", [{"whole_nodes": False}], [{}]),
        ("gres", [{}, {"linear": True}], [{"uncounted": True}]),
        ("task_gpus", [{}], [{"linear": True}, {"uncounted": True}]),
        ("own_host", [{}, {"virtual": True, "nodes": 1}], [{"virtual": True}]),
        ("cores", [{}], [{"bindable": False}]),
        ("memory_control", [{}], [{"memory_control": False}]),
        ("own_processes", [{}], [{"light": True}]),
        ("shared_directory", [{}], [{"shared_directory": False}]),
        ("shared_tb", [{"shared_tb": 1}], [{"shared_tb": 0}]),
        ("rail_optimized", [{"rail_optimized": True}], [{}]),
        ("breakable", [{"virtual": True}], [{}, {"virtual": True, "light": True}]),
        ("finetune", [{"installed": ["finetune"]}], [{}]),
        ("zero3", [{"installed": ["zero3"]}], [{}]),
        ("all_reduce_perf", [{"installed": ["all_reduce_perf"]}],
         [{}, {"installed": ["all_reduce_perf"], **CPU}]),
    ],
)  # fmt: skip
def test_a_definition_holds_where_its_fact_does(fact, true, false):
    assert [bool(FACTS[fact](population(**more))) for more in true] == [True] * len(true)
    assert [bool(FACTS[fact](population(**more))) for more in false] == [False] * len(false)


# --- subjects


def test_each_node_pair_and_rail_is_a_subject():
    assert subjects(criterion()) == ["n0", "n1"]
    assert subjects(criterion(per="cluster")) == ["cluster"]
    pair, rail = criterion(per="pair"), criterion(per="rail")
    assert subjects(pair) == ["n0--n1"]
    assert subjects(pair, population(3)) == ["n0--n1", "n2--n0"]
    assert subjects(rail, population(2, 2)) == ["rail0", "rail1"]
    assert rows(rail, population(2, 2))[0].nodes == ("n0", "n1")


def test_a_pair_or_rail_that_there_is_not_does_not_apply():
    for c, p in (
        (criterion(per="pair"), population(1)),
        (criterion(per="rail"), population(1)),
        (criterion(per="rail"), population(2, 1)),
    ):
        (row,) = rows(c, p)
        assert (row.subject, row.applies) == ("cluster", False)


def test_criteria_of_a_deeper_tier_are_planned_only_where_the_run_has_it():
    def planned_in(of: str, **run: object) -> bool:
        return bool(rows(criterion(tier=of, at={"way": "kill"}), run=run))

    assert planned_in("standard")
    assert planned_in("probe", tier="probe")
    assert not planned_in("standard", tier="probe")
    assert not planned_in("burnin")
    assert planned_in("burnin", tier="burnin")
    assert planned_in("burnin", optional=["gemm.bf16"])
    assert planned_in("fabric", tier="fabric")
    assert planned_in("standard", tier="fabric")
    assert not planned_in("burnin", tier="fabric")
    assert not planned_in("fabric", tier="burnin")
    assert not planned_in("destructive")
    assert planned_in("destructive", destructive=True)
    assert not planned_in("destructive", destructive=True, tier="probe")


def test_a_destructive_criterion_of_the_cluster_runs_on_the_first_pair():
    run = {"destructive": True}
    c = criterion("training_failures.lost", per="cluster", tier="destructive", at={"way": "kill"})
    (row,) = rows(c, population(4), run)
    assert (row.subject, row.nodes, row.place) == ("cluster", ("n0", "n1"), "kill--n0--n1")
    (alone,) = rows(c, population(1), run)
    assert (alone.nodes, alone.place) == (("n0",), "kill--n0")
    (all_,) = rows({**c, "tier": "standard"}, population(4), run)
    assert (all_.nodes, all_.place) == (("n0", "n1", "n2", "n3"), "n0--n1--n2--n3")
    assert [r.nodes for r in rows({**c, "per": "node"}, run=run)] == [("n0",), ("n1",)]


def test_a_row_is_measured_in_the_job_of_its_workload():
    def places(key: str, nodes: int = 2, **more: object) -> list[str]:
        return [row.place for row in rows(criterion(key, **more), population(nodes))]

    assert places("gemm.bf16") == ["n0", "n1"]
    assert places("gemm.bf16", per="cluster") == ["all"]
    assert places("gemm.bf16", nodes=1, per="cluster") == ["n0"]
    assert places("wiring.order") == ["all", "all"]
    assert places("wiring.order", nodes=1) == ["n0"]
    assert places("placement.bound", nodes=3) == ["n0--n1", "n0--n1", "n2--n0"]
    assert places("placement.bound", nodes=1) == ["n0"]
    assert places("isolation.devices") == ["n0", "n1"]
    assert places("isolation.devices", per="cluster") == ["n0--n1"]
    assert places("slurm.version", per="cluster") == ["login"]


def test_a_row_with_an_unknown_word_or_fact_says_which():
    (row, _) = rows(criterion(over="moons", facts=["order", "tides"]))
    assert row.unknown == ["over", "tides"]
    assert rows(criterion(facts=["order"]))[0].unknown == []


def test_a_row_applies_where_its_facts_hold_and_nothing_exempts_it():
    def applies(facts=(), exempt=()) -> list[bool]:
        return [row.applies for row in rows(criterion(facts=list(facts)), exempt=exempt)]

    assert applies() == [True, True]
    assert applies(["order", "efa"]) == [False, False]
    own, other = {"criteria": ["gemm.bf16"]}, {"criteria": ["gemm.fp8"]}
    assert applies(exempt=[{**own, "when": {"nodes": 1}}]) == [False, False]
    assert applies(exempt=[{**own, "when": {"nodes": 2}}]) == [True, True]
    assert applies(exempt=[{**own, "when": {"algorithm": "ring"}}]) == [True, True]
    assert applies(exempt=[{**other, "when": {"nodes": 1}}]) == [True, True]


# --- facts of a row


def test_the_facts_of_a_row_are_those_of_the_order_and_of_its_subject():
    p = population(nvls=True)
    facts = facts_of(criterion("allreduce.busbw", at={"size": 8}), ("n0", "n1"), p)
    assert facts == {
        "gpus_per_node": 8, "nics_per_node": 8, "nic_gbps": 400, "nic_fabric": "InfiniBand",
        "nodes": 2, "gpus": 16, "metric": "busbw", "size": 8, "nvls": True, "model": "H200 SXM",
    }  # fmt: skip
    rail = facts_of(criterion("rails.busbw", per="rail"), ("n0", "n1"), p)
    assert (rail["gpus"], "nvls" in rail) == (2, False)
    unnamed = facts_of(criterion("gemm.bf16_best"), ("n0",), population(gpu_model=None))
    assert (unnamed["dtype"], "nvls" in unnamed, "model" in unnamed) == ("bf16", False, False)
    assert "dtype" not in facts


def test_what_virtual_nodes_measure_between_them_is_of_their_host():
    both, one = ("n0", "n1"), ("n0",)
    for unit, statistic, nodes, virtual, model in (
        ("GB/s", "median", both, True, "cpu"), ("us", "median", both, True, "cpu"),
        ("%", "dip", both, True, "cpu"), ("%", "median", both, True, "H200 SXM"),
        ("GB/s", "median", one, True, "H200 SXM"), ("GB/s", "median", both, False, "H200 SXM"),
    ):  # fmt: skip
        c = criterion(unit=unit, statistic=statistic)
        assert facts_of(c, nodes, population(virtual=virtual))["model"] == model


def test_a_row_applies_where_run_json_leaves_out_what_there_are_records_of():
    def applies(*, exempt=(), **p: object) -> list[bool]:
        found = rows(criterion(facts=["shared_tb"]), population(shared_tb=0, **p), exempt=exempt)
        return [row.applies for row in found]

    assert applies() == [False, False]
    assert applies(measured={"gemm"}) == [True, True]
    assert applies(measured={"other"}) == [False, False]
    assert applies(measured={"gemm"}, origin="sandbox") == [False, False]
    away = [{"criteria": ["gemm.bf16"], "when": {}}]
    assert applies(measured={"gemm"}, exempt=away) == [False, False]
