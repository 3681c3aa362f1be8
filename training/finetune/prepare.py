"""Preparation of a data file: packed sequences and held-out conversations (node side).

    python -m training.finetune.prepare --config default.yaml --data FILE --model PATH --out DIR

A training does this itself; run alone, it shows what a file contains before GPUs are allocated.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.finetune import glaive, model, packing, sample
from training.finetune.settings import InputError, Settings, find, load, with_overrides
from training.finetune.shapes import SHAPES

SAMPLE_CONVERSATIONS = 400
"""Synthetic conversations if no data file is given."""


@dataclass(frozen=True)
class PreparedData:
    """The data that a rank trains on, and the conversations for the evaluation."""

    packed: packing.PackedSequences
    held_out: list[glaive.Conversation]
    tokenizer: Any
    about: dict[str, Any]
    """Contents of about.json: source and counts."""


def prepare(settings: Settings, folder: Path, *, samples: int = SAMPLE_CONVERSATIONS) -> None:
    """Write packed.safetensors, held_out.jsonl, tokenizer/ and about.json into a directory."""
    from safetensors.torch import save_file

    model.set_offline()
    broken: list[str] = []
    if settings.data.path is None:
        conversations = [glaive.parse(row) for row in sample.rows(samples, settings.training.seed)]
    else:
        path = Path(settings.data.path)
        conversations, broken = glaive.read(path, skip_broken=settings.data.skip_broken)
    training, held_out = glaive.split(conversations, settings.data.held_out, settings.training.seed)
    if not training:
        raise InputError(f"no data left to train on with data.held_out {settings.data.held_out}")
    tokenizer = tokenizer_of(settings, training)
    packed = packing.pack(tokenizer, training, settings.data.max_length)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(packed.tensors(), folder / "packed.safetensors")
    tokenizer.save_pretrained(folder / "tokenizer")
    lines = [json.dumps(glaive.row_of(c)) + "\n" for c in held_out]
    (folder / "held_out.jsonl").write_text("".join(lines), encoding="utf-8")
    about = {
        "source": settings.data.path or f"{samples} conversations made by the project",
        "held_out": len(held_out), "broken": broken, **packed.counts(),
    }  # fmt: skip
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def tokenizer_of(settings: Settings, training: list[glaive.Conversation]) -> Any:
    """Return the model's tokenizer, or a newly trained one for random weights."""
    from transformers import AutoTokenizer

    if settings.model.path is None:
        return sample.tokenizer(training, min(8192, SHAPES[settings.model.preset]["vocab_size"]))
    try:
        tokenizer = AutoTokenizer.from_pretrained(settings.model.path, local_files_only=True)
    except (OSError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"model.path: {settings.model.path} has no tokenizer: {why}") from error
    if tokenizer.eos_token is None:
        raise InputError(f"model.path: the tokenizer of {settings.model.path} has no end token")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_prepared(folder: Path) -> PreparedData:
    """Read what prepare() wrote."""
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    held_out = folder / "held_out.jsonl"
    return PreparedData(
        packed=packing.PackedSequences(**load_file(folder / "packed.safetensors")),
        held_out=glaive.read(held_out)[0] if held_out.stat().st_size else [],
        tokenizer=AutoTokenizer.from_pretrained(folder / "tokenizer", local_files_only=True),
        about=json.loads((folder / "about.json").read_text(encoding="utf-8")),
    )


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that several commands of the fine-tuning have."""
    parser.add_argument("--model", metavar="PATH", help="local directory; else random weights")
    parser.add_argument("--data", metavar="FILE", help="Glaive v2 format, .json or .jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.finetune.prepare")
    parser.add_argument("--config", default="default.yaml", help="a file of settings")
    add_common_arguments(parser)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        settings = load(find(options.config))
        prepare(with_overrides(settings, model=options.model, data=options.data), options.out)
    except InputError as error:
        sys.exit(f"python -m training.finetune.prepare: {error}")
    print((options.out / "about.json").read_text(encoding="utf-8"), end="")


if __name__ == "__main__":
    main()
