"""Cross entropy with the output projection, in pieces: logits are never held for all tokens.

Sixteen thousand tokens of a vocabulary of 128k are 8 GB of logits in fp32, and as much for their
gradient. Here the gradients of a piece are made while its logits are there (both are needed once
only, because the loss is the last operation), so nothing is computed twice.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

PIECE_ELEMENTS = 1 << 29
"""Logits a piece: 1 GiB in bf16, 4186 tokens of 128,256 words."""


def head_loss(hidden: Tensor, weight: Tensor, targets: Tensor, *, compiled: bool) -> Tensor:
    """Mean cross entropy, nats: hidden [tokens, width], weight [words, width], targets [tokens]."""
    return cast(Tensor, _HeadLoss.apply(hidden, weight, targets, compiled))  # type: ignore[no-untyped-call]


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, compiled: bool
    ) -> Tensor:
        tokens = hidden.shape[0]
        projection = weight.to(hidden.dtype)
        wanted = torch.is_grad_enabled() or ctx.needs_input_grad[0]
        pieces = -(-tokens * weight.shape[0] // PIECE_ELEMENTS)
        # Of one size, which is compiled once.
        size = max(1, -(-tokens // pieces))
        piece = _compiled_piece() if compiled else _piece
        loss = torch.zeros((), device=hidden.device)
        to_hidden = torch.empty_like(hidden)
        # bf16 would lose what the later pieces add.
        to_weight = torch.zeros_like(weight, dtype=torch.float32)
        for start in range(0, tokens, size):
            part = slice(start, start + size)
            logits = hidden[part] @ projection.t()
            share, slope = piece(logits, targets[part], 1.0 / tokens)
            loss += share
            if wanted:
                torch.mm(slope, projection, out=to_hidden[part])
                to_weight += slope.t() @ hidden[part]
        ctx.save_for_backward(to_hidden, to_weight.to(weight.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        to_hidden, to_weight = ctx.saved_tensors
        (given,) = gradients
        return to_hidden * given.to(to_hidden.dtype), to_weight * given, None, None


def _piece(logits: Tensor, targets: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The piece's share of the mean loss, and that share's gradient by the logits."""
    exact = logits.float()
    total = torch.logsumexp(exact, dim=-1)
    chosen = exact.gather(-1, targets[:, None]).squeeze(-1)
    words = torch.arange(logits.shape[-1], device=logits.device)
    hit = (words[None, :] == targets[:, None]).float()
    slope = (torch.exp(exact - total[:, None]) - hit) * scale
    return (total - chosen).sum() * scale, slope.to(logits.dtype)


@cache
def _compiled_piece() -> Any:
    return torch.compile(_piece, fullgraph=True, dynamic=False)
