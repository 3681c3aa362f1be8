"""Slurm and the network carry jobs to every node, and put them where they belong.

Jobs that share a node share none of its GPUs.
"""

import pytest

pytestmark = pytest.mark.multinode


@pytest.mark.criterion("scheduler.controller")
def test_every_controller_answers(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("scheduler.partition")
def test_the_partition_is_up(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("scheduler.node_state")
def test_slurm_gives_every_node_jobs(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("scheduler.gres")
def test_slurm_has_the_ordered_gpus_to_give(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("scheduler.placement")
def test_tasks_start_where_they_were_asked_for(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("scheduler.cpu_binding")
def test_every_rank_has_cores_of_its_own(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("scheduler.numa")
def test_every_rank_runs_near_its_gpu(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("scheduler.memory_limit")
def test_a_job_over_its_memory_is_stopped(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("connectivity.peers")
def test_every_node_reaches_every_other_by_name_and_address(measured, agreed):
    assert measured <= agreed


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
