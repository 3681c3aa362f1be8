"""The same training sharded by DeepSpeed ZeRO-3, where it is installed (extra `zero3`; node side).

DeepSpeed owns the passes back, the exchange, clipping and the update; what a step is made of, how
its loss is counted and how it is timed are those of loop.py.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from training.finetune import packing
from training.finetune.loop import Course, Trained, Watch, learning_rate
from training.finetune.model import Tuned, between_libraries
from training.finetune.settings import Settings, check_packages

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks


def train(
    tuned: Tuned,
    packed: packing.Packed,
    settings: Settings,
    ranks: Ranks,
    *,
    watch: Watch | None = None,
    stop: int | None = None,
) -> Trained:
    """All steps of the settings, or the first `stop` of them, as loop.train does them."""
    course = Course(packed, settings, ranks, watch=watch, stop=stop)
    engine = _engine(tuned, settings, ranks, course.passes)
    learned = _learned(packed, course.rows, course.passes, ranks)
    for step in course.begin():
        total = torch.zeros((), device=ranks.device)
        rate = learning_rate(step, settings.training)
        for group in engine.optimizer.param_groups:
            group["lr"] = rate
        for batch in course.batches():
            loss = engine(batch)
            # DeepSpeed divides by passes and ranks; the loss is a mean over all ranks' tokens.
            engine.backward(loss * (course.passes * ranks.world_size / learned[step]))
            total += loss.detach() / learned[step]
            if engine.is_gradient_accumulation_boundary():
                course.marks.mark()
            engine.step()
        dist.all_reduce(total)
        norm = torch.as_tensor(engine.get_global_grad_norm(), device=ranks.device)
        course.note(step, total, norm.float(), rate)
    return course.end()


def _engine(tuned: Tuned, settings: Settings, ranks: Ranks, passes: int) -> Any:
    check_packages("zero3")
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if ranks.on_gpu else "cpu")
    # DeepSpeed reads its place from torchrun's names.
    os.environ |= {
        "RANK": str(ranks.rank),
        "LOCAL_RANK": str(ranks.local_rank),
        "WORLD_SIZE": str(ranks.world_size),
    }
    with between_libraries():
        import deepspeed

        trained = [p for p in tuned.parameters() if p.requires_grad]
        engine, *_ = deepspeed.initialize(
            model=tuned,
            optimizer=torch.optim.AdamW(trained, lr=0.0, weight_decay=0.0),
            config={
                "train_batch_size": settings.training.global_batch_size,
                "train_micro_batch_size_per_gpu": settings.training.batch_size,
                "gradient_accumulation_steps": passes,
                "gradient_clipping": settings.training.max_grad_norm,
                "bf16": {"enabled": ranks.on_gpu},
                "zero_optimization": {"stage": 3},
                "zero_allow_untested_optimizer": True,
                "steps_per_print": 10**9,
            },
        )
        head = tuned.causal.get_output_embeddings().weight
        deepspeed.zero.register_external_parameter(tuned, head)
    return engine


def _learned(packed: packing.Packed, rows: list[list[int]], passes: int, ranks: Ranks) -> list[int]:
    """Tokens that all ranks learn in each step, known before it begins."""
    each = (packed.labels[:, 1:] != packing.IGNORED).sum(dim=1).tolist()
    mine = [sum(each[row] for row in batch) for batch in rows]
    own = [sum(mine[k : k + passes]) for k in range(0, len(mine), passes)]
    return [sum(step) for step in zip(*ranks.gather(own), strict=True)]
