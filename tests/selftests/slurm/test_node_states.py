"""Which states of a node take jobs, by Slurm's own names and signs."""

from __future__ import annotations

import pytest

from fixtures.slurm.node_states import TAKES_JOBS, available, words_of

pytestmark = pytest.mark.cpu

TAKES = (
    "IDLE", "ALLOCATED+BLOCKED", "MIXED+PLANNED", "MIXED+COMPLETING", "IDLE+PERFCTRS",
    "IDLE+CLOUD+POWERED_DOWN", "IDLE+CLOUD+POWERING_UP", "IDLE+POWERING_DOWN", "idle~",
    "IDLE+CLOUD+NOT_RESPONDING+POWERING_UP", "IDLE+CLOUD+NOT_RESPONDING+POWER_UP",
    "ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP", "IDLE*+CLOUD+POWERED_DOWN", "idle#", "idle*#",
    "IDLE+REBOOT_REQUESTED", "IDLE+EXTERNAL", "IDLE+DYNAMIC_NORM", "IDLE+RESERVED", "IDLE+MAINT",
    "IDLE+MAINTENANCE+RESERVED", "IDLE+CLOUD+POWER", "mixed-",
)  # fmt: skip
TAKES_NONE = (
    "DOWN", "DOWN*", "IDLE*", "IDLE+DRAIN", "MIXED+DRAIN", "DOWN+DRAIN+INVALID_REG", "ERROR",
    "IDLE+NOT_RESPONDING", "DOWN+CLOUD+NOT_RESPONDING+POWERING_UP", "IDLE+FAIL", "FUTURE",
    "UNKNOWN+NOT_RESPONDING", "DOWN+REBOOT_ISSUED", "IDLE+POWER_DRAIN", "IDLE+SOMETHING_NEW", "?",
    "IDLE+CLOUD+DRAIN+POWERED_DOWN", "",
)  # fmt: skip


@pytest.mark.parametrize("state", TAKES)
def test_a_node_that_takes_jobs_or_starts_with_one_is_available(state):
    assert available(state)


@pytest.mark.parametrize("state", TAKES_NONE)
def test_any_other_state_is_none(state):
    assert not available(state)


def test_every_state_and_flag_of_slurm_is_in_the_table():
    """slurm.h, enum node_states and NODE_STATE_*: what `scontrol show node` can print."""
    printed = {
        "UNKNOWN", "DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE", "PERFCTRS", "RESERVED",
        "CLOUD", "DRAIN", "COMPLETING", "NOT_RESPONDING", "POWERED_DOWN", "FAIL", "POWERING_UP",
        "MAINTENANCE", "REBOOT_REQUESTED", "POWERING_DOWN", "DYNAMIC_FUTURE", "REBOOT_ISSUED",
        "PLANNED", "INVALID_REG", "POWER_DOWN", "POWER_UP", "POWER_DRAIN", "DYNAMIC_NORM",
        "BLOCKED", "EXTERNAL",
    }  # fmt: skip
    assert printed <= set(TAKES_JOBS)


def test_signs_behind_a_word_are_flags():
    assert words_of("idle*#+cloud") == {"IDLE", "NOT_RESPONDING", "POWERING_UP", "CLOUD"}
