"""The order names nodes, and a replay judges the run that was, not the host that judges it."""

# Length: the order, Slurm, this host and a replay are the four sources of one population.

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest
import yaml

from fixtures.cluster import population
from fixtures.errors import ConfigError, UnknownGpu
from fixtures.sandbox import cgroups, emulation, platforms, resources
from fixtures.slurm import client
from fixtures.slurm.client import SlurmNode
from fixtures.thresholds import definitions, site_facts
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
    monkeypatch.setattr(population, "sharing_of", lambda partition: {})
    monkeypatch.setattr(population, "slurm_config", lambda: {})


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


# --- who is asked: the order, Slurm, this host


def ordered(nodes: int | str = 2, **more) -> Contract:
    return Contract(nodes=nodes, gpus_per_node=8, gpu_model="H200 SXM", **more)


FABRIC = {
    "nics_per_node": 4, "nic_gbps": 200, "nic_fabric": "RoCE", "shared_directory": "/shared",
    "shared_tb": 3, "rail_optimized": True,
}  # fmt: skip


def fabric(people: population.Population) -> dict:
    """What a population has of FABRIC."""
    return {
        name: getattr(people, name) for name in
        ("nics_per_node", "nic_gbps", "nic_fabric", "shared_directory", "shared_tb",
         "rail_optimized")
    }  # fmt: skip


EXPECTED = {**FABRIC, "shared_directory": True}
NONE = {
    "nics_per_node": 0, "nic_gbps": 0, "nic_fabric": "InfiniBand", "shared_directory": False,
    "shared_tb": 0, "rail_optimized": False,
}  # fmt: skip


def test_slurm_is_asked_where_nothing_was_ordered(slurm, monkeypatch):
    found = population.from_slurm(None, partition=None, nodelist=None)
    assert found.nodes == ("gpu01", "gpu02", "gpu03", "gpu04")
    assert (found.origin, found.ordered, found.gpu_model) == ("cluster", False, None)
    assert (found.gpus_per_node, found.partition, found.nvls) == (8, "gpu", False)
    assert found.addresses["gpu02"] == "gpu02"
    assert fabric(found) == NONE
    some = population.from_slurm(None, partition="gpu", nodelist="gpu[02-03]")
    assert (some.nodes, sorted(some.addresses)) == (("gpu02", "gpu03"), ["gpu02", "gpu03"])
    listed = population.slurm_nodes()
    monkeypatch.setattr(population, "slurm_nodes", lambda partition=None: listed)
    for k, node in enumerate(listed):
        listed[k] = SlurmNode(**{**vars(node), "gpus": k + 1})
    assert population.from_slurm(None, partition="gpu", nodelist="gpu[01-03]").gpus_per_node == 3


def test_what_was_ordered_is_in_the_population_also_where_slurm_lacks_it(slurm, monkeypatch):
    found = population.from_slurm(
        ordered("gpu[01-02],new1", **FABRIC), partition="p", nodelist=None
    )
    assert found.nodes == ("gpu01", "gpu02", "new1")
    assert (found.ordered, found.gpu_model, found.gpus_per_node) == (True, "H200 SXM", 8)
    assert (found.partition, found.nvls, found.whole_nodes) == ("p", True, False)
    assert fabric(found) == EXPECTED
    assert fabric(population.from_slurm(ordered(4), partition=None, nodelist=None)) == NONE
    counted = population.from_slurm(ordered(6), partition=None, nodelist=None)
    assert counted.nodes[3:] == ("gpu04", "ordered-5", "ordered-6")
    exact = population.from_slurm(ordered(4), partition=None, nodelist=None)
    assert exact.nodes == ("gpu01", "gpu02", "gpu03", "gpu04")
    with pytest.raises(ConfigError, match=r"orders 3, but the partition has 4: give a hostlist"):
        population.from_slurm(ordered(3), partition=None, nodelist=None)
    with pytest.raises(ConfigError, match="--nodelist: Slurm does not know other, new1"):
        population.from_slurm(None, partition=None, nodelist="gpu01,other,new1")
    monkeypatch.setattr(population, "allocates_whole_nodes", lambda fields, **_: True)
    assert population.from_slurm(None, partition=None, nodelist=None).whole_nodes is True
    assert (exact.linear, exact.uncounted) == (False, False)
    monkeypatch.setattr(population, "is_linear", lambda fields: True)
    monkeypatch.setattr(population, "counts_no_gpus", lambda fields, gpus: gpus == [8, 8, 8, 8])
    found = population.from_slurm(None, partition=None, nodelist=None)
    assert (found.linear, found.uncounted) == (True, True)


