"""Workloads by hand, as processes that a user starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.records.files import read_json, read_lines
from fixtures.records.run_directory import assemble
from tests.selftests.rank_job import LIMIT_S, ROOT, clean_environment, free_port

pytestmark = pytest.mark.cpu


def test_by_hand_under_torchrun_and_alone(tmp_path: Path) -> None:
    out = tmp_path / "run"
    env = clean_environment() | {"PYTHONPATH": str(ROOT)}
    alone = [sys.executable, "-m", "fixtures.workloads", "environment", "--out", str(out)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    torchrun += [f"--master-port={free_port()}", "-m", "fixtures.workloads"]
    torchrun += ["allreduce", "--cpu", "--out", str(out), "--param", "max_size=1048576"]
    for command in (alone, torchrun, alone):
        done = subprocess.run(
            command, env=env, cwd=ROOT, timeout=LIMIT_S, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    run = read_json(out / "run.json")
    assert (run["schema"], run["origin"], run["contract"]) == (2, "by-hand", None)
    (node,) = run["population"]["nodes"]
    jobs = {"allreduce": (1, 2), "environment": (1, 1), "environment.2": (2, 1)}
    assert sorted(p.name for p in (out / "jobs").iterdir()) == sorted(jobs)
    for name, (attempt, ranks) in jobs.items():
        files = [out / "jobs" / name / f"rank{k}.jsonl" for k in range(ranks)]
        lines = [line for path in files for line in read_lines(path)]
        assert {line["attempt"] for line in lines} == {attempt}
        record = assemble(
            lines, run_id=run["id"], nonce=run["nonce"], workload=name.partition(".")[0],
            placement=node, attempt=attempt, job={},
        )  # fmt: skip
        assert record is not None
        if name == "allreduce":
            assert len(record.points("busbw", {"size": 1 << 20})) == 2


def test_by_hand_repeats_into_directories_of_their_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    torchrun += ["--master-port", str(free_port()), "-m", "fixtures.workloads"]
    torchrun += ["gemm", "broadcast", "--cpu", "--out", str(out), "--repeat", "2"]
    torchrun += ["--metrics", "fp32,errors", "--param", "gemm.size=128"]
    torchrun += ["--param", "gemm.soak_s=0.01", "--param", "gemm.window_s=0.1"]
    torchrun += ["--param", "broadcast.max_size=4096"]
    subprocess.run(
        torchrun, cwd=ROOT, check=True, capture_output=True, timeout=LIMIT_S,
        env=clean_environment(),
    )  # fmt: skip
    runs = [read_json(out / k / "run.json") for k in ("1", "2")]
    assert runs[0]["nonce"] != runs[1]["nonce"]
    for k in ("1", "2"):
        lines = list(read_lines(out / k / "jobs" / "gemm-broadcast" / "rank1.jsonl"))
        results = {x["workload"]: x["measurements"] for x in lines if x["event"] == "result"}
        assert [m["metric"] for m in results["gemm"]] == ["fp32"]
        assert [m["metric"] for m in results["broadcast"]] == ["errors"]
