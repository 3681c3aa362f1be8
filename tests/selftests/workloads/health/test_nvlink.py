"""NVLink and peers of a GPU, as a made-up driver tells of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.absence import Kind
from fixtures.workloads.devices import devices, nvml_fields
from fixtures.workloads.devices.nvml_fields import Fabric, NotOffered
from fixtures.workloads.health import nvlink
from tests.selftests.support import whys
from tests.selftests.workloads.health.made_up_nvml import (
    Driver,
    NVMLError,
    NVMLError_GpuIsLost,
    NVMLError_InvalidArgument,
    NVMLError_NotSupported,
)

pytestmark = pytest.mark.cpu

GPUS = ["g0", "g1", "g2"]


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three GPUs, of which a query is one of the driver that a test has made."""
    monkeypatch.setattr(devices, "open_handles", lambda: list(GPUS))
    monkeypatch.setattr(devices, "emulated", lambda: False)


def driver(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> Any:
    made: Any = Driver(nvmlDeviceGetUUID=lambda gpu: f"GPU-{gpu}", **answers)

    def query(name: str, *arguments: Any) -> Any:
        try:
            return getattr(made, name)(*arguments)
        except (NVMLError, AttributeError):
            return None

    monkeypatch.setattr(devices, "query_nvml", query)
    return made


def links(*states: Any) -> dict[str, Any]:
    def state(_: Any, link: int) -> int:
        if link >= len(states):
            raise NVMLError_InvalidArgument
        return int(states[link])

    return {"nvmlDeviceGetNvLinkState": state}


def test_links_that_are_down_are_named(monkeypatch: pytest.MonkeyPatch):
    row = nvlink._links(driver(monkeypatch, **links(1, 1, 1)), "g0")
    assert (row.value, row.notes) == (3, [])
    row = nvlink._links(driver(monkeypatch, **links(1, 0, 0)), "g0")
    assert (row.value, row.notes) == (1, ["GPU-g0 link 1, 2 of 3 down"])


def test_the_rate_is_that_of_the_slowest_active_link(monkeypatch: pytest.MonkeyPatch):
    speeds = {0: 26_562, 1: 5, 2: 26_562, 3: 20_000}
    monkeypatch.setattr(nvml_fields, "read_field", lambda *given: speeds[given[-1]])
    row = nvlink._rate(driver(monkeypatch, **links(1, 0, 1)), "g0")
    assert (row.samples, row.notes) == ([26.562], [])
    row = nvlink._rate(driver(monkeypatch, **links(1, 0, 1, 1)), "g0")
    assert (row.samples, row.notes) == ([20.0], ["GPU-g0 link 3 is the slowest"])
    with pytest.raises(NVMLError) as refused:
        nvlink._rate(driver(monkeypatch, **links(0, 0)), "g0")
    assert refused.value.value == Driver.NVML_ERROR_NOT_SUPPORTED


def status(closed: dict[tuple[str, int], int]) -> dict[str, Any]:
    """Of the way to a peer for a capability: nvml.h has READ 0, WRITE 1 and NVLINK 2."""
    return {
        "nvmlDeviceGetP2PStatus": lambda a, b, what: closed.get((b, what), 0),
        "nvmlDeviceGetTopologyCommonAncestor": 30,
    }


def test_peers_that_are_not_reached_over_nvlink_or_closed_are_counted(
    monkeypatch: pytest.MonkeyPatch,
):
    whole = driver(monkeypatch, **status({("g0", 0): 5, ("g0", 2): 5}))
    assert (nvlink._topology(whole, "g0").value, nvlink._topology(whole, "g0").notes) == (0, [])
    assert (nvlink._peer_access(whole, "g0").value, whole.answers["nvmlDeviceGetUUID"]("x")) == (
        0, "GPU-x",
    )  # fmt: skip
    broken = driver(monkeypatch, **status({("g1", 2): 5, ("g2", 1): 5, ("g1", 0): 5}))
    row = nvlink._topology(broken, "g0")
    assert (row.value, row.notes) == (1, ["GPU-g0 reaches gpu1 (GPU-g1) PHB"])
    row = nvlink._peer_access(broken, "g0")
    assert row.value == 2
    assert row.notes == ["GPU-g0 has no access to gpu1 (GPU-g1), gpu2 (GPU-g2)"]


def test_two_gpus_are_connected_by_links_or_by_a_level_of_pcie(monkeypatch: pytest.MonkeyPatch):
    linked = driver(monkeypatch, **status({}), **links(1, 0, 1))
    assert nvlink._connection(linked, "g0", "g1") == "NV2"
    hidden = driver(monkeypatch, **status({}))
    assert nvlink._connection(hidden, "g0", "g1") == "NV of an unknown number of links"
    for level, name in (
        (0, "the same board"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS"),
        (60, "unknown"),
    ):  # fmt: skip
        far = driver(
            monkeypatch, nvmlDeviceGetP2PStatus=5, nvmlDeviceGetTopologyCommonAncestor=level
        )
        assert nvlink._connection(far, "g0", "g1") == name
    assert nvlink._connection(driver(monkeypatch), "g0", "g1") == "unknown"
    far = driver(monkeypatch, nvmlDeviceGetP2PStatus=5, nvmlDeviceGetTopologyCommonAncestor=10)
    assert nvlink.matrix(far) == {
        "GPU-g0": ["self", "PIX", "PIX"], "GPU-g1": ["PIX", "self", "PIX"],
        "GPU-g2": ["PIX", "PIX", "self"],
    }  # fmt: skip


def fabric(monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    given = {"version": 3, "state": 3, "status": 0, "cluster": "ab", "clique": 1, "fault": ""}
    monkeypatch.setattr(nvml_fields, "fabric", lambda *_: Fabric(**{**given, **more}))


def test_the_fabric_is_ready_or_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch):
    one = driver(monkeypatch)
    for more, value in (
        ({}, "ready"), ({"state": 1}, "not started"), ({"state": 2}, "in progress"),
        ({"state": 4}, "state 4"), ({"status": 5}, "failed with status 5"),
        ({"fault": "unhealthy"}, "unhealthy"), ({"state": 2, "status": 5}, "in progress"),
        ({"state": 2, "fault": "unhealthy"}, "in progress"),
        ({"state": 2, "unknown": "x"}, "in progress"),
        ({"fault": "unhealthy", "unknown": "x"}, "unhealthy"),
    ):  # fmt: skip
        fabric(monkeypatch, **more)
        row = nvlink.fabric_state(one, "g0")
        assert (row.value, row.notes) == (value, []), more
    fabric(monkeypatch, version=1)
    assert "not its health" in nvlink.fabric_state(one, "g0").notes[0]
    fabric(monkeypatch, state=0)
    with pytest.raises(NVMLError) as refused:
        nvlink.fabric_state(one, "g0")
    assert refused.value.value == Driver.NVML_ERROR_NOT_SUPPORTED
    fabric(monkeypatch, unknown="health summary 4")
    with pytest.raises(NotOffered, match="health summary 4"):
        nvlink.fabric_state(one, "g0")


def test_imex_is_asked_where_the_driver_names_a_cluster(monkeypatch: pytest.MonkeyPatch):
    one = driver(monkeypatch)
    said = ("ready", "")
    monkeypatch.setattr(nvlink.imex, "state", lambda: said)
    for cluster, answer, value, notes in (
        ("ab00", ("ready", ""), "ready", []),
        ("ab00", ("no channels", "why"), "no channels", ["why"]),
        ("0000", ("ready", ""), "no domain",
         ["the driver names no cluster: NVLink ends at this node"]),
    ):  # fmt: skip
        said = answer
        fabric(monkeypatch, cluster=cluster)
        row = nvlink._imex(one, "g0")
        assert (row.value, row.notes) == (value, notes)
    monkeypatch.setattr(devices, "emulated", lambda: True)
    with pytest.raises(NotOffered, match="emulated"):
        nvlink._imex(one, "g0")


def run(
    monkeypatch: pytest.MonkeyPatch, made: Any, *metrics: str, leads: bool = True, gpu: Any = "g0"
) -> Any:
    monkeypatch.setattr(
        devices, "gpu_handle_and_facts", lambda *_: (made, gpu, "GpuIsLost", {"own": {}})
    )
    ranks: Any = SimpleNamespace(node="n0", local_rank=0, leads_node=leads)
    return nvlink.run(ranks, list(metrics))


def test_the_first_rank_adds_the_matrix_and_imex(monkeypatch: pytest.MonkeyPatch):
    made = driver(monkeypatch, nvmlDeviceGetNvLinkState=NVMLError_NotSupported(), **status({}))
    fabric(monkeypatch)
    monkeypatch.setattr(nvlink.imex, "state", lambda: ("ready", ""))
    found = run(monkeypatch, made, "links", "topology", "peer_access", "fabric", "imex")
    assert [(m.metric, m.value) for m in found.measurements] == [
        ("topology", 0), ("peer_access", 0), ("fabric", "ready"), ("imex", "ready"),
    ]  # fmt: skip
    assert whys(found, Kind.NOT_THERE) == {"links": "NotSupported"}
    assert set(found.facts["matrix"]) == {"GPU-g0", "GPU-g1", "GPU-g2"}
    found = run(monkeypatch, made, "fabric", "imex", leads=False)
    assert [m.metric for m in found.measurements] == ["fabric"]
    assert "matrix" not in found.facts
    gone = run(monkeypatch, made, "links", gpu=None)
    assert (gone.measurements, whys(gone, Kind.FAULT)) == ([], {"links": "GpuIsLost"})
    lost = driver(monkeypatch, nvmlDeviceGetNvLinkState=NVMLError_GpuIsLost(), **status({}))
    assert whys(run(monkeypatch, lost, "links"), Kind.FAULT) == {"links": "GpuIsLost"}
