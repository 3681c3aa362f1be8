"""The reference run: a fixed small training in fp32 whose losses are known (reference.py).

Strategies, wrapping, accumulation and resumption change how a step is computed, not its result: on
any hardware, the losses of this run are equal up to the rounding of sums.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from training.loop import Training
from training.settings import Settings
from training.strategies import Team, local_shard

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks

STEPS = 12
SINGLE_BATCH = 8


def global_batch_for(team_size: int) -> int:
    """Return sequences per step over all ranks: the fewest from 8 on that are even on each rank."""
    return 2 * team_size * -(-SINGLE_BATCH // (2 * team_size))


def settings_for(
    strategy: str, *, global_batch: int = SINGLE_BATCH, team_size: int = 1, **overrides: Any
) -> Settings:
    """Return its settings with `global_batch` sequences per step, one forward pass per rank."""
    values: dict[str, Any] = {
        "strategy": strategy, "preset": "tiny", "dtype": "fp32", "batch": global_batch // team_size,
        "global_batch": global_batch, "steps": STEPS, "learning_rate": 1e-2,
    }  # fmt: skip
    return Settings(**{**values, **overrides})


def new_training(settings: Settings, team: Team) -> Training:
    """Return the training before its first step; its data are one epoch of all its steps."""
    return Training(settings, team, samples=STEPS * settings.global_batch)


def losses(settings: Settings, team: Team) -> list[float]:
    """Train with these settings and return the loss of every step."""
    return new_training(settings, team).run().losses


def max_difference_percent(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the largest difference of two loss curves, in % of the second one's value there."""
    largest = max(abs(a - b) / abs(b) for a, b in zip(one, other, strict=True))
    return float(f"{100 * largest:.6g}")


def parameter_digest(training: Training) -> str:
    """Return the SHA-256 of the names and bytes of the parameters that this rank holds."""
    digest = hashlib.sha256()
    for name, parameter in training.model.decoder.named_parameters():
        digest.update(name.encode())
        digest.update(_tensor_bytes(parameter))
    return digest.hexdigest()


def count_differences(one: Any, other: Any) -> int:
    """Return how many tensors of two states (nested dicts) differ in a bit or are in one only."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same = (
            one.shape == other.shape
            and one.dtype == other.dtype
            and _tensor_bytes(one) == _tensor_bytes(other)
        )
        return int(not same)
    if isinstance(one, dict) and isinstance(other, dict):
        names = one.keys() | other.keys()
        return sum(count_differences(one.get(name), other.get(name)) for name in names)
    return int(one != other)


def _tensor_bytes(tensor: Tensor) -> bytes:
    shard = local_shard(tensor.detach()).cpu().contiguous()
    return ctypes.string_at(shard.data_ptr(), shard.numel() * shard.element_size())


def main() -> None:
    """Print the reference curve."""
    torch.set_num_threads(1)
    team = Team(members=(0,), rank=0, device=torch.device("cpu"), group=None)
    print("\n".join(f"    {loss!r}," for loss in losses(settings_for("single"), team)))


def majority(ranks: Ranks, value: str) -> str:
    """Return the value that most ranks have; of equally frequent ones the lowest rank's."""
    values: list[str] = ranks.gather(value)
    return max(values, key=lambda x: (values.count(x), -values.index(x)))


if __name__ == "__main__":
    main()
