"""Emulated platforms: nobody healthy is accused on any, ten faults are named on each."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.cluster.population import from_sandbox
from fixtures.paths import CHECKOUT
from fixtures.plan.items import planned_list
from fixtures.sandbox import Sandbox, SandboxError, emulation, platforms
from fixtures.sandbox.platforms import Platform
from fixtures.thresholds import loader
from fixtures.thresholds.contract import Contract
from fixtures.workloads.devices import core_binding, devices, nics, numa
from fixtures.workloads.infiniband import ib_counters, infiniband
from fixtures.workloads.nccl import nccl_log
from tests.selftests import support
from tests.selftests.sandboxes import refuse

pytestmark = pytest.mark.cpu

NAMES = platforms.names()
ORDERS = CHECKOUT / "docs" / "examples" / "platforms"
SELECT = (
    "(test_health or infiniband or inventory or environment or drift or isolation) and not rails"
)
"""What can be measured of a platform without its GPUs."""
QUICK = ("pcie-l40s",)
"""Platforms that are tried each time; the others are slow, by their number of GPUs."""
NAMED = [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow], id=name) for name in NAMES
]


# --- their files


@pytest.fixture
def tree(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A root whose /sys is that of the platform, with the NUMA nodes and cores of its host."""
    platform = platforms.find(request.param)
    emulation.make_hardware(platform, tmp_path / "sys" / "class")
    pci = tmp_path / "sys" / "bus" / "pci"
    pci.mkdir(parents=True)
    (tmp_path / "sys" / "class" / "pci").rename(pci / "devices")
    nodes = {max(0, node) for node in platform.pci_folders.values()} | {0, 1}
    for node in range(max(nodes) + 1):
        cpulist = tmp_path / "sys" / "devices" / "system" / "node" / f"node{node}" / "cpulist"
        platforms.write_sysfs_file(cpulist, f"{16 * node}-{16 * node + 15}")
    return tmp_path


def test_gpus_without_an_address_of_their_platform_get_one_each():
    virtual, azure = platforms.find(""), platforms.find("azure-nd-h100")
    assert virtual.name == platforms.VIRTUAL
    assert platforms.VIRTUAL not in NAMES
    assert [virtual.gpu_address(k) for k in (0, 1, 8)] == [
        "00000000:18:00.0", "00000000:28:00.0", "00000000:98:00.0"
    ]  # fmt: skip
    made = dataclasses.replace(virtual, gpu_pci=("1b:00", "0009:2B:00"), gpu_numa=(0, 1))
    assert [made.gpu_address(k) for k in range(3)] == [
        "00000000:1b:00.0", "00000009:2B:00.0", "00000000:38:00.0"
    ]  # fmt: skip
    assert made.pci_folders["0009:2b:00.0"] == 1
    assert len({azure.gpu_address(k) for k in range(azure.gpus_per_node)}) == 8


def test_nics_that_were_not_ordered_are_not_counted():
    virtual = platforms.find("")
    names = tuple(nic.name for nic in virtual.nics)
    assert virtual.ordered_nics == names
    made = dataclasses.replace(virtual, not_ordered=names[:1])
    assert made.ordered_nics == names[1:]
    assert made.gpus_per_node == virtual.order["gpus_per_node"]


def test_the_driver_is_that_of_the_platform():
    made = dataclasses.replace(
        platforms.find(""), driver="570.1", gpus={"links": 4, "name": "X"}, gpu_memory_nodes=(2, 6)
    )
    assert made.driver_lines() == [
        "driver=570.1-emulated", "*.links=4", "*.name=X", "0.numa=2", "1.numa=6"
    ]  # fmt: skip


def test_nothing_is_logged_by_a_platform_without_nccl():
    virtual = platforms.find("")
    assert dataclasses.replace(virtual, nccl={}).nccl_log() == ""
    log = dataclasses.replace(
        virtual, nccl={"network": "IB", "within": "P2P", "between": "NET/IB/{nic}"}
    ).nccl_log()  # fmt: skip
    assert "Using network IB\n" in log
    assert "via NET/IB/0\n" in log


