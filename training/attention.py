"""Selection of the fastest attention kernel, by timing forward and backward before the run.

PyTorch's own order prefers flash attention; on Hopper and later cuDNN's kernel is often faster, and
not every version supports grouped-query attention.
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

TIMED_CALLS = 5
WARM_UP_CALLS = 3


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """An attention backend; None: PyTorch chooses."""

    backend: SDPBackend | None = None
    repeat_kv: bool = False
    """Whether keys and values are repeated for every query head before the kernel."""
    seconds: float = 0.0
    """Forward and backward of one layer; 0 if it was not timed."""

    @property
    def name(self) -> str:
        backend = self.backend.name.removesuffix("_ATTENTION").lower() if self.backend else "any"
        return f"{backend}{', repeated keys and values' if self.repeat_kv else ''}"


def fastest_kernel(settings: Settings, device: torch.device) -> Kernel:
    """Return the fastest kernel that supports the settings' shape; the default one on a CPU."""
    if device.type != "cuda" or settings.dtype != "bf16":
        return Kernel()
    kernels = []
    backends = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
    for backend, repeat_kv in itertools.product(backends, (False, True)):
        try:
            kernels.append(_time_kernel(settings, device, backend, repeat_kv))
        except (
            RuntimeError
        ):  # this kernel does not support this shape, or this version has no such kernel
            continue
    return min(kernels, key=lambda kernel: kernel.seconds, default=Kernel())


def _time_kernel(
    settings: Settings, device: torch.device, backend: SDPBackend, repeat_kv: bool
) -> Kernel:
    shape = settings.shape
    head_counts = [shape.heads, shape.heads if repeat_kv else shape.kv_heads]
    q, k, v = (
        torch.randn(
            settings.batch, head_counts[min(1, j)], settings.tokens, shape.head_size,
            device=device, dtype=torch.bfloat16, requires_grad=True,
        )
        for j in range(3)
    )  # fmt: skip

    def forward_backward() -> None:
        out = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=head_counts[0] != head_counts[1]
        )
        out.backward(out.detach())  # type: ignore[no-untyped-call]

    with sdpa_kernel([backend]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of the reason why a kernel is not usable
        for _ in range(WARM_UP_CALLS):
            forward_backward()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(TIMED_CALLS):
            forward_backward()
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - begun) / TIMED_CALLS
    return Kernel(backend=backend, repeat_kv=repeat_kv, seconds=seconds)
