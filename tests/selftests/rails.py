"""A second port for every node of a sandbox: one rail per GPU, each with its own leaf switch.

`two_rails` gives each node a second network device, eth1, whose link ends in a second switch
(leaf_switches.py). The nodes' interpreter gives the rank of the second GPU that port, as NCCL takes
the NIC that is nearest to the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fixtures.sandbox import Sandbox
from fixtures.sandbox.network import delete_links, run_ip_batch, set_rate
from fixtures.sandbox.processes import run
from tests.selftests.faults_host import compiled, started_with
from tests.selftests.leaf_switches import plug, second_bridge, second_switch

FIRST_HOST = 128
"""Last part of the first node's second address."""
TABLE = 101
"""Routing table of what is sent from the second address."""


def second_link(sandbox: Sandbox, node: str) -> str:
    """Return the name of the host's end of the node's second link."""
    return f"{sandbox.state.bridge}.r{sandbox.state.index(node)}"


@contextmanager
def two_rails(sandbox: Sandbox, swapped: Sequence[str] = ()) -> Iterator[list[str]]:
    """Give every node a second port; of the nodes `swapped` the two cables are exchanged.

    Yields the arguments for pytest by which the ranks use their ports.
    """
    state = sandbox.state
    with ExitStack() as undo:
        undo.enter_context(second_switch(sandbox))
        second_links = [second_link(sandbox, node) for node in state.names]
        undo.callback(delete_links, sandbox.tools["ip"], second_links)
        for node in state.names:
            _add_port(sandbox, node)
            if node in swapped:
                plug(sandbox, node, 1)
                cable = f"link set {second_link(sandbox, node)} master {state.bridge}"
                run_ip_batch(sandbox.tools, cable)
                undo.callback(plug, sandbox, node, 0)
        yield _ranks_on_their_ports(sandbox)


def _add_port(sandbox: Sandbox, node: str) -> None:
    state = sandbox.state
    pid = state.processes[f"{node}.init"].pid
    address = f"{state.subnet}.{FIRST_HOST + state.index(node)}"
    link = second_link(sandbox, node)
    run_ip_batch(
        sandbox.tools,
        f"link add {link} type veth peer name eth1 netns /proc/{pid}/ns/net",
        f"link set {link} master {second_bridge(sandbox)} up",
    )
    inside = [sandbox.tools["nsenter"], f"--net=/proc/{pid}/ns/net"]
    lines = [
        f"addr add {address}/32 dev eth1",
        "link set eth1 up",
        f"route add {state.subnet}.0/24 dev eth1 src {address} table {TABLE}",
        f"rule add from {address} table {TABLE}",
    ]
    run([*inside, sandbox.tools["ip"], "-batch", "-"], text="\n".join(lines) + "\n")
    # Each port answers for its own address only, and takes what comes for it.
    settings = {"arp_ignore": 1, "arp_announce": 2, "rp_filter": 0}
    script = "; ".join(f"echo {v} >/proc/sys/net/ipv4/conf/all/{k}" for k, v in settings.items())
    run(sandbox.inside(node, "sh", "-c", script), env=sandbox.environ)


def _ranks_on_their_ports(sandbox: Sandbox) -> list[str]:
    """Let every rank use the port of its GPU; return the argument for pytest that says so."""
    source = Path(__file__).with_name("rail_port.c").read_text(encoding="utf-8")
    library = compiled(sandbox, "rail-port", source)
    port = f"GLOO_SOCKET_IFNAME=eth$SLURM_LOCALID LD_PRELOAD={library}"
    return started_with(sandbox, "python-rails", f'[ -z "$SLURM_LOCALID" ] || export {port}')


def slow_second_port(sandbox: Sandbox, node: str, rate: str) -> None:
    """Limit the second link of a node in both directions, as tc writes it (`100mbit`)."""
    link = second_link(sandbox, node)
    set_rate(sandbox.tools, sandbox.state, node, rate, link=link, device="eth1")
