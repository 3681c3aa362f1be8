"""Every InfiniBand port is up at its rate, clean under load, and alike [D1]."""

import pytest

pytestmark = [pytest.mark.multinode, pytest.mark.infiniband]


@pytest.mark.singlenode
@pytest.mark.criterion("infiniband.fabric")
def test_every_port_is_of_the_ordered_fabric(measured, agreed):
    assert measured == agreed


@pytest.mark.singlenode
@pytest.mark.criterion("infiniband.state", "infiniband.physical_state")
def test_every_port_is_active_and_its_link_up(measured, agreed):
    assert measured == agreed


@pytest.mark.singlenode
@pytest.mark.criterion("infiniband.rate")
def test_every_port_runs_at_the_ordered_rate(measured, agreed):
    assert measured == agreed


@pytest.mark.singlenode
@pytest.mark.criterion("infiniband.verbs", "infiniband.gpudirect")
def test_programs_reach_the_nics_and_the_nics_the_gpus(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("infiniband.firmware")
def test_all_nics_have_the_same_firmware(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion(
    "infiniband.counters.link_downed",
    "infiniband.counters.excessive_buffer_overrun_errors",
    "infiniband.counters.local_link_integrity_errors",
    "infiniband.counters.rnr_nak_retry_err",
    "infiniband.symbol_error",
    "infiniband.link_error_recovery",
    "infiniband.port_rcv_errors",
    "infiniband.port_xmit_discards",
    "infiniband.local_ack_timeout_err",
)
def test_no_port_counts_errors_while_the_nodes_talk(measured, agreed):
    assert measured <= agreed
