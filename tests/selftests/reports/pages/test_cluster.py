"""The cluster that a run measured: its devices and versions, and what differs between nodes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.run_directory import RunDirectory
from reports.pages import cluster as module
from reports.pages.cluster import Cluster, Fact, NodeFacts, node_facts
from tests.selftests import support
from tests.selftests.plain_records import RUN, plain_record, reader_of

pytestmark = pytest.mark.cpu

Json = dict[str, Any]
NIC = {"name": "mlx5_0", "hca_type": "MT4129", "link_layer": "InfiniBand", "rate": "400",
       "node_guid": "g0", "fw_ver": "28.1"}  # fmt: skip


def cluster_of(contract: Json | None = None, planned: str = "", **nodes: NodeFacts) -> Cluster:
    return Cluster(contract or {}, tuple(nodes), nodes, planned)


def gpus(*names: str, **more: Any) -> list[Json]:
    return [{"name": name, "uuid": f"GPU-{k}", **more} for k, name in enumerate(names)]


def plain(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


# --- what a node said


def write(
    directory: RunDirectory, workload: str, *ranks: Json, attempt: int = 1, **more: Any
) -> None:
    directory.records.mkdir(exist_ok=True)
    name = directory.record(workload, "n0", attempt).name
    support.save(plain_record(name, *ranks, **more), directory)


def facts_of(directory: RunDirectory) -> NodeFacts | None:
    return node_facts(reader_of(directory), "n0")


def test_facts_are_of_the_newest_records_of_environment_and_inventory(tmp_path: Path):
    directory = RunDirectory(tmp_path)
    assert facts_of(directory) is None
    write(directory, "environment", {"facts": {"driver": "579"}, "device": {}})
    write(
        directory, "environment",
        {"facts": {"driver": "580", "nics": [NIC]}, "device": {"uuid": "A", "serial": "1", "x": 1}},
        attempt=2, provenance={"torch": "2.7", "python": "3.11"},
    )  # fmt: skip
    write(
        directory, "inventory",
        {"facts": {"cpu": "EPYC", "sockets": 0, "nics": [{"name": "mlx5_0"}], "gpus": [
            {"uuid": "A", "vbios": "96"}, {"uuid": "B", "vbios": ""}]},
         "device": {"uuid": "A", "name": "H200", "serial": None}},
        {"facts": {}, "device": {"uuid": "B", "name": "H200"}},
        provenance={"torch": "2.8"},
    )  # fmt: skip
    found = facts_of(directory)
    assert found is not None
    assert found.gpus == [
        {"index": 0, "uuid": "A", "serial": "1", "name": "H200", "vbios": "96"},
        {"index": 1, "uuid": "B", "name": "H200"},
    ]  # fmt: skip
    assert found.nics == [NIC], "the inventory has their names only"
    assert (found.facts["driver"], found.facts["cpu"], found.facts["sockets"]) == ("580", "EPYC", 0)
    assert found.provenance == {"torch": "2.8", "python": "3.11"}


def test_an_inventory_alone_has_its_own_nics(tmp_path: Path):
    directory = RunDirectory(tmp_path)
    write(directory, "environment", {"facts": {"nics": []}, "device": {}})
    write(directory, "inventory", {"facts": {"nics": [{"name": "mlx5_0"}]}, "device": {}})
    found = facts_of(directory)
    assert found is not None
    assert found.nics == [{"name": "mlx5_0"}]
    write(directory, "inventory", {"facts": {"nics": []}, "device": {}})
    write(directory, "environment", {"facts": {"nics": [NIC]}, "device": {}})
    found = facts_of(directory)
    assert found is not None
    assert found.nics == [NIC]


def test_a_record_that_is_broken_costs_its_own_part_alone(tmp_path: Path):
    directory = RunDirectory(tmp_path)
    write(directory, "environment", {"facts": {"gpus": 5}})
    assert facts_of(directory) is None
    directory.record("environment", "n0").write_text('{"ranks": ["text"]}')
    assert facts_of(directory) is None
    write(directory, "inventory", {"facts": {"driver": "580"}, "device": {"uuid": "A"}})
    found = facts_of(directory)
    assert found is not None
    assert (found.facts, found.gpus) == ({"driver": "580"}, [{"index": 0, "uuid": "A"}])


def test_gpus_of_two_lists_are_one_by_their_uuid():
    old = [{"uuid": "A", "name": "H200"}, {"uuid": "B"}]
    assert module._merged(old, [{"uuid": "B", "pci": "p"}, {"uuid": "A", "name": "H100"}]) == [
        {"uuid": "B", "pci": "p"}, {"uuid": "A", "name": "H100"}
    ]  # fmt: skip
    assert module._merged(old, []) == old


def test_only_nics_and_links_that_are_well_formed_are_read():
    assert NodeFacts().nics == NodeFacts({"nics": None}).nics == []
    assert NodeFacts({"nics": ["mlx5_0", NIC]}).nics == [NIC]
    assert NodeFacts({"topology": None}).topology == NodeFacts().topology == []
    assert NodeFacts({"topology": [["self", 18], []]}).topology == [["self", "18"]]


# --- the cluster in words


def test_a_cluster_is_of_the_nodes_in_the_scope(tmp_path: Path):
    directory = RunDirectory(tmp_path)
    write(directory, "inventory", {"facts": {}, "device": {"name": "H200", "uuid": "A"}})
    scope = {"nodes": ["n0", "n1"], "gpus_per_node": 8, "gpu_model": "H200 SXM"}
    found = Cluster.of(directory, {**RUN, "contract": {"customer": "A"}}, scope)
    assert (found.contract, found.nodes) == ({"customer": "A"}, ["n0", "n1"])
    assert (list(found.found), found.silent) == (["n0"], ["n1"])
    assert found.planned == "16 x H200 SXM"
    for bare in ({**scope, "gpu_model": None}, {**scope, "gpus_per_node": 0}):
        assert Cluster.of(directory, {}, bare).planned == ""
    empty = Cluster.of(directory, {"contract": None}, {"nodes": None})
    assert (empty.contract, empty.nodes, empty.found) == ({}, [], {})


def test_the_headline_has_parties_hardware_and_a_short_host_list():
    contract = {"supplier": "B", "customer": "A", "site": "", "order_number": 4711}
    two = {f"n{k}": NodeFacts(gpus=gpus("H200", "H200")) for k in range(2)}
    found = cluster_of(contract, **two)
    assert found.parties == [("Customer", "A"), ("Supplier", "B"), ("Order number", "4711")]
    assert found.headline == "A, B, 4711, 2 nodes, 4 x H200, n[0-1]"
    for length, named in ((60, True), (61, False)):
        name = "n" * length
        assert cluster_of(**{name: NodeFacts()}).headline == (
            f"1 node, {name}" if named else "1 node"
        )
    assert cluster_of(n=NodeFacts()).headline == "1 node, n"
    assert cluster_of().headline == "0 nodes"


def test_planned_gpus_stand_for_those_that_nobody_reported():
    assert cluster_of(planned="8 x H200", n0=NodeFacts()).hardware == "1 node, 8 x H200"
    assert cluster_of(n0=NodeFacts()).hardware == "1 node"
    known = NodeFacts(gpus=gpus("A", "B", "B", "C", "C", "C", "D"))
    assert cluster_of(planned="8 x H200", n0=known).hardware == "1 node, 3 x C, 2 x B, 1 x A"
    assert cluster_of(n0=known, n1=known).gpu_names["B"] == 4
    unnamed = NodeFacts(gpus=[{"uuid": "A"}])
    assert dict(cluster_of(n0=unnamed).gpu_names) == {"None": 1}


def test_facts_that_differ_come_first_with_their_nodes():
    nodes = {
        "n0": NodeFacts({"driver": "580", "cuda": "13", "os": ""}, gpus("H200", vbios="96")),
        "n1": NodeFacts({"driver": "580", "cuda": "12"}, gpus("H200", vbios="96")),
        "n2": NodeFacts({"driver": "580", "cuda": "12"}, gpus("H200", vbios="97")),
    }
    found = cluster_of(**nodes).facts
    assert found == [
        Fact("CUDA", [("12", "n[1-2]"), ("13", "n0")]),
        Fact("GPU firmware (VBIOS)", [("96", "n[0-1]"), ("97", "n2")]),
        Fact("Driver", [("580", "n[0-2]")]),
        Fact("GPUs", [("1 x H200", "n[0-2]")]),
    ]
    assert [fact.differs for fact in found] == [True, True, False, False]
    assert Fact("CUDA", [("12", "n0"), ("13", "n1"), ("11", "n2")]).differs is True


def test_devices_of_a_node_are_counted_by_kind():
    for values, text in (
        (["96", "96", None, ""], "96"), (["97", "96", "96"], "2 x 96, 1 x 97"), ([], ""),
        ([400.0], "400.0"),
    ):  # fmt: skip
        assert module._alike(values) == text
    node = NodeFacts({"nics": [NIC, NIC, {"name": "eth0"}]}, gpus("H200", "H100", "H200"))
    assert module._gpus_text(node) == "2 x H200, 1 x H100"
    assert module._nics_text(node) == "2 x MT4129 InfiniBand 400, 1 x NIC"
    assert module._links_text([["self", "NV18"], ["NV18", "self"], ["PIX"]]) == "NV18, PIX"


def test_each_way_of_linking_gpus_is_shown_once_that_of_most_nodes_first():
    def linked(kind: str, count: int = 2) -> NodeFacts:
        rows = [["self" if a == b else kind for b in range(count)] for a in range(count)]
        return NodeFacts({"topology": rows})

    nodes = {"n0": linked("PIX"), "n1": linked("NV18"), "n2": linked("NV18"), "n3": linked("", 1)}
    assert cluster_of(**nodes).topologies == [
        ("n[1-2]", [["self", "NV18"], ["NV18", "self"]]), ("n0", [["self", "PIX"], ["PIX", "self"]])
    ]  # fmt: skip


# --- the section of the report


def test_the_section_has_what_differs_what_is_alike_and_every_device():
    first = NodeFacts({"driver": "580", "cuda": "13", "nics": [NIC, {"name": "eth0"}]},
                      gpus("H200", serial="165", power_limit_w=700))  # fmt: skip
    second = NodeFacts({"driver": "580", "cuda": "12"})
    html = module.section(
        Cluster({"customer": "A"}, ("n0", "n1", "n2"), {"n0": first, "n1": second})
    )
    text = plain(html)
    assert "Customer A" in text
    assert "What differs between the nodes" in text
    assert re.search(r"CUDA 13 n0 12 n1", text)
    assert "Driver 580" in text
    assert "Driver 580 n" not in text
    assert "n0 gpu0 H200 GPU-0 165" in text
    assert "n0 mlx5_0 MT4129 400 g0 28.1" in text
    assert "n0 eth0" in text
    assert "n1 gpu" not in text
    assert "No record of the hardware of 1 of 3 nodes: n2" in text
    same = plain(module.section(cluster_of(n0=second, n1=second)))
    assert "The nodes do not differ" in same


def test_the_devices_of_sixty_four_nodes_are_listed():
    for count, said in ((64, False), (65, True)):
        nodes = {f"n{k}": NodeFacts(gpus=gpus("H200")) for k in range(count)}
        text = plain(module.section(cluster_of(**nodes)))
        assert ("(64 of 65 nodes; the certificate has all)" in text) is said
        assert ("n63 gpu0" in text, "n64 gpu0" in text) == (True, False)


def test_what_a_device_does_not_say_is_blank():
    assert module._blank({"name": "H200", "pci": None, "index": 0}, ("name", "pci", "index")) == {
        "name": "H200", "pci": "", "index": 0
    }  # fmt: skip
    assert module._gpu({"name": "H200", "uuid": "", "pci": None, "index": 0, "other": 1}) == {
        "name": "H200", "index": 0
    }  # fmt: skip
