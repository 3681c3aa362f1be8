"""One training from its settings to its measured figures, on all ranks (node side)."""

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
"""Largest share of a GPU's memory that a pass may need by the estimate."""


@dataclass
class TrainingRun:
    """One training: its settings, data, model, history and times."""

    settings: Settings
    folder: Path
    prepared: prepare.PreparedData
    history: loop.StepHistory
    cost: model.TrainingCost
    peft_model: Any
    loss_model: Any
    log: summary.TensorBoardLog | None
    excluded: int
    """Steps at the start that are excluded from rates."""
    resident_bytes: int
    """Bytes of weights on this rank, after sharding."""
    model_bytes: int
    """Bytes of weights of the whole model."""
    seconds: dict[str, float]
    """Seconds of each phase, start-up included."""
    notes: list[str] = field(default_factory=list)

    def tokens_per_s(self) -> list[float]:
        """Return this rank's tokens/s in each step, without waiting for slower ranks."""
        pairs = zip(self.history.tokens, self.history.seconds, strict=True)
        return [tokens / seconds for tokens, seconds in pairs]

    def summary_entry(self, ranks: Ranks) -> dict[str, Any]:
        """Return the training's entry for summary and record: settings, times and table."""
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
            "steps": len(self.history.losses),
            "padding": self.prepared.about["padding"],
            **{f"{name}_s": value for name, value in self.seconds.items()},
        }
        if ranks.on_gpu:
            data["peak_gib"] = round(torch.cuda.max_memory_allocated() / model.GIB, 1)
        return data | {"table": summary.table(self.history, self.tokens_per_s())}

    def write_answers(self, answers: list[evaluate.Answer]) -> None:
        """Write every answer of the evaluation to answers.jsonl, for users."""
        lines = [json.dumps({"expected": a.expected, "said": a.text}) + "\n" for a in answers]
        (self.folder / "answers.jsonl").write_text("".join(lines), encoding="utf-8")


def run_training(
    ranks: Ranks,
    settings: Settings,
    *,
    log: bool = False,
    max_steps: int | None = None,
    excluded: int = 0,
    samples: int = prepare.SAMPLE_CONVERSATIONS,
) -> TrainingRun:
    """Prepare the data, build the model, train; at most `max_steps` steps of the settings."""
    begun = time.time()
    settings.training.passes_per_step(ranks.world_size)  # raises before any weight is allocated
    folder = summary.folder(ranks) / settings.name
    if ranks.rank == 0:
        prepare.prepare(settings, folder / "data", samples=samples)
    wait_for_all_ranks(ranks)
    prepared = prepare.load_prepared(folder / "data")
    seconds = {"prepare": loop.elapsed(begun)}
    begun = time.time()
    if ranks.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    peft_model = model.add_adapters(
        model.build(settings.model, ranks.device, seed=settings.training.seed),
        settings.lora,
        seed=settings.training.seed,
    )
    trainable, total = model.count_parameters(peft_model)
    cost = model.TrainingCost(peft_model.get_base_model().config, trainable, total)
    settings, notes = fit_to_gpu(settings, cost, ranks)
    model_bytes = model.resident_bytes(peft_model)
    loss_model = model.prepare_for_training(peft_model, settings, ranks)
    resident_bytes = model.resident_bytes(peft_model)
    seconds["build"] = loop.elapsed(begun)
    begun = time.time()
    tensorboard = (
        summary.TensorBoardLog(folder / "tensorboard") if log and ranks.rank == 0 else None
    )
    train = loop.train
    if settings.distributed.strategy == "zero3":
        from training.finetune import zero3

        train = zero3.train
    history = train(
        loss_model,
        prepared.packed,
        settings,
        ranks,
        max_steps=max_steps,
        on_step=tensorboard.add_step if tensorboard else None,
    )
    if tensorboard is not None:
        tensorboard.close()
    seconds["train"] = loop.elapsed(begun)
    return TrainingRun(
        settings, folder, prepared, history, cost, peft_model, loss_model, tensorboard, excluded,
        resident_bytes, model_bytes, seconds, notes,
    )  # fmt: skip


def fit_to_gpu(
    settings: Settings, cost: model.TrainingCost, ranks: Ranks
) -> tuple[Settings, list[str]]:
    """Reduce the batch size to what fits into the GPU, with more passes per step instead."""
    if not ranks.on_gpu:
        return settings, []
    memory = torch.cuda.get_device_properties(ranks.device).total_memory / model.GIB
    return fit_to_memory(settings, cost, memory * MEMORY_SHARE)


def fit_to_memory(
    settings: Settings, cost: model.TrainingCost, available_gib: float
) -> tuple[Settings, list[str]]:
    """Return settings whose batch needs at most `available_gib`, and a note if it was reduced."""
    training = settings.training
    batch_size = training.batch_size

    def needed_gib(sequences: int) -> float:
        return cost.memory_gib(
            sequences * settings.data.max_length, checkpointing=training.gradient_checkpointing
        )

    while batch_size > 1 and batch_size % 2 == 0 and needed_gib(batch_size) > available_gib:
        batch_size //= 2
    if batch_size == training.batch_size:
        return settings, []
    too_large = needed_gib(training.batch_size)
    note = f"batches of {batch_size}: {training.batch_size} would need {too_large:.0f} GiB"
    return replace(settings, training=replace(training, batch_size=batch_size)), [note]


def wait_for_all_ranks(ranks: Ranks) -> None:
    """Wait until all ranks are here, up to the collective timeout: tokenizing takes minutes."""
    dist.all_reduce(torch.zeros(1, device=ranks.device))
    if ranks.on_gpu:
        torch.cuda.synchronize()


def release_model(training: TrainingRun) -> None:
    """Free the memory of a training's model."""
    training.peft_model = training.loss_model = None
    gc.collect()
    if torch.cuda.is_available():
        torch._dynamo.reset()
        torch.cuda.empty_cache()
