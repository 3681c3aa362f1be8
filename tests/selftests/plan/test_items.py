"""The planned list (keys x population) and the jobs that it needs."""

# Length: the planned list and its jobs are tested on the same populations.

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.cluster.population import Population
from fixtures.entry import Workload, describe, known, module_of
from fixtures.errors import ConfigError
from fixtures.plan import items as plan_items
from fixtures.plan.items import ALL, Item, planned_list, split_test_id
from fixtures.plan.jobs import jobs_for
from fixtures.records.model import SAFE_ID
from fixtures.records.run_directory import RunDirectory
from fixtures.run.run import Run
from fixtures.thresholds import loader
from fixtures.thresholds.criteria import Criterion
from fixtures.workloads.nccl.collective_ops import OPERATIONS
from fixtures.workloads.runtime.spec import program_of
from tests.selftests.support import CHECKOUT, SHIPPED, load, population, run_pytest

pytestmark = pytest.mark.cpu

LIMITS = loader.load(SHIPPED)


def planned(nodes: int, gpus: int = 2, model: str = "cpu") -> list[Item]:
    return planned_list(LIMITS, population(nodes, gpus, model))


def described(workload: str) -> Workload:
    return describe(module_of(workload))


def subjects(items: list[Item], key: str) -> list[str]:
    return [i.subject for i in items if i.criterion == key and not i.not_applicable]


# --- the planned list


@pytest.mark.parametrize("nodes", [1, 2, 3, 32])
def test_the_planned_list_is_keys_times_population(nodes):
    people = population(nodes)
    items = planned(nodes)
    standard = {key: c for key, c in LIMITS.criteria.items() if c.tier in ("probe", "standard")}
    assert {i.criterion for i in items} == set(standard)
    assert len({i.key for i in items}) == len(items)
    for key, criterion in standard.items():
        found = [i.subject for i in items if i.criterion == key]
        if criterion.per == "node":
            assert found == list(people.nodes), key
        if criterion.per == "cluster":
            assert found == ["cluster"], key


def test_the_probe_tier_is_a_part_of_the_standard_one_and_needs_no_torch():
    items = planned_list(LIMITS, population(2), tier="probe")
    assert {i.criterion for i in items} < {i.criterion for i in planned(2)}
    jobs = jobs_for(items, LIMITS, population(2))
    assert [j.name for j in jobs] == ["node-worker0", "node-worker1"]
    for job in jobs:
        assert not job.uses_devices
        assert not any(plan_items._describe(w).needs_torch for w, _ in job.workloads)


@pytest.mark.parametrize(("tier", "whole"), [("probe", False), ("standard", True)])
def test_a_probe_accepts_nothing_however_complete_it_is(tmp_path, tier, whole):
    people = population(2)
    items = planned_list(LIMITS, people, tier=tier)
    run = Run(
        directory=RunDirectory(tmp_path), id="r", nonce="n", thresholds=LIMITS, population=people,
        items=items, tier=tier, scope=items,
    )  # fmt: skip
    assert run.whole_scope is whole


def test_every_criterion_can_be_asked_for():
    optional = [key for key, c in LIMITS.criteria.items() if c.tier == "optional"]
    of_tier = {
        tier: {i.criterion for i in planned_list(
            LIMITS, population(2), tier=tier, destructive=True, optional=optional)}
        for tier in ("standard", "burnin", "fabric")
    }  # fmt: skip
    assert optional
    assert of_tier["burnin"] | of_tier["fabric"] == set(LIMITS.criteria)
    # The two stand beside each other: each is the standard tier and what is its own.
    assert of_tier["burnin"] & of_tier["fabric"] == of_tier["standard"]
    assert {key.partition(".")[0] for key in of_tier["fabric"] - of_tier["standard"]} == {"fabric"}
    assert {i.criterion for i in planned_list(LIMITS, population(2), tier="burnin")}.isdisjoint(
        optional
    )


@pytest.mark.parametrize("key", ["gemm.bf16", "finetune.zero4.loss"])
def test_only_optional_criteria_are_asked_for_by_their_key(key):
    with pytest.raises(ConfigError, match=r"not an optional criterion\W.*finetune\.zero3\.loss"):
        planned_list(LIMITS, population(2), optional=[key])


