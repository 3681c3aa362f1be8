"""From a file of conversations to packed sequences on disk, and what is held out (node side).

    python -m training.finetune.prepare --config default.yaml --data FILE --model PATH --out DIR

A training does this itself; alone it shows what a file holds before GPUs are asked for.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.finetune import glaive, model, packing, sample
from training.finetune.settings import InputError, Settings, find, load, told
from training.finetune.shapes import SHAPES

SAMPLES = 400
"""Conversations that the project makes where no file is named."""


@dataclass(frozen=True)
class Prepared:
    """What a rank trains on, and what is asked of the model afterwards."""

    packed: packing.Packed
    held_out: list[glaive.Conversation]
    tokenizer: Any
    about: dict[str, Any]


def prepare(settings: Settings, folder: Path, *, samples: int = SAMPLES) -> None:
    """Write packed.safetensors, held_out.jsonl, tokenizer and about.json into a folder."""
    from safetensors.torch import save_file

    model.offline()
    broken: list[str] = []
    if settings.data.path is None:
        found = [glaive.parse(row) for row in sample.rows(samples, settings.training.seed)]
    else:
        path = Path(settings.data.path)
        found, broken = glaive.read(path, skip_broken=settings.data.skip_broken)
    training, held_out = glaive.split(found, settings.data.held_out, settings.training.seed)
    if not training:
        raise InputError(f"data.held_out {settings.data.held_out} leaves nothing to train on")
    tokenizer = tokenizer_of(settings, training)
    packed = packing.pack(tokenizer, training, settings.data.max_length)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(packed.tensors(), folder / "packed.safetensors")
    tokenizer.save_pretrained(folder / "tokenizer")
    lines = [json.dumps(glaive.row_of(c)) + "\n" for c in held_out]
    (folder / "held_out.jsonl").write_text("".join(lines), encoding="utf-8")
    about = {
        "source": settings.data.path or f"{samples} conversations made by the project",
        "held_out": len(held_out), "broken": broken, **packed.about(),
    }  # fmt: skip
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def tokenizer_of(settings: Settings, training: list[glaive.Conversation]) -> Any:
    """The model's own, or one made for a shape with random weights."""
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


def opened(folder: Path) -> Prepared:
    """What prepare() wrote."""
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    held_out = folder / "held_out.jsonl"
    return Prepared(
        packed=packing.Packed(**load_file(folder / "packed.safetensors")),
        held_out=glaive.read(held_out)[0] if held_out.stat().st_size else [],
        tokenizer=AutoTokenizer.from_pretrained(folder / "tokenizer", local_files_only=True),
        about=json.loads((folder / "about.json").read_text(encoding="utf-8")),
    )


def arguments(parser: argparse.ArgumentParser) -> None:
    """What every command of the fine-tuning takes."""
    parser.add_argument("--model", metavar="PATH", help="local directory; else random weights")
    parser.add_argument("--data", metavar="FILE", help="Glaive v2 format, .json or .jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.finetune.prepare")
    parser.add_argument("--config", default="default.yaml", help="a file of settings")
    arguments(parser)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        settings = load(find(options.config))
        prepare(told(settings, model=options.model, data=options.data), options.out)
    except InputError as error:
        sys.exit(f"python -m training.finetune.prepare: {error}")
    print((options.out / "about.json").read_text(encoding="utf-8"), end="")


if __name__ == "__main__":
    main()
