"""The training: passes, one exchange a step, AdamW on fp32 copies of the adapters (node side).

Nothing in a step waits for the GPU: losses are copied to the host behind it and read two steps
later. Losses are summed over tokens and divided by the tokens of all ranks, so that the result does
not depend on how the sequences fall on ranks and passes.
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

from fixtures.workloads.runtime import timing
from training.finetune import packing
from training.finetune.model import Tuned
from training.finetune.settings import Settings, TrainingSettings

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks

EXTRA = 2
"""Numbers that ride along with the gradients: loss, learned tokens."""

BEHIND = 3
"""Steps whose figures may still be on their way from the GPU; timing.Marks keeps up closer."""


@dataclass
class Trained:
    """What a training left: one entry a step."""

    losses: list[float] = field(default_factory=list)
    """Mean over the learned tokens of all ranks, in nats."""
    norms: list[float] = field(default_factory=list)
    """Of the gradient of that mean, before clipping."""
    rates: list[float] = field(default_factory=list)
    """Learning rates."""
    tokens: list[int] = field(default_factory=list)
    """Tokens of this rank that are no padding."""
    learned: int = 0
    """Tokens of this rank that were learned, in all steps."""
    busy: list[float] = field(default_factory=list)
    """Seconds of this rank's own passes."""
    seconds: list[float] = field(default_factory=list)
    """Seconds a step would take if this rank waited for nobody: its own passes, and the exchange
    and the update of the rank that waited least. The slowest rank's is the step's."""
    ended: list[float] = field(default_factory=list)
    """Epoch seconds at the end of each step."""
    started: float = 0.0


def learning_rate(step: int, training: TrainingSettings) -> float:
    """Linear warm-up, then a cosine to zero; `step` counts from 0."""
    if step < training.warmup_steps:
        return training.learning_rate * (step + 1) / training.warmup_steps
    done = (step - training.warmup_steps) / (training.steps - training.warmup_steps)
    return training.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


class Adapters:
    """The trained parameters of this rank, their fp32 copies, and their gradients in one buffer."""

    def __init__(self, tuned: Tuned, ranks: Ranks) -> None:
        self.ranks = ranks
        self.parameters = [p for p in tuned.parameters() if p.requires_grad]
        self.sharded = any(hasattr(p, "to_local") for p in self.parameters)
        own = [_local(p) for p in self.parameters]
        self.copies = [p.detach().float().clone() for p in own]
        size = sum(p.numel() for p in own)
        self.buffer = torch.zeros(size + EXTRA, dtype=torch.float32, device=ranks.device)
        parts = torch.split(self.buffer[:size], [p.numel() for p in own])
        self.gradients = [part.view(p.shape) for part, p in zip(parts, own, strict=True)]
        self.sums = self.buffer[size:]
        for copy, gradient in zip(self.copies, self.gradients, strict=True):
            copy.grad = gradient

    def gather(self) -> None:
        """Add what the last pass left to the buffer, in fp32, and free it."""
        found = [(g, _local(p.grad)) for g, p in zip(self.gradients, self.parameters, strict=True)
                 if p.grad is not None]  # fmt: skip
        torch._foreach_add_([g for g, _ in found], [new.float() for _, new in found])
        for parameter in self.parameters:
            parameter.grad = None

    def exchange(self) -> None:
        """Sums over all ranks: gradients, loss and tokens in one all-reduce.

        FSDP has exchanged the gradients on the way, as means over ranks: only the rest is left.
        """
        if self.ranks.world_size == 1:
            return
        if self.sharded:
            self.buffer[:-EXTRA] *= self.ranks.world_size
            dist.all_reduce(self.sums)
        else:
            dist.all_reduce(self.buffer)

    def norm(self) -> torch.Tensor:
        """Of the whole gradient, and the gradient divided by the tokens, as it should be."""
        self.buffer[:-EXTRA] /= self.sums[1]
        square = self.buffer[:-EXTRA].square().sum()
        if self.sharded and self.ranks.world_size > 1:
            dist.all_reduce(square)
        return square.sqrt()

    @torch.no_grad()
    def publish(self) -> None:
        """The updated copies into the model."""
        torch._foreach_copy_([_local(p) for p in self.parameters], self.copies)


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class Figures:
    """Loss and gradient norm of every step, on their way to the host."""

    def __init__(self, steps: int, *, on_gpu: bool) -> None:
        self._host = torch.zeros((steps, 2), dtype=torch.float32, pin_memory=on_gpu)

    def note(self, step: int, loss: torch.Tensor, norm: torch.Tensor) -> None:
        self._host[step].copy_(torch.stack([loss, norm]), non_blocking=True)

    def of(self, step: int) -> tuple[float, float]:
        loss, norm = self._host[step].tolist()
        return loss, norm


