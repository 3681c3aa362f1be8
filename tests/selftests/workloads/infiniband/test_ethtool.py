"""What the driver of a network interface counts, read as an ordinary user."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from fixtures.workloads.infiniband import ethtool

pytestmark = pytest.mark.cpu


def test_the_statistics_of_a_driver_are_read_without_root() -> None:
    """Of the interfaces of this host; one that nobody has, and the loopback, have none."""
    assert ethtool.of_driver("no-such-device") == {}
    assert ethtool.of_driver("lo") == {}
    found = {p.name: ethtool.of_driver(p.name) for p in Path("/sys/class/net").iterdir()}
    for name, statistics in found.items():
        assert all(key.isprintable() and key for key in statistics), name
        assert all(isinstance(value, int) and value >= 0 for value in statistics.values()), name


def test_the_answers_of_the_kernel_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("rx_prio3_pause", "rx_pcs_symbol_err_phy")

    def ask(control: object, name: str, request: bytes) -> bytes:
        command = struct.unpack_from("=I", request)[0]
        if command == ethtool.GSSET_INFO:
            return struct.pack("=IIQI", command, 0, 2, len(names))
        if command == ethtool.GSTRINGS:
            return request[:12] + b"".join(text.encode().ljust(32, b"\0") for text in names)
        return request[:8] + struct.pack("=2Q", 7, 2**40)

    monkeypatch.setattr(ethtool, "_ask", ask)
    assert ethtool.of_driver("eth0") == {"rx_prio3_pause": 7, "rx_pcs_symbol_err_phy": 2**40}


def test_an_interface_without_counters_of_its_driver_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for sets, number in ((0, 2), (2, 0)):

        def ask(*_: Any, sets: int = sets, number: int = number) -> bytes:
            return struct.pack("=IIQI", ethtool.GSSET_INFO, 0, sets, number)

        monkeypatch.setattr(ethtool, "_ask", ask)
        assert ethtool.of_driver("eth0") == {}


def test_counters_of_sysfs_and_of_the_driver_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ethtool, "of_driver", lambda name: {f"{name} rx": 3})
    assert ethtool.statistics(tmp_path / "eth0") == {"eth0 rx": 3}
    folder = tmp_path / "eth0" / "statistics"
    folder.mkdir(parents=True)
    (folder / "rx_bytes").write_text("7\n")
    (folder / "odd").write_text("x\n")
    assert ethtool.statistics(tmp_path / "eth0") == {"rx_bytes": 7, "eth0 rx": 3}


def test_a_request_has_the_numbers_of_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """linux/sockios.h and linux/ethtool.h; the name and a pointer to the buffer of the answer."""
    asked: list[tuple[int, bytes]] = []
    monkeypatch.setattr(ethtool.fcntl, "ioctl", lambda _, code, data: asked.append((code, data)))
    assert ethtool._ask(None, "interface-of-a-long-name", b"request") == b"request"  # type: ignore[arg-type]
    ((code, data),) = asked
    assert (code, data[:16], len(data)) == (0x8946, b"interface-of-a-\0", 40)
    assert (ethtool.GSTRINGS, ethtool.GSTATS, ethtool.GSSET_INFO) == (0x1B, 0x1D, 0x37)
    assert (ethtool.STATISTICS, ethtool.NAME_BYTES, ethtool.INTERFACE_NAME_BYTES) == (1, 32, 16)
