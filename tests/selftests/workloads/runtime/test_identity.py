"""Which rank a process is, by its environment."""

from __future__ import annotations

import pytest

from fixtures.workloads.runtime import identity
from fixtures.workloads.runtime.identity import first_node, identify

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("worker0", "worker0"), ("worker[0,2]", "worker0"), ("gpu[08-10]-ib,x", "gpu08-ib"),
        ("a,b[1-2]", "a"), ("", ""),
        ("rack[2-3]n[07-08],x", "rack2n07"), ("r[1,3]n[2]-ib", "r1n2-ib"),
    ],
)  # fmt: skip
def test_the_first_node_of_a_host_list(nodelist, first):
    assert first_node(nodelist) == first


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4"}
            | {"SLURMD_NODENAME": "worker1"},
            (3, 1, 4, "worker1"),
        ),
        (
            {"SUBMITIT_LOCAL_GLOBALID": "1", "SUBMITIT_LOCAL_LOCALID": "1"}
            | {"SUBMITIT_LOCAL_NTASKS": "2", "SLURM_PROCID": "0", "SLURMD_NODENAME": "login"},
            (1, 1, 2, "worker0"),
        ),
        (
            {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "GROUP_RANK": "1"}
            | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1"},
            (2, 0, 4, "worker1"),
        ),
        (
            {"SUBMITIT_EXECUTOR": "slurm", "RANK": "9", "WORLD_SIZE": "16"}
            | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}
            | {"SLURMD_NODENAME": "worker0"},
            (0, 0, 4, "worker0"),
        ),
    ],
)
def test_rank_is_found_in_the_environment(
    environment: dict[str, str], expected: tuple[int, int, int, str]
) -> None:
    # submitit's local executor has one node, whatever shell it was started from.
    local = "SUBMITIT_LOCAL_NTASKS" in environment
    me = identify(["worker0"] if local else ["worker0", "worker1"], environment)
    assert (me.rank, me.local_rank, me.world_size, me.node) == expected


@pytest.mark.parametrize(
    ("environment", "nodes", "expected"),
    [
        ({}, ["n0"], (0, 0, 1, "n0")),
        ({}, ["n0", "n1"], (0, 0, 1, "here")),
        ({"RANK": "2"}, ["n0"], (0, 0, 1, "n0")),
        ({"RANK": "2", "WORLD_SIZE": "4"}, ["n0"], (2, 0, 4, "n0")),
        ({"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "GROUP_RANK": "2"}, ["n0", "n1"],
         (2, 1, 4, "here")),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURMD_NODENAME": "n1"}, ["n0", "n1"],
         (1, 0, 2, "here")),
        ({"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "9",
          "SLURM_STEP_NUM_TASKS": "4"}, ["n0", "n1"], (3, 1, 4, "here")),
    ],
)  # fmt: skip
def test_what_the_environment_leaves_open_is_that_of_one_rank_on_this_host(
    monkeypatch: pytest.MonkeyPatch, environment, nodes, expected
):
    monkeypatch.setattr(identity.socket, "gethostname", lambda: "here.example")
    me = identify(nodes, environment)
    assert (me.rank, me.local_rank, me.world_size, me.node) == expected