def test_the_files_of_a_nic_are_those_of_its_kind(tmp_path):
    for k, (kind, pci_class, mad, gid, interface) in enumerate((
        ("ndr", "0x020700", True, False, False), ("roce400", "0x020000", False, True, True),
        ("efa", "0x020000", False, False, False),
    )):  # fmt: skip
        nic = platforms.Nic(name=f"nic{k}", kind=platforms.NIC_KINDS[kind], pci=f"0{k}", numa=0)
        platforms.make_nic(tmp_path, k, nic)
        pci = tmp_path / platforms.PCI_CLASS / f"0{k}"
        port = tmp_path / "infiniband" / f"nic{k}" / "ports" / "1"
        assert nic.kind.pci_class == pci_class
        assert (pci / "class").read_text() == f"{pci_class}\n"
        assert (tmp_path / "infiniband_mad" / f"umad{k}").exists() is mad
        assert (port / "gids").exists() is gid
        assert (pci / "net").exists() is interface
        assert (port / "state").read_text() == "4: ACTIVE\n"
        assert (port / "rate").read_text() == f"{nic.kind.rate}\n"
        layer = {"ndr": "InfiniBand", "roce400": "Ethernet", "efa": "Unspecified"}[kind]
        assert (port / "link_layer").read_text() == f"{layer}\n"
        assert (port / "counters").exists() is (kind != "efa")
        assert (port / "hw_counters").exists()
        platforms.make_nic(tmp_path, k, nic)  # again, when its faults are cleared


@pytest.mark.parametrize(("name", "tree"), [(n, n) for n in NAMES], indirect=["tree"], ids=NAMES)
def test_every_ordered_nic_is_healthy_and_of_the_ordered_fabric_and_rate(name: str, tree: Path):
    platform = platforms.find(name)
    assert set(nics.device_names(tree)) == {nic.name for nic in platform.nics}
    ports = nics.Nics(counted=platform.ordered_nics, left_out={}).ports(tree)
    assert len(platform.ordered_nics) == platform.order["nics_per_node"]
    for nic in platform.ordered_nics:
        found = infiniband.states(tree, ports[nic])
        assert found["fabric"] == platform.order.get("nic_fabric", "InfiniBand"), nic
        assert (found["rate"], found["verbs"]) == (platform.order["nic_gbps"], "present"), nic
        assert infiniband.emulated(ports[nic])
        # EFA has neither a link of its own nor a state of it.
        wanted = (None, None) if found["fabric"] == "EFA" else ("ACTIVE", "LinkUp")
        assert (found["state"], found["physical_state"]) == wanted, nic


@pytest.mark.parametrize("tree", NAMES, indirect=True)
def test_every_pci_device_has_a_class_and_a_vendor(tree: Path):
    # gloo reads the class of all of them and ends the rank where one has none.
    devices = sorted((tree / "sys" / "bus" / "pci" / "devices").iterdir())
    assert devices
    for device in devices:
        assert (device / "class").read_text().startswith("0x0"), device.name
        assert (device / "vendor").read_text().startswith("0x"), device.name


@pytest.mark.parametrize("tree", ["aws-p5"], indirect=True)
def test_an_efa_port_has_its_own_counters_and_none_of_infiniband(tree: Path):
    ranks: Any = SimpleNamespace(leads_node=True, spec={})
    ports = ib_counters.begin(ranks, root=str(tree))["ports"]
    assert {frozenset(found) for found in ports.values()} == {frozenset(ib_counters.EFA_COUNTERS)}


@pytest.mark.parametrize(
    ("tree", "nodes"),
    [("dgx-a100", [3, 3, 1, 1, 7, 7, 5, 5]), ("hgx-h100", [0, 0, 0, 0, 1, 1, 1, 1]),
     ("azure-nd-h100", [None] * 8), ("gb200-nvl72", [0, 0, 1, 1])],
    indirect=["tree"], ids=["dgx-a100", "hgx-h100", "azure-nd-h100", "gb200-nvl72"],
)  # fmt: skip
def test_gpus_are_near_the_cores_of_their_platform(
    tree: Path, nodes: list[int | None], request: pytest.FixtureRequest, monkeypatch: Any
):
    platform = platforms.find(request.node.callspec.id)
    monkeypatch.setattr(devices, "pci_of_rank", platform.gpu_address)
    system = tree / "sys"
    found = [core_binding.near_cores(k, system)[0] for k in range(platform.gpus_per_node)]
    assert found == [None if n is None else set(range(16 * n, 16 * n + 16)) for n in nodes]
    own = [numa.node_of(platform.gpu_address(k), system) for k in range(platform.gpus_per_node)]
    assert own == nodes


