"""The shared directory: one and the same on every node, coherent, and fast enough."""

import pytest

pytestmark = pytest.mark.multinode


@pytest.mark.singlenode
@pytest.mark.criterion("filesystem.directory")
def test_the_shared_directory_is_there_and_can_be_written_to(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("filesystem.same")
def test_the_shared_directory_is_the_same_one_on_every_node(measured, agreed):
    assert measured == agreed


@pytest.mark.singlenode
@pytest.mark.criterion("filesystem.size")
def test_the_shared_directory_is_as_large_as_was_ordered(measured, agreed):
    assert measured >= agreed


@pytest.mark.singlenode
@pytest.mark.criterion("filesystem.free")
def test_the_shared_directory_has_room(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("filesystem.visibility")
def test_a_file_that_one_node_writes_is_soon_there_on_the_others(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("filesystem.coherence")
def test_what_one_node_changes_renames_and_deletes_is_seen_on_the_others(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("filesystem.append")
def test_nothing_is_lost_of_what_all_nodes_append_at_once(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("filesystem.flock")
def test_a_lock_that_one_node_holds_is_granted_to_nobody_else(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("filesystem.writes")
def test_blocks_that_all_nodes_write_at_once_are_read_back_right(measured, agreed):
    assert measured <= agreed


@pytest.mark.singlenode
@pytest.mark.criterion("filesystem.write.alone", "filesystem.read.alone")
def test_a_node_alone_reaches_the_agreed_rate(measured, agreed):
    assert measured >= agreed


@pytest.mark.singlenode
@pytest.mark.criterion("filesystem.stalls")
def test_reading_and_writing_do_not_stall(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("filesystem.write.together", "filesystem.read.together")
def test_all_nodes_at_once_reach_the_agreed_rate(measured, agreed):
    assert measured >= agreed


@pytest.mark.singlenode
@pytest.mark.criterion("filesystem.metadata")
def test_every_node_creates_finds_and_deletes_files_at_the_agreed_rate(measured, agreed):
    assert measured >= agreed
