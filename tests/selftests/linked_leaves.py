"""Two leaf switches of a sandbox with one link between them, all of known rates (test side).

The nodes' own links are slow too: then the network decides how fast a flow is, and not the cores
that the ranks share. What runs on the nodes sees its network card only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fixtures.sandbox import Sandbox
from fixtures.sandbox.network import delete_links, run_ip_batch
from fixtures.sandbox.processes import run
from tests.selftests.leaf_switches import second_bridge

BUCKET = ("burst", "64kb", "latency", "200ms")


@contextmanager
def linked_leaves(
    sandbox: Sandbox, on_second: Sequence[str], *, node_mbit: int, link_mbit: int
) -> Iterator[None]:
    """Put these nodes on a second leaf switch, behind a link of this rate in both directions."""
    first, second = sandbox.state.bridge, second_bridge(sandbox)
    ends = [f"{first}.v{k}" for k in range(2)]
    try:
        run_ip_batch(
            sandbox.tools, f"link add {second} type bridge", f"link set {second} up",
            f"link add {ends[0]} type veth peer name {ends[1]}",
            f"link set {ends[0]} master {first} up", f"link set {ends[1]} master {second} up",
            *(f"link set {sandbox.state.veth(node)} master {second}" for node in on_second),
        )  # fmt: skip
        for end in ends:
            run([sandbox.tools["tc"], "qdisc", "replace", "dev", end, "root", "tbf", "rate",
                 f"{link_mbit}mbit", *BUCKET])  # fmt: skip
        for node in sandbox.state.names:
            sandbox.slow_link(node, f"{node_mbit}mbit")
        yield
    finally:
        alive = [n for n in sandbox.state.names if sandbox.state.processes[n].alive]
        for node in alive:
            sandbox.slow_link(node, None)
        back = (f"link set {sandbox.state.veth(n)} master {first}" for n in alive if n in on_second)
        run_ip_batch(sandbox.tools, *back)
        delete_links(sandbox.tools["ip"], [ends[0], second])
