"""Jobs that share a node share none of its GPUs [B3 B4 X7]."""

import pytest

pytestmark = pytest.mark.multinode


@pytest.mark.criterion("isolation.shared")
def test_two_jobs_hold_different_gpus(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("isolation.count")
def test_a_job_holds_the_number_of_gpus_that_it_asked_for(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("isolation.visible")
def test_cuda_visible_devices_names_the_gpus_of_the_job(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("isolation.let_in")
def test_a_job_cannot_open_the_gpus_of_its_neighbour(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("isolation.own_gpu")
def test_each_task_has_a_gpu_of_its_own(measured, agreed):
    assert measured <= agreed
