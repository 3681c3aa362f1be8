"""A second leaf switch for a sandbox: some nodes behind a slow link (test side).

The sandbox's nodes are on one bridge. `two_leaves` makes another one and joins the two by a process
that holds every frame for DELAY_S, as more switches would; `plug` moves a node's cable. What runs
on the nodes sees its network card only.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from fixtures.sandbox import Sandbox
from fixtures.sandbox.network import delete_links, run_ip_batch

DELAY_S = 0.005
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
"""linux/if_packet.h; with the header of virtio a frame keeps its unfinished checksum, and its
length beyond the MTU, which the card is to finish and to cut."""
ETH_P_ALL = 3
LONGEST = 1 << 17


def second_bridge(sandbox: Sandbox) -> str:
    return f"{sandbox.state.bridge}.l2"


def uplinks_of(sandbox: Sandbox) -> list[str]:
    return [f"{sandbox.state.bridge}.u{k}" for k in range(2)]


def plug(sandbox: Sandbox, node: str, leaf: int) -> None:
    """Plug a node's cable into the first (0) or the second leaf switch (1)."""
    bridge = second_bridge(sandbox) if leaf else sandbox.state.bridge
    lines = [f"link set {sandbox.state.veth(node)} master {bridge}"]
    for uplink in uplinks_of(sandbox):  # a port that goes down forgets who was behind it
        lines += [f"link set {uplink} down", f"link set {uplink} up"]
    run_ip_batch(sandbox.tools, *lines)


@contextmanager
def two_leaves(sandbox: Sandbox, on_second: Sequence[str]) -> Iterator[None]:
    """Put these nodes behind a second leaf switch, and all on the first one again at the end."""
    with second_switch(sandbox):
        try:
            for node in on_second:
                plug(sandbox, node, 1)
            yield
        finally:
            for node in sandbox.state.names:
                plug(sandbox, node, 0)


@contextmanager
def second_switch(sandbox: Sandbox) -> Iterator[None]:
    """A second leaf switch, with nothing plugged in, and the slow link between the two."""
    first, second = sandbox.state.bridge, second_bridge(sandbox)
    uplinks = uplinks_of(sandbox)
    made = [second, *uplinks]
    lines = [f"link add {second} type bridge", f"link set {second} up"]
    for uplink, bridge in zip(uplinks, (first, second), strict=True):
        lines += [
            f"link add {uplink} type veth peer name {uplink}p",
            f"link set {uplink} master {bridge} up",
            f"link set {uplink}p up",
        ]
    try:
        run_ip_batch(sandbox.tools, *lines)
        command = [sys.executable, "-m", __name__, *(f"{uplink}p" for uplink in uplinks)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as link:
            try:
                assert link.stdout is not None
                assert link.stdout.readline() == b"ready\n"
                yield
            finally:
                link.kill()
    finally:
        delete_links(sandbox.tools["ip"], made)


def link_end(name: str) -> socket.socket:
    """Return a socket that receives and sends the frames of this network device, and of no other.

    A packet socket that is made with a protocol receives those of every device until it is bound:
    of the loopback device too, whose frames are longer than another device may send.
    """
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    for option in (PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING):
        end.setsockopt(SOL_PACKET, option, 1)
    end.bind((name, ETH_P_ALL))
    return end


def forward(names: Sequence[str]) -> None:
    """Carry frames between two network devices, each DELAY_S later; does not return."""
    ends = [link_end(name) for name in names]
    held: deque[tuple[float, socket.socket, bytes]] = deque()
    os.write(1, b"ready\n")
    while True:
        wait = max(0.0, held[0][0] - monotonic()) if held else None
        for end in select.select(ends, [], [], wait)[0]:
            held.append((monotonic() + DELAY_S, ends[1 - ends.index(end)], end.recv(LONGEST)))
        while held and held[0][0] <= monotonic():
            _, end, frame = held.popleft()
            end.send(frame)


if __name__ == "__main__":
    forward(sys.argv[1:])