@pytest.mark.parametrize("name", NAMES)
def test_what_nccl_logs_on_a_platform_names_the_ordered_network(name: str, tmp_path: Path):
    platform = platforms.find(name)
    log = tmp_path / "nccl-rank0.0.log"
    log.write_text(platform.nccl_log())
    found = nccl_log.read_nccl_log([log])
    assert found["network"] == platform.nccl["network"]
    assert found["coll_channels"] == len(platform.ordered_nics)
    slowest = nccl_log.slowest({nccl_log.transport_family(t) for t in found["transports"]})
    if name == "gb200-nvl72":
        # Within a rack no byte goes over a NIC.
        assert (slowest, found.get("nics")) == ("MNNVL", None)
        return
    assert slowest == Contract(**platform.order, nodes=2).transport
    assert found["nics"] == list(range(len(platform.ordered_nics)))
    # Without NVLink or a switch that joins them, GPU and NIC talk through the CPU.
    assert found["gdr"] is (name != "pcie-l40s")


def test_an_unknown_platform_is_refused_with_the_names_of_all():
    with pytest.raises(SandboxError, match=r"no platform 'hgx'.*; all: aws-p5, .*pcie-l40s"):
        platforms.find("hgx")
    done = support.run_pytest("--cluster=sandbox", "--sandbox-platform=hgx", "--plan")
    assert done.returncode == 4
    assert "--sandbox-platform: no platform 'hgx'" in done.stdout + done.stderr


# --- their orders


def order_of(name: str) -> Path:
    return ORDERS / f"{name}.yaml"


