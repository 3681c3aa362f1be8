"""The order names nodes, and a replay judges the run that was, not the host that judges it."""

from __future__ import annotations

import json
import shutil

import pytest
import yaml

from fixtures.cluster import population
from fixtures.errors import ConfigError
from fixtures.slurm.client import SlurmNode
from fixtures.thresholds import definitions, facts
from fixtures.thresholds.contract import Contract
from tests.selftests import support
from tests.selftests.fleets import NODES, fleet, whole_fleet

__all__ = ["fleet", "whole_fleet"]

pytestmark = pytest.mark.cpu


def contract(nodes: int | str) -> Contract:
    return Contract(nodes=nodes, gpus_per_node=8, gpu_model="H200 SXM")


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition of four nodes."""
    more = {"reason": "", "cpus": 64, "partitions": ("gpu",)}
    listed = [
        SlurmNode(name=f"gpu{k:02}", address=f"gpu{k:02}", gpus=8, state="IDLE", **more)
        for k in range(1, 5)
    ]
    monkeypatch.setattr(population, "slurm_nodes", lambda partition=None: listed)
    monkeypatch.setattr(population, "default_partition", lambda: "gpu")
    monkeypatch.setattr(population, "refuse_unknown_partition", lambda partition: None)
    monkeypatch.setattr(population, "slurm_partition", lambda partition: {})
    monkeypatch.setattr(population, "allocates_whole_nodes", lambda fields: False)


def test_other_nodes_than_ordered_are_refused(slurm):
    """H4: --nodelist wins over the order no more."""
    with pytest.raises(ConfigError, match=r"--nodelist gpu\[03-04\]: gpu03, gpu04: not ordered"):
        population.from_slurm(contract("gpu[01-02]"), partition=None, nodelist="gpu[03-04]")
    with pytest.raises(ConfigError, match=r"3 nodes; cluster\.nodes orders 2"):
        population.from_slurm(contract(2), partition=None, nodelist="gpu[01-03]")


def test_a_partition_without_any_ordered_node_is_refused(slurm, monkeypatch):
    """Slurm's default is often another one than that of the GPU nodes."""
    all_nodes = population.slurm_nodes()
    monkeypatch.setattr(population, "default_partition", lambda: "batch")
    monkeypatch.setattr(
        population, "slurm_nodes", lambda partition=None: [] if partition else all_nodes
    )
    for order, nodelist in (("gpu[01-02]", None), ("gpu[01-04]", "gpu[01-02]")):
        with pytest.raises(ConfigError, match=r"batch has none of gpu01, gpu02: .*are in gpu\)"):
            population.from_slurm(contract(order), partition=None, nodelist=nodelist)
    # Ordered and nowhere: they stay in the population, not measured.
    absent = population.from_slurm(contract("new[1-2]"), partition=None, nodelist=None)
    assert absent.nodes == ("new1", "new2")


@pytest.mark.parametrize("more", [{}, {"nvls": True}, {"nvls": {"disabled": "by the site"}}])
def test_an_order_is_read_from_run_json_as_it_was_written(more):
    order = Contract(nodes=2, gpus_per_node=8, gpu_model="H200 SXM", **more)
    assert Contract.model_validate(population.contract_json(order)) == order


@pytest.mark.parametrize("ordered", ["gpu[01-02]", 2])
def test_a_part_of_the_order_is_partial_and_says_so(ordered, slurm):
    taken = population.from_slurm(contract(ordered), partition=None, nodelist="gpu01")
    assert taken.nodes == ("gpu01",)
    assert population.orders_more(taken, contract(ordered)).startswith("1 of 2 ordered nodes")
    whole = population.from_slurm(contract(ordered), partition=None, nodelist="gpu[01-02]")
    assert population.orders_more(whole, contract(ordered)) == ""


@pytest.mark.parametrize("nodes", ["other[1-4]", "gpu[0001-0003],other", 3])
def test_a_replay_of_other_nodes_than_ordered_is_refused(nodes, fleet, tmp_path):
    run = json.loads((fleet.root / "run.json").read_text())
    fleet.change_run(contract={**run["contract"], "nodes": nodes})
    with pytest.raises(ConfigError, match="orders"):
        fleet.judged(tmp_path / "judged")


def test_a_replay_of_fewer_nodes_than_ordered_is_not_accepted(fleet, tmp_path):
    run = json.loads((fleet.root / "run.json").read_text())
    fleet.change_run(contract={**run["contract"], "nodes": len(NODES) + 1})
    verdict, rows = fleet.judged(tmp_path / "judged")
    assert verdict["verdict"] == "REJECTED"
    assert [k[0] for k, v in rows.items() if v["outcome"] == "FAIL"] == ["inventory.nodes"]
    # Also where nobody had asked Slurm for its nodes, as on a run of a part of the criteria.
    scope = [key for key in run["scope"] if not key[0].startswith(("inventory", "scheduler"))]
    fleet.change_run(contract={**run["contract"], "nodes": len(NODES) + 1}, scope=scope)
    verdict, _ = fleet.judged(tmp_path / "again")
    assert verdict["verdict"] == "PARTIAL"
    assert any(reason.startswith("4 of 5 ordered nodes") for reason in verdict["reasons"])


