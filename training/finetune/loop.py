"""The training loop: passes, one all-reduce per step, AdamW on fp32 master weights (node side).

Nothing in a step waits for the GPU: losses are copied to the host asynchronously and read some
steps later. Losses are summed over tokens and divided by the tokens of all ranks, so that the
result does not depend on how the sequences are distributed over ranks and passes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from fixtures.workloads.timing import timing
from training.finetune import packing
from training.finetune.model import LossModel
from training.finetune.settings import Settings, TrainingSettings

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks

EXTRA_SUMS = 2
"""Values that are reduced together with the gradients: loss sum and learned tokens."""

FIGURES_DELAY_STEPS = 3
"""Steps after which the figures of a step are on the host: timing.Marks lags by fewer."""


@dataclass
class StepHistory:
    """Losses, learning rates, token counts and times of a training: one entry per step."""

    losses: list[float] = field(default_factory=list)
    """Mean over the learned tokens of all ranks, in nats."""
    norms: list[float] = field(default_factory=list)
    """Norms of the gradient of that mean, before clipping."""
    learning_rates: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    """Tokens of this rank that are not padding."""
    learned_tokens: int = 0
    """Tokens of this rank that were learned, over all steps."""
    pass_seconds: list[float] = field(default_factory=list)
    """Seconds of this rank's forward and backward passes."""
    seconds: list[float] = field(default_factory=list)
    """Seconds per step without waiting for slower ranks: this rank's own passes, and the all-reduce
    and update of the rank that waited least. The slowest rank's value is the step's duration."""
    ended: list[float] = field(default_factory=list)
    """Epoch seconds at the end of each step."""
    started: float = 0.0
    """Epoch seconds at the start of the first step."""


def learning_rate_at(step: int, training: TrainingSettings) -> float:
    """Return the rate of a step, counted from 0: linear warm-up, then a cosine to zero."""
    if step < training.warmup_steps:
        return training.learning_rate * (step + 1) / training.warmup_steps
    progress = (step - training.warmup_steps) / (training.steps - training.warmup_steps)
    return training.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


