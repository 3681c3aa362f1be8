"""The host's workloads on trees of plain files: bridges, virtual machines, what is not shown."""

from __future__ import annotations

import contextlib
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.absence import Kind
from fixtures.sandbox import emulated_host
from fixtures.sandbox.platforms import make_link, write_sysfs_file
from fixtures.workloads.host import component_versions, host
from tests.selftests.support import whys
from tests.selftests.workloads.host.host_trees import BRIDGE, NIC, nic_below_bridge, ranks

pytestmark = pytest.mark.cpu


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return nic_below_bridge(tmp_path)


def test_a_slot_that_is_narrower_than_the_card_is_no_fault_and_a_lost_lane_is(root: Path):
    bridge = root / "sys/devices/pci0000:15" / BRIDGE
    make_link(bridge, lanes=8, speed="16.0 GT/s PCIe")
    device = bridge / NIC
    write_sysfs_file(device / "current_link_width", "8")
    write_sysfs_file(device / "current_link_speed", "16.0 GT/s PCIe")
    assert host._link_width(ranks(), root).value == 0
    assert host._link_generation(ranks(), root).value == 0
    write_sysfs_file(device / "current_link_width", "4")
    width = host._link_width(ranks(), root)
    assert (width.value, width.at["part"]) == (4, "mlx5_0")


def test_a_hypervisors_port_that_is_slower_than_the_link_hides_no_fault(root: Path):
    bridge = root / "sys/devices/pci0000:15" / BRIDGE
    make_link(bridge, lanes=1, speed="2.5 GT/s PCIe")
    write_sysfs_file(bridge / NIC / "current_link_width", "8")
    assert host._link_width(ranks(), root).value == 8


@pytest.mark.parametrize("width", ["0", "63", "255", ""])
def test_a_virtual_device_shows_no_link_and_the_row_says_so(root: Path, width: str):
    device = root / "sys/devices/pci0000:15" / BRIDGE / NIC
    write_sysfs_file(device / "current_link_width", width)
    said = host._link_width(ranks(), root)
    assert isinstance(said, str)
    assert "none shows a link" in said


def test_an_ordered_version_that_is_not_shown_is_no_pass(root: Path):
    row = host._firmware(ranks(host_order={"firmware": {"bios": "1.4"}}), root)
    assert row.value is None
    assert row.notes == ["bios: the node does not show its version"]


def test_a_pinned_core_is_found_and_a_governor_that_the_processor_follows_is_none(tmp_path: Path):
    policies = tmp_path / host.POLICIES
    for name, text in emulated_host.tree("n").items():
        if name.startswith("cpufreq/"):
            write_sysfs_file(policies / name.removeprefix("cpufreq/"), text)
    assert host._governor(ranks(), tmp_path).value == "full"
    write_sysfs_file(policies / "policy1/scaling_governor", "powersave")
    row = host._governor(ranks(), tmp_path)
    assert (row.value, row.at["part"]) == ("powersave", "cpu1")
    write_sysfs_file(policies / "policy1/scaling_driver", "intel_pstate")
    assert host._governor(ranks(), tmp_path).value == "full"


def test_a_compiler_that_the_environment_names_is_the_one_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    gcc = tmp_path / "gcc"
    gcc.write_text("#!/bin/sh\n")
    gcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "cc-of-a-module")
    lacking = host._compiler(ranks(), tmp_path)
    assert lacking.value == "missing"
    assert "no C compiler (cc-of-a-module)" in lacking.notes[0]
    monkeypatch.delenv("CC")
    assert "no C compiler" not in host._compiler(ranks(), tmp_path).notes[0]


def test_headers_are_looked_for_where_debian_puts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    schemes = {
        "posix_prefix": str(tmp_path / "usr/include"),
        "posix_local": str(tmp_path / "usr/local/include"),
    }
    monkeypatch.setattr(sysconfig, "get_path", lambda name, scheme="posix_local": schemes[scheme])
    assert f"no {tmp_path}/usr/include/Python.h" in host._compiler(ranks(), tmp_path).notes[0]
    write_sysfs_file(tmp_path / "usr/include/Python.h", "")
    assert not any("Python.h" in note for note in host._compiler(ranks(), tmp_path).notes)


