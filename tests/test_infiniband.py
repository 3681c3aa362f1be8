"""Every InfiniBand port is up at its rate, clean under load, and alike."""

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


@pytest.mark.singlenode
@pytest.mark.criterion("infiniband.gid")
def test_every_roce_port_has_an_address(measured, agreed):
    assert measured == agreed


@pytest.mark.singlenode
@pytest.mark.criterion("infiniband.mtu")
def test_every_roce_interface_takes_large_packets(measured, agreed):
    assert measured >= agreed


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
    "infiniband.roce.carrier_changes",
    "infiniband.roce.req_transport_retries_exceeded",
    "infiniband.roce.rx_icrc_encapsulated",
    "infiniband.roce.tx_pause_storm_error_events",
    "infiniband.roce_repeats.implied_nak_seq_err",
    "infiniband.roce_repeats.packet_seq_err",
    "infiniband.roce_repeats.roce_slow_restart",
    "infiniband.pcs_symbol_error",
    "infiniband.efa.rdma_read_wr_err",
    "infiniband.efa.rdma_write_wr_err",
    "infiniband.efa.unresponsive_remote_events",
    "infiniband.efa_repeats.impaired_remote_conn_events",
    "infiniband.efa_repeats.retrans_timeout_events",
)
def test_no_port_counts_errors_while_the_nodes_talk(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion(
    "infiniband.congestion.rx_pause",
    "infiniband.congestion.tx_pause",
    "infiniband.congestion.np_cnp_sent",
    "infiniband.congestion.rp_cnp_handled",
    "infiniband.congestion.out_of_sequence",
    "infiniband.efa_congestion.retrans_bytes",
    "infiniband.efa_congestion.retrans_pkts",
    "infiniband.efa_congestion.rx_drops",
    "infiniband.corrected_bits",
)
def test_what_every_port_repairs_and_waits_for_is_recorded(measured, agreed):
    assert measured >= agreed


@pytest.mark.singlenode
@pytest.mark.criterion("infiniband.temperature")
def test_how_hot_every_nic_is_is_recorded(measured, agreed):
    assert measured >= agreed
