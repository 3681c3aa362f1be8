"""NCCL's algorithm by operation and size, from the log of processes beside the ranks."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.workloads.collectives import nccl_algorithms
from fixtures.workloads.nccl import nccl
from fixtures.workloads.nccl.collective_ops import Peers
from fixtures.workloads.runtime import tuning_variables
from tests.selftests import support

pytestmark = pytest.mark.cpu

ID = "07" + 127 * "00"
SIZES = (8, 65536, 1 << 20)
ALL = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that answers as NCCL and CUDA's driver do."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    library = tmp_path_factory.mktemp("fake") / "libnccl.so.2"
    source = support.DATA.with_name("fake_nccl.c")
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def request(fake: Path, rank: int, **changed: Any) -> dict[str, Any]:
    return {
        "library": str(fake), "cuda": str(fake), "device": rank, "id": ID, "rank": rank,
        "ranks": 2, "operations": [[name, size // 4] for name in ALL for size in SIZES], **changed,
    }  # fmt: skip


def test_every_operation_is_run_once_and_its_algorithm_read(fake: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        asked, log = request(fake, rank), tmp_path / f"{rank}.log"
        assert nccl_algorithms.run_probe(asked, log) == ""
        found, why = nccl_algorithms.read_log(log, ALL, asked["operations"])
        expected = {8: ("TREE", "LL"), 65536: ("NVLS", "SIMPLE"), 1 << 20: ("NVLS", "SIMPLE")}
        assert (found, why) == (dict.fromkeys(ALL, expected), "")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"id": 128 * "00"}, "status 1: ProbeError: ncclCommInitRank: status 5"),
        ({"operations": [["gossip", 2]]}, "ProbeError: no operation 'gossip'"),
        ({"library": "/nowhere/libnccl.so.2"}, "cannot open shared object file"),
    ],
)
def test_a_process_that_fails_says_why_and_nothing_is_concluded(
    changed: dict[str, Any], said: str, fake: Path, tmp_path: Path
) -> None:
    assert said in nccl_algorithms.run_probe(request(fake, 0, **changed), tmp_path / "0.log")


def test_a_process_that_hangs_is_ended(fake: Path, tmp_path: Path, monkeypatch: Any) -> None:
    waiting = tmp_path / "waiting.py"
    waiting.write_text("import signal\nsignal.pause()\n")
    monkeypatch.setattr(nccl_algorithms, "PROBE", waiting)
    why = nccl_algorithms.run_probe(request(fake, 0), tmp_path / "0.log", timeout_s=0.2)
    assert "did not end within" in why


RECORDED = """
gpu01:4242:4311 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
gpu01:4242:4311 [0] NCCL INFO AllReduce: 1073741824 Bytes -> Algo NVLS_TREE proto SIMPLE channel{0}
"""


def test_a_log_is_read_only_if_it_has_every_operation(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_text(RECORDED)
    operations = [("all_reduce", 256), ("all_reduce", 1 << 28)]
    found, why = nccl_algorithms.read_log(log, ["all_reduce"], operations)
    assert found == {"all_reduce": {1024: ("RING", "LL"), 1 << 30: ("NVLS_TREE", "SIMPLE")}}
    assert why == ""
    found, why = nccl_algorithms.read_log(log, ["all_reduce"], operations[:1])
    assert (found, why) == ({"all_reduce": {}}, "NCCL logged 2 of 1 operations")
    assert nccl_algorithms.read_log(tmp_path / "none", [], operations)[1].startswith(
        "NCCL logged 0"
    )


@pytest.mark.parametrize(
    ("algorithm", "protocol", "named"),
    [("1", "2", ("RING", "SIMPLE")), ("0", "0", ("TREE", "LL")), ("5", "1", ("NVLS_TREE", "LL128")),
     ("2", "2", ("COLLNET_DIRECT", "SIMPLE")), ("6", "2", ("PAT", "SIMPLE")),
     ("RING", "LL128", ("RING", "LL128"))],
)  # fmt: skip
def test_numbers_of_older_versions_are_the_names_of_newer_ones(
    algorithm: str, protocol: str, named: tuple[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "0.log"
    for operation in ("AllReduce: ", ""):
        line = f"{operation}1024 Bytes -> Algo {algorithm} proto {protocol} time 5.3"
        log.write_text(f"n:1:2 [0] NCCL INFO {line}\n")
        found, _ = nccl_algorithms.read_log(log, ["all_reduce"], [("all_reduce", 256)])
        assert found["all_reduce"] == {1024: named}


@pytest.mark.parametrize(("algorithm", "protocol"), [("9", "2"), ("1", "7"), ("7", "3")])
def test_a_number_that_is_not_known_concludes_nothing(
    algorithm: str, protocol: str, tmp_path: Path
) -> None:
    log = tmp_path / "0.log"
    line = f"AllReduce: 1024 Bytes -> Algo {algorithm} proto {protocol} time 5.3"
    log.write_text(f"NCCL INFO {line}\n")
    found, why = nccl_algorithms.read_log(log, ["all_reduce"], [("all_reduce", 256)])
    assert found == {"all_reduce": {}}
    assert f"algorithm {algorithm}, protocol {protocol}" in why


# --- in a job


class Job:
    """Ranks that share an answer, as far as nccl_algorithms needs them."""

    def __init__(self, directory: Path, size: int) -> None:
        self.directory, self.size = directory, size
        self.barrier, self.items = threading.Barrier(size), [None] * size

    def ranks(self, rank: int) -> Any:
        def gather(item: Any) -> list[Any]:
            self.items[rank] = item
            self.barrier.wait(30)
            found = list(self.items)
            self.barrier.wait(30)
            return found

        return SimpleNamespace(
            on_gpu=True, rank=rank, local_rank=rank, folder=self.directory, algorithms={},
            gather=gather, agree=lambda item, choose: choose(gather(item)),
        )  # fmt: skip


def test_one_process_per_rank_and_setting_answers_for_all_operations(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    started: list[int] = []
    run = nccl_algorithms.run_probe

    def with_fake(asked: dict[str, Any], log: Path) -> str:
        started.append(asked["rank"])
        return run({**asked, "cuda": str(fake)}, log)

    monkeypatch.setattr(nccl_algorithms, "run_probe", with_fake)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 1 << 31))
    monkeypatch.setattr(nccl, "unique_id", lambda: ID)
    monkeypatch.setattr(nccl, "path_of_library", lambda: fake)
    job, answers = Job(tmp_path, 2), {}

    def sweeps(rank: int) -> None:
        ranks = job.ranks(rank)
        peers = Peers(group=None, members=(0, 1), rank=rank)  # type: ignore[arg-type]
        answers[rank] = [
            nccl_algorithms.chosen(ranks, peers, name, [*SIZES, 1 << 30], others=True)
            for name in ("all_to_all", "all_reduce", "broadcast")
        ]

    threads = [threading.Thread(target=sweeps, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(started) == [0, 1], "one process per rank"
    for found in answers.values():
        (nothing, _), (reduced, facts), (broadcast, later) = found
        assert nothing == {}
        assert set(reduced) == set(SIZES), "no size for which there is no memory"
        assert reduced == broadcast
        assert set(facts) == {"algorithms_s"}
        assert later == {}


def test_where_nccl_is_part_of_torch_nothing_is_concluded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl, "library", lambda: None)
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 0 08:01 5 /opt/torch/lib/libtorch_cuda.so\n")
    assert nccl.path_of_library(maps) is None
    maps.write_text("7f00-7f01 r-xp 0 08:01 5 /opt/nvidia/nccl/lib/libnccl.so.2\n")
    assert nccl.path_of_library(maps) == Path("/opt/nvidia/nccl/lib/libnccl.so.2")


def test_nothing_that_nccl_will_remove_is_called() -> None:
    root = Path(nccl.__file__).parents[1]
    assert [p for p in root.rglob("*.py") if "ncclResetDebugInit" in p.read_text()] == []
    assert tuning_variables.SET_ASIDE[:3] == ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
