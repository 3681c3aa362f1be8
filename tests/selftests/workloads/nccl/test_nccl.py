"""NCCL's own calls, on a made-up library."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fixtures.workloads.nccl import nccl
from fixtures.workloads.nccl.nccl import Communicator, NcclError

pytestmark = pytest.mark.cpu


class Library:
    """Every function of it notes its arguments, and returns its status."""

    def __init__(self) -> None:
        self.status: dict[str, int] = {}
        self.calls: list[tuple[str, list[Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            if name == "ncclGetErrorString":
                return b"unhandled error"
            self.calls.append((name, [getattr(a, "value", a) for a in arguments]))
            if name == "ncclGetUniqueId":
                arguments[0]._obj.internal[0] = 10
            if name == "ncclCommInitRank":
                arguments[0]._obj.value = 77
            return self.status.get(name, 0)

        self.__dict__[name] = call
        return call


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(nccl, "library", lambda: made)
    stream = SimpleNamespace(cuda_stream=55)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    return made


def test_the_library_is_torch_s_or_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    path = tmp_path / "nccl" / "lib" / "libnccl.so.2"
    path.parent.mkdir(parents=True)
    path.touch()
    loads = {"libnccl.so.2": "system's", str(path): "torch's"}

    def load(name: str) -> str:
        if name not in loads:
            raise OSError(name)
        return loads[name]

    places: Any = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(nccl.ctypes, "CDLL", load)
    monkeypatch.setattr(nccl.importlib.util, "find_spec", lambda _: places)
    unpatched = nccl.library.__wrapped__
    assert unpatched() == "system's"
    del loads["libnccl.so.2"]
    assert unpatched() == "torch's"
    for found in (None, SimpleNamespace(submodule_search_locations=None)):
        places = found
        with pytest.raises(NcclError, match=r"tried libnccl\.so\.2; torch needs one"):
            unpatched()


def test_the_file_of_the_library_is_found_in_the_map_of_the_process(
    tmp_path: Path, library: Library
):
    maps = tmp_path / "maps"
    maps.write_text("7f r-xp 0 1:1 9   /usr/lib/libnccl-net.so\n7f r-xp /usr/lib/libnccl.so.2.27\n")
    assert nccl.path_of_library(maps) == Path("/usr/lib/libnccl.so.2.27")
    maps.write_text("7f r-xp 0 1:1 9   /usr/lib/libtorch.so\n7f rw-p 0 0:0 0 [heap]\n")
    assert nccl.path_of_library(maps) is None


def test_a_call_that_fails_is_told_with_nccl_s_text(library: Library):
    assert nccl.unique_id() == "0a" + 127 * "00"
    library.status["ncclGetUniqueId"] = 3
    with pytest.raises(NcclError, match=r"ncclGetUniqueId: unhandled error \(status 3\)"):
        nccl.unique_id()
    assert (nccl.UNIQUE_ID_BYTES, nccl.FLOAT32, nccl.SUM) == (128, 7, 0), "nccl.h"


def test_ranks_of_a_group_take_the_id_of_its_first_rank(library: Library):
    given: list[str] = []

    def gather(own: str) -> list[str]:
        given.append(own)
        return ["", "", "0b" * 128, ""]

    for rank, makes in ((3, False), (2, True)):
        ranks: Any = SimpleNamespace(rank=rank, gather=gather)
        library.calls.clear()
        comm = Communicator(ranks, [2, 3])
        assert bool(given.pop()) is makes
        name, arguments = library.calls[-1]
        assert (name, arguments[1], arguments[3]) == ("ncclCommInitRank", 2, rank - 2)
        assert bytes(arguments[2]) == b"\x0b" * 128
    comm.destroy()
    comm.destroy()
    assert [name for name, _ in library.calls].count("ncclCommDestroy") == 1


def test_each_operation_has_its_arguments(library: Library):
    ranks: Any = SimpleNamespace(rank=0, gather=lambda _: ["00" * 128])
    comm = Communicator(ranks, [0])
    library.calls.clear()
    a, b = torch.zeros(8), torch.zeros(2)
    at, bt = a.data_ptr(), b.data_ptr()
    comm.all_reduce(a)
    comm.all_gather(a, b)
    comm.reduce_scatter(b, a)
    comm.broadcast(a, 1)
    with comm.grouped():
        comm.send(a, 2)
        comm.recv(b, 3)
    assert library.calls == [
        ("ncclAllReduce", [at, at, 8, 7, 0, 77, 55]), ("ncclAllGather", [bt, at, 2, 7, 77, 55]),
        ("ncclReduceScatter", [at, bt, 2, 7, 0, 77, 55]),
        ("ncclBroadcast", [at, at, 8, 7, 1, 77, 55]), ("ncclGroupStart", []),
        ("ncclSend", [at, 8, 7, 2, 77, 55]), ("ncclRecv", [bt, 2, 7, 3, 77, 55]),
        ("ncclGroupEnd", []),
    ]  # fmt: skip
    library.status["ncclSend"] = 1
    with pytest.raises(NcclError, match="ncclSend"):
        comm.send(a, 0)
    assert ctypes.sizeof(nccl._UniqueId) == 128
