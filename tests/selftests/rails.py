"""A second port for every node of a sandbox: one rail per GPU, each with its own leaf switch.

`two_rails` gives each node a second network device, eth1, whose link ends in a second switch
(leaf_switches.py). A TaskProlog, as a site may have, gives the rank of the node's second GPU that
port, as NCCL takes the NIC that is nearest to the GPU.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fixtures.sandbox import Sandbox
from fixtures.sandbox.faults import reload_configuration
from fixtures.sandbox.network import delete_links, run_ip_batch
from fixtures.sandbox.processes import run
from tests.selftests.faults_scheduler import after_line
from tests.selftests.leaf_switches import plug, second_bridge, second_switch

FIRST_HOST = 128
"""Last part of the first node's second address."""
TABLE = 101
"""Routing table of what is sent from the second address."""
PROLOG = """\
#!/bin/sh
[ -z "$SLURM_LOCALID" ] && exit 0
echo "export GLOO_SOCKET_IFNAME=eth$SLURM_LOCALID"
echo "export LD_PRELOAD={library}"
"""


def second_link(sandbox: Sandbox, node: str) -> str:
    """Return the name of the host's end of the node's second link."""
    return f"{sandbox.state.bridge}.r{sandbox.state.index(node)}"


@contextmanager
def two_rails(sandbox: Sandbox, swapped: Sequence[str] = ()) -> Iterator[None]:
    """Give every node a second port; of the nodes `swapped` the two cables are exchanged."""
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
        undo.enter_context(_ranks_on_their_ports(sandbox))
        yield


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


@contextmanager
def _ranks_on_their_ports(sandbox: Sandbox) -> Iterator[None]:
    library, script = (sandbox.state.home / n for n in ("rail_port.so", "rail-port.sh"))
    source = Path(__file__).with_name("rail_port.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    script.write_text(PROLOG.format(library=library))
    script.chmod(0o755)
    first, *others = sandbox.state.names
    line = after_line("TaskPlugin=", f"TaskProlog={script}")
    try:
        with sandbox.reconfigured(first, "slurm.conf", line):
            for node in others:
                reload_configuration(sandbox, node)
            yield
    finally:
        for node in others:
            reload_configuration(sandbox, node)


def slow_second_port(sandbox: Sandbox, node: str, rate: str) -> None:
    """Limit the second link of a node in both directions, as tc writes it (`100mbit`)."""
    pid = sandbox.state.processes[f"{node}.init"].pid
    inside = [sandbox.tools["nsenter"], f"--net=/proc/{pid}/ns/net"]
    bucket = ["root", "tbf", "rate", rate, "burst", "128kb", "latency", "200ms"]
    ends: list[tuple[list[str], str]] = [([], second_link(sandbox, node)), (inside, "eth1")]
    for prefix, device in ends:
        run([*prefix, sandbox.tools["tc"], "qdisc", "replace", "dev", device, *bucket])
