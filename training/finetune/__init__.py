"""LoRA fine-tuning for function calling: prepare, train, evaluate (node side).

    torchrun --nproc-per-node=8 -m training.finetune --config default.yaml --out DIR

Needs the extra `finetune` beside torch: transformers, peft, accelerate, tensorboard, PyYAML.
"""

from __future__ import annotations

from typing import Any

from fixtures.records.model import Result
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.runtime.spec import Workload

WORKLOAD = Workload(
    metrics={
        "loss": "nats",
        "checkpoint": "state",
        "logs": "state",
        "parses": "%",
        "function": "%",
        "arguments": "%",
        "exact": "%",
        "fsdp_loss": "%",
        "fsdp_share": "%",
        "zero3_loss": "%",
        "rate": "tokens/s",
        "speedup": "%",
        "ooms": "errors",
    },
    of_node=(
        "loss",
        "logs",
        "parses",
        "function",
        "arguments",
        "exact",
        "fsdp_loss",
        "zero3_loss",
        "speedup",
    ),
    needs_torch=True,
    seconds=240,
    cpu_seconds=40,
    deadline_s=1200,
    cpu_deadline_s=300,
    across=True,
    training=True,
)


def run(ranks: Ranks, metrics: list[str], **params: Any) -> Result:
    """Run the trainings that the criteria need, or those of the given settings files."""
    from training.finetune import acceptance

    return acceptance.run(ranks, metrics, **params)
