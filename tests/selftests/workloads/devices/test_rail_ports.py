"""Which NICs are nearest to each GPU, and what a port shows of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.sandbox.platforms import write_sysfs_file
from fixtures.workloads.devices import devices, nics, rail_ports

pytestmark = pytest.mark.cpu


def test_the_nearest_nics_have_most_bridges_in_common():
    bridges = {"a": frozenset("12"), "b": frozenset("1"), "c": frozenset("12x"), "d": frozenset()}
    assert rail_ports.nearest([frozenset("12"), frozenset("1"), frozenset("9")], bridges) == [
        ["a", "c"], ["a", "b", "c"], [],
    ]  # fmt: skip
    assert rail_ports.nearest([frozenset("1")], {}) == [[]]


def test_only_gpus_with_a_nic_near_them_have_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shared = frozenset({"0000:15:01.0"})
    counted = nics.Nics(counted=("mlx5_0",), left_out={})
    monkeypatch.setattr(nics, "of_node", lambda *_: counted)
    monkeypatch.setattr(devices, "gpu_addresses", lambda: ["g0", "g1"])
    monkeypatch.setattr(nics, "bridges_of_gpu", lambda _, g: shared if g == "g1" else frozenset())
    monkeypatch.setattr(nics, "bridges_of_nic", lambda *_: shared)
    assert rail_ports.of_node({}, tmp_path) == {"gpu1": ["mlx5_0"]}


def test_a_port_shows_its_addresses_and_what_only_root_reads(tmp_path: Path):
    port = tmp_path / "mlx5_0/ports/1"
    files = {"ports/1/lid": "0x5", "ports/1/link_layer": "InfiniBand", "node_guid": "04:3f"}
    for name, text in files.items():
        write_sysfs_file(tmp_path / "mlx5_0" / name, text)
    found = rail_ports.port_facts(port)
    assert "ibnetdiscover" in found.pop("not_readable")
    assert found == {"lid": "0x5", "link_layer": "InfiniBand", "node_guid": "04:3f"}
    write_sysfs_file(port / "link_layer", "Ethernet")
    assert "lldpctl" in rail_ports.port_facts(port)["not_readable"]
    (port / "link_layer").unlink()
    assert rail_ports.port_facts(port)["not_readable"] == "1: no link layer"
