"""Slurm and the network carry jobs to every node, and put them where they belong [B1 B2 B5]."""

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
