"""Tokens/s of a training, computed from measured products, memory and collectives. Pure.

A step is the sum of its parts: matrix products at the measured rate of products, attention at a
share of it, what moves memory at the measured bandwidth, and the part of the communication that
does not hide behind them. The constants are least squares over the 19 trainings of the recorded
runs on H200 (1B and 8B shapes, sequences of 8,192 tokens, 1 to 4 GPUs), which they give back to
1.1 % (root mean square; the largest is 2.4 %). What the interval is made of stands at HALF_WIDTHS.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fixtures.shapes import Shape
from fixtures.wording import counted

STRATEGIES = ("single", "ddp", "fsdp")

PRODUCTS = 0.985
"""Time of a product over that of the measured one: a training draws less power than products alone,
so that it has a higher clock."""
ATTENTION_SLOWNESS = 1.95
"""Time of a FLOP of causal attention, forward and backward, over that of one of a product, at
sequences of REFERENCE_SEQUENCE."""
REFERENCE_SEQUENCE = 8192
ATTENTION_RAMP = 1000
"""Tokens: attention in sequences of S takes 1 + ATTENTION_RAMP/S times as long a FLOP as in long
ones, because its tiles on the diagonal are half empty."""
ELEMENTWISE_PASSES = 4
"""Times that the stored activations go to memory or come from it in a step, norms and rotary
embedding included."""
LOGITS_PASSES = 5
MAX_CHUNK_LOGITS = 1 << 29
"""The head's chunks (training/loss.py); each adds to an fp32 gradient: 12 bytes per parameter."""
CAST_BYTES = 12
"""A parameter and pass: fp32 to bf16 to compute with, its gradient back."""
UPDATE_BYTES = 42
"""A parameter and step: norm, clipping, fused AdamW."""
EXPOSED = 0.6
"""Share of the communication that lengthens the step although it overlaps: kernels of NCCL take
multiprocessors and memory bandwidth from the products."""
HIDEABLE = 2 / 3
"""Share of a pass that communication can hide behind: the backward pass."""
SHORT_PASS_S = 0.02
"""A shorter pass is dominated by the launches of its kernels, which are not measured here."""

HALF_WIDTHS: Mapping[str, float] = {
    "products": 0.03, "attention": 0.15, "memory": 0.25, "communication": 0.4 / EXPOSED,
}  # fmt: skip
"""Uncertainty of each part, relative: that of its constant. Communication adds 0.2 to 1 of it."""
COMMON = 0.04
"""Relative to a step: differences of clock, compiler and kernels between otherwise like runs."""
SAME_CHIP = ("H200 SXM", "H100 SXM")
"""The constants are fitted on the first. H100 was added after nine of ten trainings on two H100 had
lain -0.2 to +4.1 % from the prediction; ten new ones lay inside after that, -4.5 to +4.7 %."""
OTHER_MODEL = 0.06
"""More of a step on other GPUs."""
MAX_HALF_WIDTH = 0.10
"""A wider interval is too vague to plan with, and is marked as such."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What was measured, of the slowest GPU where they work together."""

    tflops: float
    """Of bf16 products on a hot GPU."""
    tflops_spread: float
    """Half of the relative range between GPUs."""
    memory_gb_s: float
    bus_gb_s: Mapping[str, float] = field(default_factory=dict)
    """Bus bandwidth: "allreduce", "allgather", "reducescatter"; {} where one GPU trains alone."""
    gpu_model: str = "H200 SXM"


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is trained, on how many GPUs."""

    shape: Shape
    strategy: str
    gpus: int
    batch: int
    """Sequences per GPU and pass."""
    sequence: int
    passes: int = 1
    """Per step; more of them accumulate gradients."""

    @property
    def tokens(self) -> int:
        """Of one GPU in a step."""
        return self.batch * self.sequence * self.passes


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A computed interval of the tokens/s of one GPU."""

    tokens_per_s: float
    half_width: float
    """Relative."""
    seconds: Mapping[str, float]
    """Of the parts of a step."""
    shares: Mapping[str, float]
    """Half width by what it comes from, relative; their squares add up."""
    refusal: str = ""
    """Why the prediction is outside the checked range, "" if it is inside."""

    @property
    def low(self) -> float:
        return self.tokens_per_s * (1 - self.half_width)

    @property
    def high(self) -> float:
        return self.tokens_per_s * (1 + self.half_width)


