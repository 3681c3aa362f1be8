"""Every GPU is sound, set up as sold, free at the start, and linked to the others."""

import pytest

pytestmark = [pytest.mark.multinode, pytest.mark.singlenode, pytest.mark.gpu]


@pytest.mark.criterion("health.answers")
def test_every_gpu_answers_its_driver(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("health.answer_time", "health.answer_time_load", "health.answer_late")
def test_every_driver_answers_in_time(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("health.foreign_processes", "health.leaked_memory")
def test_every_gpu_is_free_when_we_start(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("health.ecc_mode")
def test_the_memory_of_every_gpu_is_protected(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion(
    "health.ecc_uncorrected",
    "health.ecc_corrected",
    "health.ecc_sram",
    "health.ecc_sram_corrected",
    "health.ecc_new",
    "health.ecc_rate",
    "health.ecc_sram_rate",
    "health.ecc_siblings",
)
def test_the_memory_of_every_gpu_is_sound(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("health.remap_pending", "health.remap_failed")
def test_bad_memory_rows_are_replaced(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("health.remap_new")
def test_no_memory_row_goes_bad_under_load(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("health.remap_headroom")
def test_bad_memory_rows_can_be_replaced(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("health.recovery_action")
def test_the_driver_asks_for_no_recovery(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("health.xid")
def test_the_driver_reports_no_fault(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("health.thermal", "health.power_brake")
def test_no_gpu_is_slowed_down_by_heat_or_power(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("health.thermal_headroom")
def test_every_gpu_has_headroom_to_its_slowdown_temperature(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("health.thermal_siblings")
def test_no_gpu_is_much_hotter_than_the_others_of_its_node(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("health.pcie_generation", "health.pcie_width")
def test_the_pcie_link_of_every_gpu_is_whole(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("health.pcie_replays", "health.pcie_siblings")
def test_the_pcie_link_of_every_gpu_repeats_few_packets(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion(
    "health.persistence",
    "health.mig",
    "health.compute_mode",
    "health.power_limit",
    "health.application_clocks",
)
def test_every_gpu_is_set_up_as_it_was_sold(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("nvlink.links")
def test_every_nvlink_is_up(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("nvlink.rate")
def test_every_nvlink_runs_at_its_rate(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("nvlink.errors")
def test_no_nvlink_repeats_or_recovers(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("nvlink.topology", "nvlink.peer_access")
def test_the_gpus_of_a_node_reach_each_other_over_nvlink(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("nvlink.fabric", "nvlink.imex")
def test_the_nvlink_fabric_is_ready(measured, agreed):
    assert measured == agreed
