"""Workloads by hand: what the ranks agree on, and the run directory that they write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.records.files import append_line, read_json, write_json
from fixtures.records.run_directory import RunDirectory
from fixtures.workloads.devices import devices
from fixtures.workloads.runtime import standalone
from fixtures.workloads.runtime.standalone import Request
from tests.selftests.threads import as_ranks

pytestmark = pytest.mark.cpu

NAMES = ("GROUP_RANK", "SLURMD_NODENAME", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(standalone.socket, "gethostname", lambda: "here.example")
    monkeypatch.setattr(devices, "nvml", lambda: None)
    monkeypatch.setattr(devices, "nvml_facts_of_rank", lambda _: {"model": "H200"})


def request(out: Path, *names: str, **more: Any) -> Request:
    return Request(names=list(names) or ["environment"], out=out, **more)


def test_the_host_of_a_process_is_slurm_s_name_or_its_own(monkeypatch: pytest.MonkeyPatch):
    assert standalone._host() == [0, "here", "here.example"]
    monkeypatch.setenv("SLURMD_NODENAME", "n/0")
    monkeypatch.setenv("GROUP_RANK", "3")
    assert standalone._host() == [3, "n-0", "here.example"]
    monkeypatch.delenv("SLURMD_NODENAME")
    monkeypatch.setattr(standalone.socket, "gethostname", lambda: ".example")
    assert standalone._host()[1] == "node"


def test_groups_of_one_host_are_nodes_of_their_own(tmp_path: Path):
    def nodes(*hosts: list[Any]) -> tuple[list[str], int, str]:
        spec = standalone._job_spec(request(tmp_path, cpu=True), [list(h) for h in hosts])
        return spec["nodes"], spec["ranks_per_node"], spec["workloads"][0]["placement"]

    assert nodes([0, "a", "a.x"]) == (["a"], 1, "a")
    assert nodes([0, "a", "a.x"], [0, "a", "a.x"]) == (["a"], 2, "a")
    assert nodes([1, "b", "b.x"], [0, "a", "a.x"]) == (["a", "b"], 1, "all")
    assert nodes([0, "a", "a.x"], [1, "a", "a.x"]) == (["a-0", "a-1"], 1, "all")
    spec = standalone._job_spec(request(tmp_path), [[1, "b", "b.x"], [0, "a", "a.x"]])
    assert spec["addresses"] == {"a": "a.x", "b": "b.x"}


def test_a_job_runs_on_gpus_where_there_are_any_and_nobody_wants_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def spec(out: str, **more: Any) -> dict[str, Any]:
        return standalone._job_spec(request(tmp_path / out, **more), [[0, "a", "a"]])

    gpus = True
    monkeypatch.setattr(standalone, "_gpus", lambda: gpus)
    on_gpu, on_cpu = spec("gpu"), spec("cpu", cpu=True)
    assert [on_gpu[k] for k in ("device", "demonstration", "gpu_model")] == ["cuda", False, "H200"]
    assert [on_cpu[k] for k in ("device", "demonstration", "gpu_model")] == ["cpu", True, "cpu"]
    gpus = False
    assert spec("none")["device"] == "cpu"
    assert (on_gpu["master_address"], on_gpu["master_port"]) == ("127.0.0.1", 29500)


def test_gpus_are_seen_by_nvml_or_the_driver_s_file(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Path, "exists", lambda _: True)
    assert standalone._gpus()
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert not standalone._gpus()
    handles = ["gpu"]
    monkeypatch.setattr(devices, "nvml", lambda: object())
    monkeypatch.setattr(devices, "open_handles", lambda: handles)
    assert standalone._gpus() is True
    handles.clear()
    assert standalone._gpus() is False


def test_parameters_and_metrics_go_to_the_workloads_that_have_them(tmp_path: Path):
    wanted = request(
        tmp_path, "gemm", "environment", metrics=["bf16", "versions"], cpu=True, deadline_s=9.0,
        params={"size": 1, "gemm.soak_s": 2, "environment.token_wait_s": 3},
    )  # fmt: skip
    first, second = standalone._job_spec(wanted, [[0, "a", "a"]])["workloads"]
    assert (first["metrics"], second["metrics"]) == (["bf16"], ["versions"])
    assert first["params"] == {"size": 1, "soak_s": 2}
    assert second["params"] == {"size": 1, "token_wait_s": 3}
    assert (first["deadline_s"], first["module"]) == (9.0, "fixtures.workloads.compute.gemm")
    plain = standalone._job_spec(request(tmp_path, cpu=True), [[0, "a", "a"]])["workloads"][0]
    assert plain["metrics"] == ["versions", "run_directory"]
    assert "deadline_s" not in plain


def test_a_second_run_of_a_workload_is_another_attempt(tmp_path: Path):
    hosts = [[0, "a", "a"]]
    first = standalone._job_spec(request(tmp_path), hosts)
    assert (first["job"], first["attempt"]) == ("environment", 1)
    assert first["directory"] == str(RunDirectory(tmp_path).job("environment"))
    base = {
        "event": "started", "placement": "a", "nonce": first["nonce"], "workload": "environment",
        "attempt": 1,
    }  # fmt: skip
    file = RunDirectory(tmp_path).jobs / "environment" / "rank0.jsonl"
    file.parent.mkdir(parents=True)
    for change in (
        {"event": "result"}, {"placement": "b"}, {"nonce": "x"}, {"workload": "gemm"},
    ):  # fmt: skip
        append_line(file, {**base, "attempt": 7, **change})
    assert standalone._job_spec(request(tmp_path), hosts)["attempt"] == 1
    append_line(file, {**base, "attempt": 3})
    append_line(file, base)
    again = standalone._job_spec(request(tmp_path), hosts)
    assert (again["job"], again["attempt"]) == ("environment.4", 4)
    assert again["run_id"] == first["run_id"]
    assert again["token"] == first["token"] == (tmp_path / "token").read_text()
    both = standalone._job_spec(request(tmp_path, "gemm", "environment"), hosts)
    assert both["job"] == "gemm-environment.8"


def test_a_run_that_was_not_started_by_hand_is_left_alone(tmp_path: Path):
    path = RunDirectory(tmp_path).run_json
    for content, says in (
        ({"origin": "slurm"}, "is not a run started by hand"), ([], "is not a run started by hand"),
        ({"origin": "by-hand", "schema": 0}, "run.json"),
    ):  # fmt: skip
        write_json(path, content)
        with pytest.raises(SystemExit, match=says):
            standalone._run_json(tmp_path, ["a"], 1, "cpu")
    path.unlink()
    run = standalone._run_json(tmp_path, ["a"], 2, "cuda")
    assert run["population"] == {"nodes": ["a"], "gpus_per_node": 2, "gpu_model": "H200"}
    assert standalone._run_json(tmp_path, ["b"], 1, "cpu") == run == read_json(path)


def test_all_ranks_run_the_spec_that_rank_0_decides_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from torch.distributed import HashStore

    ran: list[tuple[str, Any]] = []
    monkeypatch.setattr(standalone, "run_spec", lambda spec, store: ran.append((spec, store)))
    store = HashStore()
    as_ranks(2, lambda k: standalone.run_once(request(tmp_path / "two", cpu=True), k, 2, store))
    assert ran[0][0] == ran[1][0]
    assert ran[0][0]["ranks_per_node"] == 2
    said = capsys.readouterr().err
    assert said.count("measured by 2 ranks") == 1
    assert "instead of" not in said
    standalone.run_once(request(tmp_path / "one", cpu=True), 0, 1, None)
    spec, none = ran.pop()
    assert none is None
    file = Path(spec["directory"]) / "rank0.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    append_line(
        file,
        {"event": "started", "placement": "here", "nonce": spec["nonce"], "attempt": 1,
         "workload": "environment"},
    )  # fmt: skip
    capsys.readouterr()
    standalone.run_once(request(tmp_path / "one", cpu=True), 0, 1, None)
    assert ", attempt 2 instead of those before" in capsys.readouterr().err


def test_repetitions_have_directories_and_keys_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from torch.distributed import HashStore

    store = HashStore()
    ran: list[tuple[Path, int, int, Any]] = []
    monkeypatch.setattr(standalone, "rendezvous", lambda *_: store)
    monkeypatch.setattr(standalone, "run_once", lambda r, k, n, s: ran.append((r.out, k, n, s)))
    standalone.start(request(tmp_path))
    assert ran == [(tmp_path, 0, 1, store)]
    ran.clear()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    standalone.start(request(tmp_path), repeat=2)
    assert [r[:3] for r in ran] == [(tmp_path / "1", 1, 2), (tmp_path / "2", 1, 2)]
    for _, _, _, prefixed in ran:
        prefixed.set("key", "value")
    assert store.check(["repeat1/key"])
    assert store.check(["repeat2/key"])
    assert standalone.with_fresh_prefix(None, 1) is None


def test_a_single_process_needs_no_rendezvous(monkeypatch: pytest.MonkeyPatch):
    import torch.distributed as dist

    asked: list[Any] = []

    def rendezvous(*arguments: Any, timeout: Any) -> Any:
        asked.append((*arguments, timeout.total_seconds()))
        return iter([("store", 0, 0)])

    monkeypatch.setattr(dist, "rendezvous", rendezvous)
    assert standalone.rendezvous(0, 1) is None
    assert asked == []
    assert standalone.rendezvous(1, 2) == "store"
    assert asked == [("env://", 1, 2, 60)]