# --- links


def test_the_worst_link_is_named_and_those_without_one_too(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    linked: list[Any] = []
    monkeypatch.setattr(host, "_linked", lambda *_: linked)

    def link(lanes: int, able: int) -> Any:
        return SimpleNamespace(lanes=lanes, lanes_able=able, generation=4, generation_able=5)

    linked[:] = [("a", link(8, 16)), ("b", link(4, 16)), ("c", None), ("d", link(16, 16))]
    row: Any = host._link_width(ranks(), root)
    assert (row.value, row.unit, row.at) == (12, "lanes", {"part": "b"})
    assert row.notes == ["a: lanes 8 of 16", "b: lanes 4 of 16", "shows no link: c"]
    row = host._link_generation(ranks(), root)
    assert (row.metric, row.value) == ("link_generation", 1)
    linked[:] = [("d", link(16, 16))]
    row = host._link_width(ranks(), root)
    assert (row.value, row.at, row.notes) == (0, {}, [])
    assert host._links(ranks(), root) == {"d": "Gen4 x16"}
    linked[:] = [("c", None)]
    assert host._links(ranks(), root) == {"c": "shows no link"}
    assert "1 device" in str(host._link_width(ranks(), root))
    linked.clear()
    assert "no NIC that counts" in str(host._link_width(ranks(), root))


def test_only_nics_and_drives_have_links_that_are_judged(root: Path):
    ((label, link),) = host._linked(ranks(), root)
    assert label == "mlx5_0"
    assert link is not None


# --- clock and cores


def test_a_clock_source_without_a_call_of_the_kernel_is_fast(tmp_path: Path):
    assert "is not there" in str(host._clocksource(ranks(), tmp_path))
    for name, value in (("tsc", "fast"), ("kvm-clock", "fast"), ("hpet", "hpet")):
        write_sysfs_file(tmp_path / host.CLOCKSOURCE, name)
        row: Any = host._clocksource(ranks(), tmp_path)
        assert row.value == value
        assert bool(row.notes) is (value == "fast")


def test_what_holds_a_core_below_its_highest_clock_is_named(tmp_path: Path):
    def held(driver: str = "acpi-cpufreq", governor: str = "performance", **files: str) -> str:
        for path in tmp_path.glob("*"):
            path.unlink()
        for name, text in files.items():
            write_sysfs_file(tmp_path / name, text)
        return host._held_by(tmp_path, governor, driver)

    assert held() == ""
    assert held(governor="powersave") == "powersave"
    assert held("amd-pstate-epp", "powersave") == ""
    preference = "energy_performance_preference"
    assert held(**{preference: "power"}) == "energy preference power"
    assert held(**{preference: "255"}) == "energy preference 255"
    assert held(**{preference: "balance_performance"}) == ""
    clocks = {"cpuinfo_max_freq": "4000000"}
    assert held(**clocks, scaling_max_freq="3799000") == "at most 3799 of 4000 MHz"
    assert held(**clocks, scaling_max_freq="3800000") == ""
    assert held(scaling_max_freq="1000") == ""
    assert held(**clocks, scaling_max_freq="none") == ""


def test_cores_are_counted_by_what_holds_them(tmp_path: Path):
    def policy(number: int, governor: str | None, driver: str = "acpi-cpufreq") -> None:
        folder = tmp_path / host.POLICIES / f"policy{number}"
        if governor is not None:
            write_sysfs_file(folder / "scaling_governor", governor)
        write_sysfs_file(folder / "scaling_driver", driver)

    assert "no /sys/devices/system/cpu/cpufreq" in str(host._governor(ranks(), tmp_path))
    policy(0, None)
    assert isinstance(host._governor(ranks(), tmp_path), str)
    policy(1, "performance")
    row: Any = host._governor(ranks(), tmp_path)
    assert (row.value, row.notes) == ("full", ["performance (acpi-cpufreq) x1"])
    policy(10, "powersave")
    policy(9, "powersave")
    row = host._governor(ranks(), tmp_path)
    assert (row.value, row.at) == ("powersave", {"part": "cpu9"})
    assert row.notes == ["powersave: 2 cores of 3, first cpu9"]


# --- limits of a job


@pytest.mark.parametrize(
    ("soft", "hard", "uid_map", "capabilities", "gib", "note"),
    [
        (1 << 20, 1 << 21, "0 1000 1", "4000", 2**-10, "soft limit 1024 KiB, hard limit 2048 KiB"),
        (1 << 20, -1, "0 0 99", "0", 2**-10, "hard limit unlimited"),
        (1 << 20, -1, "0 0 99", "3fff", 2**-10, "hard limit unlimited"),
        (1 << 20, -1, "0 0 99", "4000", 8, ""),
        (1 << 20, -1, "", "4000", 2**-10, "hard limit unlimited"),
        (-1, -1, "", "", 8, ""),
        (1 << 40, -1, "", "", 8, "soft limit"),
    ],
    ids=["own namespace", "no capability", "other capabilities", "capability", "no map",
         "unlimited", "more than there is"],
)  # fmt: skip
def test_memory_that_a_job_may_lock_is_its_limit_or_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soft, hard, uid_map, capabilities, gib, note
):
    monkeypatch.setattr(host.resource, "getrlimit", lambda _: (soft, hard))
    pages = {"SC_PHYS_PAGES": 8 << 18, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(host.os, "sysconf", pages.__getitem__)
    write_sysfs_file(tmp_path / "proc/self/uid_map", uid_map)
    write_sysfs_file(tmp_path / "proc/self/status", f"Name: x\nCapEff:\t{capabilities}\n")
    row: Any = host._memlock(ranks(), tmp_path)
    assert row.value == round(gib, 6)
    assert [note in text for text in row.notes] == [True] * bool(note)


def test_files_that_a_job_may_open_are_those_of_the_hard_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for hard, value in ((4096, 4096), (-1, 1 << 30)):
        monkeypatch.setattr(host.resource, "getrlimit", lambda _, hard=hard: (1024, hard))
        row: Any = host._open_files(ranks(), tmp_path)
        assert (row.value, row.notes) == (value, [f"soft limit 1024, hard {hard}"])
    assert host._capabilities(tmp_path) == 0


# --- names


def names(
    monkeypatch: pytest.MonkeyPatch, slow: dict[str, float | None], **spec: Any
) -> tuple[Any, Any]:
    """The row where resolving takes so long; None: for ever. And what was resolved."""
    now, asked = [0.0], []

    def resolve(name: str, _: Any) -> None:
        asked.append(name)
        seconds = slow.get(name, 0.25)
        if seconds is None:
            raise StopIteration  # nothing comes after it
        now[0] += abs(seconds)
        if seconds < 0:
            raise OSError("not known")

    class Thread:
        """Does all that it can at once; nobody waits for the rest."""

        def __init__(self, target: Any, daemon: bool) -> None:
            self.target = target

        def start(self) -> None:
            with contextlib.suppress(StopIteration):
                self.target()

        def join(self, seconds: float) -> None:
            assert seconds == 5

    monkeypatch.setattr(host.threading, "Thread", Thread)
    monkeypatch.setattr(host.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(host.socket, "getaddrinfo", resolve)
    monkeypatch.setattr(host.socket, "gethostname", lambda: "here")
    nodes = spec.pop("nodes", ["n0", "n1"])
    rank = ranks(**spec)
    rank.nodes = nodes
    return host._names(rank, Path("/")), asked


def test_the_slowest_name_is_told(monkeypatch: pytest.MonkeyPatch):
    row, asked = names(monkeypatch, {"10.0.0.1": 1.5, "n1": -0.5}, addresses={"n0": "10.0.0.1"})
    assert asked == ["here", "10.0.0.1", "n1"]
    assert (row.value, row.at) == (1.5, {})
    assert row.notes == ["10.0.0.1: 1.5 s, the slowest of 3 names", "n1: not known"]
    row, asked = names(monkeypatch, {}, nodes=[f"n{k}" for k in range(100)])
    assert len(asked) == 65, "the node's own, and 64 of a large cluster"


def test_a_name_without_an_answer_is_named(monkeypatch: pytest.MonkeyPatch):
    row, _ = names(monkeypatch, {"n1": None})
    assert (row.value, row.at) == (5, {"part": "n1"})
    assert row.notes == ["n1: no answer within 5 s"]


# --- what was ordered


def test_mounts_of_the_order_are_compared_by_place_and_type(tmp_path: Path):
    text = "a /data nfs4 rw 0 0\nb /with\\040space tmpfs rw 0 0\n"
    write_sysfs_file(tmp_path / "proc/self/mounts", text)

    def row(**mounts: str | None) -> Any:
        given = {"/" + k.replace("_", " "): v for k, v in mounts.items()}
        return host._mounts(ranks(host_order={"mounts": given}), tmp_path)

    for order in (None, {}, {"mounts": {}}):
        assert host._mounts(ranks(host_order=order), tmp_path) == "the order names no mounts"
    assert (row(data="nfs4").value, row(data=None).value, row(with_space="tmpfs").value) == (
        0,
        0,
        0,
    )
    assert row(data="nfs4").at == {}
    wrong = row(data="lustre", none="nfs4")
    assert (wrong.value, wrong.at) == (2, {"part": "/data"})
    assert wrong.notes[0] == "/data: nfs4 mounted there, lustre was ordered"
    assert wrong.notes[1].startswith("/none: nothing is mounted there")
    assert row(none=None).value == 1


def test_components_below_their_minimum_are_counted(root: Path, monkeypatch: pytest.MonkeyPatch):
    found = {"kernel": {"the node": "5.4"}}
    monkeypatch.setattr(component_versions, "read", lambda *_: found)

    def firmware(**minimums: str) -> Any:
        return host._firmware(ranks(host_order={"firmware": minimums}), root)

    assert firmware() == "the order names no firmware versions"
    assert host._firmware(ranks(host_order=None), root) == firmware()
    row = firmware(kernel="5.15", bios="1.0")
    assert (row.value, row.at) == (1, {"part": "kernel"})
    assert row.notes[1] == "bios: the node does not show its version"
    row = firmware(kernel="5.4")
    assert (row.value, row.at, row.notes) == (0, {}, [])
    assert "the node has none of: container_toolkit" in str(host._security(ranks(), root))
    found["container_toolkit"] = {"the node": "1.17.7"}
    row = host._security(ranks(), root)  # type: ignore[assignment]
    assert (row.metric, row.value) == ("security", 1)
    assert "CVE-2025-23266" in row.notes[-1]
    assert not any("CVE" in note for note in firmware(kernel="5.15").notes)


def test_a_compiler_and_headers_are_there_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(host.shutil, "which", {"clang": "/bin/clang"}.get)
    monkeypatch.setattr(host.sysconfig, "get_path", lambda *_: str(tmp_path))
    (tmp_path / "Python.h").touch()
    row: Any = host._compiler(ranks(), tmp_path)
    assert (row.value, row.notes[0].startswith("/bin/clang, Python 3.")) == ("present", True)


def test_a_file_with_unexpected_content_costs_its_row_only(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(host.host_facts, "of", lambda _: {"cpus": 8})
    write_sysfs_file(root / "proc/self/mounts", "nonsense")
    write_sysfs_file(root / host.CLOCKSOURCE, "tsc")
    asked = ranks(host_order={"mounts": {"/data": "nfs"}})
    found = host.run(asked, ["mounts", "clocksource", "governor"], root=str(root))
    assert [(m.metric, m.value) for m in found.measurements] == [("clocksource", "fast")]
    assert whys(found, Kind.FAULT)["mounts"].startswith("ValueError: ")
    assert set(whys(found, Kind.NOT_THERE)) == {"governor"}
    assert (found.facts["cpus"], list(found.facts["links"])) == (8, ["mlx5_0"])
    found = host.run(asked, ["clocksource"], root=str(root))
    assert set(found.facts) == {"cpus", "links"}
    asked.leads_node = False
    assert host.run(asked, ["clocksource"], root=str(root)).facts == {}
