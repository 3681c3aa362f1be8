"""FLOPs per token, model FLOPS utilisation by both conventions, and memory estimates.

FLOPs per token: 6 x the parameters that it is multiplied with (all but the embedding), and the
attention over its sequence: 12 x layers x width x tokens, by the convention that counts the whole
attention matrix (torchtitan, nanochat), or half of that, because attention is causal (Megatron-LM).
Activations that are recomputed to save memory are not counted. Each metric names its convention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fixtures import hardware
from fixtures.errors import UnknownGpu
from fixtures.shapes import Shape

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks

GEMM_SIZE = 8192
GEMM_SECONDS = 2.0


def flops_per_token(shape: Shape, tokens: int, *, causal_half: bool) -> float:
    """Return the FLOPs of one token's forward and backward pass in sequences of `tokens`."""
    attention = 12 * shape.layers * shape.heads * shape.head_size * tokens
    return 6 * shape.non_embedding_parameters + attention / (2 if causal_half else 1)


def peak_tflops(product_name: str) -> float | None:
    """Return the dense bf16 TFLOPS of the datasheet; None for a CPU or an unknown GPU."""
    try:
        gpu = hardware.GPUS.get(hardware.model_of(product_name))
    except UnknownGpu:
        return None
    return gpu.bf16 if gpu else None


def gemm_tflops(ranks: Ranks) -> float:
    """Return the median TFLOPS of a plain bf16 matrix product on this GPU, hot from training."""
    import torch

    from fixtures.workloads.timing import timing

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


def states_gib(shape: Shape, team_size: int) -> float:
    """Return GiB per rank of parameters, gradients and AdamW's two moments, sharded, in fp32."""
    return 16 * shape.parameters / team_size / 2**30


def needed_gib(
    shape: Shape,
    *,
    tokens: int,
    team_size: int,
    fsdp: bool,
    recompute: bool = False,
    gradient_copies: int = 0,
) -> float:
    """Return the GiB that a rank needs to train on `tokens` per pass in bf16.

    The sum of: states; the activations of every block (what flash attention and SwiGLU keep; with
    recomputation, those of one block and the input of each); one chunk of the logits; the bf16
    copy of the parameters that is computed with; and `gradient_copies` of the gradients in fp32.
    """
    # Counted for a compiled block: 6.5 x width + 3 x hidden values per token, plus 10 %.
    activations = tokens * 2 * (7 * shape.width + 3.3 * shape.hidden) / 2**30
    if recompute:
        activations += shape.layers * tokens * 2 * shape.width / 2**30
    else:
        activations *= shape.layers
    logits = 8.0 * min(1.0, tokens * shape.vocabulary / 2**29)
    weight_copies = (2 * shape.block_parameters * 2 if fsdp else shape.parameters) * 2 / 2**30
    weight_copies += 4 * gradient_copies * shape.parameters / 2**30
    return states_gib(shape, team_size if fsdp else 1) + activations + logits + weight_copies