class Adapters:
    """This rank's trainable parameters, their fp32 master weights, and gradients in one buffer."""

    def __init__(self, loss_model: LossModel, ranks: Ranks) -> None:
        self.ranks = ranks
        self.parameters = [p for p in loss_model.parameters() if p.requires_grad]
        self.sharded = any(hasattr(p, "to_local") for p in self.parameters)
        shards = [_local(p) for p in self.parameters]
        self.master_weights = [p.detach().float().clone() for p in shards]
        gradient_count = sum(p.numel() for p in shards)
        self.buffer = torch.zeros(
            gradient_count + EXTRA_SUMS, dtype=torch.float32, device=ranks.device
        )
        parts = torch.split(self.buffer[:gradient_count], [p.numel() for p in shards])
        self.gradients = [part.view(p.shape) for part, p in zip(parts, shards, strict=True)]
        self.sums = self.buffer[gradient_count:]
        for weight, gradient in zip(self.master_weights, self.gradients, strict=True):
            weight.grad = gradient

    def accumulate_gradients(self) -> None:
        """Add the gradients of the last pass to the buffer, in fp32, and free them."""
        pairs = [(g, _local(p.grad)) for g, p in zip(self.gradients, self.parameters, strict=True)
                 if p.grad is not None]  # fmt: skip
        torch._foreach_add_([g for g, _ in pairs], [gradient.float() for _, gradient in pairs])
        for parameter in self.parameters:
            parameter.grad = None

    def all_reduce(self) -> None:
        """Sum gradients, loss and tokens over all ranks in one all-reduce.

        FSDP has already reduced the gradients, to means over ranks: only the rest is reduced.
        """
        if self.ranks.world_size == 1:
            return
        if self.sharded:
            self.buffer[:-EXTRA_SUMS] *= self.ranks.world_size
            dist.all_reduce(self.sums)
        else:
            dist.all_reduce(self.buffer)

    def normalize_gradients(self) -> torch.Tensor:
        """Divide the gradient by all ranks' learned tokens; return its norm over all shards."""
        self.buffer[:-EXTRA_SUMS] /= self.sums[1]
        square = self.buffer[:-EXTRA_SUMS].square().sum()
        if self.sharded and self.ranks.world_size > 1:
            dist.all_reduce(square)
        return square.sqrt()

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Copy the updated master weights into the model."""
        torch._foreach_copy_([_local(p) for p in self.parameters], self.master_weights)


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class StepFigures:
    """Loss and gradient norm of every step, copied asynchronously to pinned host memory."""

    def __init__(self, steps: int, *, on_gpu: bool) -> None:
        self._host = torch.zeros((steps, 2), dtype=torch.float32, pin_memory=on_gpu)

    def copy_to_host(self, step: int, loss: torch.Tensor, norm: torch.Tensor) -> None:
        """Start to copy the figures of a step."""
        self._host[step].copy_(torch.stack([loss, norm]), non_blocking=True)

    def read(self, step: int) -> tuple[float, float]:
        """Return loss and norm of a step whose copy is complete."""
        loss, norm = self._host[step].tolist()
        return loss, norm


StepCallback = Callable[[int, float, float, float], None]
"""Called with step, loss, gradient norm and learning rate, FIGURES_DELAY_STEPS after the step."""


class TrainingSteps:
    """The batches, timing and history of a training's steps, for this loop and DeepSpeed's.

    Each step has two marks: after its passes (`marks.mark()`), and at its end (`finish_step`).
    """

    def __init__(
        self,
        packed: packing.PackedSequences,
        settings: Settings,
        ranks: Ranks,
        *,
        on_step: StepCallback | None,
        max_steps: int | None,
    ) -> None:
        training = settings.training
        self.ranks = ranks
        self.on_step = on_step
        self.steps = min(max_steps or training.steps, training.steps)
        self.passes_per_step = training.passes_per_step(ranks.world_size)
        self.sequences_per_pass = packing.sequences_per_pass(
            len(packed), seed=training.seed, passes=self.passes_per_step * self.steps,
            batch_size=training.batch_size, rank=ranks.rank, world_size=ranks.world_size,
        )  # fmt: skip
        self.history = StepHistory()
        self.marks = timing.Marks(ranks)
        self._seed = training.seed + 1000 + ranks.rank
        self._figures = StepFigures(self.steps, on_gpu=ranks.on_gpu)
        self._batches = packing.load_batches(
            packed, self.sequences_per_pass, settings.data, on_gpu=ranks.on_gpu
        )

    def start(self) -> range:
        """Start the timing and return the range of steps."""
        # Random numbers of the dropout differ between ranks.
        torch.manual_seed(self._seed)
        self.marks.mark()
        return range(self.steps)

    def batches(self) -> Iterator[packing.Batch]:
        """Yield the batches of one step, on the device; call it once per step, in order."""
        self.history.tokens.append(0)
        for batch in islice(self._batches, self.passes_per_step):
            yield batch.to(self.ranks.device)
            self.history.tokens[-1] += batch.token_count
            self.history.learned_tokens += batch.learned_count

    def finish_step(self, step: int, loss: torch.Tensor, norm: torch.Tensor, rate: float) -> None:
        """Record a step: its loss and norm, still on the device, and its learning rate."""
        self._figures.copy_to_host(step, loss, norm)
        self.marks.mark()
        self.history.learning_rates.append(rate)
        if step >= FIGURES_DELAY_STEPS:
            self._report(step - FIGURES_DELAY_STEPS)

    def finish(self) -> StepHistory:
        """Wait for the last step and return the history of all steps."""
        history = self.history
        spans = self.marks.finish(1)
        for step in range(self.steps):
            loss, norm = self._figures.read(step)
            history.losses.append(loss)
            history.norms.append(norm)
        for step in range(max(0, self.steps - FIGURES_DELAY_STEPS), self.steps):
            self._report(step)
        history.pass_seconds, rest = spans.seconds[0::2], spans.seconds[1::2]
        history.started, history.ended = spans.started, spans.ended[1::2]
        least = [min(each) for each in zip(*self.ranks.gather(rest), strict=True)]
        history.seconds = [
            busy + wait for busy, wait in zip(history.pass_seconds, least, strict=True)
        ]
        return history

    def _report(self, step: int) -> None:
        if self.on_step:
            self.on_step(step, *self._figures.read(step), self.history.learning_rates[step])


def train(
    loss_model: LossModel,
    packed: packing.PackedSequences,
    settings: Settings,
    ranks: Ranks,
    *,
    on_step: StepCallback | None = None,
    max_steps: int | None = None,
) -> StepHistory:
    """Train all steps of the settings, or the first `max_steps` of them.

    Every rank returns its own times and the losses over all ranks.
    """
    training = settings.training
    training_steps = TrainingSteps(packed, settings, ranks, on_step=on_step, max_steps=max_steps)
    adapters = Adapters(loss_model, ranks)
    optimizer = torch.optim.AdamW(
        adapters.master_weights, lr=0.0, betas=(0.9, 0.999), weight_decay=0.0, fused=True
    )
    for step in training_steps.start():
        adapters.buffer.zero_()
        for batch in training_steps.batches():
            loss = loss_model(batch)
            loss.backward()
            adapters.accumulate_gradients()
            adapters.sums[0] += loss.detach()
            adapters.sums[1] += batch.learned_count
        training_steps.marks.mark()
        adapters.all_reduce()
        norm = adapters.normalize_gradients()
        adapters.buffer[:-EXTRA_SUMS] *= torch.clamp(
            training.max_grad_norm / (norm + 1e-6), max=1.0
        )
        rate = learning_rate_at(step, training)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        adapters.copy_to_model()
        training_steps.finish_step(step, adapters.sums[0] / adapters.sums[1], norm, rate)
    return training_steps.finish()


def first_batch_loss(
    loss_model: LossModel, packed: packing.PackedSequences, settings: Settings, ranks: Ranks
) -> float:
    """Return the mean loss of the first batch, without dropout; equal on every rank."""
    loss_model.eval()
    rows = range(min(len(packed), settings.training.batch_size))
    batch = packing.batch_of(packed, rows, separate=settings.data.separate)
    with torch.no_grad():
        loss_sum = loss_model(batch.to(ranks.device)).item()
    loss_model.train()
    return float(loss_sum) / batch.learned_count


def held_out_loss(
    loss_model: LossModel, packed: packing.PackedSequences, settings: Settings, ranks: Ranks
) -> float:
    """Return the mean loss per learned token of all sequences in nats; equal on every rank.

    Each rank takes its share of the batches, without dropout.
    """
    loss_model.eval()
    size = settings.training.batch_size
    starts = range(0, len(packed), size)[ranks.rank :: ranks.world_size]
    loss_sum, learned = 0.0, 0
    with torch.no_grad():
        for start in starts:
            rows = range(start, min(start + size, len(packed)))
            batch = packing.batch_of(packed, rows, separate=settings.data.separate)
            loss_sum += loss_model(batch.to(ranks.device)).item()
            learned += batch.learned_count
    loss_model.train()
    sums = ranks.gather([loss_sum, learned])
    return float(sum(loss for loss, _ in sums) / sum(count for _, count in sums))


def elapsed(begun: float) -> float:
    """Return the seconds since `begun` (epoch seconds)."""
    return round(time.time() - begun, 2)
