"""The leaf switches of a real Slurm's topology.conf reach the ranks; a cable in the wrong one is
named, and a healthy cluster is accused of nothing."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.sandbox import Sandbox
from fixtures.sandbox.network import delete_links, run_ip_batch
from tests.selftests.faults import Outcome, drill, named
from tests.selftests.faults_wiring import (
    LEAVES,
    ON_SECOND,
    PORT_FAULTS,
    PORT_SHAPE,
    RAIL_FAULTS,
    RAIL_SHAPE,
    SHAPE,
    WIRING_FAULTS,
    ports,
    rails,
)
from tests.selftests.leaf_switches import link_end, two_leaves

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def sandbox(machine: None) -> Iterator[Sandbox]:
    with Sandbox.up(**SHAPE) as up:
        yield up


(FAULT,) = WIRING_FAULTS
(SWAPPED,) = RAIL_FAULTS
(SLOW_PORT,) = PORT_FAULTS


def outcomes(found: Outcome, criterion: str) -> dict[str, str]:
    """Return the outcome of each subject's row."""
    return {r["subject"]: r["outcome"] for r in found.rows if r["criterion"] == criterion}


def leaves(found: Outcome) -> dict[str, str]:
    """Return the outcome of each node's row."""
    rows = outcomes(found, FAULT.criterion)
    assert set(rows) == set(LEAVES), found.said
    return rows


def test_the_plan_is_that_of_topology_conf_and_nobody_is_accused(sandbox: Sandbox, tmp_path: Path):
    into = tmp_path / "run"
    found = drill(sandbox, replace(FAULT, inject=lambda _: nullcontext()), into)
    # Behind one bridge near and far cannot be told apart: never a pass, and nobody's fault.
    assert set(leaves(found).values()) == {"NOT_APPLICABLE"}, found.said
    record = json.loads((into / "records" / "wiring@all.json").read_text(encoding="utf-8"))
    facts = [rank["facts"] for rank in record["ranks"]]
    assert facts[0]["planned"] == LEAVES
    assert facts[0]["rounds"] == {"made": 7, "of": 7}
    assert all(len(of_rank["latency_us"]) == 7 for of_rank in facts)


@pytest.mark.slow
def test_ports_are_confirmed_where_near_and_far_can_be_told(sandbox: Sandbox, tmp_path: Path):
    healthy = replace(FAULT, inject=lambda sandbox: two_leaves(sandbox, ON_SECOND))
    found = drill(sandbox, healthy, tmp_path / "run")
    assert set(leaves(found).values()) == {"PASS"}, found.said


def test_a_cable_in_the_wrong_leaf_switch_is_named_and_where_it_is(
    sandbox: Sandbox, tmp_path: Path
):
    found = drill(sandbox, FAULT, tmp_path / "run")
    named(found, FAULT)
    # Of the first leaf three are left, too few to tell near from far.
    assert leaves(found) == {
        node: "PASS" if leaf == "leaf1" else "NOT_APPLICABLE" for node, leaf in LEAVES.items()
    } | {FAULT.culprit: "FAIL"}


def test_the_slow_link_carries_no_frames_of_other_devices(sandbox: Sandbox):
    link = f"{sandbox.state.bridge}.t"
    run_ip_batch(sandbox.tools, f"link add {link} type bridge", f"link set {link} up")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver, ExitStack() as ends:
        receiver.bind(("127.0.0.1", 0))
        sending = True

        def send() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                while sending:
                    sender.sendto(bytes(20_000), receiver.getsockname())

        others = threading.Thread(target=send)
        others.start()
        try:
            # While frames of the loopback device arrive at every socket that takes them.
            made = [ends.enter_context(link_end(link)) for _ in range(100)]
            heard = select.select(made, [], [], 0)[0]
        finally:
            sending = False
            others.join()
            delete_links(sandbox.tools["ip"], [link])
    assert not heard


@pytest.mark.slow
def test_ports_are_confirmed_on_their_rails_and_swapped_cables_named(machine: None, tmp_path: Path):
    with Sandbox.up(**RAIL_SHAPE) as sandbox:
        healthy = drill(sandbox, replace(SWAPPED, inject=rails), tmp_path / "healthy")
        rows = outcomes(healthy, SWAPPED.criterion)
        assert rows == dict.fromkeys(sandbox.state.names, "PASS"), healthy.said
        found = drill(sandbox, SWAPPED, tmp_path / "run")
    named(found, SWAPPED)


@pytest.mark.slow
def test_the_slow_port_is_named_by_both_ends_of_its_rail(machine: None, tmp_path: Path):
    with Sandbox.up(**PORT_SHAPE) as sandbox:
        healthy = drill(sandbox, replace(SLOW_PORT, inject=ports), tmp_path / "healthy")
        rows = outcomes(healthy, SLOW_PORT.criterion)
        assert set(rows.values()) == {"PASS"}, healthy.said
        assert SLOW_PORT.culprit in rows
        found = drill(sandbox, SLOW_PORT, tmp_path / "run")
    named(found, SLOW_PORT)