def test_an_optional_criterion_has_a_test_of_its_own():
    options = ("--plan", "--cluster", "local", "-m", "multinode", "-k", "zero3")
    asked = run_pytest(*options, "--optional", "finetune.zero3.loss")
    assert asked.returncode == 0, asked.stdout
    assert re.search(r"\b[01] verdicts, 0 recorded, [01] not applicable", asked.stdout), (
        asked.stdout
    )
    without = run_pytest(*options)
    assert without.returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def test_the_burnin_tier_is_the_standard_one_and_more():
    more = {i.criterion for i in planned_list(LIMITS, population(2), tier="burnin")}
    added = more - {i.criterion for i in planned(2)}
    assert {key.partition(".")[0] for key in added} == {"burnin"}
    assert {LIMITS.criteria[key].tier for key in added} == {"burnin"}


@pytest.mark.parametrize(
    ("nodes", "pairs"),
    [
        (2, ["worker0--worker1"]),
        (3, ["worker0--worker1", "worker2--worker0"]),
        (4, ["worker0--worker1", "worker2--worker3"]),
    ],
)
def test_every_node_is_in_a_pair(nodes, pairs):
    assert subjects(planned(nodes), "allreduce.pair.256MiB") == pairs


def test_the_pairs_of_32_nodes_are_disjoint():
    found = plan_items.pairs([f"n{k}" for k in range(32)])
    assert len(found) == 16
    assert len({node for pair in found for node in pair}) == 32


def test_one_node_has_no_pairs_and_says_so_once():
    items = [i for i in planned(1) if i.criterion == "allreduce.pair.256MiB"]
    assert [(i.subject, i.not_applicable) for i in items] == [
        ("cluster", "a single node has no pairs")
    ]


def test_what_spans_nodes_is_not_applicable_to_one_node():
    (item,) = [i for i in planned(1) if i.criterion == "allreduce.cluster.256MiB"]
    assert item.not_applicable == "there is only one node"


def test_one_gpu_a_node_has_no_spread_and_no_allreduce_in_the_node():
    for key in ("gemm.spread", "allreduce.node.256MiB"):
        reasons = {i.not_applicable for i in planned(2, gpus=1) if i.criterion == key}
        assert reasons == {"there is only one GPU per node"}


def test_what_a_gpu_lacks_is_not_applicable_and_what_it_has_is_planned():
    def reason(model: str, key: str) -> str | None:
        return next(i.not_applicable for i in planned(2, 4, model) if i.criterion == key)

    assert reason("A100 SXM 80", "gemm.fp8") is not None
    assert reason("H200 SXM", "gemm.fp8") is None
    assert reason("cpu", "gemm.fp16") is not None
    assert reason("cpu", "inventory.gpu_memory") is not None


def test_without_an_order_its_criteria_are_not_applicable():
    found = Population(origin="local", nodes=("here",), gpus_per_node=2, gpu_model="cpu")
    items = {i.criterion: i.not_applicable for i in planned_list(LIMITS, found)}
    assert "nothing was ordered" in str(items["inventory.gpus"])
    assert items["gemm.bf16"] is None


def test_a_population_without_nodes_is_refused():
    empty = Population(origin="sandbox", nodes=(), gpus_per_node=2, gpu_model="cpu")
    with pytest.raises(ConfigError, match="no nodes"):
        planned_list(LIMITS, empty)


@pytest.mark.parametrize("name", ["a b", "<b>x</b>", "../x", "n;rm", ""])
def test_a_node_whose_name_cannot_be_an_id_is_refused(name):
    strange = Population(origin="cluster", nodes=(name,), gpus_per_node=2, gpu_model="cpu")
    with pytest.raises(ConfigError, match="can be an id"):
        planned_list(LIMITS, strange)


@pytest.mark.parametrize("nodes", [1, 3])
def test_ids_are_plain_and_lead_back_to_their_item(nodes):
    for item in planned(nodes):
        assert SAFE_ID.fullmatch(item.test_id), item
        assert split_test_id(item.test_id) == item.key


def test_a_model_without_limits_is_refused_before_anything_runs(tmp_path):
    limits = load(tmp_path)
    with pytest.raises(ConfigError, match=r"criteria\.gemm\.bf16: no limit for model=H100 SXM"):
        planned_list(limits, population(1, 2, "H100 SXM"))


# --- jobs


def test_two_nodes_measure_pair_and_cluster_from_one_record():
    items = {i.criterion: i for i in planned(2)}
    pair, cluster = items["allreduce.pair.256MiB"], items["allreduce.cluster.256MiB"]
    assert (pair.workload, pair.placement) == (cluster.workload, cluster.placement)
    assert pair.placement == ALL


