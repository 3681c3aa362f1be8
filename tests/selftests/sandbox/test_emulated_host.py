"""The emulated host of a node: what a healthy one shows, and what a lost DIMM takes from it."""

from __future__ import annotations

import pytest

from fixtures.sandbox import emulated_host

pytestmark = pytest.mark.cpu

MEMORY = "Node 0 MemTotal:       %d kB\nNode 0 MemFree:        1000 kB\n"


@pytest.fixture
def meminfo(tmp_path, monkeypatch):
    """The memory of this host's first NUMA node."""
    file = tmp_path / "meminfo"
    monkeypatch.setattr(emulated_host, "MEMINFO", str(file))
    return file


def test_a_lost_dimm_takes_what_was_lost_and_half_of_the_memory_at_most(meminfo):
    assert emulated_host.memory_of_host() is None
    meminfo.write_text(MEMORY % 1_000_000)
    for lost, left in ((0, 1_000_000), (400_000, 600_000), (900_000, 500_000)):
        text = emulated_host.memory_of_host(lost)
        assert text is not None
        assert text.splitlines() == (MEMORY % left).splitlines()
    four_gib = 4 * 1024 * 1024
    assert four_gib == emulated_host.LOST_KB


def test_a_healthy_node_has_no_errors_and_a_boot_of_its_own(meminfo):
    found = emulated_host.tree("worker0")
    assert "meminfo" not in found
    assert found["clocksource"] == "tsc"
    assert {text for name, text in found.items() if name.endswith("e_count")} == {"0"}
    assert found["boot_id"] != emulated_host.tree("worker1")["boot_id"]
    assert "MCE: 0 " in found["interrupts"]
    assert "MCE: %015d " in emulated_host.interrupts("%015d")
    meminfo.write_text(MEMORY % 1)
    assert emulated_host.tree("worker0")["meminfo"] == (MEMORY % 1).strip()


def test_changes_are_written_over_a_healthy_node(meminfo, tmp_path):
    emulated_host.make(tmp_path, "worker0")
    assert (tmp_path / "host" / "clocksource").read_text() == "tsc\n"
    emulated_host.make(tmp_path, "worker0", {"clocksource": "hpet"})
    assert (tmp_path / "host" / "clocksource").read_text() == "hpet\n"
    assert (tmp_path / "low-system" / "edac").is_dir()


def test_the_files_are_laid_over_those_of_the_host(tmp_path):
    lines = emulated_host.mount_lines(tmp_path / "a node")
    assert lines[0].startswith(f"mount -t overlay -o ro,lowerdir='{tmp_path}/a node/low-system':")
    for name, path in {**emulated_host.FOLDERS, **emulated_host.FILES}.items():
        (line,) = [one for one in lines if one.endswith(f" {path}")]
        assert f"mount --bind '{tmp_path}/a node/host/{name}' {path}" in line
