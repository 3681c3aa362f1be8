"""The host around the GPUs: links, clocks, memory, limits, and the errors that it counts."""

import pytest

pytestmark = [pytest.mark.multinode, pytest.mark.singlenode]


@pytest.mark.criterion("host.link_width", "host.link_generation")
def test_the_links_of_nics_and_drives_are_whole(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion(
    "host.aer_correctable",
    "host.aer_nonfatal",
    "host.aer_fatal",
)
def test_no_pcie_link_has_errors_under_load(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion(
    "host.edac_corrected",
    "host.edac_uncorrected",
    "host.machine_checks",
)
def test_memory_and_processors_of_the_host_are_sound(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("host.cores", "host.memory_bandwidth", "host.memory_numa")
def test_cores_and_memory_are_as_fast_as_their_like(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("host.scratch_size", "host.scratch_write", "host.scratch_read")
def test_the_local_scratch_is_as_ordered(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("host.numa_memory")
def test_no_node_has_lost_memory(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("host.clocksource", "host.governor")
def test_clock_and_cores_run_as_they_should(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("host.memlock", "host.open_files")
def test_a_job_has_the_limits_that_it_needs(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("host.names")
def test_names_are_resolved_in_time(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("host.compiler")
def test_compiled_training_can_be_built(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("host.mounts")
def test_the_ordered_file_systems_are_mounted(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("host.clock_offset")
def test_the_clocks_of_the_nodes_are_together(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("host.firmware", "host.security")
def test_firmware_and_software_are_new_enough(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("host.boot")
def test_no_node_is_rebooted_in_the_middle_of_the_run(measured, agreed):
    assert measured == agreed
