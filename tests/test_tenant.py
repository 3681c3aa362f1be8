"""A job finds nothing of the job that was on its node before."""

import pytest

pytestmark = [pytest.mark.multinode, pytest.mark.singlenode]


@pytest.mark.criterion("tenant.gpu_memory")
def test_the_memory_of_a_gpu_has_nothing_of_the_job_before(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("tenant.gpu_processes")
def test_no_process_is_on_the_gpus_of_a_job_that_starts(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("tenant.processes")
def test_no_process_outlives_its_job(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("tenant.variables")
def test_no_variable_of_a_job_reaches_the_next_one(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("tenant.shared_memory", "tenant.scratch")
def test_files_of_a_job_are_gone_when_the_next_one_starts(measured, agreed):
    assert measured == agreed
