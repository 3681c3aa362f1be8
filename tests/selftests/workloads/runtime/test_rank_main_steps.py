"""The steps of a rank's process, called in this one: order, lines, deadlines, how it ends."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fixtures.records.files import RecordError
from fixtures.records.model import SCHEMA, Measurement, Result
from fixtures.workloads.runtime import rank_main
from fixtures.workloads.runtime.spec import SmallJob, Workload

pytestmark = pytest.mark.cpu


class Dog:
    """A watchdog that only notes what it is asked."""

    asked: list[Any]

    def __init__(self, append: Any, stacks: Path) -> None:
        type(self).asked = []
        self.stacks = stacks

    def start(self) -> None:
        self.asked.append("start")

    def watch(self, watched: dict[str, Any], seconds: float) -> None:
        self.asked.append((watched["workload"], seconds))

    def pause(self) -> None:
        self.asked.append("pause")

    def force_exit_after(self, seconds: float) -> None:
        self.asked.append(("exit", seconds))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The spec of a job of one rank, whose process this one plays."""
    for name in ("SLURM_PROCID", "RANK", "SUBMITIT_LOCAL_GLOBALID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(rank_main, "Watchdog", Dog)
    monkeypatch.setattr(rank_main.tuning_variables, "take", lambda: {"others": ["NCCL_X"]})
    monkeypatch.setattr(rank_main, "nic_identities", lambda: {"mlx5_0": "guid"})
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    return {
        "schema": SCHEMA, "run_id": "run", "nonce": f"nonce of {tmp_path}", "job": "job",
        "attempt": 1, "nodes": ["n0"], "ranks_per_node": 1, "directory": str(tmp_path / "job"),
        "device": "cpu", "workloads": [],
    }  # fmt: skip


def program(
    monkeypatch: pytest.MonkeyPatch, name: str, run: Callable[..., Any] | None = None, **more: Any
) -> dict[str, Any]:
    """Make a workload with this module; return its item in a spec."""
    module = ModuleType(name)
    given: dict[str, Any] = {
        "metrics": {"a": "x"}, "needs_torch": False, "seconds": 1, "cpu_seconds": 1,
        "deadline_s": 60, "cpu_deadline_s": 20, **more,
    }  # fmt: skip
    module.WORKLOAD = Workload(**given)  # type: ignore[attr-defined]
    module.run = run or (lambda ranks, metrics: Result())  # type: ignore[attr-defined]
    module.begin = lambda ranks: f"{name} began"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    return {"name": name, "module": name, "placement": "n0", "metrics": ["a"]}


def lines(job: dict[str, Any], rank: int = 0) -> list[dict[str, Any]]:
    text = (Path(job["directory"]) / f"rank{rank}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_a_spec_of_another_schema_is_refused(job: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match="schema 0"):
        rank_main.run_spec({**job, "schema": 0})


def test_workloads_run_in_their_order_with_lines_before_and_after(
    job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def around(ranks: Any, metrics: list[str], *, size: int) -> Result:
        seen.append((ranks.begin_notes, ranks.references, metrics, size))
        ranks.write_line({"event": "note"})
        return Result(
            measurements=[Measurement(metric="a", unit="x", value=1)], facts={"f": 1},
        )  # fmt: skip

    job["workloads"] = [
        {**program(monkeypatch, "m6_around", around, spans_job=True, needs_torch=True),
         "params": {"size": 3}, "references": [{"b": 1}], "attempt": 4},
        {**program(monkeypatch, "m6_torch", needs_torch=True), "deadline_s": 7},
        program(monkeypatch, "m6_plain"),
    ]  # fmt: skip
    rank_main.run_spec(job)
    assert [(x["event"], x.get("workload")) for x in lines(job)] == [
        ("started", "m6_plain"), ("result", "m6_plain"), ("started", "m6_torch"),
        ("result", "m6_torch"), ("started", "m6_around"), ("note", "m6_around"),
        ("result", "m6_around"), ("end", None),
    ]  # fmt: skip
    assert seen == [({"m6_around": "m6_around began"}, [{"b": 1}], ["a"], 3)]
    assert Dog.asked == [
        "start", ("", 150), ("m6_around", 20), ("m6_plain", 20), ("m6_torch", 7),
        ("m6_around", 20), ("", 150), "pause",
    ]  # fmt: skip
    plain, last = lines(job)[1], lines(job)[6]
    assert (last["attempt"], last["placement"], last["rank"], last["node"]) == (4, "n0", 0, "n0")
    assert last["facts"] == {"f": 1, "settings": {"others": ["NCCL_X"]}}
    assert plain["facts"] == {}, "nothing is set that a workload without torch depends on"
    assert last["measurements"][0]["value"] == 1
    assert (plain["device"]["nics"], plain["device"]["index"]) == ({"mlx5_0": "guid"}, 0)
    assert plain["start"] <= plain["end"]
    assert plain["provenance"]["python"]


def test_a_workload_without_settings_has_no_such_fact(
    job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_main.tuning_variables, "take", dict)
    job["workloads"] = [program(monkeypatch, "m6_torch", needs_torch=True)]
    rank_main.run_spec(job)
    assert lines(job)[1]["facts"] == {}


def test_variables_of_a_workload_are_set_and_a_requeued_job_has_the_node_that_it_is_on(
    job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    item = program(monkeypatch, "m6_env", environment={"M6_VARIABLE": "1"})
    job |= {"workloads": [item], "anywhere": True, "nodes": ["other"]}
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    monkeypatch.setenv("M6_VARIABLE", "0")
    rank_main.run_spec(job)
    assert lines(job)[0]["node"] == "n7"
    assert rank_main.os.environ["M6_VARIABLE"] == "1"
    del job["anywhere"]
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_LOCALID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    with pytest.raises(RuntimeError, match="rank 0 is on n7, not one of"):
        rank_main.run_spec(job)


def test_ranks_of_several_parts_are_numbered_on(
    job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def met(ranks: Any, metrics: list[str]) -> Result:
        return Result(facts={"rank": ranks.rank, "size": ranks.world_size})

    job |= {"workloads": [program(monkeypatch, "m6_part", met)], "parts": 2}
    monkeypatch.setattr(rank_main.Ranks, "close", lambda _: None)
    rank_main.run_spec(job, part=1)
    assert lines(job, 1)[1]["facts"] == {"rank": 1, "size": 2}
    with pytest.raises(RuntimeError, match="1 rank started, expected 2"):
        rank_main.run_spec({**job, "parts": 1, "ranks_per_node": 2})


def test_ranks_on_gpus_bind_themselves_where_the_job_says_so(
    job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[tuple[int, int]] = []
    monkeypatch.setattr(rank_main, "bind_near_gpu", lambda k, n: bound.append((k, n)))
    monkeypatch.setattr(rank_main, "_device_entry", lambda _: {})
    item = program(monkeypatch, "m6_plain")
    small = program(monkeypatch, "m6_small", small=SmallJob())
    for more, times in (
        ({"device": "cuda", "bind_cores": True}, 1), ({"device": "cuda"}, 0),
        ({"bind_cores": True}, 0),
    ):  # fmt: skip
        bound.clear()
        rank_main.run_spec({**job, "workloads": [item], **more})
        assert bound == [(0, 1)] * times
    gpu = {**job, "device": "cuda", "bind_cores": True}
    rank_main.run_spec({**gpu, "workloads": [item, small]})
    assert bound == [], "a small job checks wrong placements itself"


def test_the_first_rank_of_a_node_records_telemetry_where_the_job_wants_it(
    job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    stopped: list[int] = []

    def start(path: Path, order: Any) -> Any:
        started.append((path.parent, order))
        return SimpleNamespace(
            summary=lambda a, b: {"telemetry": a <= b}, stop=lambda: stopped.append(1)
        )

    monkeypatch.setattr(rank_main.telemetry, "start", start)
    job["workloads"] = [program(monkeypatch, "m6_plain")]
    rank_main.run_spec(job)
    assert started == []
    rank_main.run_spec({**job, "telemetry": True, "nic_order": {"number": 2}})
    assert started == [(Path(job["directory"]), {"number": 2})]
    assert lines(job)[-2]["facts"] == {"telemetry": True}
    assert stopped == [1]
    monkeypatch.setenv("SUBMITIT_LOCAL_GLOBALID", "0")
    monkeypatch.setenv("SUBMITIT_LOCAL_LOCALID", "1")
    monkeypatch.setenv("SUBMITIT_LOCAL_NTASKS", "1")
    rank_main.run_spec({**job, "telemetry": True})
    assert len(started) == 1
    assert "nics" not in lines(job)[-2]["device"]


@pytest.mark.parametrize(
    ("error", "kind", "slept", "raised"),
    [
        (ValueError("on purpose"), "raised", [], ValueError),
        (RuntimeError("Connection reset by peer"), "peer_lost", [2], RuntimeError),
        (SystemExit(0), "exited", [], SystemExit),
        (SystemExit(None), "exited", [], SystemExit),
        (SystemExit(3), "exited", [], SystemExit),
    ],
    ids=["error", "peer", "exit 0", "exit none", "exit 3"],
)
def test_a_failure_is_a_line_with_its_kind_and_the_rank_never_ends_well(
    job: dict[str, Any], monkeypatch: pytest.MonkeyPatch, error: BaseException, kind: str,
    slept: list[int], raised: type[BaseException],
) -> None:  # fmt: skip
    def fails(ranks: Any, metrics: list[str]) -> Result:
        raise error

    waited: list[float] = []
    monkeypatch.setattr(rank_main.time, "sleep", waited.append)
    job["workloads"] = [program(monkeypatch, "m6_fails", fails)]
    with pytest.raises(raised) as ended:
        rank_main.run_spec(job)
    if isinstance(ended.value, SystemExit):
        assert ended.value.code == (3 if error.args == (3,) else 1)
    last = lines(job)[-1]
    assert (last["event"], last["workload"], last["kind"]) == ("error", "m6_fails", kind)
    assert last["error"].startswith(f"{type(error).__name__}: ")
    assert "in fails" in last["stack"]
    assert Dog.asked[-2:] == ["pause", ("exit", 30)]
    assert waited == slept


def test_what_is_no_result_is_an_error(
    job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job["workloads"] = [program(monkeypatch, "m6_none", lambda *_: {})]
    with pytest.raises(TypeError, match=r"m6_none.*returned dict"):
        rank_main.run_spec(job)


def test_a_workload_that_cannot_be_imported_fails_when_it_is_its_turn(
    job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = {"name": "m6_missing", "module": "m6_no_such", "metrics": []}
    assert rank_main._environment(missing) == {}
    assert rank_main._spans_job(missing) is False
    assert rank_main._is_small_job([missing]) is False
    assert rank_main._deadline(missing, "cuda") == 150
    gone = {**missing, "deadline_s": "5"}
    assert rank_main._deadline(gone, "cuda") == 5
    plain = program(monkeypatch, "m6_plain")
    last = program(monkeypatch, "m6_last", runs_last=True)
    torch = program(monkeypatch, "m6_torch", needs_torch=True)
    assert rank_main._deadline(plain, "cuda") == 60
    assert rank_main._is_small_job([missing, program(monkeypatch, "m6_s", small=SmallJob())])
    assert not rank_main._is_small_job([plain])
    order = [last, missing, torch, plain]
    assert rank_main._in_run_order(order) == [plain, missing, torch, last]
    job["workloads"] = [missing]
    with pytest.raises(ModuleNotFoundError):
        rank_main.run_spec(job)
    assert [(x["event"], x["workload"]) for x in lines(job)] == [
        ("started", "m6_missing"), ("error", "m6_missing"),
    ]  # fmt: skip


def test_a_local_rank_is_taken_once_on_a_node(
    job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rank(node: str = "n0", local_rank: int = 0) -> Any:
        return SimpleNamespace(spec=job, node=node, local_rank=local_rank, ranks_per_node=2)

    with rank_main._claim_local_rank(rank()):
        rank_main._claim_local_rank(rank(local_rank=1)).close()
        rank_main._claim_local_rank(rank("n1")).close()
        with pytest.raises(RuntimeError, match="two ranks of n0 are local rank 0"):
            rank_main._claim_local_rank(rank())

    class Broken:
        def bind(self, _: str) -> None:
            raise OSError(errno.EACCES, "Permission denied")

        def close(self) -> None: ...

    monkeypatch.setattr(rank_main.socket, "socket", lambda *_: Broken())
    with pytest.raises(PermissionError):
        rank_main._claim_local_rank(rank())


def test_only_hardware_has_an_identity(tmp_path: Path) -> None:
    for path in (
        "infiniband/mlx5_0/node_guid", "infiniband/mlx5_1/node_guid", "net/eth0/address",
        "net/br0/address", "net/vf0/address",
    ):  # fmt: skip
        file = tmp_path / path
        file.parent.mkdir(parents=True)
        file.write_text(f"of {file.parent.name}\n")
    for device in ("infiniband/mlx5_1/device/physfn", "net/eth0/device", "net/vf0/device/physfn"):
        (tmp_path / device).mkdir(parents=True)
    assert rank_main.nic_identities(tmp_path) == {"mlx5_0": "of mlx5_0", "eth0": "of eth0"}


def test_every_failure_has_the_kind_that_the_login_side_knows() -> None:
    class OutOfMemoryError(Exception): ...

    class DistStoreError(Exception): ...

    class DistNetworkError(Exception): ...

    for error, kind in (
        (ImportError("x"), "import_failure"), (MemoryError(), "out_of_memory"),
        (OutOfMemoryError(), "out_of_memory"), (SystemExit(0), "exited"),
        (KeyboardInterrupt(), "interrupted"), (OSError(errno.ENOSPC, "full", "/x"), "storage"),
        (OSError(errno.ENOSPC, "full"), "storage"),
        (OSError(errno.ESTALE, "s", "/sys/x"), "raised"),
        (OSError(errno.ESTALE, "s", "/proc/x"), "raised"), (DistStoreError("x"), "peer_lost"),
        (DistNetworkError("x"), "peer_lost"), (DistStoreError("Address already in use"), "raised"),
        (RuntimeError("Broken pipe"), "peer_lost"), (RuntimeError("address"), "raised"),
        (RuntimeError("remote process exited or there was a network error"), "peer_lost"),
    ):  # fmt: skip
        assert rank_main.kind_of(error) == kind, repr(error)
