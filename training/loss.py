"""Cross entropy with the output projection, in chunks: logits never exist for all tokens at once.

Sixteen thousand tokens with a vocabulary of 128k have 8 GB of logits in fp32, and as much for their
gradient. Here the gradients of a chunk are computed together with its logits (both are needed only
once, because the loss is the last operation), so nothing is computed twice.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

MAX_CHUNK_LOGITS = 1 << 29
"""Logits per chunk: 1 GiB in bf16, 4186 tokens with a vocabulary of 128,256."""


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
        chunks = -(-tokens * weight.shape[0] // MAX_CHUNK_LOGITS)
        # All chunks have the same size, so that they are compiled once.
        size = max(1, -(-tokens // chunks))
        chunk_loss = _compiled_chunk_loss() if compiled else _chunk_loss
        loss = torch.zeros((), device=hidden.device)
        hidden_gradient = torch.empty_like(hidden)
        # In fp32: in bf16 the contributions of later chunks would be rounded away.
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32)
        for start in range(0, tokens, size):
            chunk = slice(start, start + size)
            logits = hidden[chunk] @ projection.t()
            loss_share, logits_gradient = chunk_loss(logits, targets[chunk], 1.0 / tokens)
            loss += loss_share
            if needs_gradient:
                torch.mm(logits_gradient, projection, out=hidden_gradient[chunk])
                weight_gradient += logits_gradient.t() @ hidden[chunk]
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


def _chunk_loss(logits: Tensor, targets: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return the chunk's share of the mean loss, and its gradient with respect to the logits."""
    logits_fp32 = logits.float()
    log_normalizer = torch.logsumexp(logits_fp32, dim=-1)
    target_logits = logits_fp32.gather(-1, targets[:, None]).squeeze(-1)
    words = torch.arange(logits.shape[-1], device=logits.device)
    one_hot = (words[None, :] == targets[:, None]).float()
    gradient = (torch.exp(logits_fp32 - log_normalizer[:, None]) - one_hot) * scale
    return (log_normalizer - target_logits).sum() * scale, gradient.to(logits.dtype)


@cache
def _compiled_chunk_loss() -> Any:
    return torch.compile(_chunk_loss, fullgraph=True, dynamic=False)
