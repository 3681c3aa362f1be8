"""Which attention kernel is the fastest here: tried before the run, forward and backward.

PyTorch's own order prefers flash attention; on Hopper and later cuDNN's kernel is often faster, and
not every version takes grouped queries as they are.
"""

from __future__ import annotations

import itertools
import time
import warnings
from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from training.settings import Settings

TRIES = 5
WARM = 3


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """What computes attention; without a backend PyTorch chooses."""

    backend: SDPBackend | None = None
    repeat_kv: bool = False
    """Keys and values are repeated for every query head before they are handed over."""
    seconds: float = 0.0
    """Forward and backward of one layer, where it was tried."""

    @property
    def name(self) -> str:
        backend = self.backend.name.removesuffix("_ATTENTION").lower() if self.backend else "any"
        return f"{backend}{', repeated keys and values' if self.repeat_kv else ''}"


def fastest(settings: Settings, device: torch.device) -> Kernel:
    """The fastest kernel that takes the settings' shape; on a CPU what PyTorch chooses."""
    if device.type != "cuda" or settings.dtype != "bf16":
        return Kernel()
    found = []
    backends = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
    for backend, repeat in itertools.product(backends, (False, True)):
        try:
            found.append(_tried(settings, device, backend, repeat))
        except RuntimeError:  # this version, or this shape: not for this kernel
            continue
    return min(found, key=lambda kernel: kernel.seconds, default=Kernel())


def _tried(settings: Settings, device: torch.device, backend: SDPBackend, repeat: bool) -> Kernel:
    shape = settings.shape
    sizes = [shape.heads, shape.heads if repeat else shape.kv_heads]
    q, k, v = (
        torch.randn(
            settings.batch, sizes[min(1, j)], settings.tokens, shape.head_size,
            device=device, dtype=torch.bfloat16, requires_grad=True,
        )
        for j in range(3)
    )  # fmt: skip

    def once() -> None:
        out = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=sizes[0] != sizes[1]
        )
        out.backward(out.detach())  # type: ignore[no-untyped-call]

    with sdpa_kernel([backend]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # why a kernel declines is said as a warning
        for _ in range(WARM):
            once()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(TRIES):
            once()
        torch.cuda.synchronize()
    took = (time.perf_counter() - begun) / TRIES
    return Kernel(backend=backend, repeat_kv=repeat, seconds=took)
