"""The process group of a job: its backend, and the interfaces on which ranks meet."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fixtures.workloads.runtime import process_group, tuning_variables
from fixtures.workloads.runtime.ranks import Ranks
from tests.selftests import rank_job

pytestmark = pytest.mark.cpu


def rank_of(folder: Path, nodes: int = 2, size: int = 2, **more: Any) -> Ranks:
    spec = {"addresses": {"n0": "10.0.0.1"}, "nics": 2, **more}
    names = [f"n{k}" for k in range(nodes)]
    return rank_job.rank_of(folder, nodes=names, world_size=size, **spec)


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Name -> address; of this host until a test changes it."""
    known = {"here": "10.0.0.1", "10.0.0.1": "10.0.0.1", "10.0.0.9": "10.0.0.9"}

    def by_name(name: str) -> str:
        if name not in known:
            raise OSError
        return known[name]

    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    monkeypatch.setattr(socket, "gethostbyname", by_name)
    interfaces = {"10.0.0.1": "eth0", "10.0.0.2": "eth1"}
    monkeypatch.setattr(process_group, "interface_of", interfaces.get)
    return known


def test_gloo_is_given_an_interface_where_the_host_name_does_not_lead_to_it(
    tmp_path: Path, hosts: dict[str, str]
):
    def interface(nodes: int) -> str | None:
        return process_group._gloo_interface(rank_of(tmp_path, nodes))

    assert (interface(1), interface(2)) == (None, None)
    hosts["here"] = "127.0.1.1"
    assert (interface(1), interface(2)) == (None, "eth0")
    hosts["here"] = "10.9.9.9"
    assert (interface(1), interface(2)) == ("lo", "eth0")
    del hosts["here"]
    assert (interface(1), interface(2)) == ("lo", "eth0")
    del hosts["10.0.0.1"]
    assert interface(2) is None


def test_nccl_s_ranks_meet_on_the_interface_of_slurm_where_nics_are_ordered(
    tmp_path: Path, hosts: dict[str, str]
):
    def interface(found: dict[str, str], nodes: int = 2, **spec: Any) -> str | None:
        return process_group._bootstrap_interface(rank_of(tmp_path, nodes, **spec), found)

    assert interface({}) == "eth0"
    assert interface({}, nodes=1) is None
    assert interface({}, nics=0) is None
    assert interface({"NCCL_SOCKET_IFNAME": "ib0"}) is None
    assert interface({}, addresses={}) is None
    assert interface({}, addresses={"n0": "10.0.0.9"}) is None, "no interface has it"


def test_the_environment_is_set_for_the_backend(
    tmp_path: Path, hosts: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    environment: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", environment)
    process_group.prepare(rank_of(tmp_path), "gloo")
    assert environment == {"TORCH_FR_BUFFER_SIZE": "500"}
    hosts["here"] = "10.9.9.9"
    process_group.prepare(rank_of(tmp_path), "gloo")
    assert environment["GLOO_SOCKET_IFNAME"] == "eth0"
    environment.clear()
    monkeypatch.setattr(tuning_variables, "nccl_settings", dict)
    process_group.prepare(rank_of(tmp_path), "nccl")
    assert environment == {
        "TORCH_FR_BUFFER_SIZE": "500", "NCCL_SOCKET_IFNAME": "=eth0", "NCCL_DEBUG": "INFO",
        "NCCL_GRAPH_MIXING_SUPPORT": "0", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH",
        "NCCL_DEBUG_FILE": str(tmp_path / "nccl-rank0.0.log"),
    }  # fmt: skip
    environment.clear()
    process_group.prepare(rank_of(tmp_path, nics=0), "nccl")
    assert "NCCL_SOCKET_IFNAME" not in environment


def test_the_group_is_made_once_by_the_job_s_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made: list[tuple[str, dict[str, Any]]] = []
    prepared: list[str] = []
    monkeypatch.setattr(dist, "init_process_group", lambda b, **more: made.append((b, more)))
    monkeypatch.setattr(process_group, "prepare", lambda _, backend: prepared.append(backend))
    world = object()
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=world))
    for device, chosen, size, backend in (
        ("cpu", None, 1, "gloo"), ("cuda", None, 2, "nccl"), ("cuda", "gloo", 2, "gloo"),
    ):  # fmt: skip
        rank = rank_of(tmp_path, size=size, device=device, backend=chosen)
        rank.__dict__["device"] = torch.device(device)
        rank.__dict__["store"] = "the store"
        assert process_group.of(rank) is world
        assert process_group.of(rank) is world
        assert rank.process_group is world
        (name, given), asked = made.pop(), prepared.pop()
        assert (name, asked, made) == (backend, backend, [])
        assert (given["store"] == "the store") is (size > 1)
        assert (given["device_id"] is None) is (backend == "gloo")
        assert given["timeout"] == timedelta(minutes=15)
        assert (given["rank"], given["world_size"]) == (0, size)


def test_the_interface_of_an_address_is_found_on_this_host(monkeypatch: pytest.MonkeyPatch):
    assert process_group.SIOCGIFADDR == 0x8915, "linux/sockios.h"

    def ioctl(_: int, code: int, request: bytes) -> bytes:
        assert code == process_group.SIOCGIFADDR
        name = request.partition(b"\0")[0].decode()
        if name == "down0":
            raise OSError
        return bytes(20) + socket.inet_aton({"lo": "127.0.0.1", "eth0": "10.0.0.1"}[name])

    names = [(1, "down0"), (2, "lo"), (3, "eth0")]
    monkeypatch.setattr(socket, "if_nameindex", lambda: names)
    monkeypatch.setattr(process_group.fcntl, "ioctl", ioctl)
    assert process_group.interface_of("10.0.0.1") == "eth0"
    assert process_group.interface_of("127.0.0.1") == "lo"
    assert process_group.interface_of("10.0.0.7") is None
