"""The fixed small run, in fp32, whose losses everybody must agree on.

Strategies, wrapping, accumulation and resumption change how a step is computed and not what comes
out: on whatever hardware, the losses of this run are equal but for the rounding of sums.
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
from training.strategies import Team, local

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks

STEPS = 12
SINGLE_BATCH = 8


def global_batch(ranks: int) -> int:
    """Sequences a step over all ranks: the least from 8 on that is even on each rank."""
    return 2 * ranks * -(-SINGLE_BATCH // (2 * ranks))


def settings(strategy: str, *, whole: int = SINGLE_BATCH, ranks: int = 1, **more: Any) -> Settings:
    """The run with `whole` sequences a step over so many ranks, one forward pass a rank."""
    chosen: dict[str, Any] = {
        "strategy": strategy, "preset": "tiny", "dtype": "fp32", "batch": whole // ranks,
        "global_batch": whole, "steps": STEPS, "learning_rate": 1e-2,
    }  # fmt: skip
    return Settings(**{**chosen, **more})


def begin(made: Settings, team: Team) -> Training:
    """The run, not yet begun; its data are one epoch of all its steps."""
    return Training(made, team, samples=STEPS * made.global_batch)


def losses(made: Settings, team: Team) -> list[float]:
    """The loss of every step."""
    return begin(made, team).run().losses


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference of two curves, in per cent of the value there."""
    worst = max(abs(a - b) / abs(b) for a, b in zip(one, other, strict=True))
    return float(f"{100 * worst:.6g}")


def digest(training: Training) -> str:
    """Of every bit of the parameters that this rank holds."""
    found = hashlib.sha256()
    for name, parameter in training.spread.decoder.named_parameters():
        found.update(name.encode())
        found.update(_raw(parameter))
    return found.hexdigest()


def differing(one: Any, other: Any) -> int:
    """How many tensors of two states (nested dicts) are not equal bit by bit, or not in both."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same = one.shape == other.shape and one.dtype == other.dtype and _raw(one) == _raw(other)
        return int(not same)
    if isinstance(one, dict) and isinstance(other, dict):
        names = one.keys() | other.keys()
        return sum(differing(one.get(name), other.get(name)) for name in names)
    return int(one != other)


def _raw(tensor: Tensor) -> bytes:
    part = local(tensor.detach()).cpu().contiguous()
    return ctypes.string_at(part.data_ptr(), part.numel() * part.element_size())


def main() -> None:
    """Print the reference curve."""
    torch.set_num_threads(1)
    team = Team(members=(0,), rank=0, device=torch.device("cpu"), group=None)
    print("\n".join(f"    {loss!r}," for loss in losses(settings("single"), team)))


def majority(ranks: Ranks, own: str) -> str:
    """What most ranks have, the first of those that are as many."""
    everybody: list[str] = ranks.gather(own)
    return max(everybody, key=lambda x: (everybody.count(x), -everybody.index(x)))


if __name__ == "__main__":
    main()
