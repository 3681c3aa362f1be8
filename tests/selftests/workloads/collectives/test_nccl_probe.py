"""The process beside a rank that runs collectives untimed, on made-up libraries."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from fixtures.workloads.collectives import nccl_probe
from fixtures.workloads.collectives.nccl_probe import ProbeError

pytestmark = pytest.mark.cpu


class Library:
    """Every function of it notes its arguments, and returns its status."""

    def __init__(self, **status: int) -> None:
        self.status, self.calls = status, []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls.append((name, [getattr(a, "value", a) for a in arguments]))
            if name == "cuMemAlloc_v2":
                arguments[0]._obj.value = 4096
            return self.status.get(name, 0)

        self.__dict__[name] = call
        return call


def test_each_operation_is_launched_in_place_with_its_share():
    for name, function, arguments in (
        ("all_reduce", "ncclAllReduce", [1000, 1000, 8, 7, 0, "comm", None]),
        ("all_gather", "ncclAllGather", [1000 + 2 * 2 * 4, 1000, 2, 7, "comm", None]),
        ("reduce_scatter", "ncclReduceScatter", [1000, 1000 + 2 * 2 * 4, 2, 7, 0, "comm", None]),
        ("broadcast", "ncclBroadcast", [1000, 1000, 8, 7, 0, "comm", None]),
    ):
        nccl: Any = Library(**{function: 5})
        assert nccl_probe.launch(nccl, name, 1000, 8, 2, 4, "comm") == 5
        assert nccl.calls == [(function, arguments)]
    with pytest.raises(ProbeError, match="no operation 'other'"):
        nccl_probe.launch(nccl, "other", 1000, 8, 2, 4, "comm")


REQUEST = {
    "library": "nccl", "cuda": "cuda", "device": 3, "id": "07" * 128, "rank": 1, "ranks": 2,
    "operations": [["all_reduce", 8], ["all_gather", 16]],
}  # fmt: skip


def test_all_operations_are_run_once_and_waited_for(monkeypatch: pytest.MonkeyPatch):
    libraries: dict[str, Any] = {"nccl": Library(), "cuda": Library()}
    monkeypatch.setattr(ctypes, "CDLL", libraries.get)
    nccl_probe.run(REQUEST)
    assert [name for name, _ in libraries["cuda"].calls] == [
        "cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc_v2",
        "cuCtxSynchronize",
    ]  # fmt: skip
    assert libraries["cuda"].calls[1][1][1] == 3
    assert libraries["cuda"].calls[4][1][1] == 64, "bytes of the largest operation"
    assert [name for name, _ in libraries["nccl"].calls] == [
        "ncclCommInitRank", "ncclAllReduce", "ncclAllGather", "ncclCommDestroy",
    ]  # fmt: skip
    assert libraries["nccl"].calls[0][1][1] == 2
    assert libraries["nccl"].calls[1][1][0] == 4096, "the address that was allocated"
    libraries["nccl"] = Library(ncclAllGather=2)
    with pytest.raises(ProbeError, match="all_gather: status 2"):
        nccl_probe.run(REQUEST)
    libraries["cuda"] = Library(cuMemAlloc_v2=2)
    with pytest.raises(ProbeError, match="cuMemAlloc of 64 bytes"):
        nccl_probe.run(REQUEST)


def test_numbers_are_those_of_nccl_h():
    assert (nccl_probe.FLOAT32, nccl_probe.SUM, nccl_probe.BYTES) == (7, 0, 4)
    assert ctypes.sizeof(nccl_probe.UniqueId) == nccl_probe.UNIQUE_ID_BYTES == 128