def test_without_a_second_job_on_a_node_isolation_is_not_applicable():
    whole = replace(population(2), whole_nodes=True)
    items = {i.criterion: i.not_applicable for i in planned_list(LIMITS, whole)}
    assert "OverSubscribe=EXCLUSIVE" in str(items["isolation.let_in"])
    assert items["isolation.own_gpu"] is None


def test_what_slurm_does_not_give_out_is_not_asked_of_it():
    """Where jobs have whole nodes alone; where they share them, GPUs that Slurm does not count
    are no one's own, and the rows fail."""
    for more, gone in (
        ({"linear": True}, {"isolation.own_gpu"}),
        ({"uncounted": True}, {"isolation.own_gpu", "scheduler.gres"}),
    ):
        usual = {i.criterion for i in planned_list(LIMITS, population(2)) if i.not_applicable}
        site = replace(population(2), **more)
        items = {i.criterion for i in planned_list(LIMITS, site) if i.not_applicable}
        assert items - usual == gone


def test_a_workload_of_the_training_is_found_by_its_name():
    assert module_of("gemm") == "fixtures.workloads.compute.gemm"
    assert module_of("allreduce_ring") == "fixtures.workloads.collectives.allreduce_ring"
    assert module_of("training_ddp") == "training.ddp"


@pytest.mark.parametrize("operation", [op for op in OPERATIONS.values() if op.workload])
def test_a_swept_collective_is_found_by_the_name_of_its_workload(operation):
    program = program_of(module_of(operation.workload))
    assert program.operation == operation.name
    assert known(operation.workload) is program.WORKLOAD is described(operation.workload)


@pytest.mark.parametrize("name", ["nothing", "all_gather", "SWEPT", "OPERATIONS", "collective"])
def test_what_is_no_row_of_the_collectives_is_no_workload(name):
    assert known(name) is None


# --- keys and tests


def keys_of_tests() -> dict[str, list[str]]:
    """Every key that an acceptance test is marked with, and by which tests."""
    found: dict[str, list[str]] = {}
    for path in sorted((CHECKOUT / "tests").glob("test_*.py")):
        module = importlib.import_module(f"tests.{path.stem}")
        for name, function in vars(module).items():
            for mark in getattr(function, "pytestmark", []) if name.startswith("test_") else []:
                if mark.name == "criterion":
                    for key in mark.args:
                        found.setdefault(key, []).append(f"{path.name}::{name}")
    return found


def test_every_criterion_has_exactly_one_test_and_every_test_s_key_exists():
    tests = keys_of_tests()
    assert set(tests) == set(LIMITS.criteria)
    assert [key for key, named in tests.items() if len(named) > 1] == []


