"""Whether a step beyond its memory was stopped for it: no Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.workloads.scheduler import job_steps, memory_limit
from tests.selftests.rank_job import rank_of

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
    (found,) = memory_limit.run(rank_of(tmp_path, memory_mib=256), ["limit"]).measurements
    assert found.value == value
    assert (found.notes == []) == (value == "enforced")


def test_in_an_image_without_srun_nothing_is_measured_and_the_reason_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def attach(*_: str, **__: Any) -> str:
        raise job_steps.NoClientError("srun is not on the PATH")

    monkeypatch.setattr(memory_limit.job_steps, "attach", attach)
    found = memory_limit.run(rank_of(tmp_path, memory_mib=256), ["limit"])
    assert found.measurements == []
    assert [(a.metric, a.why) for a in found.absent] == [("limit", "srun is not on the PATH")]


def limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, local_rank: int = 0,
    output: str | None = None,
) -> tuple[Any, list[str]]:  # fmt: skip
    """What is measured where the step says so, or fails with `output`, and the program."""
    asked: list[str] = []

    def attach(*options: str, program: list[str]) -> str:
        asked.extend([*options, *program])
        if output is None:
            return said
        error = job_steps.StepError(said)
        error.output = output
        raise error

    monkeypatch.setattr(memory_limit.job_steps, "attach", attach)
    ranks = rank_of(tmp_path, local_rank, per_node=2, memory_mib=256)
    return memory_limit.run(ranks, ["limit"]), asked


def test_a_step_of_the_job_s_memory_takes_twice_as_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found, asked = limited(tmp_path, monkeypatch, "begun\nsurvived\nended 0\n")
    assert found.facts == {
        "limit_mib": 256, "taken_mib": 512, "said": "begun\nsurvived\nended 0\n",
    }  # fmt: skip
    assert "--mem=256M" in asked
    assert asked[-1] == str(512 << 20)
    assert "n0 used 512 MiB" in found.measurements[0].notes[0]


@pytest.mark.parametrize(
    ("said", "output", "value"),
    [
        ("begun\nended 9\n", None, "enforced"),
        ("srun: Exceeded job memory limit", "", "enforced"),
        ("failed", "State: OUT_OF_MEMORY", "enforced"),
        ("failed", "no answer", None),
        # Only srun tells of memory; a step that ended well and prints the word has proved nothing.
        ("begun\nout of memory\nended 0\n", None, None),
    ],
)
def test_what_srun_says_of_memory_counts_where_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said, output, value
):
    found, _ = limited(tmp_path, monkeypatch, said, output=output)
    assert found.measurements[0].value == value


def test_only_the_first_rank_of_a_node_measures_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found, asked = limited(tmp_path, monkeypatch, "", local_rank=1)
    assert (found.measurements, asked) == ([], [])
    assert memory_limit.run(rank_of("/"), ["other"]).measurements == []