def test_switches_reduce_where_the_order_leaves_it_to_the_model(slurm):
    off = ordered(4, nvls={"disabled": "by the site"})
    assert population.from_slurm(off, partition=None, nodelist=None).nvls is False


def test_at_most_four_names_of_another_partition_are_listed(slurm, monkeypatch):
    every = population.slurm_nodes()
    every.append(SlurmNode(**{**vars(every[0]), "name": "gpu05", "partitions": ("a", "gpu")}))
    monkeypatch.setattr(
        population, "slurm_nodes", lambda partition=None: [] if partition else every
    )
    for nodes, said in (
        ("gpu[01-04]", r"partition gpu has none of gpu01, gpu02, gpu03, gpu04: .*are in gpu\)"),
        ("gpu[01-05]", r"gpu03, gpu04, \.\.\.: .*\(they are in a, gpu\)"),
    ):
        with pytest.raises(ConfigError, match=said):
            population.from_slurm(ordered(nodes), partition=None, nodelist=None)


def test_a_population_is_judged_by_its_order_if_it_has_one():
    people = support.population(3)
    named, counted = ordered("worker[0-1]"), ordered(2)
    with pytest.raises(ConfigError, match=r"x: worker2: not ordered; .* orders worker\[0-1\]"):
        population.refuse_other_nodes(people, named, "x")
    with pytest.raises(ConfigError, match=r"x: 3 nodes; cluster\.nodes orders 2"):
        population.refuse_other_nodes(people, counted, "x")
    for contract_ in (None, ordered("worker[0-2]"), ordered(3), ordered(4)):
        population.refuse_other_nodes(people, contract_, "x")
    unordered = type(people)(**{**vars(people), "ordered": False})
    population.refuse_other_nodes(unordered, named, "x")
    assert population.orders_more(unordered, ordered(9)) == ""
    assert population.orders_more(people, None) == ""
    assert population.orders_more(people, ordered(3)) == ""
    assert population.orders_more(people, ordered(2)) == ""
    assert population.orders_more(people, ordered(5)) == "3 of 5 ordered nodes"
    for count, names in ((7, "worker3, worker4, worker5, worker6"),
                         (8, "worker3, worker4, worker5, worker6, ...")):  # fmt: skip
        said = population.orders_more(people, ordered(f"worker[0-{count - 1}]"))
        assert said == f"3 of {count} ordered nodes, without {names}"


def test_a_population_is_read_as_it_was_written():
    people = support.population(2)
    for installed in (None, (), ("finetune",)):
        written = type(people)(**{**vars(people), "installed": installed})
        data = json.loads(json.dumps(written.to_json()))
        assert population.Population.from_json(data) == written
    data = {k: v for k, v in people.to_json().items() if k != "installed"}
    assert population.Population.from_json({**data, "of a later version": 1}) == people
    assert population.contract_json(None) is None


def test_what_a_population_runs_on():
    for origin, model, virtual, device in (
        ("sandbox", "cpu", True, "cpu"), ("cluster", "H200 SXM", False, "cuda"),
        ("local", None, False, "cuda"),
    ):  # fmt: skip
        people = population.Population(
            origin=origin, nodes=("n",), gpus_per_node=2, gpu_model=model
        )
        assert (people.virtual, people.device, people.on_cpu) == (virtual, device, device == "cpu")


