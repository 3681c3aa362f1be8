"""The training loop: one optimizer step after another, and what each of them showed."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fixtures.workloads.runtime.timing import Batches, Marks, synchronize
from training import checkpoint
from training.attention import Kernel
from training.data import Feed, dataset
from training.schedule import rate
from training.settings import Settings
from training.strategies import Spread, Team

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks


@dataclass
class History:
    """What a run showed, step by step; `numbers` waits for the device."""

    first: int = 0
    """The step that the run began with."""
    rates: list[float] = field(default_factory=list)
    _shown: list[Tensor] = field(default_factory=list)

    def add(self, loss: Tensor, norm: Tensor, learning_rate: float) -> None:
        self._shown.append(torch.stack((loss.detach().float(), norm.float())))
        self.rates.append(learning_rate)

    def _numbers(self) -> list[list[float]]:
        found: list[list[float]] = torch.stack(self._shown).cpu().tolist() if self._shown else []
        return found

    @property
    def losses(self) -> list[float]:
        """Nats a token, mean over the team."""
        return [loss for loss, _ in self._numbers()]

    @property
    def norms(self) -> list[float]:
        """Of the gradient, before it was clipped."""
        return [norm for _, norm in self._numbers()]


class Training:
    """A model, its data and its optimizer, as one team trains it."""

    def __init__(
        self, settings: Settings, team: Team, *, samples: int = 0, kernel: Kernel | None = None
    ) -> None:
        self.settings = settings
        self.team = team
        self.kernel = kernel or Kernel()
        passes = settings.accumulation(team.size)
        a_step = passes * settings.batch * team.size
        data = dataset(settings, samples or settings.steps * a_step)
        self.feed = Feed(data, settings, rank=team.rank, ranks=team.size)
        self.spread = Spread(settings, team, repeat_kv=self.kernel.repeat_kv)
        self.optimizer = torch.optim.AdamW(
            self.spread.module.parameters(),
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=settings.weight_decay,
            fused=team.device.type == "cuda" and not settings.offload,
        )
        self.history = History()
        self.batches = iter(self.feed)
        self.tokens_a_step = passes * settings.batch * settings.tokens
        """Of one rank."""
        if settings.resume and (newest := checkpoint.newest(Path(settings.checkpoint))):
            self.load(newest)

    @property
    def step(self) -> int:
        """Steps done."""
        return self.history.first + len(self.history.rates)

    def run(self, steps: int | None = None, *, marks: Marks | None = None) -> History:
        """Train for so many steps, or to the end; a mark before the first and after each."""
        steps = self.settings.steps - self.step if steps is None else steps
        chosen = self.kernel.backend
        backends = [b for b in (chosen, *ANY) if b is not None]
        with _collecting_later(), sdpa_kernel(backends, set_priority=chosen is not None):
            if marks:
                marks.mark()
            for _ in range(steps):
                self._one(next(self.batches))
                if marks:
                    marks.mark()
                every = self.settings.save_every
                if every and self.settings.checkpoint and self.step % every == 0:
                    self.save()
        return self.history

    def _one(self, batches: list[Tensor]) -> None:
        s = self.settings
        learning_rate = rate(
            self.step, peak=s.learning_rate, steps=s.steps, warm_up=s.warm_up, last=s.last_rate
        )
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        loss = torch.zeros((), device=self.team.device)
        for k, batch in enumerate(batches):
            tokens = batch.to(self.team.device, non_blocking=True)
            with self.spread.accumulating(k == len(batches) - 1):
                part = self.spread.module(tokens[:, :-1], tokens[:, 1:]) / len(batches)
                part.backward()
            loss += part.detach()
        norm = self.spread.clip(s.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.history.add(self.team.mean(loss), norm, learning_rate)

    # --- checkpoints

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds; shards stay shards."""
        return checkpoint.state_of(self.spread.module, self.optimizer)

    def save(self) -> Path:
        """Write a checkpoint of the steps done; all ranks of the team must call it."""
        return checkpoint.save(
            Path(self.settings.checkpoint), self.step, self.state(), team=self.team
        )

    def load(self, path: Path) -> None:
        """Go on from a checkpoint, of whatever number of ranks."""
        step = checkpoint.load(path, self.spread.module, self.optimizer, team=self.team)
        self.history = History(first=step)
        self.feed.step = step
        self.batches = iter(self.feed)


ANY = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)


@contextmanager
def _collecting_later() -> Iterator[None]:
    """Python's garbage collector stops one rank at a time, and all others wait for it."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


LEAST = 10
"""Steps that a rate is taken from at the least."""


UNEVEN = 1.1
"""How much slower the slowest team is where the others go on until it has been timed."""


def timed(
    ranks: Ranks, training: Training, steps: int, *, excluded: int, longest_s: float | None = None
) -> tuple[Batches, int]:
    """Train for `excluded` steps that are not timed (compiling, allocating), then for `steps`.

    Fewer than `steps`, but not fewer than LEAST, where they would take longer than `longest_s`.
    The number is that of the steps a team has to spare: while it does them, a slower one is still
    being timed. All ranks must call it.
    """
    warm = (excluded + 1) // 2
    training.run(excluded - warm)
    # One compiles longer than another. It is waited for here, or the others would be timed without
    # it, or after they stood idle.
    ranks.barrier()
    spare = 0
    if warm:
        paces = ranks.gather(_step_s(ranks, training, warm))
        slowest, own = max(paces), max(paces[k] for k in training.team.members)
        if longest_s:
            steps = min(steps, max(LEAST, int(longest_s / slowest)))
        if slowest > UNEVEN * own:
            spare = int(steps * (slowest / own - 1))
    marks = Marks(ranks)
    training.run(steps, marks=marks)
    return marks.finish(1), spare


def _step_s(ranks: Ranks, training: Training, steps: int) -> float:
    synchronize(ranks)
    begun = time.perf_counter()
    training.run(steps)
    synchronize(ranks)
    return (time.perf_counter() - begun) / steps
