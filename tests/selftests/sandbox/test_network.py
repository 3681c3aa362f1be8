"""The network of a sandbox: a free subnet and port, its links, and what is done to them."""

from __future__ import annotations

import json
import random
import socket

import pytest

from fixtures.sandbox import network, tools
from fixtures.sandbox.errors import SandboxError
from tests.selftests.sandbox import parts
from tests.selftests.sandbox.parts import DEAD, Calls

pytestmark = pytest.mark.cpu


def test_sandboxes_that_start_under_the_same_pid_take_other_networks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network, "run", lambda *_, **__: "[]")
    made = tools.Tools(ip="ip")
    assert len({network.free_subnet(made, set()) for _ in range(20)}) > 1


@pytest.fixture
def ran(monkeypatch) -> Calls:
    """The commands that were run; each says nothing."""
    calls = Calls("")
    monkeypatch.setattr(network, "run", calls)
    return calls


def commands(ran: Calls) -> list[str]:
    return [" ".join(call[0]) for call in ran]


def test_a_subnet_that_a_route_or_a_sandbox_uses_is_passed_over(monkeypatch, ran):
    monkeypatch.setattr(random, "randrange", lambda count: count - 1)
    routes = [{"dst": "default"}, {}, {"dst": "198.18.0.0/23"}, {"dst": "10.0.0.7"}]
    for said, used, expected in (
        ("", set(), (511, "198.19.255")),
        ("[]", {"198.19.255"}, (0, "198.18.0")),
        (json.dumps(routes), {"198.19.255"}, (2, "198.18.2")),
    ):
        ran.returns = [said]
        assert network.free_subnet(parts.tools(), used) == expected
    ran.returns = [json.dumps([{"dst": "198.18.0.0/15"}])]
    with pytest.raises(SandboxError, match=r"no free /24 in 198\.18\.0\.0/15"):
        network.free_subnet(parts.tools(), set())


def test_every_node_has_an_address_in_a_24():
    """.0 and .255 are none, .1 is the bridge; a few are left over."""
    assert 200 < network.MAX_NODES <= 256 - 3


def test_a_port_is_free_until_somebody_listens():
    port = network.free_port("127.0.0.1")
    assert 1024 <= port < 65536
    assert network.port_is_free("127.0.0.1", port) is True
    assert network.listening("127.0.0.1", port) is False
    with socket.create_server(("127.0.0.1", port)):
        assert network.port_is_free("127.0.0.1", port) is False
        assert network.listening("127.0.0.1", port) is True


def test_bridge_and_links_are_made_in_one_batch_each(ran, tmp_path):
    found = parts.state(tmp_path / "ab1")
    network.make_bridge(parts.tools(), found)
    network.connect(parts.tools(), found, {"worker1": DEAD})
    assert commands(ran) == ["/fake/ip -batch -"] * 2
    made, joined = (call[1]["text"].splitlines() for call in ran)
    assert "addr add 198.18.7.1/24 dev gas-ab1" in made
    assert joined == [
        f"link add gas-ab1.1 type veth peer name eth0 netns /proc/{DEAD.pid}/ns/net",
        "link set gas-ab1.1 master gas-ab1 up",
    ]


def test_a_network_that_cannot_be_made_says_so(monkeypatch, tmp_path):
    def fails(*_, **__):
        raise SandboxError("no such device")

    monkeypatch.setattr(network, "run", fails)
    with pytest.raises(SandboxError, match="network cannot be made: no such device"):
        network.make_bridge(parts.tools(), parts.state(tmp_path / "ab1"))
    network.delete_links("ip", ["gone"])  # that went with its namespace


def test_only_links_that_are_there_are_deleted(monkeypatch, ran, tmp_path):
    monkeypatch.setattr(network, "SYSFS", tmp_path)
    for name in ("gas-ab1", "gas-ab1.1", "gas-ab12", "eth0"):
        (tmp_path / name).touch()
    found = parts.state(tmp_path / "ab1")
    assert network.links("ab1") == ["gas-ab1", "gas-ab1.1"]
    assert network.links("*") == ["gas-ab1", "gas-ab1.1", "gas-ab12"]
    network.disconnect(parts.tools(), found, "worker0")
    network.delete_links("ip", [])
    assert ran == []
    network.disconnect(parts.tools(), found, "worker1")
    assert ran[0][1]["text"] == "link del gas-ab1.1\n"


def test_a_dead_node_has_no_first_process(tmp_path):
    found = parts.state(tmp_path / "ab1")
    assert network.init_process(found, "worker1") == parts.living()
    found.processes["worker1.init"] = DEAD
    del found.processes["worker0.init"]
    for name in found.names:
        with pytest.raises(SandboxError, match=f"{name} is dead; .* revive {name}"):
            network.init_process(found, name)


def test_a_link_is_set_at_the_bridge(ran, tmp_path):
    found = parts.state(tmp_path / "ab1")
    for up in (True, False):
        network.set_link(parts.tools(), found, "worker1", up=up)
    assert commands(ran) == [f"/fake/ip link set gas-ab1.1 {way}" for way in ("up", "down")]
    found.light = True
    with pytest.raises(SandboxError, match="no links of their own"):
        network.set_link(parts.tools(), found, "worker1", up=True)


def test_a_rate_is_set_at_both_ends_and_taken_away_where_it_is(ran, tmp_path):
    found = parts.state(tmp_path / "ab1")
    inside = f"/fake/nsenter --net=/proc/{parts.living().pid}/ns/net /fake/tc qdisc"
    network.set_rate(parts.tools(), found, "worker1", "10mbit")
    network.set_rate(parts.tools(), found, "worker1", "1gbit", link="rail0", device="eth1")
    said = commands(ran)
    for one, start in zip(said, (
        "/fake/tc qdisc replace dev gas-ab1.1 root tbf rate 10mbit ",
        f"{inside} replace dev eth0 root tbf rate 10mbit ",
        "/fake/tc qdisc replace dev rail0 root tbf rate 1gbit ",
        f"{inside} replace dev eth1 root tbf rate 1gbit ",
    ), strict=True):  # fmt: skip
        assert one.startswith(start)
    ran.clear()
    ran.returns = ["qdisc noqueue", "qdisc tbf 8001: root", ""]
    network.set_rate(parts.tools(), found, "worker1", None)
    assert commands(ran) == [
        "/fake/tc qdisc show dev gas-ab1.1", f"{inside} show dev eth0",
        f"{inside} del dev eth0 root",
    ]  # fmt: skip