# --- this host


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Another /dev and /proc."""
    real = type(tmp_path)
    monkeypatch.setattr(population, "Path", lambda path: real(tmp_path) / path.lstrip("/"))
    (tmp_path / "dev").mkdir()
    return tmp_path


def test_gpus_of_this_host_are_those_of_the_driver_or_of_nvidia_smi(root, monkeypatch):
    gpus = root / "proc/driver/nvidia/gpus"
    for name in ("a", "b"):
        (gpus / name).mkdir(parents=True)
    (gpus / "a" / "information").write_text("Model: \t NVIDIA H200 \nIRQ: 7\n")
    (root / "dev" / "nvidiactl").touch()
    (root / "dev" / "nvidia-uvm0").touch()
    assert population.host_gpus() == []
    (root / "dev" / "nvidia0").touch()
    assert population.host_gpus() == ["NVIDIA H200"]
    (gpus / "b" / "information").write_text("no model\n")
    assert population.host_gpus() == ["NVIDIA H200"]
    (gpus / "a" / "information").unlink()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert population.host_gpus() == []
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    said = SimpleNamespace(stdout="NVIDIA B200\n\n NVIDIA B200 \n")
    monkeypatch.setattr(population.subprocess, "run", lambda argv, **more: said)
    assert population.host_gpus() == ["NVIDIA B200", "NVIDIA B200"]


def on_host(monkeypatch, *names: str, cpus: int | None = 8, hostname: str = "login 01") -> None:
    monkeypatch.setattr(population, "host_gpus", lambda: [*names])
    monkeypatch.setattr(population.os, "cpu_count", lambda: cpus)
    monkeypatch.setattr(population.socket, "gethostname", lambda: hostname)


def test_this_host_has_the_model_of_its_gpus_or_a_cpu(monkeypatch):
    for names, model, devices in (
        ([], "cpu", 2), (["NVIDIA H200"], "H200 SXM", 1), (["NVIDIA H200"] * 4, "H200 SXM", 4),
    ):  # fmt: skip
        on_host(monkeypatch, *names)
        assert population.host_model() == model
        found = population.from_host(None)
        assert (found.gpu_model, found.gpus_per_node) == (model, devices)
        assert (found.origin, found.nodes, found.ordered) == ("local", ("login-01",), False)
        assert found.addresses == {"login-01": "127.0.0.1"}
    for cpus, devices in ((1, 1), (None, 1), (2, 2)):
        on_host(monkeypatch, cpus=cpus, hostname="")
        found = population.from_host(None)
        assert (found.gpus_per_node, found.nodes) == (devices, ("localhost",))


def test_new_gpus_are_admitted_where_they_are_asked_for_and_mixed_ones_never(monkeypatch):
    on_host(monkeypatch, "NVIDIA X100", "NVIDIA X100")
    with pytest.raises(UnknownGpu, match="NVIDIA X100"):
        population.from_host(None)
    found = population.from_host(None, new_model=True)
    assert (found.gpu_model, found.gpus_per_node) == (None, 2)
    on_host(monkeypatch, "NVIDIA X100", "NVIDIA H200")
    with pytest.raises(UnknownGpu, match="mixes GPU models: NVIDIA H200, NVIDIA X100"):
        population.from_host(None, new_model=True)


def test_an_order_of_one_node_is_that_of_this_host(monkeypatch):
    on_host(monkeypatch, "NVIDIA B200", hostname="gpu01")
    for nodes in (1, "gpu01"):
        found = population.from_host(ordered(nodes, **FABRIC))
        assert (found.ordered, found.gpu_model, found.gpus_per_node) == (True, "H200 SXM", 8)
        assert (found.nodes, found.nvls, fabric(found)) == (("gpu01",), True, EXPECTED)
    assert fabric(population.from_host(ordered(1))) == NONE
    for nodes in (2, "gpu02"):
        with pytest.raises(ConfigError, match=rf"orders {nodes}, and .* one node \(gpu01\)"):
            population.from_host(ordered(nodes))


# --- the sandbox


def test_the_options_of_a_sandbox_are_an_order(monkeypatch):
    on_host(monkeypatch)
    order = population.sandbox_contract(nodes=3, gpus=2)
    assert (order.node_count, order.gpus_per_node, order.gpu_model) == (3, 2, "cpu")
    virtual = platforms.find("")
    nics = (len(virtual.ordered_nics), virtual.order["nic_gbps"])
    assert (order.nics_per_node, order.nic_gbps) == nics
    light = population.sandbox_contract(nodes=3, gpus=2, light=True)
    assert (light.gpu_model, light.nics_per_node, light.nic_gbps) == ("cpu", 0, None)
    shown = population.sandbox_contract(nodes=2, gpus=2, platform="dgx-a100")
    assert (shown.gpu_model, shown.gpus_per_node) == ("A100 SXM 80", 8)
    with pytest.raises(ConfigError, match="--sandbox-platform: no platform 'dgx'"):
        population.sandbox_contract(nodes=2, gpus=2, platform="dgx")
    on_host(monkeypatch, *["NVIDIA H200"] * 4)
    real = population.sandbox_contract(nodes=2, gpus=2)
    assert (real.gpu_model, real.nics_per_node) == ("H200 SXM", 0)
    assert population.sandbox_contract(nodes=2, gpus=2, light=True).gpu_model == "cpu"


@pytest.mark.parametrize("able", [True, False])
def test_a_sandbox_has_what_this_host_can_enforce(monkeypatch, able):
    monkeypatch.setattr(resources, "can_bind_cores", lambda nodes, gpus: able)
    monkeypatch.setattr(cgroups, "controls_memory", lambda: able)
    monkeypatch.setattr(emulation, "refusal", lambda: None if able else "no gcc")
    found = population.from_sandbox(ordered(2, **FABRIC))
    assert (found.nodes, found.origin) == (("worker0", "worker1"), "sandbox")
    assert (found.bindable, found.memory_control, found.light) == (able, able, False)
    assert (found.emulated, found.ordered, found.nvls) == (False, True, True)
    assert fabric(found) == EXPECTED
    virtual = Contract(nodes=2, gpus_per_node=2, gpu_model="cpu")
    assert population.from_sandbox(virtual).emulated is able
    assert fabric(population.from_sandbox(virtual)) == NONE
    light = population.from_sandbox(virtual, light=True)
    assert (light.bindable, light.memory_control, light.light) == (False, False, True)


def test_a_running_sandbox_says_itself_how_it_binds(slurm, monkeypatch):
    asked = []
    monkeypatch.setattr(population, "sharing_of", lambda name: asked.append(name) or {})
    monkeypatch.setattr(population, "allocates_whole_nodes", lambda fields, **_: True)
    for plugins, bindable in (
        ("TaskPlugin   = task/affinity,task/cgroup\n", True), ("TaskPlugin=task/cgroup\n", False),
        ("Other=affinity\n", False), ("TaskPlugin =\nOther=affinity\n", False),
    ):  # fmt: skip
        monkeypatch.setattr(
            client, "slurm_query", lambda *argv, said=plugins: f"ClusterName=x\n{said}"
        )
        monkeypatch.setattr(population, "slurm_config", client.slurm_config)
        found = population.attached_sandbox(ordered(2), partition=None)
        assert (found.bindable, found.partition, found.whole_nodes) == (bindable, "", True)
    found = population.attached_sandbox(ordered(2), partition="mine", light=True)
    assert (found.partition, found.light) == ("mine", True)
    assert asked == ["gpu"] * 4 + ["mine"]


# --- a replay of another order


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
        patch.setattr(site_facts, "installed_here", nothing_installed)
        verdict, rows = fleet.judged(tmp_path / "judged")
    assert rows[key]["outcome"] == "FAIL"
    assert verdict["verdict"] == "REJECTED"


def test_what_a_run_says_was_installed_is_held_against_its_records(fleet, tmp_path):
    run = json.loads((fleet.root / "run.json").read_text())
    fleet.change_run(population={**run["population"], "installed": []})
    verdict, rows = fleet.judged(tmp_path / "judged")
    assert rows["finetune.exact", "cluster"]["outcome"] == "PASS"
    assert verdict["verdict"] == "INCOMPLETE"
    assert any("does not say that finetune was installed" in r for r in verdict["reasons"])
    (fleet.root / "records" / "training_finetune@all.json").unlink()
    _, rows = fleet.judged(tmp_path / "again")
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
