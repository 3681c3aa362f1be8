"""What isolation makes of what jobs see of each other, and the login side: no Slurm."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.cluster import slurm_survey
from fixtures.slurm.client import SlurmNode, allocates_whole_nodes
from fixtures.workloads.scheduler import isolation

pytestmark = pytest.mark.cpu


# --- isolation


def seen(*gpus: tuple[str, bool], given: str | None = None) -> dict[str, Any]:
    return {
        "given": given,
        "gpus": [
            {"path": path, "device": f"195:{path[-1]}", "in": open_, "said": "opened"}
            for path, open_ in gpus
        ],
    }


def test_a_job_holds_what_slurm_gave_it_where_that_opens():
    both = [("/dev/nvidia0", True), ("/dev/nvidia1", True)]
    assert isolation.held_devices(seen(*both, given="1")) == ["195:1"]
    assert isolation.held_devices(seen(("/dev/nvidia0", False), both[1], given="1")) == ["195:1"]


def test_a_job_holds_what_opens_where_slurm_s_numbers_do_not():
    gpus = [("/dev/nvidia0", True), ("/dev/nvidia1", False)]
    assert isolation.held_devices(seen(*gpus, given="1")) == ["195:0"]
    assert isolation.held_devices(seen(*gpus)) == ["195:0"]
    assert isolation.held_devices(seen()) == []


def side(*held: str, uuids: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"job": "1", "held": list(held), "uuids": list(uuids)}


def test_gpus_in_common_are_counted_by_device_or_uuid():
    def shared(a: dict[str, Any], b: dict[str, Any]) -> Any:
        return isolation._shared(a, b).value

    assert shared(side("195:0"), side("195:1")) == 0
    assert shared(side("195:0"), side("195:0")) == 1
    one_board = side("195:0", uuids=("GPU-a",)), side("195:1", uuids=("GPU-a",))
    assert shared(*one_board) == 1
    # A job that sees the UUIDs of GPUs that it does not hold proves nothing by them.
    unfenced = side("195:0", uuids=("GPU-a", "GPU-b")), side("195:1", uuids=("GPU-a", "GPU-b"))
    assert shared(*unfenced) == 0
    assert shared(side(), side("195:1")) is None


def test_what_opens_beside_one_s_own_is_let_in_and_a_way_unseen_is_no_proof():
    kept = seen(("/dev/nvidia0", True), ("/dev/nvidia1", False))
    open_ = seen(("/dev/nvidia0", True), ("/dev/nvidia1", True))
    neighbour = side("195:1")

    def let_in(**ways: Any) -> Any:
        return isolation._let_in(ways, ["195:0"], neighbour).value

    assert let_in(step=kept, batch=kept) == 0
    assert let_in(step=kept, batch=open_) == 1
    assert let_in(step=kept, attached="srun failed") is None
    assert let_in(step=open_, attached="srun failed") == 1
    assert let_in(step=kept, batch=seen()) is None


# --- the login side


def slurm_node(state: str, reason: str = "") -> SlurmNode:
    return SlurmNode(
        name="n0", state=state, reason=reason, address="n0", cpus=8, gpus=8, partitions=("main",)
    )


@pytest.mark.parametrize(
    "state", ["IDLE", "MIXED", "ALLOCATED+COMPLETING", "IDLE+PLANNED", "IDLE+MAINTENANCE+RESERVED"]
)
def test_a_node_that_takes_jobs_is_available(state):
    found, gres = slurm_survey.node_measurements(slurm_node(state))
    assert (found.value, found.notes, gres.value) == ("available", [], 8)


@pytest.mark.parametrize(
    "state",
    ["DOWN", "IDLE+DRAIN", "DOWN+NOT_RESPONDING", "IDLE*", "UNKNOWN", "FAIL", "?", "FUTURE",
     "ALLOCATED+DRAIN", "INVAL", ""],
)  # fmt: skip
def test_every_other_state_is_none_and_is_said_with_its_reason(state):
    found, _ = slurm_survey.node_measurements(slurm_node(state, "bad DIMM"))
    assert found.value == state.lower()
    assert "bad DIMM" in found.notes[0]


def test_controllers_that_do_not_answer_are_counted_and_none_at_all_is_not_measured():
    up, down = "Slurmctld(primary) at a is UP\n", "Slurmctld(backup) at b is DOWN\n"
    assert slurm_survey.controllers(up).value == 0
    assert slurm_survey.controllers(up + down).value == 1
    assert slurm_survey.controllers(up + down).notes == ["backup at b is DOWN"]
    assert slurm_survey.controllers("").value is None


@pytest.mark.parametrize(
    ("shown", "whole"), [("EXCLUSIVE", True), ("NO", False), ("FORCE:4", False), ("", False)]
)
def test_only_an_exclusive_partition_gives_out_whole_nodes(shown, whole):
    assert allocates_whole_nodes({"OverSubscribe": shown}) is whole
