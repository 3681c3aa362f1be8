"""The memory of every GPU, and copies to and from the host and between GPUs."""

import pytest

pytestmark = [pytest.mark.multinode, pytest.mark.singlenode, pytest.mark.gpu]


@pytest.mark.criterion("memory.copy", "memory.triad", "memory.read", "memory.fill")
def test_the_memory_of_every_gpu_reaches_the_agreed_rate(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("memory.errors")
def test_the_memory_of_every_gpu_holds_what_was_written(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("memory.whole", "burnin.memory_whole")
def test_nearly_all_memory_of_every_gpu_holds_what_was_written(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("hostcopy.h2d", "hostcopy.d2h")
def test_every_gpu_copies_to_and_from_the_host_at_the_agreed_rate(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("hostcopy.h2d_all", "hostcopy.d2h_all")
def test_all_gpus_at_once_keep_a_fair_part_of_that_rate(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("hostcopy.errors")
def test_copies_to_and_from_the_host_are_right(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("p2p.write", "p2p.both")
def test_every_gpu_reaches_every_other_at_the_agreed_rate(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("p2p.errors", "p2p.errors_together")
def test_copies_between_gpus_are_right(measured, agreed):
    assert measured <= agreed
