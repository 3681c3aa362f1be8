"""Cross entropy with the output projection, in chunks: logits never exist for all tokens at once.

Sixteen thousand tokens with a vocabulary of 128k have 8 GB of logits in fp32, and as much for their
gradient. Here the gradients of a chunk are computed together with its logits (both are needed only
once, because the loss is the last operation), so nothing is computed twice, and the gradient of
the logits takes their place. Each further chunk costs passes over the fp32 gradient of the whole
projection. Compiled, where no temporary values exist, chunks are therefore four times as large.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

MAX_CHUNK_LOGITS = 1 << 29
"""Logits per chunk: 1 GiB in bf16, 4186 tokens with a vocabulary of 128,256. They exist in fp32
too, as do their exponentials."""
MAX_FUSED_LOGITS = (1 << 31) - 1
"""The same where the loss is compiled, in bf16: 4 GiB, 16,743 tokens, and indexes of 32 bits."""


def head_loss(hidden: Tensor, weight: Tensor, targets: Tensor, *, compiled: bool) -> Tensor:
    """Return the mean cross entropy in nats.

    hidden [tokens, width], weight [vocabulary, width], targets [tokens].
    """
    return cast(Tensor, _HeadLoss.apply(hidden, weight, targets, compiled))  # type: ignore[no-untyped-call]


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, compiled: bool
    ) -> Tensor:
        tokens = hidden.shape[0]
        projection = weight.to(hidden.dtype)
        needs_gradient = torch.is_grad_enabled() or ctx.needs_input_grad[0]
        most = MAX_CHUNK_LOGITS
        if compiled:
            most = max(most, MAX_FUSED_LOGITS * 2 // hidden.element_size())
        chunks = -(-tokens * weight.shape[0] // most)
        # All chunks have the same size, so that they are compiled once.
        size = max(1, -(-tokens // chunks))
        chunk_loss = _compiled_chunk_loss() if compiled else _chunk_loss
        loss = torch.zeros((), device=hidden.device)
        hidden_gradient = torch.empty_like(hidden)
        weight_gradient: Tensor | None = None
        for start in range(0, tokens, size):
            chunk = slice(start, start + size)
            logits = hidden[chunk] @ projection.t()
            loss += chunk_loss(logits, targets[chunk], 1.0 / tokens)
            if needs_gradient:
                logits_gradient = logits
                torch.mm(logits_gradient, projection, out=hidden_gradient[chunk])
                part = logits_gradient.t() @ hidden[chunk]
                if weight_gradient is None:
                    # In fp32: in bf16 the contributions of later chunks would be rounded away.
                    weight_gradient = part if size >= tokens else part.float()
                else:
                    weight_gradient += part
        if weight_gradient is None:
            weight_gradient = torch.zeros_like(weight)
        ctx.save_for_backward(hidden_gradient, weight_gradient.to(weight.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        (output_gradient,) = gradients
        return (
            hidden_gradient * output_gradient.to(hidden_gradient.dtype),
            weight_gradient * output_gradient,
            None,
            None,
        )


def _chunk_loss(logits: Tensor, targets: Tensor, scale: float) -> Tensor:
    """Return the chunk's share of the mean loss; put its gradient in the place of the logits."""
    logits_fp32 = logits.float()
    log_normalizer = torch.logsumexp(logits_fp32, dim=-1)
    target_logits = logits_fp32.gather(-1, targets[:, None]).squeeze(-1)
    loss = (log_normalizer - target_logits).sum() * scale
    words = torch.arange(logits.shape[-1], device=logits.device)
    one_hot = (words[None, :] == targets[:, None]).float()
    gradient = (torch.exp(logits_fp32 - log_normalizer[:, None]) - one_hot) * scale
    logits.copy_(gradient)
    return loss


@cache
def _compiled_chunk_loss() -> Any:
    return torch.compile(_chunk_loss, fullgraph=True, dynamic=False)
