"""What the nodes of a made-up fleet are, and how they are connected."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Platform:
    """What a node is, and how nodes are connected."""

    gpu_model: str = "H200 SXM"
    product: str = "NVIDIA H200"
    gpus: int = 8
    nics: int = 8
    nic_gbps: float = 400.0
    fabric: str = "InfiniBand"
    transport: str = "NET/IB"
    domain_nodes: int = 1
    """Nodes that share an NVLink domain."""


PLATFORMS = {
    "hgx": Platform(),
    "four-nics": Platform(nics=4, nic_gbps=200.0),
    "roce": Platform(fabric="RoCE"),
    "efa": Platform(nics=16, nic_gbps=200.0, fabric="EFA", transport="NET/OFI"),
    "hgx-b200": Platform(gpu_model="B200", product="NVIDIA B200"),
    "nvl72": Platform(gpu_model="GB200", product="NVIDIA GB200", gpus=4, nics=4, domain_nodes=18),
}
