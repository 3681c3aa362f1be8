"""The training under DeepSpeed ZeRO-3, if it is installed (extra `zero3`; node side).

DeepSpeed does the backward passes, gradient reduction, clipping and the update; the batches of a
step, the definition of its loss and the timing are those of loop.py.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from training.finetune import packing
from training.finetune.loop import StepCallback, StepHistory, TrainingSteps, learning_rate_at
from training.finetune.model import LossModel, deprecations_ignored
from training.finetune.settings import Settings, check_packages

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks


def train(
    loss_model: LossModel,
    packed: packing.PackedSequences,
    settings: Settings,
    ranks: Ranks,
    *,
    on_step: StepCallback | None = None,
    max_steps: int | None = None,
) -> StepHistory:
    """Train all steps of the settings, or the first `max_steps` of them, as loop.train does."""
    training_steps = TrainingSteps(packed, settings, ranks, on_step=on_step, max_steps=max_steps)
    engine = _engine(loss_model, settings, ranks, training_steps.passes_per_step)
    learned_tokens = _learned_tokens_per_step(
        packed, training_steps.sequences_per_pass, training_steps.passes_per_step, ranks
    )
    for step in training_steps.start():
        mean_loss = torch.zeros((), device=ranks.device)
        rate = learning_rate_at(step, settings.training)
        for group in engine.optimizer.param_groups:
            group["lr"] = rate
        for batch in training_steps.batches():
            loss = engine(batch)
            # DeepSpeed divides by passes and ranks; the loss is a mean over all ranks' tokens.
            engine.backward(
                loss * (training_steps.passes_per_step * ranks.world_size / learned_tokens[step])
            )
            mean_loss += loss.detach() / learned_tokens[step]
            if engine.is_gradient_accumulation_boundary():
                training_steps.marks.mark()
            engine.step()
        dist.all_reduce(mean_loss)
        norm = torch.as_tensor(engine.get_global_grad_norm(), device=ranks.device)
        training_steps.finish_step(step, mean_loss, norm.float(), rate)
    return training_steps.finish()


def _engine(loss_model: LossModel, settings: Settings, ranks: Ranks, passes_per_step: int) -> Any:
    check_packages("zero3")
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if ranks.on_gpu else "cpu")
    # DeepSpeed reads its rank from torchrun's variables.
    os.environ |= {
        "RANK": str(ranks.rank),
        "LOCAL_RANK": str(ranks.local_rank),
        "WORLD_SIZE": str(ranks.world_size),
    }
    with deprecations_ignored():
        import deepspeed

        trainable = [p for p in loss_model.parameters() if p.requires_grad]
        engine, *_ = deepspeed.initialize(
            model=loss_model,
            optimizer=torch.optim.AdamW(trainable, lr=0.0, weight_decay=0.0),
            config={
                "train_batch_size": settings.training.global_batch_size,
                "train_micro_batch_size_per_gpu": settings.training.batch_size,
                "gradient_accumulation_steps": passes_per_step,
                "gradient_clipping": settings.training.max_grad_norm,
                "bf16": {"enabled": ranks.on_gpu},
                "zero_optimization": {"stage": 3},
                "zero_allow_untested_optimizer": True,
                "steps_per_print": 10**9,
            },
        )
        head = loss_model.causal.get_output_embeddings().weight
        deepspeed.zero.register_external_parameter(loss_model, head)
    return engine


def _learned_tokens_per_step(
    packed: packing.PackedSequences,
    sequences_per_pass: list[list[int]],
    passes_per_step: int,
    ranks: Ranks,
) -> list[int]:
    """Return the number of tokens that all ranks learn in each step, before training."""
    learned_per_sequence = (packed.labels[:, 1:] != packing.IGNORE_INDEX).sum(dim=1).tolist()
    learned_per_pass = [
        sum(learned_per_sequence[row] for row in batch) for batch in sequences_per_pass
    ]
    learned_per_step = [
        sum(learned_per_pass[k : k + passes_per_step])
        for k in range(0, len(learned_per_pass), passes_per_step)
    ]
    return [sum(step) for step in zip(*ranks.gather(learned_per_step), strict=True)]
