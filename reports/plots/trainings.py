"""The trainings of a run: a line each, the loss of every step, and its curve (login side).

A record of a training has `runs` among the facts of rank 0, with a table of steps (training/).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fixtures.records.fields import is_number
from fixtures.records.model import Record
from fixtures.wording import counted, digits
from reports.plots.charts import Chart
from reports.plots.drawing import BLUE, DARK, GREY, PALE_BLUE, new_figure, svg_of

MAX_RUNS = 40
"""Most trainings that are shown; those of nodes that passed are alike."""
MAX_CURVES = 8
COLOURS = (BLUE, "#8a5300", "#1d6b3a", "#6b3a7d", GREY, "#1c6f7d", PALE_BLUE, DARK)


@dataclass(frozen=True)
class Training:
    """One training."""

    where: str
    what: str
    """Strategy, model and ranks."""
    figures: Mapping[str, str]
    """Title -> value with its unit."""
    headings: Sequence[str] = ()
    steps: Sequence[Sequence[Any]] = ()
    """A row per step, in the order of `headings`; None is a value that was not taken."""

    @property
    def title(self) -> str:
        return f"{self.what}, {self.where}"

    @property
    def losses(self) -> dict[int, float]:
        """Loss by step."""
        if "step" not in self.headings or "loss" not in self.headings:
            return {}
        at, of = self.headings.index("step"), self.headings.index("loss")
        rows = [row for row in self.steps if len(row) == len(self.headings)]
        return {
            int(row[at]): float(row[of])
            for row in rows
            if all(isinstance(row[k], (int, float)) for k in (at, of))
        }


@dataclass
class Trainings:
    """The trainings of the records that were added."""

    found: list[Training] = field(default_factory=list)

    def add(self, record: Record) -> None:
        """Add the trainings of a record."""
        if record.workload.startswith("training_") and record.ranks:
            self.found += _trainings(record)

    @property
    def shown(self) -> list[Training]:
        return self.found[:MAX_RUNS]

    def chart(self) -> Chart | None:
        """Return the curves of the loss; None where no training has steps."""
        curves = [(t.title, t.losses) for t in self.found if len(t.losses) > 1][:MAX_CURVES]
        if not curves:
            return None
        figure, axes = new_figure(7.2, 2.6)
        for k, (label, curve) in enumerate(curves):
            axes.plot(
                list(curve), list(curve.values()), linewidth=1.1, color=COLOURS[k % 8], label=label
            )
        axes.set_xlabel("step", fontsize=7)
        axes.set_ylabel("loss", fontsize=7)
        axes.legend(fontsize=6, frameon=False)
        ends = [(label, list(curve.values())) for label, curve in curves]
        description = "; ".join(f"{label} {digits(y[0])} to {digits(y[-1])}" for label, y in ends)
        return Chart("Loss of the trainings, step by step", description, svg_of(figure))


def _trainings(record: Record) -> Iterator[Training]:
    facts = record.ranks[0].facts
    where = "all nodes" if record.placement == "all" else record.placement
    runs = facts.get("runs")
    for run in runs if isinstance(runs, Sequence) else ():
        if isinstance(run, Mapping):
            what = f"{_text(run, 'strategy')} {_text(run, 'preset')}, {_ranks(run.get('ranks'))}"
            headings, table = run.get("headings"), run.get("table")
            steps = table if isinstance(table, list) and isinstance(headings, list) else []
            rows = [row for row in steps if isinstance(row, list)]
            yield Training(where, what, _figures(run), [str(h) for h in headings or ()], rows)
    if record.workload == "training_finetune":
        for name, run in facts.items():
            if isinstance(run, Mapping) and "train_s" in run:
                yield Training(where, f"fine-tuning {name}, {_text(run, 'model')}", _figures(run))


FIGURES = {
    "parameters": ("parameters", ""), "steps": ("steps", ""), "train_s": ("time", "s"),
    "first_loss": ("first loss", ""), "last_loss": ("last loss", ""),
    "final_loss": ("last loss", ""), "held_out_loss": ("held-out loss", ""),
    "step_s": ("time of a step", "s"),
    "tokens_per_s": ("tokens/s per GPU", ""), "tokens_per_s_gpu": ("tokens/s per GPU", ""),
    "tflops_full": ("TFLOPS per GPU", ""), "model_tflops": ("TFLOPS per GPU", ""),
    "peak_gib": ("peak memory", "GiB"),
}  # fmt: skip
"""Of the facts of a training -> (title, unit)."""


def _figures(run: Mapping[str, Any]) -> dict[str, str]:
    return {
        title: f"{_number(run[name])} {unit}".rstrip()
        for name, (title, unit) in FIGURES.items()
        if is_number(run.get(name))
    }


def _number(value: float) -> str:
    return f"{value / 1e9:.3g} billion" if value >= 1e9 else digits(value)


def _text(run: Mapping[str, Any], name: str) -> str:
    return str(run.get(name) or "")


def _ranks(count: Any) -> str:
    return counted(count, "GPU")
