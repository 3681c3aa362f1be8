"""Every GPU is sound, set up as sold, free at the start, and linked to the others [E1 D2]."""

import pytest

pytestmark = [pytest.mark.multinode, pytest.mark.singlenode, pytest.mark.gpu]


@pytest.mark.criterion("health.answers")
def test_every_gpu_answers_its_driver(verdict):
    assert verdict.ok, verdict.line


@pytest.mark.criterion("health.answer_time")
def test_every_driver_answers_in_time(verdict):
    assert verdict.ok, verdict.line


@pytest.mark.criterion("health.foreign_processes", "health.leaked_memory")
def test_every_gpu_is_free_when_we_start(verdict):
    assert verdict.ok, verdict.line


@pytest.mark.criterion(
    "health.ecc_mode",
    "health.ecc_uncorrected",
    "health.ecc_corrected",
    "health.ecc_sram",
    "health.ecc_new",
)
def test_the_memory_of_every_gpu_is_protected_and_sound(verdict):
    assert verdict.ok, verdict.line


@pytest.mark.criterion("health.remap_pending", "health.remap_failed", "health.remap_headroom")
def test_bad_memory_rows_are_replaced_and_can_be(verdict):
    assert verdict.ok, verdict.line


@pytest.mark.criterion("health.recovery_action", "health.xid")
def test_the_driver_reports_no_fault(verdict):
    assert verdict.ok, verdict.line


@pytest.mark.criterion("health.thermal", "health.power_brake", "health.thermal_headroom")
def test_no_gpu_is_slowed_down_by_heat_or_power(verdict):
    assert verdict.ok, verdict.line


@pytest.mark.criterion("health.pcie_generation", "health.pcie_width", "health.pcie_replays")
def test_the_pcie_link_of_every_gpu_is_whole(verdict):
    assert verdict.ok, verdict.line


@pytest.mark.criterion(
    "health.persistence",
    "health.mig",
    "health.compute_mode",
    "health.power_limit",
    "health.application_clocks",
)
def test_every_gpu_is_set_up_as_it_was_sold(verdict):
    assert verdict.ok, verdict.line


@pytest.mark.criterion("nvlink.links", "nvlink.rate", "nvlink.errors")
def test_every_nvlink_is_up_at_its_rate(verdict):
    assert verdict.ok, verdict.line


@pytest.mark.criterion("nvlink.topology", "nvlink.peer_access", "nvlink.fabric")
def test_the_gpus_of_a_node_reach_each_other_over_nvlink(verdict):
    assert verdict.ok, verdict.line
