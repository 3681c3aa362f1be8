"""Faults of GPUs, NVLink and InfiniBand, each on worker1 alone, and of nodes that are not alike.

They go into what the emulated driver answers and into the files of sysfs: the workloads run as
they do on real hardware.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fixtures.paths import CHECKOUT
from fixtures.sandbox import Sandbox, emulation
from tests.selftests.faults import Fault, Inject, bound

NODE = "worker1"
GPU = emulation.gpu_uuid(NODE, 1)
FIRST = emulation.gpu_uuid(NODE, 0)
PORT = "mlx5_3"


def broken(kind: str, *targets: str, node: str = NODE) -> Inject:
    """The sandbox's own verb, and the hardware healthy again after it."""

    @contextmanager
    def inject(sandbox: Sandbox) -> Iterator[None]:
        for target in targets or (None,):
            sandbox.fault(node, kind, target)
        try:
            yield
        finally:
            sandbox.clear_faults(node)

    return inject


def on_platform(platform: str, kind: str, target: str) -> Inject:
    """A fault of a platform's node; the run is held against the order of the platform."""

    @contextmanager
    def inject(sandbox: Sandbox) -> Iterator[list[str]]:
        with broken(kind, target)(sandbox):
            yield [f"--thresholds={CHECKOUT / 'docs' / 'examples' / 'platforms' / platform}.yaml"]

    return inject


def gpu(
    criterion: str, name: str, kind: str, says: str = "", device: str = GPU,
    also: tuple[str, ...] = (),
) -> Fault:  # fmt: skip
    return Fault(
        criterion=criterion, name=name, where=f"driver of {NODE}: {kind}", culprit=NODE,
        device=device, inject=broken(kind), select="test_health", says=says, also=also,
    )  # fmt: skip


def port(
    criterion: str, name: str, kind: str, says: str = "", target: str = "", device: str = PORT
) -> Fault:
    return Fault(
        criterion=criterion, name=name, where=f"sysfs of {NODE}: {kind} {target}".strip(),
        culprit=NODE, device=device, inject=broken(kind, *([target] if target else [])),
        select="infiniband", says=says,
    )  # fmt: skip


@contextmanager
def other_release(sandbox: Sandbox) -> Iterator[None]:
    """worker0 runs another release of the system than the others."""
    file = sandbox.state.node_home("worker0") / "os-release"
    file.write_text('PRETTY_NAME="Another Linux 1"\n')
    with bound(sandbox, "worker0", {"/etc/os-release": file}):
        yield


def drift(name: str, where: str, inject: Inject, says: str, device: str) -> Fault:
    return Fault(
        criterion="environment.drift", name=name, where=where, culprit="worker0", device=device,
        inject=inject, select="drift", says=says,
    )  # fmt: skip


GPU_FAULTS = [
    gpu(
        "health.answers",
        "GPU fallen off the bus",
        "lost",
        "GpuIsLost",
        also=("health.answer_late",),
    ),
    gpu(
        "health.answer_time",
        "driver that answers late",
        "slow-driver",
        also=("health.answer_time_load", "health.answer_late"),
    ),
    gpu("health.foreign_processes", "foreign process on a GPU", "foreign-process", "4711"),
    gpu("health.leaked_memory", "memory leaked on a GPU", "leaked-memory", "4096 MiB"),
    gpu("health.ecc_mode", "ECC off", "ecc-off"),
    gpu("health.ecc_mode", "ECC off after the next reset", "ecc-pending", "after the next reset"),
    gpu("health.ecc_uncorrected", "uncorrectable errors", "ecc-uncorrected"),
    gpu("health.ecc_corrected", "too many corrected errors", "ecc-corrected"),
    gpu(
        "health.ecc_rate",
        "storm of corrected errors",
        "ecc-storm",
        "dram_volatile",
        also=("health.ecc_siblings",),
    ),
    gpu("health.ecc_sram", "errors of on-chip memory", "ecc-sram"),
    gpu("health.ecc_sram_corrected", "corrected errors of on-chip memory", "ecc-sram-corrected"),
    gpu("health.ecc_sram_rate", "storm in on-chip memory", "ecc-sram-storm", "sram_volatile"),
    gpu("health.ecc_new", "errors during the run", "ecc-rising"),
    gpu("health.remap_new", "rows remapped during the run", "remap-rising", "during the run"),
    gpu("health.remap_pending", "row remapping pending", "remap-pending", "pending"),
    gpu("health.remap_failed", "row remapping failed", "remap-failed", "failed"),
    gpu("health.remap_headroom", "no spare rows left", "remap-exhausted", "2 banks"),
    gpu("health.recovery_action", "driver asks for a reboot", "recovery-action", "reboot the node"),
    gpu("health.xid", "Xid during the run", "xid", "Xid 79"),
    gpu("health.thermal", "throttled by heat", "thermal-throttle"),
    gpu("health.power_brake", "throttled by the power supply", "power-brake"),
    gpu("health.thermal_headroom", "too hot", "hot", "86 C", also=("health.thermal_siblings",)),
    gpu("health.thermal_siblings", "hotter than the others", "warm", "70 C"),
    gpu("health.pcie_generation", "PCIe a generation low", "pcie-gen", "able to do 5"),
    gpu("health.pcie_width", "PCIe lanes lost", "pcie-width"),
    gpu(
        "health.pcie_replays",
        "PCIe packets repeated",
        "pcie-replays",
        also=("health.pcie_siblings",),
    ),
    gpu("health.persistence", "persistence off", "persistence-off", "disabled"),
    gpu("health.mig", "MIG on", "mig-on", "enabled"),
    gpu("health.mig", "MIG on after the next reset", "mig-pending", "pending"),
    gpu("health.compute_mode", "exclusive compute mode", "compute-mode", "exclusive process"),
    gpu("health.power_limit", "power limit lowered", "power-limit", "500 of 700 W"),
    gpu("health.application_clocks", "application clocks set", "app-clocks", "1500 of 1980 MHz"),
    gpu("nvlink.links", "an NVLink down", "nvlink-down", "link 3 of 18 down"),
    gpu("nvlink.rate", "NVLinks at half rate", "nvlink-rate"),
    gpu("nvlink.errors", "NVLink repeats", "nvlink-errors", "replays"),
    gpu("nvlink.fabric", "fabric not ready", "fabric-not-ready", "in progress"),
    gpu("nvlink.fabric", "fabric unhealthy", "fabric-unhealthy", "unhealthy"),
    # Between two GPUs: the first of the two is named, and what it says names the other.
    gpu("nvlink.topology", "a PCIe hop between GPUs", "pcie-hop", f"({GPU}) SYS", FIRST),
    gpu("nvlink.peer_access", "no peer access", "p2p-off", f"({GPU})", FIRST),
]