# --- what was installed, planned and in scope comes from the run


def test_what_was_installed_then_decides_and_not_what_is_installed_here(fleet, tmp_path):
    """H3: fine-tuning that was measured is judged where its packages are missing."""
    before = fleet.judged(tmp_path / "before")[1]
    key = ("finetune.exact", "cluster")
    assert before[key]["outcome"] == "PASS"

    def nothing_installed() -> tuple[str, ...]:
        return ()

    def mostly_wrong(record: dict) -> None:
        for rank in record["ranks"]:
            for m in rank["measurements"]:
                if m["metric"] == "exact":
                    m["value"] = 1.0

    fleet.change("training_finetune@all.json", mostly_wrong)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(facts, "installed_here", nothing_installed)
        verdict, rows = fleet.judged(tmp_path / "judged")
    assert rows[key]["outcome"] == "FAIL"
    assert verdict["verdict"] == "REJECTED"


def test_a_run_that_says_what_was_installed_is_believed(fleet, tmp_path):
    run = json.loads((fleet.root / "run.json").read_text())
    fleet.change_run(population={**run["population"], "installed": []})
    _, rows = fleet.judged(tmp_path / "judged")
    assert rows["finetune.exact", "cluster"]["outcome"] == "NOT_APPLICABLE"


def test_what_stood_in_the_scope_and_is_not_planned_today_is_not_measured(fleet, tmp_path):
    """M7: rows of a run do not vanish in silence."""
    run = json.loads((fleet.root / "run.json").read_text())
    scope = [*run["scope"], ["gone.criterion", "cluster"], ["gemm.bf16", "gpu0099"]]
    fleet.change_run(scope=scope)
    verdict, rows = fleet.judged(tmp_path / "judged")
    assert verdict["verdict"] == "INCOMPLETE"
    assert verdict["counts"]["not_measured"] == 2
    for key in (("gone.criterion", "cluster"), ("gemm.bf16", "gpu0099")):
        assert (rows[key]["outcome"], rows[key]["cause"]) == ("NOT_MEASURED", "plan")
    assert "there is no criterion gone.criterion" in rows["gone.criterion", "cluster"]["reason"]


def test_a_criterion_made_optional_by_other_limits_is_still_owed(fleet, tmp_path):
    whole = yaml.load(support.SHIPPED.read_text(encoding="utf-8"), yaml.CSafeLoader)
    definition = definitions.shipped().criteria["memory.errors"]
    assert "tier" not in definition
    whole["criteria"]["memory.errors"] |= {**definition, "tier": "optional"}
    other = tmp_path / "thresholds.yaml"
    other.write_text(yaml.safe_dump(whole, sort_keys=False), encoding="utf-8")
    _, verdict = support.judged(fleet.root, tmp_path / "judged", other)
    assert verdict["verdict"] == "INCOMPLETE"
    assert verdict["counts"]["not_measured"] == len(NODES)


# --- the run directory of a replay


def test_a_replay_into_a_used_run_directory_is_refused(fleet, tmp_path):
    """H5: stale records of an earlier replay never count."""
    fleet.judged(tmp_path / "out")
    (fleet.root / "records" / f"gemm@{NODES[0]}.json").unlink()
    with pytest.raises(ConfigError, match="holds a run already"):
        fleet.judged(tmp_path / "out")


def test_a_link_to_the_source_is_the_source(fleet, tmp_path):
    link = tmp_path / "latest"
    link.symlink_to(fleet.root)
    before = (fleet.root / "run.json").read_bytes()
    with pytest.raises(ConfigError, match="other --run-dir"):
        fleet.judged(link)
    assert (fleet.root / "run.json").read_bytes() == before


def test_a_folder_of_records_without_run_json_is_used_too(fleet, tmp_path):
    into = tmp_path / "out"
    shutil.copytree(fleet.root / "records", into / "records")
    with pytest.raises(ConfigError, match="holds a run already"):
        fleet.judged(into)


# --- attempts


def test_the_newest_attempt_counts_where_one_between_is_missing(fleet, tmp_path):
    def sick(record: dict) -> None:
        record["attempt"] = 3
        for rank in record["ranks"]:
            for m in rank["measurements"]:
                m["samples"] = [value / 10 for value in m.get("samples", [])]

    name = f"gemm@{NODES[1]}"
    shutil.copy(
        fleet.root / "records" / f"{name}.json", fleet.root / "records" / f"{name}.attempt3.json"
    )
    fleet.change(f"{name}.attempt3.json", sick)
    _, rows = fleet.judged(tmp_path / "judged")
    assert rows["gemm.bf16", NODES[1]]["outcome"] == "FAIL"
    assert rows["gemm.bf16", NODES[1]]["attempt"] == 3
