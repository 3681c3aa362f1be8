"""Whether a step beyond its memory was stopped for it: no Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.workloads.runtime.identity import Identity
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.scheduler import job_steps, memory_limit

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("said", "fails", "value"),
    [
        ("begun\nsurvived\nended 0\n", False, "not enforced"),
        ("begun\nended 137\n", False, "enforced"),
        ("begun\nrefused\nended 0\n", False, "enforced"),
        ("srun: error: n0: task 0: Out Of Memory", True, "enforced"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=5.1", True, "enforced"),
        ("srun: error: Unable to create step: Requested nodes are busy", True, None),
        ("begun\nended 1\n", False, None),
    ],
)
def test_only_what_was_stopped_for_its_memory_is_enforced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said, fails, value
):
    def attach(*_: str, **__: Any) -> str:
        if not fails:
            return said
        error = job_steps.StepError("failed")
        error.output = said
        raise error

    monkeypatch.setattr(memory_limit.job_steps, "attach", attach)
    spec = {
        "nodes": ["n0"], "ranks_per_node": 1, "directory": str(tmp_path), "device": "cpu",
        "memory_mib": 256,
    }  # fmt: skip
    ranks = Ranks(spec, Identity(rank=0, local_rank=0, world_size=1, node="n0"))
    (found,) = memory_limit.run(ranks, ["limit"]).measurements
    assert found.value == value
    assert (found.notes == []) == (value == "enforced")
