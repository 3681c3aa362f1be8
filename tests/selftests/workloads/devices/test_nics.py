"""Which RDMA devices count as ordered, on trees in the form that real nodes have."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from fixtures.records.model import Measurement, Result
from fixtures.thresholds.contract import Contract
from fixtures.workloads.devices import nics
from fixtures.workloads.infiniband import infiniband
from fixtures.workloads.inventory import inventory
from fixtures.workloads.telemetry import telemetry

pytestmark = pytest.mark.cpu

GPUS = [f"00000000:{bus}:00.0" for bus in ("1B", "43", "52", "61", "9D", "C3", "D1", "DF")]
ORDER = {"number": 8, "fabric": "InfiniBand"}
COMPUTE = ("MT4129", "MT_0000000838", "InfiniBand", "400")
STORAGE = ("MT4129", "MT_0000000834", "InfiniBand", "200")
ETHERNET = ("MT4129", "MT_0000000834", "Ethernet", "100")
SLOTS = {
    "mlx5_0": (COMPUTE, "18:00.0"), "mlx5_1": (STORAGE, "29:00.0"), "mlx5_2": (ETHERNET, "29:00.1"),
    "mlx5_3": (COMPUTE, "40:00.0"), "mlx5_4": (COMPUTE, "4f:00.0"), "mlx5_5": (COMPUTE, "5e:00.0"),
    "mlx5_6": (COMPUTE, "9a:00.0"), "mlx5_7": (STORAGE, "aa:00.0"), "mlx5_8": (ETHERNET, "aa:00.1"),
    "mlx5_9": (COMPUTE, "c0:00.0"), "mlx5_10": (COMPUTE, "ce:00.0"),
    "mlx5_11": (COMPUTE, "dc:00.0"),
}  # fmt: skip
OURS = ("mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11")
SWITCH = {
    "18": "1b", "40": "43", "4f": "52", "5e": "61", "9a": "9d", "c0": "c3", "ce": "d1", "dc": "df",
}  # fmt: skip
"""Bus of a NIC -> bus of the GPU that is on its PCIe switch."""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def pci(root: Path, address: str, numa: int, above: str = "") -> Path:
    """Make a PCI device, below a switch of its own name where `above` names one."""
    real = root / "sys/devices/pci0000:00" / above / f"0000:{address}"
    write(real / "numa_node", str(numa))
    place = root / "sys/bus/pci/devices" / real.name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(real)
    return real


def nic(root: Path, name: str, kind: tuple[str, str, str, str], device: Path) -> Path:
    hca, board, layer, rate = kind
    folder = root / nics.NICS / name
    for file, text in {
        "hca_type": hca, "board_id": board, "ports/1/link_layer": layer,
        "ports/1/state": "4: ACTIVE",
        "ports/1/rate": f"{rate} Gb/sec", "ports/1/phys_state": "5: LinkUp",
    }.items():  # fmt: skip
        write(folder / file, text)
    (folder / "device").symlink_to(device)
    return folder


def tree(root: Path, slots: dict[str, Any] = SLOTS, *, switches: bool = False) -> Path:
    for address in GPUS:
        bus = address[9:11].lower()
        pci(root, f"{bus}:00.0", int(bus >= "90"), f"0000:{bus}:1f.0" if switches else "")
    for name, (kind, address) in slots.items():
        gpu = SWITCH.get(address[:2])
        above = f"0000:{gpu or address[:2]}:1f.0" if switches else ""
        nic(root, name, kind, pci(root, address, int(address >= "90"), above))
    return root


@pytest.mark.parametrize("switches", [False, True])
@pytest.mark.parametrize("gpus", [GPUS, []])
def test_adapters_for_storage_and_ethernet_do_not_count(
    gpus: list[str], switches: bool, tmp_path: Path
) -> None:
    found = nics.choose(tree(tmp_path, switches=switches), order=ORDER, gpus=gpus)
    assert found.counted == OURS
    assert set(found.left_out) == {"mlx5_1", "mlx5_2", "mlx5_7", "mlx5_8"}
    assert "the NICs of the GPUs are MT4129 MT_0000000838" in found.left_out["mlx5_1"]
    assert nics.choose(tmp_path, order={**ORDER, "number": 12}, gpus=gpus).counted == OURS


def run(workload: Any, root: Path, order: dict[str, Any], metrics: list[str]) -> Result:
    ranks = SimpleNamespace(
        leads_node=True, spec={"nic_order": order}, node="n", local_rank=0, on_gpu=False,
        identity_facts=lambda: {"model": "cpu"},
    )  # fmt: skip
    result: Result = workload.run(ranks, metrics, root=str(root))
    return result


def test_inventory_says_what_counts_and_what_was_left_out_and_why(tmp_path: Path) -> None:
    found = run(inventory, tree(tmp_path), ORDER, ["nics"])
    assert [m.value for m in found.measurements] == [8]
    assert found.facts["nics"] == list(OURS)
    assert set(found.facts["nics_left_out"]) == {"mlx5_1", "mlx5_2", "mlx5_7", "mlx5_8"}
    assert found.measurements[0].notes[0] == f"counted: {', '.join(OURS)}"
    assert found.measurements[0].notes[1].startswith("left out mlx5_1: MT4129 MT_0000000834; ")


def test_ports_of_devices_that_do_not_count_are_not_judged(tmp_path: Path) -> None:
    found = run(infiniband, tree(tmp_path), ORDER, ["fabric", "rate"])
    assert {
        m.at["part"]: m.value for m in found.measurements if m.metric == "rate"
    } == dict.fromkeys(OURS, 400.0)
    assert {m.value for m in found.measurements if m.metric == "fabric"} == {"InfiniBand"}
    assert len(found.facts["nics_left_out"]) == 4


@pytest.mark.parametrize("lost", OURS)
def test_lost_nic_is_not_made_up_for_by_another_device(lost: str, tmp_path: Path) -> None:
    slots = {name: slot for name, slot in SLOTS.items() if name != lost}
    found = nics.choose(tree(tmp_path, slots), order=ORDER, gpus=GPUS)
    assert found.counted == tuple(name for name in OURS if name != lost)


def test_lost_nic_is_not_made_up_for_by_storage_on_the_same_kind_of_card(tmp_path: Path) -> None:
    slots = {**SLOTS, "mlx5_1": (COMPUTE, "29:00.0"), "mlx5_7": (COMPUTE, "aa:00.0")}
    del slots["mlx5_0"], slots["mlx5_2"], slots["mlx5_8"]
    found = nics.choose(tree(tmp_path, slots, switches=True), order=ORDER, gpus=GPUS)
    assert found.counted == OURS[1:]
    assert found.left_out["mlx5_1"] == "no GPU is on its PCIe switch"


def test_port_of_a_mixed_card_is_storage_where_all_boards_are_alike(tmp_path: Path) -> None:
    """A DGX A100: the first ports of its two-port adapters look like its compute NICs."""
    slots = {**SLOTS, "mlx5_1": (COMPUTE, "29:00.0"), "mlx5_7": (COMPUTE, "aa:00.0")}
    found = nics.choose(tree(tmp_path, slots), order=ORDER, gpus=GPUS)
    assert found.counted == OURS
    assert found.left_out["mlx5_1"] == "mlx5_2 on the same card is of another fabric"


def test_compute_nic_of_the_wrong_fabric_or_rate_still_counts(tmp_path: Path) -> None:
    slots = {**SLOTS, "mlx5_3": (("MT4129", "MT_0000000838", "Ethernet", "100"), "40:00.0")}
    assert nics.choose(tree(tmp_path, slots), order=ORDER, gpus=GPUS).counted == OURS


def test_bond_of_other_cards_and_few_nics_near_the_gpus(tmp_path: Path) -> None:
    bluefield = ("MT41692", "MT_0000000884", "Ethernet", "200")
    slots = {
        "mlx5_0": (COMPUTE, "18:00.0"), "mlx5_1": (COMPUTE, "9a:00.0"),
        "mlx5_bond_0": (("MT4123", "MT_0000000223", "Ethernet", "25"), "29:00.0"),
        "mlx5_3": (bluefield, "aa:00.0"), "mlx5_4": (bluefield, "aa:00.1"),
        "mlx5_5": (bluefield, "ab:00.0"),
    }  # fmt: skip
    order = {"number": 2, "fabric": "InfiniBand"}
    found = nics.choose(tree(tmp_path, slots, switches=True), order=order, gpus=GPUS)
    # More of the others than of these: what is beside a GPU decides.
    assert found.counted == ("mlx5_0", "mlx5_1")


def test_order_names_or_excludes_devices(tmp_path: Path) -> None:
    root = tree(tmp_path)
    found = nics.choose(root, order={"names": ["mlx5_1", "mlx5_7", "mlx5_99"]}, gpus=GPUS)
    assert (found.counted, found.missing) == (("mlx5_1", "mlx5_7"), ("mlx5_99",))
    assert found.left_out["mlx5_0"] == "the order names others"
    assert found.notes()[-1] == "ordered by name and not there: mlx5_99"
    found = nics.choose(root, order={"exclude": ["mlx5_1*"]}, gpus=GPUS)
    assert found.counted == OURS[:6]
    assert found.left_out["mlx5_10"] == "the order excludes mlx5_1*"


def test_contract_takes_names_or_a_number() -> None:
    given: dict[str, Any] = {
        "nodes": 2,
        "gpus_per_node": 8,
        "gpu_model": "H100 SXM",
        "nic_gbps": 400,
    }
    named = Contract(**{**given, "nics": "mlx5_[0,3-4]"})
    assert (named.nics, named.nics_per_node) == (["mlx5_0", "mlx5_3", "mlx5_4"], 3)
    assert Contract(**named.model_dump()) == named
    assert named.nic_order()["names"] == named.nics
    counted = Contract(**given, nics_per_node=8, nics_exclude=["mlx5_bond_*"])
    assert counted.nic_order() == {
        "exclude": ["mlx5_bond_*"], "number": 8, "fabric": "InfiniBand",
    }  # fmt: skip
    for wrong, why in (
        ({"nics": ["a"], "nics_per_node": 2}, "nics names 1, and nics_per_node is 2"),
        ({"nics": ["a"], "nics_exclude": ["b"]}, "remove nics_exclude"),
        ({"nics": ["a", "a"]}, "twice"),
        ({"nics": 8}, "expected RDMA devices"),
    ):
        with pytest.raises(ValidationError, match=why):
            Contract(**{**given, **wrong})


def test_ports_of_a_nic_stay_apart_and_efa_counts_elsewhere(tmp_path: Path) -> None:
    folder = nic(tmp_path, "mlx5_0", COMPUTE, pci(tmp_path, "18:00.0", 0))
    write(folder / "ports/2/link_layer", "InfiniBand")
    write(folder / "ports/1/counters/port_xmit_data", "10")
    write(folder / "ports/2/hw_counters/rx_bytes", "7")
    ports = nics.choose(tmp_path, order={}).ports(tmp_path)
    assert {name: telemetry.traffic(port) for name, port in ports.items()} == {
        "mlx5_0:1": [40, 0], "mlx5_0:2": [0, 7],
    }  # fmt: skip


def test_roce_gid_and_mtu_are_facts(tmp_path: Path) -> None:
    device = pci(tmp_path, "18:00.0", 0)
    port = nic(tmp_path, "mlx5_0", ETHERNET, device) / "ports/1"
    for k, (version, gid) in enumerate(
        (
            ("RoCE v2", "fe80:0000:0000:0000:0000:0000:0000:0001"),
            ("IB/RoCE v1", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
            ("RoCE v2", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
        )
    ):
        write(port / f"gid_attrs/types/{k}", version)
        write(port / f"gids/{k}", gid)
    write(device / "net/eth0/mtu", "9000")
    found = run(infiniband, tmp_path, {"fabric": "RoCE"}, ["state"])
    assert found.facts["roce"] == {
        "mlx5_0": {"gids_v2_ipv4": [2], "gids_v2_ipv6": [], "mtu": {"eth0": 9000}}
    }
    assert isinstance(found.measurements[0], Measurement)


def test_what_counts_is_noted_only_where_something_does_not():
    assert nics.Nics(counted=("a",), left_out={}).notes() == []
    assert nics.Nics(counted=(), left_out={"b": "why"}).notes() == [
        "counted: none", "left out b: why",
    ]  # fmt: skip
    assert nics.Nics(counted=("a",), left_out={}, missing=("c",)).notes() == [
        "counted: a", "ordered by name and not there: c",
    ]  # fmt: skip


def test_the_order_of_a_job_s_spec_is_used_and_none_takes_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fixtures.workloads.devices.devices.gpu_addresses", lambda: GPUS)
    tree(tmp_path)
    assert nics.of_node({"nic_order": {"names": ["mlx5_1"]}}, tmp_path).counted == ("mlx5_1",)
    for spec in ({}, {"nic_order": None}):
        assert nics.of_node(spec, tmp_path).counted == OURS


def test_too_many_of_a_kind_are_cut_down_to_the_ordered_fabric(tmp_path: Path):
    unknown = ("MT4129", "MT_0000000838", "", "400")
    ethernet = ("MT4129", "MT_0000000838", "Ethernet", "400")
    slots = {
        "mlx5_0": (COMPUTE, "18:00.0"), "mlx5_1": (ethernet, "40:00.0"),
        "mlx5_2": (unknown, "4f:00.0"), "mlx5_3": (COMPUTE, "5e:00.0"),
    }  # fmt: skip
    root = tree(tmp_path, slots)
    order = {"number": 3, "fabric": "InfiniBand"}
    found = nics.choose(root, order=order, gpus=GPUS)
    assert found.counted == ("mlx5_0", "mlx5_2", "mlx5_3")
    assert found.left_out == {"mlx5_1": "its port is RoCE, and InfiniBand was ordered"}
    for enough in ({**order, "number": 4}, {"number": 3}, {"fabric": "InfiniBand"}):
        assert len(nics.choose(root, order=enough, gpus=GPUS).counted) == 4


def test_of_two_kinds_alike_the_one_on_numa_node_0_or_of_the_fabric_counts(tmp_path: Path):
    slots = {
        "mlx5_0": (COMPUTE, "18:00.0"),
        "mlx5_1": (("ZZ", "board", "Ethernet", "1"), "9a:00.0"),
    }
    root = tree(tmp_path / "numa", slots)
    assert nics.choose(root, order={}, gpus=GPUS[:1]).counted == ("mlx5_0",)
    # Without GPUs the fabric decides, and without that the name of the kind.
    assert nics.choose(root, order={"fabric": "InfiniBand"}).counted == ("mlx5_0",)
    assert nics.choose(root, order={}).counted == ("mlx5_1",)


def test_efa_is_known_by_its_name_or_driver(tmp_path: Path):
    for name, driver, fabric in (
        ("efa_0", "", "EFA"), ("rdmap0", "efa", "EFA"), ("rdmap1", "other", "InfiniBand"),
    ):  # fmt: skip
        folder = nic(tmp_path, name, COMPUTE, tmp_path / "devices" / name)
        (tmp_path / "devices" / name).mkdir(parents=True)
        if driver:
            (folder / "device" / "driver").symlink_to(tmp_path / "drivers" / driver)
        assert nics.fabric_of(folder / "ports/1") == fabric
    write(folder / "ports/1/link_layer", "Other")
    assert nics.fabric_of(folder / "ports/1") is None
    (folder / "ports/1/link_layer").unlink()
    assert nics._text(folder / "ports/1/link_layer") == ""


def test_bridges_above_gpus_and_nics_are_known_by_their_addresses(tmp_path: Path):
    tree(tmp_path, switches=True)
    assert nics.bridges_of_gpu(tmp_path, GPUS[0]) == {"0000:1b:1f.0"}
    assert nics.bridges_of_nic(tmp_path, "mlx5_0") == {"0000:1b:1f.0"}
    # A device without an address of its own has the bridges of its path.
    virtual = tmp_path / "sys/devices/pci0000:00/0000:1b:1f.0/virtio"
    virtual.mkdir(parents=True)
    assert nics._pci(virtual) == ("", {"0000:1b:1f.0"}, -1)
    assert nics._pci(tmp_path / "plain") == ("", frozenset(), -1)
