"""What other tools found, beside what the suite found: --guest-results."""

import pytest

pytestmark = [pytest.mark.multinode, pytest.mark.singlenode]


@pytest.mark.criterion("guests.dcgmi")
def test_no_test_of_dcgmi_diag_failed(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("guests.nvidia_smi")
def test_nvidia_smi_shows_what_the_suite_found(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("guests.fio")
def test_every_job_of_fio_ended_without_an_error(measured, agreed):
    assert measured == agreed
