"""A Llama-style decoder: RMSNorm, rotary embedding, grouped-query attention, SwiGLU.

Mixed precision is explicit: parameters are fp32 (or what FSDP casts them to), and every matrix
product is computed in the dtype of the residual stream, `Decoder.compute_dtype`. The loss is part
of the model, so that the logits of 16k tokens x 128k vocabulary entries never exist all at once
(training/loss.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fixtures.shapes import PRESETS, Shape
from training.loss import head_loss

SMALL_MODEL_PARAMETERS = 50_000_000
"""Models with fewer parameters are initialized on the CPU: equal values whatever the device."""


class Linear(nn.Linear):
    """A linear layer without bias that computes in the dtype of its input, not of its weight."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.to(x.dtype))


class RMSNorm(nn.Module):
    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.epsilon)
        return y.to(x.dtype) * self.weight.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding to [batch, heads, tokens, size]; cos and sin: [tokens, size]."""
    y = x.float()
    first, second = y.chunk(2, dim=-1)
    return (y * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        # One matrix product for queries, keys and values: larger ones run nearer to the peak.
        self.qkv = Linear(shape.width, (shape.heads + 2 * shape.kv_heads) * shape.head_size)
        self.out = Linear(shape.heads * shape.head_size, shape.width)
        self.repeat_kv = False
        """Whether to repeat keys and values, for kernels without grouped-query attention."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        s = self.shape
        heads = self.qkv(x).view(batch, tokens, s.heads + 2 * s.kv_heads, s.head_size)
        q, k, v = heads.transpose(1, 2).split((s.heads, s.kv_heads, s.kv_heads), dim=1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if self.repeat_kv:
            k = k.repeat_interleave(s.heads // s.kv_heads, dim=1)
            v = v.repeat_interleave(s.heads // s.kv_heads, dim=1)
        grouped = k.shape[1] != q.shape[1]
        attended = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=grouped
        )
        return cast(Tensor, self.out(attended.transpose(1, 2).reshape(batch, tokens, -1)))


class FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_up = Linear(shape.width, 2 * shape.hidden)
        self.down = Linear(shape.hidden, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return cast(Tensor, self.down(functional.silu(gate) * up))


Body = Callable[[Tensor, Tensor, Tensor], Tensor]


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.width)
        self.attention = Attention(shape)
        self.feed_forward_norm = RMSNorm(shape.width)
        self.feed_forward = FeedForward(shape)
        self.recompute = False
        # Only the body is compiled: the hooks of FSDP belong to the module's call, outside it.
        self.body: Body = self._body

    def _body(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return cast(Tensor, x + self.feed_forward(self.feed_forward_norm(x)))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.recompute and torch.is_grad_enabled():
            return cast(Tensor, checkpoint(self.body, x, cos, sin, use_reentrant=False))
        return self.body(x, cos, sin)


class Head(nn.Module):
    """The last norm, the output projection and the loss."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = RMSNorm(shape.width)
        self.weight = nn.Parameter(torch.empty(shape.vocabulary, shape.width))
        self.compiled = False

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        hidden = self.norm(x).flatten(0, 1)
        return head_loss(hidden, self.weight, targets.flatten(), compiled=self.compiled)


class Decoder(nn.Module):
    """A decoder whose forward(tokens, targets), both [batch, tokens], is the mean loss in nats."""

    cos: Tensor
    sin: Tensor
    """[tokens, head size] each; not buffers, because DDP would broadcast those in every pass."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.compute_dtype = torch.float32
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.head = Head(shape)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens).to(self.compute_dtype)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, cos, sin)
        return cast(Tensor, self.head(x, targets))

    @torch.no_grad()
    def reset(self, seed: int) -> None:
        """Initialize all parameters; equal seeds give equal models, small ones on every device."""
        device = self.embedding.weight.device
        count = sum(p.numel() for p in self.parameters())
        generator = torch.Generator(
            "cpu" if count < SMALL_MODEL_PARAMETERS else device
        ).manual_seed(seed)
        residual_scale = 1 / math.sqrt(2 * self.shape.layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                parameter.fill_(1)
                continue
            feeds_residual = name.endswith(("attention.out.weight", "feed_forward.down.weight"))
            std = 0.02 * (residual_scale if feeds_residual else 1.0)
            values = torch.empty(parameter.shape, device=generator.device)
            parameter.copy_(values.normal_(0.0, std, generator=generator))
        size = self.shape.head_size
        inverse = self.shape.rope_theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angle = torch.arange(self.shape.sequence, dtype=torch.float64)[:, None] * inverse[None]
        angle = torch.cat((angle, angle), dim=-1)
        self.cos = angle.cos().float().to(device)
        self.sin = angle.sin().float().to(device)

    def compile_blocks(self) -> None:
        """Compile the blocks; all have the same code and shapes and share one compilation."""
        for block in self.blocks:
            assert isinstance(block, Block)
            block.body = torch.compile(block._body, fullgraph=True, dynamic=False)
        self.head.compiled = True


def build(preset: str, *, seed: int, device: torch.device, sequence: int = 0) -> Decoder:
    """Return a model of a preset's shape on a device, fp32; KeyError for an unknown preset."""
    shape = PRESETS[preset]
    with torch.device("meta"):
        model = Decoder(replace(shape, sequence=sequence or shape.sequence))
    model.to_empty(device=device)
    model.reset(seed)
    return model
