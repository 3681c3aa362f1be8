"""A training of the small model in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from training.finetune import settings
from training.finetune.settings import Settings


class Alone:
    """The one rank of a training in this process."""

    def __init__(self, root: Path) -> None:
        import torch

        self.spec = {"run_directory": str(root)}
        self.rank, self.local_rank, self.world_size, self.node = 0, 0, 1, "worker0"
        self.on_gpu, self.device = False, torch.device("cpu")

    def gather(self, item: Any) -> list[Any]:
        return [item]

    def barrier(self) -> None:
        pass


def small(steps: int) -> Settings:
    found = settings.load(settings.find("small"))
    return found.with_values("training", steps=steps, batch_size=8)