def predict(training: Training, rates: Rates) -> Prediction:
    """Return tokens/s of one GPU with its interval.

    Raises ValueError where a strategy needs rates that are not given.
    """
    seconds = step_seconds(training, rates)
    total = sum(seconds.values())
    shares = {
        part: HALF_WIDTHS[part] * seconds[part] / total for part in HALF_WIDTHS if seconds[part]
    }
    shares |= {"common": COMMON, "between GPUs": rates.tflops_spread * seconds["products"] / total}
    if rates.gpu_model not in SAME_CHIP:
        shares["another GPU model"] = OTHER_MODEL
    half_width = math.sqrt(sum(share**2 for share in shares.values()))
    refusal = ""
    if total / training.passes < SHORT_PASS_S:
        refusal = (
            f"a pass takes {1000 * total / training.passes:.0f} ms: it is dominated by kernel "
            "launches"
        )
    elif half_width > MAX_HALF_WIDTH:
        refusal = f"the interval is wider than +-{100 * MAX_HALF_WIDTH:.0f} %"
    return Prediction(
        tokens_per_s=training.tokens / total, half_width=half_width, seconds=seconds,
        shares=shares, refusal=refusal,
    )  # fmt: skip


def step_seconds(training: Training, rates: Rates) -> dict[str, float]:
    """Return the seconds of each part of a step, `communication` as far as it is not hidden."""
    s, passes = training.shape, training.passes
    tokens = training.batch * training.sequence
    flops, memory = rates.tflops * 1e12, rates.memory_gb_s * 1e9
    heads = s.heads * s.head_size
    block = ((s.width, heads + 2 * s.kv_heads * s.head_size), (heads, s.width),
             (s.width, 2 * s.hidden), (s.hidden, s.width))  # fmt: skip
    products = s.layers * sum(_product_s(tokens, k, n, flops, memory) for k, n in block)
    products = PRODUCTS * (products + 3 * 2 * tokens * s.width * s.vocabulary / flops)
    ramp = (1 + ATTENTION_RAMP / training.sequence) / (1 + ATTENTION_RAMP / REFERENCE_SEQUENCE)
    attention = 6 * s.layers * heads * training.sequence * tokens / flops
    moved = ELEMENTWISE_PASSES * s.layers * tokens * 2 * (7 * s.width + 3.3 * s.hidden)
    moved += LOGITS_PASSES * 2 * tokens * s.vocabulary
    moved += -(-tokens * s.vocabulary // MAX_CHUNK_LOGITS) * 12 * s.vocabulary * s.width
    moved += CAST_BYTES * s.parameters
    shards = training.gpus if training.strategy == "fsdp" else 1
    pass_s = products + ATTENTION_SLOWNESS * ramp * attention + moved / memory
    return {
        "products": passes * products,
        "attention": passes * ATTENTION_SLOWNESS * ramp * attention,
        "memory": (passes * moved + UPDATE_BYTES * s.parameters / shards) / memory,
        "communication": _exposed_s(training, rates, pass_s),
    }


def _product_s(tokens: int, k: int, n: int, flops: float, memory: float) -> float:
    """Return seconds of a linear layer's three products: forward, and both gradients."""
    moved = 2 * (tokens * k + k * n + tokens * n)
    return 3 * max(2 * tokens * k * n / flops, moved / memory)


def _exposed_s(training: Training, rates: Rates, pass_s: float) -> float:
    """Return the seconds of a step that communication adds to it.

    DDP reduces fp32 gradients in the last pass of a step; FSDP gathers bf16 parameters twice and
    reduces fp32 gradients in each. Bus bandwidth as nccl-tests define it.
    """
    if training.gpus == 1 or training.strategy == "single":
        return 0.0
    parameters, n = training.shape.parameters, training.gpus
    wanted = ("allreduce",) if training.strategy == "ddp" else ("allgather", "reducescatter")
    if missing := [name for name in wanted if name not in rates.bus_gb_s]:
        raise ValueError(
            f"{training.strategy} on {counted(n, 'GPU')} needs {', '.join(missing)}: not measured"
        )
    bus = {name: 1e9 * rates.bus_gb_s[name] for name in wanted}
    on_wire = parameters * (n - 1) / n
    if training.strategy == "ddp":
        communication, times = 4 * 2 * on_wire / bus["allreduce"], 1
    else:
        communication = 2 * 2 * on_wire / bus["allgather"] + 4 * on_wire / bus["reducescatter"]
        times = training.passes
    hideable = HIDEABLE * pass_s
    return times * max(EXPOSED * communication, communication - hideable)
