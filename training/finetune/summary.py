"""What a fine-tuning leaves for people: TensorBoard logs, summary.json, summary.txt (node side)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fixtures.records.files import write_json
from fixtures.records.model import SCHEMA

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks
    from training.finetune.loop import Trained

COMPLETE = "complete"
SCALARS = ("loss", "gradient_norm", "learning_rate")


class Log:
    """One training's TensorBoard scalars, a step behind the training; rank 0 has one."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            self._writer: Any = None
            self.why = f"tensorboard is not installed on the node ({error})"
            return
        self.folder, self.why = folder, ""
        for old in folder.glob("events.*"):
            old.unlink()
        self._writer = SummaryWriter(str(folder))

    def step(self, step: int, loss: float, norm: float, rate: float) -> None:
        if self._writer is not None:
            for name, value in zip(SCALARS, (loss, norm, rate), strict=True):
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def state(self, steps: int) -> str | None:
        """COMPLETE where every step's scalars are read back; None where they cannot be written."""
        if self._writer is None:
            return None
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events: Any = EventAccumulator(str(self.folder), size_guidance={"scalars": 0})
        events.Reload()
        for name in SCALARS:
            found = len(events.Scalars(name)) if name in events.Tags()["scalars"] else 0
            if found != steps:
                return f"TensorBoard has {found} of {steps} values of {name}"
        return COMPLETE


def folder(ranks: Ranks) -> Path:
    """Where all trainings of a run leave their files."""
    return Path(ranks.spec["run_directory"]) / "finetune"


def table(trained: Trained, rates: list[float]) -> list[dict[str, float]]:
    """One row a step; tokens/s are those of the slowest rank."""
    return [
        {
            "step": k + 1, "loss": round(loss, 5), "gradient_norm": float(f"{norm:.5g}"),
            "learning_rate": float(f"{rate:.4g}"), "tokens_per_s_gpu": round(speed, 1),
        }
        for k, (loss, norm, rate, speed) in enumerate(
            zip(trained.losses, trained.norms, trained.rates, rates, strict=True)
        )
    ]  # fmt: skip


def finite(trained: Trained, where: str) -> None:
    """RuntimeError with the first step whose loss or gradient is no number any more."""
    for k, (loss, norm) in enumerate(zip(trained.losses, trained.norms, strict=True), 1):
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise RuntimeError(
                f"{where}: loss {loss}, gradient norm {norm} at step {k} of {len(trained.losses)}"
            )


def write(folder: Path, data: dict[str, Any]) -> None:
    """summary.json, and the same for reading as summary.txt."""
    write_json(folder / "summary.json", {"schema": SCHEMA, **data})
    (folder / "summary.txt").write_text(text(data), encoding="utf-8")


def text(data: dict[str, Any]) -> str:
    """The summary of one training, or the trainings of a run side by side."""
    columns: dict[str, dict[str, Any]] = data["trainings"]
    names = [n for n in dict.fromkeys(k for one in columns.values() for k in one) if n != "table"]
    width = max(len(name) for name in names) + 2
    wide = max(14, *(len(_shown(one.get(n, ""))) + 2 for one in columns.values() for n in names))
    lines = [f"{'':{width}}" + "".join(f"{name:>{wide}}" for name in columns)]
    lines += [
        f"{n:{width}}" + "".join(f"{_shown(one.get(n, '')):>{wide}}" for one in columns.values())
        for n in names
    ]
    for name, one in columns.items():
        lines += ["", f"{name}: step, loss, gradient norm, learning rate, tokens/s/GPU"]
        lines += ["  ".join(f"{value:>10.6g}" for value in row.values()) for row in one["table"]]
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