def test_every_acceptance_test_is_marked_and_only_compares():
    """A test body is the sentence of the contract: one comparison, as the limits have it."""
    by_test: dict[str, set[str]] = {}
    order = {"nodes": 1, "gpus_per_node": 8, "gpu_model": "H200 SXM", "tenants": "several"}
    several = loader.load_with_contract(SHIPPED, order).criteria
    for key, (test,) in keys_of_tests().items():
        signs = {
            ">=" if row.fail_below else "<=" if row.fail_above else "=="
            for row in (*LIMITS.criteria[key].limits, *several[key].limits)
            if row.fail_below or row.fail_above or row.equals is not None
        }
        by_test.setdefault(test, set()).update(signs)
    for path in sorted((CHECKOUT / "tests").glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
        assert functions, path
        for function in functions:
            assert any("pytest.mark.criterion" in ast.unparse(d) for d in function.decorator_list)
            signs = by_test[f"{path.name}::{function.name}"] or {">="}  # recorded, never judged
            assert len(signs) == 1, f"{function.name}: its criteria compare as {signs}"
            (body,) = (ast.unparse(s) for s in function.body)
            assert body == f"assert measured {signs.pop()} agreed", function.name


# --- the command line


def test_plan_prints_jobs_minutes_and_gpu_hours_and_touches_nothing(tmp_path):
    into = tmp_path / "run"
    run = run_pytest(
        "-m", "multinode", "--cluster", "sandbox", "--sandbox-nodes", "3", "--plan",
        f"--run-dir={into}", "-q",
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "node     node-worker2" in run.stdout
    assert "pair     pair-worker2--worker0" in run.stdout
    assert "total    20 jobs, " in run.stdout
    assert "GPU-hours" in run.stdout
    assert list(tmp_path.iterdir()) == []


def test_collecting_has_one_test_a_planned_item_and_touches_nothing(tmp_path):
    into = tmp_path / "run"
    run = run_pytest(
        "-m", "multinode", "--cluster", "sandbox", "--collect-only", f"--run-dir={into}", "-q"
    )
    assert run.returncode == 0, run.stdout + run.stderr
    collected = [line for line in run.stdout.splitlines() if "::" in line]
    ids = [line.partition("[")[2].rstrip("]") for line in collected]
    assert sorted(ids) == sorted(i.test_id for i in planned(2))
    assert all(SAFE_ID.fullmatch(i) for i in ids)
    assert list(tmp_path.iterdir()) == []


def test_the_shipped_file_orders_nothing():
    """A run on a real cluster without an order says so; a filled-in example would not."""
    assert LIMITS.cluster is None


def test_a_plan_is_printed_by_one_process_or_not_at_all(tmp_path):
    run = run_pytest(
        "-m", "multinode", "--cluster=local", "--plan", "-n2", f"--run-dir={tmp_path}/r"
    )
    assert run.returncode == 4
    assert "--plan prints the plan and runs nothing: leave out -n" in run.stdout + run.stderr
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        (("-m", "multinode and training"), False), (("--plan",), False),
        (("--cluster=local",), False), (("-m", "cpu and slow"), True), (("-m", "not gpu"), True),
    ],
)  # fmt: skip
def test_self_tests_are_read_only_where_they_can_be_meant(arguments, read):
    # They need packages that an acceptance does without. A few files stand for all of them.
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments]
    command += ["--ignore-glob=*/selftests/[!s]*/test_*.py"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    run = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True)
    assert ("selftests" in run.stdout) is read, run.stdout[-2000:]


# --- facts and subjects


def test_virtual_nodes_communicate_through_the_memory_of_their_host():
    people = population(2, 8, "H200 SXM")
    rate, gemm = LIMITS.criteria["allreduce.pair.1GiB"], LIMITS.criteria["gemm.bf16"]

    def model(criterion: Criterion, nodes: int, found: Population = people) -> object:
        return plan_items.facts_of(criterion, found.nodes[:nodes], found).get("model")

    assert [model(rate, 2), model(rate, 1), model(gemm, 2)] == ["cpu", "H200 SXM", "H200 SXM"]
    # Of a dip, which is in %, the measurements are.
    assert model(replace(gemm, measured_unit="GB/s"), 2) == "cpu"
    assert model(replace(gemm, measured_unit="us"), 2) == "cpu"
    assert model(LIMITS.criteria["allreduce.cluster.dip"], 2) == "cpu"
    assert model(rate, 2, replace(people, origin="cluster")) == "H200 SXM"
    assert model(gemm, 2, replace(people, gpu_model=None)) is None


def test_facts_count_nodes_gpus_and_what_was_ordered():
    people = replace(population(2, 8, "H200 SXM"), nvls=True)
    pair, rail = LIMITS.criteria["allreduce.pair.1GiB"], LIMITS.criteria["rails.sendrecv.1GiB"]
    facts = plan_items.facts_of(pair, people.nodes, people)
    assert (facts["nodes"], facts["gpus"], facts["nvls"]) == (2, 16, True)
    facts = plan_items.facts_of(rail, people.nodes, people)
    assert (facts["gpus"], "nvls" in facts) == (2, False)
    facts = plan_items.facts_of(LIMITS.criteria["gemm.bf16"], people.nodes, people)
    assert facts["dtype"] == "bf16"
    plain = plan_items.facts_of(pair, people.nodes, population(2, 8, "H200 SXM"))
    assert "nvls" not in plain
    assert "dtype" not in plain


@pytest.mark.parametrize(
    ("nodes", "gpus", "rails"), [(2, 2, ["rail0", "rail1"]), (2, 1, []), (1, 2, []), (3, 4, 4)]
)
def test_rails_are_there_with_two_nodes_and_two_gpus(nodes, gpus, rails):
    rail = LIMITS.criteria["rails.sendrecv.1GiB"]
    found, why = plan_items.subjects_of(rail, population(nodes, gpus))
    names = [subject for subject, _ in found]
    assert names == (rails if isinstance(rails, list) else [f"rail{k}" for k in range(rails)])
    assert (why is None) is bool(rails)


