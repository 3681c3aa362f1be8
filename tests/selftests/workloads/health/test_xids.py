"""The driver's errors that are known by number."""

from __future__ import annotations

import pytest

from fixtures.workloads.health import xid_catalog, xids

pytestmark = pytest.mark.cpu


def follows_the_catalog(number: int) -> bool:
    """Whether it counts by the action alone that NVIDIA gives."""
    now, then = xid_catalog.CATALOG[number]
    of_program = now in ("RESTART_APP", "IGNORE") and then in ("investigate software", "IGNORE")
    return xids.counts_alone(number) is not of_program


def test_every_deviation_from_nvidia_s_catalog_is_listed_with_its_reason():
    others = {number for number in xid_catalog.CATALOG if not follows_the_catalog(number)}
    assert others == set(xids.DEVIATIONS)
    assert all(len(why) > 20 for _, why in xids.DEVIATIONS.values())
    assert set(xids.XIDS) <= set(xid_catalog.CATALOG)


@pytest.mark.parametrize(
    ("seen", "count"),
    [([109], 1), ([45], 1), ([45, 45], 2), ([45, 79], 1), ([31, 45], 0), ([13, 43], 0), ([94], 1),
     ([95, 45], 1), ([999], 1), ([], 0), ([63, 48, 13], 2)],
)  # fmt: skip
def test_what_counts_against_a_gpu(seen, count):
    """109 is a reset of the GPU; 45 follows another, and alone it is an error of its own."""
    assert len(xids.counted(seen)) == count


@pytest.mark.parametrize(
    ("seen", "count"),
    [([45], 0), ([13, 31, 32, 43, 94], 0), ([63], 0), ([92, 154], 0), ([79], 1), ([79, 45], 1),
     ([95, 48, 13], 2), ([999], 1), ([], 0)],
)  # fmt: skip
def test_what_counts_where_users_programs_run(seen, count):
    """45 alone is a program that was killed; what a restart cures is over."""
    assert len(xids.lasting(seen)) == count


def test_the_numbers_of_data_centers_have_their_meaning():
    """NVIDIA, "Xid Errors"; 144 to 150 are Blackwell's NVLink."""
    of_programs = {13, 31, 43, 68, 69}
    assert {number for number in xids.XIDS if not xids.counts_alone(number)} == of_programs
    for number, meaning in (
        (48, "double-bit"), (63, "recorded for replacement"), (64, "could not be recorded"),
        (74, "NVLink"), (79, "fell off the bus"), (94, "contained"), (95, "uncontained"),
        (119, "GSP"), (144, "Blackwell"),
    ):  # fmt: skip
        assert meaning in xids.XIDS[number].meaning


def test_a_number_is_told_with_its_meaning_and_what_to_do():
    assert xids.text_of(79) == (
        "Xid 79: the GPU fell off the bus (power the node off, reseat the GPU; RMA)"
    )
    assert xids.text_of(999).startswith("Xid 999 (see NVIDIA's")
