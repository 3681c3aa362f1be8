"""Jobs of our own that are made to fail: ended, named, and nothing left of them."""

import pytest

pytestmark = [pytest.mark.multinode, pytest.mark.destructive]


@pytest.mark.criterion(
    "failures.end.exit", "failures.end.raise", "failures.end.kill", "failures.end.segfault"
)
def test_the_job_ends_when_a_rank_fails(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion(
    "failures.named.exit", "failures.named.raise", "failures.named.kill", "failures.named.segfault"
)
def test_the_rank_that_failed_is_named(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion(
    "failures.left.exit", "failures.left.raise", "failures.left.kill", "failures.left.segfault",
    "failures.hang.left.collective", "failures.hang.left.loader", "failures.hang.left.frozen",
    "failures.host_memory.left", "failures.gpu_memory.left",
)  # fmt: skip
def test_a_job_that_failed_leaves_nothing_behind(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion(
    "failures.hang.end.collective", "failures.hang.end.loader", "failures.hang.end.frozen"
)
def test_a_rank_that_hangs_is_found(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion(
    "failures.hang.named.collective", "failures.hang.named.loader", "failures.hang.named.frozen"
)
def test_the_rank_that_hangs_is_named(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("failures.host_memory.end", "failures.gpu_memory.end")
def test_a_job_that_runs_out_of_memory_ends(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("failures.host_memory.named", "failures.gpu_memory.named")
def test_out_of_memory_is_called_so(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("failures.cancel.end", "failures.time_limit.end")
def test_a_job_that_slurm_ends_is_ended(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("failures.cancel.named", "failures.time_limit.named")
def test_a_job_that_slurm_ended_is_called_so(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("failures.cancel.left", "failures.time_limit.left")
def test_a_job_that_slurm_ended_leaves_nothing_behind(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion(
    "failures.storage.end.storage_hang", "failures.storage.end.storage_full",
    "failures.storage.end.storage_read_only",
)  # fmt: skip
def test_a_job_whose_storage_breaks_ends(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion(
    "failures.storage.named.storage_hang", "failures.storage.named.storage_full",
    "failures.storage.named.storage_read_only",
)  # fmt: skip
def test_broken_storage_is_called_so(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion(
    "failures.storage.kept.storage_hang", "failures.storage.kept.storage_full",
    "failures.storage.kept.storage_read_only",
)  # fmt: skip
def test_the_last_good_checkpoint_outlives_broken_storage(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("failures.node.lost")
def test_a_training_whose_node_is_lost_goes_on(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("failures.node.curve")
def test_it_goes_on_as_if_nothing_had_been(measured, agreed):
    assert measured <= agreed