Watch = Callable[[int, float, float, float], None]
"""Told of each step when it is long done: step, loss, gradient norm, learning rate."""


class Course:
    """The steps of a training, whoever does them: what each is made of, and what it showed.

    There are two marks a step: after its passes (`marks.mark()`), and at its end (`note`).
    """

    def __init__(
        self,
        packed: packing.Packed,
        settings: Settings,
        ranks: Ranks,
        *,
        watch: Watch | None,
        stop: int | None,
    ) -> None:
        training = settings.training
        self.ranks = ranks
        self.watch = watch
        self.steps = min(stop or training.steps, training.steps)
        self.passes = training.passes(ranks.world_size)
        self.rows = packing.schedule(
            len(packed), seed=training.seed, passes=self.passes * self.steps,
            batch_size=training.batch_size, rank=ranks.rank, world_size=ranks.world_size,
        )  # fmt: skip
        self.found = Trained()
        self.marks = timing.Marks(ranks)
        self._seed = training.seed + 1000 + ranks.rank
        self._figures = Figures(self.steps, on_gpu=ranks.on_gpu)
        self._batches = packing.batches(packed, self.rows, settings.data, on_gpu=ranks.on_gpu)

    def begin(self) -> range:
        """The steps; time is taken from here on."""
        # Random numbers of the dropout differ between ranks.
        torch.manual_seed(self._seed)
        self.marks.mark()
        return range(self.steps)

    def batches(self) -> Iterator[packing.Batch]:
        """Those of one step, on the device; each must be asked for in turn."""
        self.found.tokens.append(0)
        for batch in islice(self._batches, self.passes):
            yield batch.to(self.ranks.device)
            self.found.tokens[-1] += batch.used
            self.found.learned += batch.learned

    def note(self, step: int, loss: torch.Tensor, norm: torch.Tensor, rate: float) -> None:
        """A step is done: its loss and norm, still on the device, and its learning rate."""
        self._figures.note(step, loss, norm)
        self.marks.mark()
        self.found.rates.append(rate)
        if step >= BEHIND:
            self._tell(step - BEHIND)

    def end(self) -> Trained:
        """The figures of all steps and their times, when the last one is done."""
        found = self.found
        spans = self.marks.finish(1)
        for step in range(self.steps):
            loss, norm = self._figures.of(step)
            found.losses.append(loss)
            found.norms.append(norm)
        for step in range(max(0, self.steps - BEHIND), self.steps):
            self._tell(step)
        found.busy, rest = spans.seconds[0::2], spans.seconds[1::2]
        found.started, found.ended = spans.started, spans.ended[1::2]
        least = [min(each) for each in zip(*self.ranks.gather(rest), strict=True)]
        found.seconds = [busy + wait for busy, wait in zip(found.busy, least, strict=True)]
        return found

    def _tell(self, step: int) -> None:
        if self.watch:
            self.watch(step, *self._figures.of(step), self.found.rates[step])


def train(
    tuned: Tuned,
    packed: packing.Packed,
    settings: Settings,
    ranks: Ranks,
    *,
    watch: Watch | None = None,
    stop: int | None = None,
) -> Trained:
    """All steps of the settings, or the first `stop` of them.

    Every rank returns its own times and the common losses.
    """
    training = settings.training
    course = Course(packed, settings, ranks, watch=watch, stop=stop)
    adapters = Adapters(tuned, ranks)
    optimizer = torch.optim.AdamW(
        adapters.copies, lr=0.0, betas=(0.9, 0.999), weight_decay=0.0, fused=True
    )
    for step in course.begin():
        adapters.buffer.zero_()
        for batch in course.batches():
            loss = tuned(batch)
            loss.backward()
            adapters.gather()
            adapters.sums[0] += loss.detach()
            adapters.sums[1] += batch.learned
        course.marks.mark()
        adapters.exchange()
        norm = adapters.norm()
        adapters.buffer[:-EXTRA] *= torch.clamp(training.max_grad_norm / (norm + 1e-6), max=1.0)
        rate = learning_rate(step, training)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        adapters.publish()
        course.note(step, adapters.sums[0] / adapters.sums[1], norm, rate)
    return course.end()


def loss_of(tuned: Tuned, packed: packing.Packed, settings: Settings, ranks: Ranks) -> float:
    """Mean loss over the first batch of the data, without dropout; the same on every rank."""
    tuned.eval()
    rows = range(min(len(packed), settings.training.batch_size))
    batch = packing.batch_of(packed, rows, separate=settings.data.separate)
    with torch.no_grad():
        total = tuned(batch.to(ranks.device)).item()
    tuned.train()
    return float(total) / batch.learned


def elapsed(begun: float) -> float:
    return round(time.time() - begun, 2)
