"""One training from its settings to its figures, on all ranks (node side)."""

from __future__ import annotations

import gc
import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from training.finetune import evaluate, loop, model, prepare, summary
from training.finetune.settings import Settings

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks

MEMORY_SHARE = 0.9
"""Of a GPU's memory that a pass may be expected to need."""


@dataclass
class Training:
    """One training of this run: what it was told, what it left."""

    settings: Settings
    folder: Path
    prepared: prepare.Prepared
    found: loop.Trained
    cost: model.Cost
    adapted: Any
    tuned: Any
    log: summary.Log | None
    skip: int
    """Steps at the start that are in no rate."""
    resident: int
    """Bytes of weights that this rank keeps, and of the whole model."""
    whole: int
    seconds: dict[str, float]
    """Where the time went, start-up included."""
    notes: list[str] = field(default_factory=list)

    def rates(self) -> list[float]:
        """Tokens/s of this rank, a step, as if it waited for nobody."""
        pairs = zip(self.found.tokens, self.found.seconds, strict=True)
        return [tokens / seconds for tokens, seconds in pairs]

    def about(self, ranks: Ranks) -> dict[str, Any]:
        """The training for summary and record: what was set, what it took."""
        s = self.settings
        data: dict[str, Any] = {
            "model": s.model.path or f"random weights, {s.model.preset}",
            "strategy": s.distributed.strategy,
            "trainable": self.cost.trainable,
            "parameters": self.cost.total,
            "lora_r": s.lora.r,
            "lora_alpha": s.lora.alpha,
            "lora_targets": str(s.lora.targets),
            "gpus": ranks.world_size,
            "batch_size": s.training.batch_size,
            "global_batch_size": s.training.global_batch_size,
            "max_length": s.data.max_length,
            "gradient_checkpointing": s.training.gradient_checkpointing,
            "compile": model.is_compiled(s, ranks),
            "workers": s.data.workers if ranks.on_gpu else 0,
            "prefetch": s.data.prefetch,
            "environment": json.dumps(s.distributed.environment),
            "steps": len(self.found.losses),
            "padding": self.prepared.about["padding"],
            **{f"{name}_s": value for name, value in self.seconds.items()},
        }
        if ranks.on_gpu:
            data["peak_gib"] = round(torch.cuda.max_memory_allocated() / model.GIB, 1)
        return data | {"table": summary.table(self.found, self.rates())}

    def keep(self, answers: list[evaluate.Answer]) -> None:
        """Every answer of the evaluation, for who wants to read them."""
        lines = [json.dumps({"expected": a.expected, "said": a.said}) + "\n" for a in answers]
        (self.folder / "answers.jsonl").write_text("".join(lines), encoding="utf-8")


def train_once(
    ranks: Ranks,
    settings: Settings,
    *,
    log: bool = False,
    stop: int | None = None,
    skip: int = 0,
    samples: int = prepare.SAMPLES,
) -> Training:
    """Prepare, build, train; `stop` ends it after so many steps of those that were set."""
    begun = time.time()
    settings.training.passes(ranks.world_size)  # before any weight is made
    folder = summary.folder(ranks) / settings.name
    if ranks.rank == 0:
        prepare.prepare(settings, folder / "data", samples=samples)
    wait(ranks)
    prepared = prepare.opened(folder / "data")
    seconds = {"prepare": loop.elapsed(begun)}
    begun = time.time()
    if ranks.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    adapted = model.adapt(
        model.build(settings.model, ranks.device, seed=settings.training.seed),
        settings.lora,
        seed=settings.training.seed,
    )
    trainable, total = model.count(adapted)
    cost = model.Cost(adapted.get_base_model().config, trainable, total)
    settings, notes = fitted(settings, cost, ranks)
    whole = model.resident_bytes(adapted)
    tuned = model.prepared(adapted, settings, ranks)
    resident = model.resident_bytes(adapted)
    seconds["build"] = loop.elapsed(begun)
    begun = time.time()
    writer = summary.Log(folder / "tensorboard") if log and ranks.rank == 0 else None
    steps = loop.train
    if settings.distributed.strategy == "zero3":
        from training.finetune import zero3

        steps = zero3.train
    found = steps(
        tuned, prepared.packed, settings, ranks, stop=stop, watch=writer.step if writer else None
    )
    if writer is not None:
        writer.close()
    seconds["train"] = loop.elapsed(begun)
    return Training(
        settings, folder, prepared, found, cost, adapted, tuned, writer, skip, resident, whole,
        seconds, notes,
    )  # fmt: skip


def fitted(settings: Settings, cost: model.Cost, ranks: Ranks) -> tuple[Settings, list[str]]:
    """Smaller batches and more of them where a GPU has not the memory; the step stays the same."""
    if not ranks.on_gpu:
        return settings, []
    memory = torch.cuda.get_device_properties(ranks.device).total_memory / model.GIB
    return fit(settings, cost, memory * MEMORY_SHARE)


def fit(settings: Settings, cost: model.Cost, gib: float) -> tuple[Settings, list[str]]:
    """The settings with a batch that needs at most `gib`, and a note where it is not theirs."""
    training = settings.training
    batch = training.batch_size

    def need(size: int) -> float:
        return cost.memory_gib(
            size * settings.data.max_length, checkpointing=training.gradient_checkpointing
        )

    while batch > 1 and batch % 2 == 0 and need(batch) > gib:
        batch //= 2
    if batch == training.batch_size:
        return settings, []
    note = (
        f"batches of {batch}: {training.batch_size} would need {need(training.batch_size):.0f} GiB"
    )
    return replace(settings, training=replace(training, batch_size=batch)), [note]


def wait(ranks: Ranks) -> None:
    """Until all ranks are here, as long as a collective may take: tokenizing takes minutes."""
    dist.all_reduce(torch.zeros(1, device=ranks.device))
    if ranks.on_gpu:
        torch.cuda.synchronize()


def release(training: Training) -> None:
    """Give the memory of a training's model back."""
    training.adapted = training.tuned = None
    gc.collect()
    if torch.cuda.is_available():
        torch._dynamo.reset()
        torch.cuda.empty_cache()
