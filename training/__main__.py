"""Training by hand: `torchrun --nproc-per-node=8 -m training --strategy fsdp --preset 8b-short`.

Leaves the record that a job of the suite leaves, in --out, and prints the table of steps.
`pytest -m multinode --cluster replay --from=OUT` judges it.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from fixtures.suggestions import ArgumentParser
from fixtures.workloads.runtime import standalone
from fixtures.workloads.runtime.spec import describe, module_of
from training.settings import CHOICES, STRATEGIES, Settings, SettingsError, settings_of

HELP = {
    "preset": "shape of the model; default: the one that criteria judge on this device",
    "sequence": "tokens per sequence; 0: the preset's",
    "batch": "sequences per rank and forward pass; default: the fastest that fits",
    "global_batch": "sequences per step over all ranks, by accumulation",
    "recompute": "block: compute activations again in the backward pass",
    "wrap": "what FSDP shards as one unit",
    "reshard": "FSDP frees a block's parameters after its forward pass",
    "offload": "FSDP keeps parameters, gradients and optimizer on the host",
    "data": "text or JSON-lines file; without it synthetic tokens",
    "workers": "data loader processes per rank",
    "checkpoint": "directory of checkpoints",
    "save_every": "steps; 0: at the end only",
    "resume": "continue from the newest intact checkpoint",
}


def main() -> None:
    parser = ArgumentParser(
        prog="python -m training", description=__doc__, argument_default=argparse.SUPPRESS
    )
    parser.add_argument("--strategy", choices=STRATEGIES, required=True)
    parser.add_argument("--out", type=Path, required=True, help="the run directory to write to")
    parser.add_argument("--cpu", action="store_true", help="on the CPU although there are GPUs")
    parser.add_argument(
        "--checks", action="store_true", help="also the small run whose losses are known"
    )
    parser.add_argument(
        "--deadline", type=float, default=None, metavar="S", help="end it after S seconds"
    )
    for field in fields(Settings):
        if field.name == "strategy":
            continue
        options: dict[str, Any] = {"help": HELP.get(field.name)}
        if isinstance(field.default, bool):
            options["action"] = argparse.BooleanOptionalAction
        else:
            options |= {"type": type(field.default), "metavar": field.name.upper()}
        if field.name in CHOICES:
            options["metavar"] = "|".join(CHOICES[field.name])
        parser.add_argument(f"--{field.name.replace('_', '-')}", **options)
    arguments = vars(parser.parse_args())
    strategy, out, deadline = (arguments.pop(name) for name in ("strategy", "out", "deadline"))
    cpu, checks = arguments.pop("cpu", False), arguments.pop("checks", False)
    try:
        settings_of({**arguments, "strategy": strategy})
    except SettingsError as error:
        parser.error(str(error))
    name = f"training_{strategy}"
    metrics = describe(module_of(name)).metrics
    request = standalone.Request(
        names=[name], out=out, params={**arguments, "show": True, "checks": checks},
        metrics=metrics, deadline_s=deadline, cpu=cpu,
    )  # fmt: skip
    try:
        standalone.start(request)
    except SettingsError as error:
        # Errors that only the ranks can detect: all raise the same, so one reports it.
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write(f"{parser.prog}: error: {error}\n")
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
