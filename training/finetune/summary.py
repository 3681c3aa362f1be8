"""Output of a fine-tuning for users: TensorBoard logs, summary.json, summary.txt (node side)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fixtures.records.files import write_json
from fixtures.records.model import SCHEMA
from fixtures.wording import counted

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks
    from training.finetune.loop import StepHistory

COMPLETE = "complete"
SCALARS = ("loss", "gradient_norm", "learning_rate")


class TensorBoardLog:
    """The TensorBoard scalars of one training; only rank 0 writes them."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            self._writer: Any = None
            self.unavailable_reason = f"tensorboard is not installed on the node ({error})"
            return
        self.folder, self.unavailable_reason = folder, ""
        for old in folder.glob("events.*"):
            old.unlink()
        self._writer = SummaryWriter(str(folder))

    def add_step(self, step: int, loss: float, norm: float, learning_rate: float) -> None:
        """Write the scalars of a step."""
        if self._writer is not None:
            for name, value in zip(SCALARS, (loss, norm, learning_rate), strict=True):
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def completeness(self, steps: int) -> str | None:
        """Return COMPLETE or what is missing, read from the files; None without tensorboard."""
        if self._writer is None:
            return None
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events: Any = EventAccumulator(str(self.folder), size_guidance={"scalars": 0})
        events.Reload()
        for name in SCALARS:
            logged = len(events.Scalars(name)) if name in events.Tags()["scalars"] else 0
            if logged != steps:
                return f"TensorBoard has {logged} of {counted(steps, 'value')} of {name}"
        return COMPLETE


def folder(ranks: Ranks) -> Path:
    """Return the directory for the files of all trainings of a run."""
    return Path(ranks.spec["run_directory"]) / "finetune"


def table(history: StepHistory, tokens_per_s: list[float]) -> list[dict[str, float]]:
    """Return one row per step; tokens/s are those of this rank."""
    return [
        {
            "step": k + 1, "loss": round(loss, 5), "gradient_norm": float(f"{norm:.5g}"),
            "learning_rate": float(f"{learning_rate:.4g}"),
            "tokens_per_s_gpu": round(step_tokens_per_s, 1),
        }
        for k, (loss, norm, learning_rate, step_tokens_per_s) in enumerate(
            zip(history.losses, history.norms, history.learning_rates, tokens_per_s, strict=True)
        )
    ]  # fmt: skip


def check_finite(history: StepHistory, where: str) -> None:
    """Raise RuntimeError for the first step whose loss or gradient norm is not finite."""
    for k, (loss, norm) in enumerate(zip(history.losses, history.norms, strict=True), 1):
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise RuntimeError(
                f"{where}: loss {loss}, gradient norm {norm} at step {k} of {len(history.losses)}"
            )


def write(folder: Path, data: dict[str, Any]) -> None:
    """Write summary.json, and the same as text to summary.txt."""
    write_json(folder / "summary.json", {"schema": SCHEMA, **data})
    (folder / "summary.txt").write_text(format_summary(data), encoding="utf-8")


def format_summary(data: dict[str, Any]) -> str:
    """Return the trainings of a run side by side as text."""
    columns: dict[str, dict[str, Any]] = data["trainings"]
    names = [
        n for n in dict.fromkeys(k for entry in columns.values() for k in entry) if n != "table"
    ]
    width = max(len(name) for name in names) + 2
    column_width = max(
        14, *(len(_format(entry.get(n, ""))) + 2 for entry in columns.values() for n in names)
    )
    lines = [f"{'':{width}}" + "".join(f"{name:>{column_width}}" for name in columns)]
    lines += [
        f"{n:{width}}"
        + "".join(f"{_format(entry.get(n, '')):>{column_width}}" for entry in columns.values())
        for n in names
    ]
    for name, entry in columns.items():
        lines += ["", f"{name}: step, loss, gradient norm, learning rate, tokens/s/GPU"]
        lines += ["  ".join(f"{value:>10.6g}" for value in row.values()) for row in entry["table"]]
    return "\n".join(lines) + "\n"


def _format(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
