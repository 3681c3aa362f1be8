"""How a whole node is asked for, by the settings of the site."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.errors import ConfigError
from fixtures.slurm import allocation as module
from fixtures.slurm.allocation import Allocation, whole_node
from fixtures.slurm.client import SlurmNode

pytestmark = pytest.mark.cpu


def node(name: str, *, cpus: int = 64, gpus: int = 8, memory_mib: int = 63000) -> SlurmNode:
    return SlurmNode(
        name=name, state="IDLE", reason="", address=name, cpus=cpus, gpus=gpus,
        partitions=("gpu",), memory_mib=memory_mib,
    )  # fmt: skip


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A partition of two nodes and its settings; a third node is of another order."""
    known = SimpleNamespace(
        partition={}, config={"SelectType": "select/cons_tres"},
        nodes=[node("a"), node("b", memory_mib=65000), node("c", memory_mib=10)],
    )  # fmt: skip
    monkeypatch.setattr(module, "slurm_partition", lambda name: known.partition)
    monkeypatch.setattr(module, "default_partition", lambda: "standard")
    monkeypatch.setattr(module, "slurm_config", lambda: known.config)
    monkeypatch.setattr(module, "slurm_nodes", lambda name: known.nodes)
    return known


def asked(ranks: int = 8, **more: Any) -> Allocation:
    return whole_node(["a", "b"], None, ranks=ranks, reservation=more.get("reservation"))


def test_most_sites_give_all_of_a_node_by_slurm_s_own_options(site):
    assert asked() == Allocation(cpus=64)
    assert asked().memory(64) == "0"
    site.nodes = [node("a", cpus=32), node("b")]
    assert asked().cpus == 32
    site.nodes = []
    assert asked() == Allocation(cpus=1)


@pytest.mark.parametrize(("counts", "gpus"), [((0, 0), False), ((8, 0), True)])
def test_where_slurm_has_no_gpus_it_is_asked_for_none(site, counts, gpus):
    site.nodes = [node("a", gpus=counts[0]), node("b", gpus=counts[1])]
    assert asked().gpus is gpus
    assert (asked().settings == ("no GPUs in Gres",)) is not gpus


def test_a_slurm_of_whole_nodes_is_asked_for_the_nodes_alone(site):
    site.config = {"SelectType": "select/linear"}
    assert (asked().gpus, asked().settings) == (False, ("SelectType=select/linear",))
    site.config |= {"ConstrainDevices": "yes"}
    with pytest.raises(ConfigError, match="select/linear, and ConstrainDevices=yes"):
        asked()
    site.nodes = [node("a", gpus=0), node("b", gpus=0)]
    assert asked().gpus is False


@pytest.mark.parametrize(
    ("partition", "config", "mem"),
    [
        ({"MaxMemPerNode": "2000"}, {}, "2000M"),
        ({"MaxMemPerNode": "UNLIMITED"}, {"MaxMemPerNode": "3000"}, "3000M"),
        ({"MaxMemPerNode": "2000"}, {"MaxMemPerNode": "3000"}, "2000M"),
        ({"MaxMemPerCPU": "100"}, {}, "6400M"),
        ({}, {"MaxMemPerCPU": "100"}, "6400M"),
        ({"MaxMemPerNode": "63000"}, {}, "0"), ({"MaxMemPerCPU": "985"}, {}, "0"),
        ({"MaxMemPerNode": "UNLIMITED"}, {"MaxMemPerNode": "UNLIMITED"}, "0"),
    ],
)  # fmt: skip
def test_a_limit_of_memory_is_asked_for_where_it_is_below_the_node_s(site, partition, config, mem):
    site.partition, site.config = partition, config
    assert asked().memory(64) == mem
    assert bool(asked().settings) is (mem != "0")
    assert asked().memory_limit == "".join(asked().settings)


def test_memory_per_cpu_is_for_the_cpus_that_a_job_has(site):
    site.partition = {"MaxMemPerCPU": "100"}
    assert asked().memory(60) == "6000M"
    assert Allocation(memory_mib=50, memory_per_cpu_mib=100).memory(2) == "50M"


def test_where_the_memory_of_the_nodes_is_not_known_the_limit_is_asked_for(site):
    site.partition = {"MaxMemPerNode": "2000"}
    site.nodes = [node("a", memory_mib=0), node("b", memory_mib=0)]
    assert asked().memory(64) == "2000M"
    site.nodes = [node("a", memory_mib=0), node("b", memory_mib=1000)]
    assert asked().memory(64) == "0"


@pytest.mark.parametrize(
    ("most", "cpus", "exclusive"),
    [("16", 16, False), ("64", 64, True), ("UNLIMITED", 64, True), ("\u00b2", 64, True),
     ("99", 64, True)],
)  # fmt: skip
def test_a_limit_of_cpus_excludes_the_option_for_whole_nodes(site, most, cpus, exclusive):
    site.partition = {"MaxCPUsPerNode": most}
    assert (asked().cpus, asked().exclusive) == (cpus, exclusive)


@pytest.mark.parametrize(
    ("partition", "said"),
    [({"MaxCPUsPerNode": "7"}, "MaxCPUsPerNode=7, and a node needs 8 CPUs"),
     ({"ReqResv": "YES"}, "ReqResv=YES: give --reservation")],
)  # fmt: skip
def test_what_no_way_of_asking_gets_is_refused_with_the_setting(site, partition, said):
    site.partition = partition
    with pytest.raises(ConfigError, match=said):
        asked()
    if "ReqResv" in partition:
        assert asked(reservation="mine") == Allocation(cpus=64)
