"""The driver's errors that are known by number."""

from __future__ import annotations

import pytest

from fixtures.workloads.health import xids

pytestmark = pytest.mark.cpu


def test_the_numbers_are_those_of_nvidia_s_catalog():
    """NVIDIA, "Xid Errors": those of data centers; 144 to 150 are Blackwell's NVLink."""
    of_programs = {13, 31, 43, 45, 68, 69, 109}
    of_gpus = {
        32, 38, 48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 110, 119, 120, 121, 140, 143,
        *range(144, 151), 154,
    }  # fmt: skip
    assert set(xids.XIDS) == of_programs | of_gpus
    assert of_programs == xids.BY_PROGRAM
    for number, meaning in (
        (48, "double-bit"), (63, "recorded for replacement"), (64, "could not be recorded"),
        (74, "NVLink"), (79, "fell off the bus"), (94, "contained"), (95, "uncontained"),
        (119, "GSP"), (144, "Blackwell"),
    ):  # fmt: skip
        assert meaning in xids.XIDS[number].meaning


def test_a_number_is_told_with_its_meaning_and_what_to_do():
    assert xids.text_of(79) == (
        "Xid 79 (the GPU fell off the bus: power the node off, reseat the GPU; RMA)"
    )
    assert xids.text_of(999).startswith("Xid 999 (see NVIDIA's")
