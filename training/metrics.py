"""Tokens a second and model FLOPS utilisation, by both conventions.

FLOPs of a token: 6 x the parameters that it is multiplied with (all but the embedding), and the
attention over its sequence: 12 x layers x width x tokens, by the convention that counts the whole
square (torchtitan, nanochat), or half of it, because a causal model looks back only (Megatron-LM).
What is computed twice to save memory is not counted. A figure names its convention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fixtures import hardware
from fixtures.errors import UnknownGpu
from training.settings import Shape

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks

GEMM_SIZE = 8192
GEMM_SECONDS = 2.0


def flops_per_token(shape: Shape, tokens: int, *, causal_half: bool) -> float:
    """FLOPs of one token's forward and backward pass in sequences of `tokens`."""
    attention = 12 * shape.layers * shape.heads * shape.head_size * tokens
    return 6 * shape.computing_parameters + attention / (2 if causal_half else 1)


def peak_tflops(product_name: str) -> float | None:
    """Datasheet bf16 TFLOPS, dense; None for a CPU or a GPU that is not known."""
    try:
        gpu = hardware.GPUS.get(hardware.model_of(product_name))
    except UnknownGpu:
        return None
    return gpu.bf16 if gpu else None


def gemm_tflops(ranks: Ranks) -> float:
    """What a plain bf16 product reaches on this GPU right now, hot from training (median)."""
    import torch

    from fixtures.workloads.runtime import timing

    n = GEMM_SIZE
    a, b = (torch.randn(n, n, device=ranks.device, dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)

    def launch() -> None:
        torch.mm(a, b, out=c)

    estimate = timing.warm(ranks, launch, 0.5)
    batches = timing.measure_together(
        ranks, launch, estimate=estimate, batch_s=0.05, window_s=GEMM_SECONDS, minimum=20
    )
    return 2 * n**3 / batches.median / 1e12


def states_gib(shape: Shape, ranks: int) -> float:
    """GiB a rank for parameters, gradients and AdamW's two moments in fp32, spread over ranks."""
    return 16 * shape.parameters / ranks / 2**30


def needed_gib(
    shape: Shape, *, tokens: int, ranks: int, fsdp: bool, recompute: bool = False, copies: int = 0
) -> float:
    """GiB that a rank needs to train on `tokens` a pass in bf16.

    States, the activations of every block (what flash attention and SwiGLU keep; where they are
    computed again, those of one block and the input of each), a piece of the logits, the bf16
    copy of the parameters that is computed with, and `copies` of the gradients in fp32.
    """
    # Counted for a compiled block: 6.5 x width + 3 x hidden numbers a token; a tenth more.
    activations = tokens * 2 * (7 * shape.width + 3.3 * shape.hidden) / 2**30
    if recompute:
        activations += shape.layers * tokens * 2 * shape.width / 2**30
    else:
        activations *= shape.layers
    head = 8.0 * min(1.0, tokens * shape.vocabulary / 2**29)
    copy = (2 * shape.block_parameters * 2 if fsdp else shape.parameters) * 2 / 2**30
    copy += 4 * copies * shape.parameters / 2**30
    return states_gib(shape, ranks if fsdp else 1) + activations + head + copy
