"""Facts of a site on which it depends whether a criterion applies."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import replace

import pytest

from fixtures.cluster.population import Population
from fixtures.thresholds import site_facts
from fixtures.thresholds.overview import OrderedSite
from fixtures.thresholds.site_facts import FACTS, facts_of_site

pytestmark = pytest.mark.cpu

H200 = OrderedSite(gpu_model="H200 SXM", nic_gbps=400, nvls=True)
CPU = replace(H200, gpu_model="cpu")
NEW = replace(H200, gpu_model="Z100")

CASES: dict[str, tuple[list[OrderedSite], list[OrderedSite]]] = {
    # fact: the sites where it holds, and those where it does not
    "fabric": (
        [H200, replace(H200, nics_per_node=1)],
        [replace(H200, nics_per_node=0), replace(H200, origin="sandbox")],
    ),
    "all_reduce_perf": ([H200], [CPU, replace(H200, installed=())]),
    "order": ([H200], [replace(H200, ordered=False)]),
    "gpu": ([H200], [CPU]),
    "nics": ([replace(H200, nics_per_node=1)], [replace(H200, nics_per_node=0)]),
    "ib_ports": ([H200], [replace(H200, nic_fabric="RoCE")]),
    "roce": ([replace(H200, nic_fabric="RoCE")], [H200]),
    "efa": ([replace(H200, nic_fabric="EFA")], [H200]),
    "port_states": ([H200], [replace(H200, nic_fabric="EFA")]),
    "nvml": ([H200, replace(CPU, emulated=True)], [CPU]),
    "nvlink": (
        [H200, replace(H200, gpus_per_node=2), replace(H200, gpu_model=None),
         replace(CPU, emulated=True)],
        [replace(H200, gpus_per_node=1), replace(H200, gpu_model="L40S"), CPU, NEW,
         replace(H200, gpu_model="L40S", emulated=True)],
    ),
    "rack": ([replace(H200, gpu_model="GB200")], [H200]),
    "nvls": (
        [H200, replace(H200, gpus_per_node=2)],
        [replace(H200, nvls=False), replace(H200, gpus_per_node=1), CPU],
    ),
    "multinode": ([H200], [replace(H200, nodes=("",))]),
    "multigpu": ([replace(H200, gpus_per_node=2)], [replace(H200, gpus_per_node=1)]),
    "several": (
        [replace(H200, gpus_per_node=1), replace(H200, nodes=("",), gpus_per_node=2)],
        [replace(H200, nodes=("",), gpus_per_node=1)],
    ),
    "finetune": ([H200], [replace(H200, installed=("zero3",))]),
    "zero3": ([H200], [replace(H200, installed=("finetune",))]),
    "fp8": (
        [H200, replace(H200, gpu_model="L40S"), replace(H200, gpu_model=None)],
        [replace(H200, gpu_model="A100 SXM 80"), CPU, NEW],
    ),
    "slurm": ([H200, replace(H200, origin="sandbox")], [replace(H200, origin="local")]),
    "shared_nodes": ([H200], [replace(H200, whole_nodes=True)]),
    "gres": ([H200, replace(H200, linear=True)], [replace(H200, uncounted=True)]),
    "task_gpus": ([H200], [replace(H200, uncounted=True), replace(H200, linear=True)]),
    "own_host": (
        [H200, replace(H200, origin="sandbox", nodes=("",))], [replace(H200, origin="sandbox")],
    ),
    "cores": ([H200], [replace(H200, bindable=False)]),
    "memory_control": ([H200], [replace(H200, memory_control=False)]),
    "own_processes": ([H200], [replace(H200, light=True)]),
    "shared_directory": ([H200], [replace(H200, shared_directory=False)]),
    "shared_tb": ([replace(H200, shared_tb=1)], [replace(H200, shared_tb=0)]),
    "rail_optimized": ([H200], [replace(H200, rail_optimized=False)]),
    "breakable": (
        [replace(H200, origin="sandbox")], [H200, replace(H200, origin="sandbox", light=True)],
    ),
}  # fmt: skip


def test_each_fact_holds_where_it_should_and_not_elsewhere():
    assert set(CASES) == set(FACTS)
    for name, (held, missed) in CASES.items():
        for site in held:
            assert name in facts_of_site(site), (name, site)
        for site in missed:
            assert name not in facts_of_site(site), (name, site)


def test_a_package_is_there_if_all_its_parts_are_and_a_program_if_the_path_has_it(monkeypatch):
    found = {"transformers", "peft", "accelerate"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in found else None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert site_facts.installed_here() == ("finetune",)
    found.remove("peft")
    assert site_facts.installed_here() == ()
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    assert site_facts.installed_here() == ("all_reduce_perf",)


def test_a_site_that_does_not_say_what_is_installed_is_looked_at(monkeypatch):
    monkeypatch.setattr(site_facts, "installed_here", lambda: ("zero3",))
    here = Population(
        origin="cluster", nodes=("n",), gpus_per_node=8, gpu_model="H200 SXM", ordered=True
    )
    assert here.installed is None
    assert {"zero3", "finetune"} & facts_of_site(here) == {"zero3"}
