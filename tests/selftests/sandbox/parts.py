"""Parts of a sandbox that exist in files alone: states, processes, tools, a module with changes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fixtures.sandbox.cgroups import Cgroups
from fixtures.sandbox.processes import Process
from fixtures.sandbox.state import State, boot_id
from fixtures.sandbox.tools import Tools

DEAD = Process(2**22 + 1, 1)
"""No process has a number as high as that."""
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="root takes sandboxes of root's files alone")


def living() -> Process:
    """This process."""
    found = Process.of(os.getpid())
    assert found is not None
    return found


def state(home: Path, **more: Any) -> State:
    """A sandbox of two nodes of two GPUs that runs, in its files alone."""
    home.mkdir(parents=True, exist_ok=True)
    nodes = more.get("nodes", 2)
    given: dict[str, Any] = {
        "id": home.name, "home": home, "owner": None, "boot": boot_id(), "nodes": nodes, "gpus": 2,
        "cpus": 4, "memory_mib": 4000, "slot": 3, "subnet": "198.18.7", "port": 7001, "cgroup": 1,
        "trees": {"freezer": home / "cgroup"}, "memory": True,
    }  # fmt: skip
    if "processes" not in more:
        alive = living()
        names = [f"worker{k}{part}" for k in range(nodes) for part in ("", ".init")]
        given["processes"] = dict.fromkeys(names, alive)
    return State(**given | more)


def cluster(found: State, **more: Any) -> Any:
    """What the faults of a sandbox use of it."""
    cgroups = Cgroups(found.cgroup, found.trees, found.memory)
    return SimpleNamespace(
        **{"state": found, "id": found.id, "tools": tools(), "cgroups": cgroups, "environ": {}}
        | more
    )


def tools(*names: str) -> Tools:
    """Programs that nobody starts, by names of their own."""
    every = "slurmctld slurmd slurmstepd sinfo srun scontrol munged ip tc unshare nsenter sacctmgr"
    every += " slurmdbd mariadbd mariadb-install-db mount"
    return Tools({name: f"/fake/{name}" for name in (*every.split(), *names)})


def faked(module: ModuleType, **changes: Any) -> Any:
    """The module with other functions, to be put in its place in one module that uses it."""
    return SimpleNamespace(**vars(module) | changes)


def clock(
    monkeypatch: pytest.MonkeyPatch, *modules: ModuleType, step: float | None = None
) -> list[float]:
    """Let only sleeping move the clock of these modules: by a step, or by what is slept."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds if step is None else step

    for module in modules:
        changed = faked(time, monotonic=lambda: now[0], sleep=sleep)
        monkeypatch.setattr(module, "time", changed)
    return now


class Calls(list[Any]):
    """A function that keeps what it was called with, and returns what it is told to."""

    def __init__(self, *returns: Any) -> None:
        super().__init__()
        self.returns = list(returns)

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.append((*given, *([named] if named else [])))
        return self.returns.pop(0) if len(self.returns) > 1 else (self.returns or [None])[0]
