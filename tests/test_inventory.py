"""What was ordered is there, and the nodes agree with the login side."""

import pytest

pytestmark = [pytest.mark.multinode, pytest.mark.singlenode]


@pytest.mark.criterion("inventory.nodes")
def test_slurm_knows_every_ordered_node(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("inventory.gpus")
def test_every_node_has_the_ordered_gpus(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("inventory.gpu_model")
def test_the_gpus_are_of_the_ordered_model(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("inventory.gpu_memory")
def test_every_gpu_has_its_memory(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("inventory.nics")
def test_every_node_has_the_ordered_nics(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("environment.versions")
def test_the_node_runs_the_versions_of_the_login_side(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("environment.run_directory")
def test_the_run_directory_is_seen_from_both_sides(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("environment.drift")
def test_the_nodes_are_alike(measured, agreed):
    assert measured <= agreed
