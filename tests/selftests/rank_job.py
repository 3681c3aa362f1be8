"""A job of the suite on CPU ranks of this machine: no sandbox, and no Slurm."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fixtures.records.files import read_lines, write_json
from fixtures.records.model import Record
from fixtures.records.run_directory import assemble, new_nonce
from fixtures.workloads.collectives.swept import SWEPT
from fixtures.workloads.runtime.ranks import Identity, Ranks
from fixtures.workloads.runtime.spec import module_of
from tests.selftests import warm_ranks

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = ROOT / "fixtures" / "workloads"
MODULES = sorted(
    {p.stem for p in WORKLOADS.glob("*/*.py") if "\nWORKLOAD = " in p.read_text()} | {*SWEPT}
)
LIMIT_S = 600
"""Ends a rank that hangs; with ten busy processes beside, a training of 5 s has taken 150."""
TORCH = ("torch", "torch.distributed")
"""What ranks of nearly every workload import."""

PROBE = '''
"""A workload that does what a test asks for."""
import os, signal, sys, time
from fixtures.records.model import Measurement, Result
from fixtures.workloads.runtime.spec import Workload

WORKLOAD = Workload(metrics={"x": "x"}, needs_torch=False, seconds=1, cpu_seconds=1, deadline_s=30)

def run(ranks, metrics, *, do="pass", rank=0):
    if ranks.rank == rank:
        if do == "raise":
            raise ValueError("on purpose")
        if do == "import":
            import no_such_module
        if do == "memory":
            raise MemoryError
        if do == "full":
            raise OSError(28, "No space left on device")
        if do == "exit":
            sys.exit(0)
        if do == "vanish":
            os._exit(0)
        if do == "hang":
            time.sleep(60)
        if do == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if do == "nan":
            return Result(measurements=[Measurement(metric="x", unit="", samples=[float("nan")])])
        if do == "nothing":
            return None
    torch = "torch" in sys.modules
    return Result(measurements=[Measurement(metric="x", unit="", value=1)], facts={"torch": torch})
'''


def free_port() -> int:
    """Return a free port that no connection of this host gets as its own before the job listens.

    As the submitter does, below the range from which the kernel gives ports to connections.
    """
    while True:
        port = random.randrange(20000, 32768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def rank_of(
    folder: Path | str, k: int = 0, nodes: Sequence[str] = ("n0",), *, per_node: int = 1,
    world_size: int | None = None, node: str | None = None, store: Any = None, **spec: Any,
) -> Ranks:  # fmt: skip
    """Rank k of a job on the CPU, in this process; `spec`: what the job says besides."""
    given = {
        "nodes": [*nodes], "ranks_per_node": per_node, "directory": str(folder), "device": "cpu",
        "nonce": "a", "attempt": 1, **spec,
    }  # fmt: skip
    size = len(nodes) * per_node if world_size is None else world_size
    own = node or nodes[k // per_node]
    me = Identity(rank=k, local_rank=k % per_node, world_size=size, node=own)
    return Ranks(given, me, store)


class Job:
    """A job of the suite, started as submitit's local executor or Slurm would start its ranks."""

    def __init__(self, root: Path, *, nodes: list[str] | None = None, per_node: int = 1) -> None:
        self.root = root
        self.nodes = nodes or ["worker0"]
        self.per_node = per_node
        self.directory = root / "jobs" / "job"
        self.directory.mkdir(parents=True)
        (root / "token").write_text("a token\n")
        (root / "probe.py").write_text(PROBE)
        self.spec: dict[str, Any] = {
            "schema": 1,
            "run_id": "run",
            # Ranks take their places under its name, on this host: two test runs at a time may.
            "nonce": new_nonce(),
            "job": "job",
            "attempt": 1,
            "run_directory": str(root),
            "directory": str(self.directory),
            "nodes": self.nodes,
            "ranks_per_node": per_node,
            "master_address": "127.0.0.1",
            "master_port": free_port(),
            "backend": None,
            "device": "cpu",
            "demonstration": True,
            "gpu_model": "cpu",
            "addresses": dict.fromkeys(self.nodes, "127.0.0.1"),
            "expected": {},
            "token": "a token",
            "workloads": [],
        }

    def add(self, name: str, metrics: list[str], **params: Any) -> None:
        module = module_of(name) if name in MODULES else name
        item = {"name": name, "module": module, "placement": self.placement, "metrics": metrics}
        self.spec["workloads"].append({**item, "params": params})

    @property
    def placement(self) -> str:
        return self.nodes[0] if len(self.nodes) == 1 else "all"

    def run(
        self,
        *,
        slurm: bool = False,
        prolog: dict[str, str] | None = None,
        warm: tuple[str, ...] = (),
    ) -> list[int]:
        """Exit status of every rank; `prolog`: what a site's TaskProlog exports.

        `warm`: what the ranks need not import, because it is not what the test is of.
        """
        path = self.directory / "spec.json"
        write_json(path, self.spec)
        ranks = []
        for k, env in enumerate(self._environments(slurm, prolog or {})):
            out = self.directory / f"out{k}.txt"
            ranks.append({"env": env, "cwd": str(self.root), "out": str(out), "spec": str(path)})
        return warm_ranks.warm(*warm).run(ranks, LIMIT_S) if warm else self._run_cold(ranks)

    def _environments(self, slurm: bool, prolog: dict[str, str]) -> Iterator[dict[str, str]]:
        size = len(self.nodes) * self.per_node
        for k in range(size):
            env = clean_environment() | {"PYTHONPATH": f"{ROOT}:{self.root}"}
            if slurm:
                env |= {"SLURM_PROCID": str(k), "SLURM_LOCALID": str(k % self.per_node)}
                env |= {"SLURM_NTASKS": str(size)}
                env |= {"SLURMD_NODENAME": self.nodes[k // self.per_node]}
            else:
                env |= {"SUBMITIT_LOCAL_GLOBALID": str(k), "SUBMITIT_LOCAL_LOCALID": str(k)}
                env |= {"SUBMITIT_LOCAL_NTASKS": str(size)}
            yield env | prolog

    def _run_cold(self, described: list[dict[str, Any]]) -> list[int]:
        ranks = []
        for rank in described:
            code = f"from fixtures import entry; entry.run({rank['spec']!r})"
            command = [sys.executable, "-W", "error", "-c", code]
            with Path(rank["out"]).open("w") as out:
                ranks.append(
                    subprocess.Popen(
                        command, env=rank["env"], stdout=out, stderr=out, cwd=rank["cwd"]
                    )
                )
        try:
            return [rank.wait(LIMIT_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()

    def lines(self, rank: int = 0) -> list[dict[str, Any]]:
        return [
            line
            for line in read_lines(self.directory / f"rank{rank}.jsonl")
            if line["event"] != "alive"
        ]

    def events(self, rank: int = 0) -> list[tuple[str, str]]:
        return [(line["event"], line.get("workload", "")) for line in self.lines(rank)]

    def error(self, rank: int = 0) -> dict[str, Any]:
        (line,) = [line for line in self.lines(rank) if line["event"] == "error"]
        return line

    def output(self) -> str:
        return "".join(p.read_text() for p in sorted(self.directory.glob("out*.txt")))

    def record(self, workload: str) -> Record:
        lines = [x for k in range(len(self.nodes) * self.per_node) for x in self.lines(k)]
        record = assemble(
            lines,
            run_id="run",
            nonce=self.spec["nonce"],
            workload=workload,
            placement=self.placement,
            attempt=1,
            job={"id": "1"},
        )
        assert record is not None, self.output()
        return record


def clean_environment() -> dict[str, str]:
    drop = ("SLURM", "SUBMITIT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_")
    return {k: v for k, v in os.environ.items() if not k.startswith(drop)}