def test_every_platform_has_an_order_and_every_order_a_platform():
    assert sorted(path.stem for path in ORDERS.glob("*.yaml")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_order_is_that_of_its_platform_and_can_be_planned(name: str):
    limits = loader.load(order_of(name))
    assert limits.cluster is not None
    for key, value in platforms.find(name).order.items():
        assert getattr(limits.cluster, key) == value
    items = planned_list(limits, from_sandbox(limits.cluster))
    criteria = {item.criterion for item in items if not item.not_applicable}
    assert {"inventory.gpus", "health.ecc_mode", "infiniband.rate"} <= criteria
    assert ("infiniband.state" in criteria) is (name != "aws-p5")
    assert ("nvlink.links" in criteria) is (name != "pcie-l40s")


@pytest.mark.parametrize("name", NAMED)
def test_a_plan_of_a_platform_says_what_would_be_measured(name: str):
    done = support.run_pytest(
        "-m", "multinode", "--cluster=sandbox", f"--sandbox-platform={name}", "--plan",
        f"--thresholds={order_of(name)}",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdicts" in done.stdout


# --- in a live sandbox


@pytest.fixture(scope="module", params=NAMED)
def live(request: pytest.FixtureRequest) -> Iterator[tuple[Platform, Sandbox]]:
    refuse(request, Sandbox.refusal() or emulation.refusal())
    with Sandbox.up(nodes=2, platform=request.param) as up:
        yield platforms.find(request.param), up


def measured(platform: Platform, sandbox: Sandbox, into: Path) -> list[dict[str, Any]]:
    """The verdicts of a run against the platform's order."""
    done = support.run_pytest(
        "-m", "multinode and not training", "-q", "-k", SELECT, "--cluster=slurm",
        f"--run-dir={into}", f"--thresholds={order_of(platform.name)}", timeout_s=300,
        **sandbox.env,
    )  # fmt: skip
    verdict = into / "verdict.json"
    assert verdict.exists(), done.stdout + done.stderr
    rows: list[dict[str, Any]] = json.loads(verdict.read_text(encoding="utf-8"))["criteria"]
    return rows


def of_not_ordered(row: Mapping[str, Any], platform: Platform) -> bool:
    """Whether a red row is about a NIC that was not ordered, which no accusation should be."""
    part = str((row["worst"] or {}).get("part") or "")
    return part in platform.not_ordered or row["criterion"] == "inventory.nics"


UNSEEN = {"health.recovery_action": "550", "nvlink.imex": "999"}
"""Criterion -> the branch of the drivers that do not tell it, older ones included: of IMEX no
emulated one does."""


def test_a_healthy_platform_is_not_accused(live: tuple[Platform, Sandbox], tmp_path: Path):
    platform, sandbox = live
    rows = measured(platform, sandbox, tmp_path / "run")
    red = [r for r in rows if r["outcome"] == "FAIL"]
    if platform.not_ordered:
        red = [r for r in red if not of_not_ordered(r, platform)]
    assert red == []
    silent = {r["criterion"] for r in rows if r["outcome"] == "NOT_MEASURED"}
    assert silent <= {key for key, branch in UNSEEN.items() if platform.driver[:3] <= branch}
    assert sum(r["outcome"] == "PASS" for r in rows) > 80


Planted = Sequence[tuple[str, str, str]]
GPU_FAULTS: Planted = (
    ("health.ecc_uncorrected", "ecc-uncorrected", "gpu0"),
    ("health.remap_pending", "remap-pending", "gpu1"),
    ("health.power_limit", "power-limit", "gpu2"),
    ("health.persistence", "persistence-off", "gpu3"),
    ("health.compute_mode", "compute-mode", "gpu0"),
    ("health.thermal_headroom", "hot", "gpu1"),
)
"""Criterion, kind of fault, target."""
NVLINK_FAULTS: Planted = (("nvlink.links", "nvlink-down", "gpu2"),)
PORT_FAULTS: Planted = (
    ("infiniband.rate", "ib-rate", "first"),
    ("infiniband.verbs", "ib-no-verbs", "last"),
)
ROCE_FAULTS: Planted = (
    ("infiniband.gid", "ib-no-gid", "first"),
    ("infiniband.mtu", "ib-mtu", "last"),
    ("infiniband.roce_repeats.packet_seq_err", "ib-counter-rising", "last:packet_seq_err"),
    ("infiniband.pcs_symbol_error", "ib-counter-rising", "first:rx_pcs_symbol_err_phy"),
)
EFA_FAULTS: Planted = (
    ("infiniband.efa.unresponsive_remote_events", "ib-counter-rising",
     "first:unresponsive_remote_events"),
    ("infiniband.efa_repeats.retrans_timeout_events", "ib-counter-rising",
     "last:retrans_timeout_events"),
)  # fmt: skip
LINK_FAULTS: Planted = (
    ("infiniband.physical_state", "ib-no-link", "last"),
    ("infiniband.local_ack_timeout_err", "ib-counter-rising", "first:local_ack_timeout_err"),
)
CULPRIT = "worker1"


def planted(platform: Platform) -> list[tuple[str, str, str]]:
    """The faults for a platform, each with the UUID or the name of its part.

    None of them keeps the node out of the job over all nodes, in which counters are read.
    """
    fabric = platform.order.get("nic_fabric")
    efa = fabric == "EFA"
    faults = [*GPU_FAULTS, *PORT_FAULTS, *(EFA_FAULTS if efa else LINK_FAULTS)]
    faults += ROCE_FAULTS if fabric == "RoCE" else []
    faults += [] if platform.gpus["links"] == 0 else NVLINK_FAULTS
    nics = {"first": platform.ordered_nics[0], "last": platform.ordered_nics[-1]}
    return [
        (criterion, kind, ":".join(nics.get(part, part) for part in target.split(":")))
        for criterion, kind, target in faults
    ]


def test_faults_of_a_platform_are_named_by_criterion_node_and_part(
    live: tuple[Platform, Sandbox], tmp_path: Path
):
    platform, sandbox = live
    faults = planted(platform)
    assert len({criterion for criterion, _, _ in faults}) >= 10
    parts = {}
    try:
        for criterion, kind, target in faults:
            parts[criterion] = sandbox.fault(CULPRIT, kind, target)
        rows = measured(platform, sandbox, tmp_path / "run")
    finally:
        sandbox.clear_faults(CULPRIT)
    red = [
        r for r in rows
        if r["outcome"] == "FAIL" and not (platform.not_ordered and of_not_ordered(r, platform))
    ]  # fmt: skip
    found = {
        r["criterion"]: (r["subject"], r["worst"].get("part") or r["worst"].get("uuid"))
        for r in red
    }
    assert {c: found.get(c) for c in parts} == {c: (CULPRIT, part) for c, part in parts.items()}
    assert {r["subject"] for r in red} == {CULPRIT}