PORT_FAULTS = [
    Fault(
        criterion="inventory.nics", name="a NIC missing", where=f"sysfs of {NODE}: ib-missing",
        culprit=NODE, inject=broken("ib-missing"), select="infiniband or nics",
    ),
    port("infiniband.state", "port without a subnet manager", "ib-port-down", "INIT"),
    port("infiniband.physical_state", "cable out", "ib-no-link", "Polling"),
    port("infiniband.rate", "200 instead of 400 Gbit/s", "ib-rate", "200"),
    port("infiniband.fabric", "Ethernet instead of InfiniBand", "ib-ethernet", "RoCE"),
    port("infiniband.verbs", "no device file of a NIC", "ib-no-verbs", "missing"),
    port("infiniband.gpudirect", "no GPUDirect RDMA", "ib-no-peermem", "absent", device=""),
    port("infiniband.firmware", "other firmware", "ib-firmware", "28.39.1002"),
    port("infiniband.symbol_error", "bad cable", "ib-counter-rising", "mlx5_3 symbol_error"),
    *(
        port(
            f"infiniband.{prefix}{counter}", f"{counter} rising", "ib-counter-rising",
            f"mlx5_3 {counter}", f"{PORT}:{counter}",
        )
        for prefix, counter in (
            ("counters.", "link_downed"),
            ("counters.", "excessive_buffer_overrun_errors"),
            ("counters.", "local_link_integrity_errors"),
            ("counters.", "rnr_nak_retry_err"),
            ("", "link_error_recovery"),
            ("", "port_rcv_errors"),
            ("", "port_xmit_discards"),
            ("", "local_ack_timeout_err"),
        )
    ),
]  # fmt: skip

ROCE, EFA = "pcie-l40s", "aws-p5"
"""The platforms whose NICs are broken as RoCE ports and as EFA devices."""
PORTS = "infiniband and not rails"
"""Rails need the GPUs of the order, which are emulated."""


def roce(criterion: str, name: str, kind: str, says: str, counter: str = "") -> Fault:
    target = f"mlx5_1:{counter}" if counter else "mlx5_1"
    return Fault(
        criterion=f"infiniband.{criterion}", name=name, where=f"sysfs of {NODE}: {kind} {target}",
        culprit=NODE, device="mlx5_1", inject=on_platform(ROCE, kind, target),
        select=PORTS, says=says,
    )  # fmt: skip


def efa(criterion: str, counter: str) -> Fault:
    nic = "rdmap201s0"
    return Fault(
        criterion=f"infiniband.{criterion}.{counter}", name=f"{counter} rising",
        where=f"sysfs of {NODE}: ib-counter-rising {nic}:{counter}", culprit=NODE, device=nic,
        inject=on_platform(EFA, "ib-counter-rising", f"{nic}:{counter}"), select=PORTS,
        says=f"{nic} {counter}",
    )  # fmt: skip


ROCE_FAULTS = [
    roce("gid", "no address for RoCE v2", "ib-no-gid", "none"),
    roce("mtu", "small packets", "ib-mtu", "1500"),
    roce(
        "pcs_symbol_error", "symbols left wrong", "ib-counter-rising", "mlx5_1 rx_pcs_symbol",
        "rx_pcs_symbol_err_phy",
    ),
    *(
        roce(f"{key}.{counter}", f"{counter} rising", "ib-counter-rising",
             f"mlx5_1 {counter}", counter)
        for key, counters in (
            ("roce", ("carrier_changes", "req_transport_retries_exceeded", "rx_icrc_encapsulated",
                      "tx_pause_storm_error_events")),
            ("roce_repeats", ("implied_nak_seq_err", "packet_seq_err", "roce_slow_restart")),
        )
        for counter in counters
    ),
]  # fmt: skip

EFA_FAULTS = [
    *(
        efa("efa", counter)
        for counter in ("rdma_read_wr_err", "rdma_write_wr_err", "unresponsive_remote_events")
    ),
    *(
        efa("efa_repeats", counter)
        for counter in ("impaired_remote_conn_events", "retrans_timeout_events")
    ),
]

DRIFT_FAULTS = [
    drift("another driver", "driver of worker0", broken("driver", node="worker0"),
          "worker0 driver: 570.0-emulated (2 of 3 have 580.82-emulated)", "driver"),
    drift("another VBIOS", "VBIOS of worker0", broken("vbios", node="worker0"), "VBIOS", "VBIOS"),
    drift("another release", "/etc of worker0", other_release, "Another Linux 1", "os"),
]  # fmt: skip
"""On three nodes, so that there is a majority; the first one is the culprit."""
