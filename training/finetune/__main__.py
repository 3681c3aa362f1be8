"""A fine-tuning by hand, without Slurm or submitit:

    torchrun --nproc-per-node=8 -m training.finetune --config default.yaml --out DIR
    torchrun ... -m training.finetune --config my.yaml --model PATH --data FILE --out DIR

Leaves DIR/finetune/NAME/final, its logs and DIR/finetune/summary.txt, and the record that a job of
the suite leaves: `pytest --cluster replay --from=DIR` judges it. Without --config it runs what the
suite runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

from fixtures.suggestions import ArgumentParser
from fixtures.workloads.runtime import standalone
from training.finetune import WORKLOAD, glaive
from training.finetune.settings import (
    STRATEGIES,
    InputError,
    Settings,
    check_packages,
    find,
    load,
    with_overrides,
)

DEADLINE_S = 7 * 24 * 3600.0
"""Deadline of a training by hand: practically none; the watchdog only ends one that hangs."""


def main() -> None:
    """Validate all input before torch is imported, then train on torchrun's ranks."""
    parser = ArgumentParser(
        prog="python -m training.finetune",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config", action="append", metavar="FILE",
        help="settings: default.yaml, optimised.yaml, small.yaml or a file; may be repeated",
    )  # fmt: skip
    parser.add_argument("--model", metavar="PATH", help="local directory; else random weights")
    parser.add_argument("--data", metavar="FILE", help="Glaive v2 format, .json or .jsonl")
    parser.add_argument("--strategy", choices=STRATEGIES)
    parser.add_argument("--out", type=Path, required=True, help="the run directory to write to")
    parser.add_argument("--cpu", action="store_true", help="on the CPU although there are GPUs")
    options = parser.parse_args()
    if not options.config and (options.model or options.data or options.strategy):
        parser.error("--model, --data and --strategy go with --config")
    try:
        check_packages(options.strategy or "plain")
        for name in options.config or []:
            _check(_settings(name, options))
    except InputError as error:
        if os.environ.get("RANK", "0") == "0":  # all ranks raise the same error
            print(f"python -m training.finetune: {error}", file=sys.stderr)
        sys.exit(2)
    params = {
        "configs": options.config,
        "model_path": options.model,
        "data_path": options.data,
        "strategy": options.strategy,
    }
    standalone.start(
        standalone.Request(
            names=["training_finetune"],
            out=options.out,
            params=params if options.config else {},
            metrics=[] if options.config else _runnable_metrics(),
            deadline_s=DEADLINE_S if options.config else None,
            cpu=options.cpu,
        )
    )


def _runnable_metrics() -> list[str]:
    """Return the suite's metrics whose packages are installed."""
    zero3 = importlib.util.find_spec("deepspeed") is not None
    return [m for m in WORKLOAD.metrics if zero3 or m != "zero3_loss"]


def _settings(name: str, options: argparse.Namespace) -> Settings:
    return with_overrides(
        load(find(name)), model=options.model, data=options.data, strategy=options.strategy
    )


def _check(settings: Settings) -> None:
    """Detect errors that would otherwise occur only after the GPUs are in use."""
    check_packages(settings.distributed.strategy)
    settings.training.passes_per_step(int(os.environ.get("WORLD_SIZE", "1")))
    if settings.data.path is not None:
        glaive.read(Path(settings.data.path), skip_broken=settings.data.skip_broken)
    for variable, value in settings.distributed.environment.items():
        os.environ.setdefault(variable, value)


if __name__ == "__main__":
    main()
