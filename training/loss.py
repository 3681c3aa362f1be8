"""Cross entropy with the output projection, in chunks: logits never exist for all tokens at once.

Sixteen thousand tokens with a vocabulary of 128k have 8 GB of logits in fp32, and as much for their
gradient. Here the gradients of a chunk are computed together with its logits (both are needed only
once, because the loss is the last operation), so nothing is computed twice, and the gradient of
the logits takes their place. Each further chunk costs passes over the fp32 gradient of the whole
projection. Compiled, where no temporary values exist, chunks are therefore four times as large. A
frozen projection, as that of a fine-tuning with LoRA, has no gradient, and its chunks may be small.
"""

from __future__ import annotations

from collections.abc import Callable
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
    tokens = hidden.shape[0]
    most = MAX_CHUNK_LOGITS
    if compiled:
        most = max(most, MAX_FUSED_LOGITS * 2 // hidden.element_size())
    chunks = -(-tokens * weight.shape[0] // most)
    # All chunks have the same size, so that they are compiled once.
    size = max(1, -(-tokens // chunks))
    return _in_chunks(hidden, weight, targets, size, 1.0 / tokens, compiled, partly=False)


def sum_of_learned(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, chunk_size: int, compiled: bool
) -> Tensor:
    """Return the sum of the cross entropies of tokens whose target is not below 0, in nats; fp32.

    hidden [tokens, width], targets [tokens]: a multiple of `chunk_size` tokens. weight [vocabulary,
    width] is frozen: it gets no gradient.
    """
    return _in_chunks(hidden, weight.detach(), targets, chunk_size, 1.0, compiled, partly=True)


def _in_chunks(
    hidden: Tensor, weight: Tensor, targets: Tensor, size: int, scale: float, compiled: bool, *,
    partly: bool,
) -> Tensor:  # fmt: skip
    """Return `scale` times the sum of the losses; `partly`: a target below 0 has none."""
    chunk_loss = _compiled_chunk_loss() if compiled else _chunk_loss
    learning = torch.is_grad_enabled()  # in forward() it never is
    loss = _HeadLoss.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets, size, learning,
        lambda logits, wanted: chunk_loss(logits, wanted, scale, partly),
    )  # fmt: skip
    return cast(Tensor, loss)


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, size: int, learning: bool,
        chunk_loss: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:  # fmt: skip
        tokens = hidden.shape[0]
        projection = weight.to(hidden.dtype)
        of_hidden, of_weight = (learning and needed for needed in ctx.needs_input_grad[:2])
        loss = torch.zeros((), device=hidden.device)
        hidden_gradient = torch.empty_like(hidden)
        weight_gradient: Tensor | None = None
        for start in range(0, tokens, size):
            chunk = slice(start, start + size)
            logits = hidden[chunk] @ projection.t()
            loss += chunk_loss(logits, targets[chunk])
            logits_gradient = logits
            if of_hidden:
                torch.mm(logits_gradient, projection, out=hidden_gradient[chunk])
            if of_weight:
                part = logits_gradient.t() @ hidden[chunk]
                if weight_gradient is None:
                    # In fp32: in bf16 the contributions of later chunks would be rounded away.
                    weight_gradient = part if size >= tokens else part.float()
                else:
                    weight_gradient += part
        if weight_gradient is not None:
            weight_gradient = weight_gradient.to(weight.dtype)
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        (output_gradient,) = gradients
        return (
            hidden_gradient * output_gradient.to(hidden_gradient.dtype),
            None if weight_gradient is None else weight_gradient * output_gradient,
            *[None] * 4,
        )


def _chunk_loss(logits: Tensor, targets: Tensor, scale: float, partly: bool) -> Tensor:
    """Return the chunk's share of the loss; put its gradient in the place of the logits."""
    logits_fp32 = logits.float()
    log_normalizer = torch.logsumexp(logits_fp32, dim=-1)
    index = targets.clamp(min=0) if partly else targets
    target_logits = logits_fp32.gather(-1, index[:, None]).squeeze(-1)
    losses = log_normalizer - target_logits
    # A comparison instead of a scatter: compiled, it is one pass over the logits.
    words = torch.arange(logits.shape[-1], device=logits.device)
    one_hot = (words[None, :] == index[:, None]).float()
    gradient = (torch.exp(logits_fp32 - log_normalizer[:, None]) - one_hot) * scale
    if partly:
        learned = targets >= 0
        losses, gradient = losses * learned, gradient * learned[:, None]
    logits.copy_(gradient)
    return losses.sum() * scale


@cache
def _compiled_chunk_loss() -> Any:
    return torch.compile(_chunk_loss, fullgraph=True, dynamic=False)
