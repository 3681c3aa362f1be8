"""The training loop, its history of losses and gradient norms, and its timing."""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fixtures.workloads.timing.timing import Batches, Marks, synchronize
from training import checkpoint
from training.attention import Kernel
from training.data import BatchLoader, dataset
from training.schedule import learning_rate_at
from training.settings import Settings
from training.strategies import ParallelModel, Team

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks


@dataclass
class History:
    """Loss, gradient norm and learning rate of every step; reading losses waits for the device."""

    first_step: int = 0
    """Steps that had been done before this history begins."""
    learning_rates: list[float] = field(default_factory=list)
    _losses_and_norms: list[Tensor] = field(default_factory=list)

    def append(self, loss: Tensor, norm: Tensor, learning_rate: float) -> None:
        """Add a step; loss and norm stay on the device, so nothing waits for it."""
        self._losses_and_norms.append(torch.stack((loss.detach().float(), norm.float())))
        self.learning_rates.append(learning_rate)

    def _values(self) -> list[list[float]]:
        values: list[list[float]] = (
            torch.stack(self._losses_and_norms).cpu().tolist() if self._losses_and_norms else []
        )
        return values

    @property
    def losses(self) -> list[float]:
        """Nats per token, mean over the team."""
        return [loss for loss, _ in self._values()]

    @property
    def norms(self) -> list[float]:
        """Gradient norms before clipping."""
        return [norm for _, norm in self._values()]


class Marker(Protocol):
    """What marks points in time between steps: timing.Marks, or stragglers.StepMarks."""

    def mark(self) -> None: ...


class Training:
    """A model, its data and its optimizer, trained by one team of ranks."""

    def __init__(
        self, settings: Settings, team: Team, *, samples: int = 0, kernel: Kernel | None = None
    ) -> None:
        _freeze_imports()
        self.settings = settings
        self.team = team
        self.kernel = kernel or Kernel()
        passes_per_step = settings.passes_per_step(team.size)
        samples_per_step = passes_per_step * settings.batch * team.size
        data = dataset(settings, samples or settings.steps * samples_per_step)
        self.batch_loader = BatchLoader(data, settings, rank=team.rank, team_size=team.size)
        self.model = ParallelModel(settings, team, repeat_kv=self.kernel.repeat_kv)
        self.optimizer = torch.optim.AdamW(
            self.model.module.parameters(),
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=settings.weight_decay,
            fused=team.device.type == "cuda" and not settings.offload,
        )
        self.history = History()
        self.batches = iter(self.batch_loader)
        self.tokens_per_step = passes_per_step * settings.batch * settings.tokens
        """Tokens of one rank."""
        if settings.resume and (newest := checkpoint.newest_intact(Path(settings.checkpoint))):
            self.load(newest)

    @property
    def step(self) -> int:
        """Steps done."""
        return self.history.first_step + len(self.history.learning_rates)

    def run(self, steps: int | None = None, *, marks: Marker | None = None) -> History:
        """Train `steps` steps, or to the end; mark the time before the first and after each."""
        steps = self.settings.steps - self.step if steps is None else steps
        preferred = self.kernel.backend
        backends = [b for b in (preferred, *ATTENTION_BACKENDS) if b is not None]
        with (
            _garbage_collection_disabled(),
            sdpa_kernel(backends, set_priority=preferred is not None),
        ):
            if marks:
                marks.mark()
            for _ in range(steps):
                self._train_step(next(self.batches))
                if marks:
                    marks.mark()
                save_every = self.settings.save_every
                if save_every and self.settings.checkpoint and self.step % save_every == 0:
                    self.save()
        return self.history

    def _train_step(self, batches: list[Tensor]) -> None:
        s = self.settings
        learning_rate = learning_rate_at(
            self.step,
            peak=s.learning_rate,
            steps=s.steps,
            warm_up=s.warm_up,
            final_share=s.last_rate,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        loss = torch.zeros((), device=self.team.device)
        for k, batch in enumerate(batches):
            tokens = batch.to(self.team.device, non_blocking=True)
            with self.model.accumulation_pass(k == len(batches) - 1):
                part_loss = self.model.module(tokens[:, :-1], tokens[:, 1:]) / len(batches)
                part_loss.backward()
            loss += part_loss.detach()
        norm = self.model.clip_gradients(s.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.history.append(self.team.mean(loss), norm, learning_rate)

    # --- checkpoints

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint holds; sharded tensors stay sharded."""
        return checkpoint.state_of(self.model.module, self.optimizer)

    def save(self) -> Path:
        """Write a checkpoint after the steps done; all ranks of the team must call it."""
        return checkpoint.save(
            Path(self.settings.checkpoint), self.step, self.state(), team=self.team
        )

    def load(self, path: Path) -> None:
        """Continue from a checkpoint, whatever number of ranks wrote it."""
        step = checkpoint.load(path, self.model.module, self.optimizer, team=self.team)
        self.history = History(first_step=step)
        self.batch_loader.step = step
        self.batches = iter(self.batch_loader)


ATTENTION_BACKENDS = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)


@functools.cache
def _freeze_imports() -> None:
    """Spare collections what imports have left, once, before the first model: it is of torch's
    size, it lives on, and to look through it takes longer than a small training's steps.
    """
    gc.freeze()


@contextmanager
def _garbage_collection_disabled() -> Iterator[None]:
    """Disable garbage collection: it would pause one rank while all others wait for it."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


MIN_TIMED_STEPS = 10
"""Fewest steps from which a rate is taken."""


SLOW_TEAM_RATIO = 1.1
"""Step time of the slowest team over a team's own: above it, the faster team trains on while the
slowest is being timed."""


def time_steps(
    ranks: Ranks, training: Training, steps: int, *, excluded: int, max_timed_s: float | None = None
) -> tuple[Batches, int]:
    """Train `excluded` steps without timing them (compiling, allocating), then time `steps`.

    Fewer than `steps`, but at least MIN_TIMED_STEPS, if they would take longer than `max_timed_s`.
    Also return how many extra steps this team must train while a slower team is still being timed,
    so that all are timed under load. All ranks must call it.
    """
    warm_up_steps = (excluded + 1) // 2
    training.run(excluded - warm_up_steps)
    # One rank compiles longer than another. Without the barrier the others would be timed while it
    # does not train, or right after they were idle.
    ranks.barrier()
    extra_steps = 0
    if warm_up_steps:
        step_times = ranks.gather(seconds_per_step(ranks, training, warm_up_steps))
        slowest_rank = max(step_times)
        slowest_member = max(step_times[k] for k in training.team.members)
        if max_timed_s:
            steps = min(steps, max(MIN_TIMED_STEPS, int(max_timed_s / slowest_rank)))
        if slowest_rank > SLOW_TEAM_RATIO * slowest_member:
            extra_steps = int(steps * (slowest_rank / slowest_member - 1))
    marks = Marks(ranks)
    training.run(steps, marks=marks)
    return marks.finish(1), extra_steps


def seconds_per_step(ranks: Ranks, training: Training, steps: int) -> float:
    """Train `steps` steps between two times at which the device has nothing left to do."""
    synchronize(ranks)
    begun = time.perf_counter()
    training.run(steps)
    synchronize(ranks)
    return (time.perf_counter() - begun) / steps