def test_one_pair_stands_for_the_cluster_where_a_node_is_taken_down():
    people = population(4, 8, "H200 SXM")
    for item in planned_list(LIMITS, people, destructive=True):
        criterion = LIMITS.criteria[item.criterion]
        if criterion.per == "cluster":
            lost = criterion.tier == "destructive"
            assert item.nodes == (people.nodes[:2] if lost else people.nodes), item
        if criterion.per == "node":
            assert item.nodes == (item.subject,)


def test_what_is_only_recorded_is_known_before_the_run():
    items = {i.criterion: i for i in planned(2)}
    assert items["gemm.bf16"].recorded is False
    assert any(i.recorded for i in items.values())
    assert not any(i.recorded for i in items.values() if i.not_applicable)


# --- items, waivers and selections


def test_an_item_is_read_back_as_it_was_written():
    item = Item(
        criterion="gemm.bf16", subject="n1", nodes=("n1",), workload="gemm", placement="all",
        recorded=True,
    )  # fmt: skip
    assert Item.from_json(item.to_json()) == item
    assert item.to_json()["nodes"] == ["n1"]
    assert "key" not in item.to_json()
    for wrong in ("gemm.bf16", "-worker0", "gemm.bf16-"):
        with pytest.raises(ValueError, match="not an id"):
            split_test_id(wrong)


def test_one_node_is_no_pair_and_an_odd_last_one_goes_with_the_first():
    assert plan_items.pairs([]) == plan_items.pairs(["a"]) == []
    assert plan_items.pairs(["a", "b", "c"]) == [("a", "b"), ("c", "a")]


@pytest.mark.parametrize(
    ("key", "placement", "alone"),
    [
        ("inventory.nodes", "login", "login"), ("gemm.bf16", "worker0", "worker0"),
        ("isolation.shared", "worker0", "worker0"),
        ("scheduler.placement", "worker0--worker1", "worker0"),
        ("failures.end.exit", "exit--worker0--worker1", "exit--worker0"),
    ],
)  # fmt: skip
def test_a_record_is_measured_where_its_workload_needs_it(key, placement, alone):
    for nodes, expected in ((4, placement), (1, alone)):
        people = population(nodes)
        found = plan_items.placement_of(LIMITS.criteria[key], ("worker0",), people)
        assert found == expected


def test_failures_are_made_to_happen_on_demand_and_never_in_a_probe():
    people = population(4)
    of_tier = {
        tier: planned_list(LIMITS, people, tier=tier, destructive=True)
        for tier in ("probe", "standard")
    }
    lost = [i for i in of_tier["standard"] if LIMITS.criteria[i.criterion].tier == "destructive"]
    assert lost
    assert not {i.criterion for i in lost} & {i.criterion for i in of_tier["probe"]}
    found = plan_items.smaller_subjects(of_tier["standard"], people)
    assert found["failures.node.lost"] == ["worker0", "worker1"]
    assert "gemm.bf16" not in found
    chosen = plan_items.select(lost, [lost[1].key, lost[0].key, ("gemm.bf16", "worker0")])
    assert chosen == lost[:2], "in planned order"
    alone = {i.criterion: i for i in planned_list(LIMITS, population(1), destructive=True)}
    assert alone["failures.node.lost"].nodes == ("worker0",)


def test_a_waiver_is_for_a_node_or_a_subject_of_the_plan_or_of_the_order():
    def refused(key: str, node: str, names: object = ...) -> str:
        contract = None if names is ... else SimpleNamespace(node_names=names)
        waiver = SimpleNamespace(criterion=key, node=node)
        limits: Any = SimpleNamespace(criteria=LIMITS.criteria, waivers=(waiver,), cluster=contract)
        try:
            plan_items.refuse_unmatched_waivers(limits, population(2))
        except ConfigError as error:
            return str(error)
        return ""

    pair = "worker0--worker1"
    assert not refused("gemm.bf16", "worker1")
    assert not refused("allreduce.pair.1GiB", pair)
    assert refused("gemm.bf16", pair), "a subject of another criterion"
    assert refused("gemm.bf16", "spare")
    assert not refused("gemm.bf16", "spare", ("spare",))
    assert "gemm.bf16 is waived for 'spare'" in refused("gemm.bf16", "spare", None)
