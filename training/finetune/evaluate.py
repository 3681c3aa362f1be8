"""Does the model call the right function with the right arguments? (node side)

    python -m training.finetune.evaluate FINAL --data FILE [--model PATH]

The model is given a conversation up to a function call, and says the call itself, word by word the
likeliest. Rates are in % of the calls that were asked for.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.finetune import glaive, packing
from training.finetune.settings import InputError, Settings

RATES = ("parses", "function", "arguments", "exact")
MOST_TOKENS = 200
"""Of a call; what is longer than any that was asked for, by half, is cut off."""

BATCH = 16


@dataclass(frozen=True)
class Answer:
    """A call that was expected, and what the model said."""

    expected: str
    said: str

    def grades(self) -> dict[str, bool]:
        """Each grade needs the one before it; `exact` is the text, but for blanks around it."""
        wanted, found = glaive.call_of(self.expected), glaive.call_of(self.said)
        parses = found is not None
        function = found is not None and wanted is not None and found.name == wanted.name
        arguments = function and found is not None and wanted is not None
        arguments = arguments and dict(found.arguments) == dict(wanted.arguments)  # type: ignore[union-attr]
        exact = arguments and self.said.strip() == self.expected.strip()
        return {"parses": parses, "function": function, "arguments": arguments, "exact": exact}


def rates(answers: Sequence[Answer]) -> dict[str, float]:
    """% of the answers that have each grade; ValueError where nothing was asked."""
    if not answers:
        raise ValueError("no call was asked for: nothing to evaluate")
    grades = [answer.grades() for answer in answers]
    return {name: 100 * sum(g[name] for g in grades) / len(grades) for name in RATES}


def ask(model: Any, tokenizer: Any, conversations: Sequence[glaive.Conversation]) -> list[Answer]:
    """The model's answer to every function call of these conversations."""
    import torch

    asked = [
        ([token for text in before for token in packing.piece(tokenizer, text)], expected)
        for conversation in conversations
        for before, expected in glaive.questions(conversation, tokenizer.eos_token)
    ]
    asked.sort(key=lambda one: len(one[0]))  # like lengths together: less to pad
    device = next(model.parameters()).device
    model.eval()
    answers = []
    for begin in range(0, len(asked), BATCH):
        part = asked[begin : begin + BATCH]
        width = max(len(tokens) for tokens, _ in part)
        ids = torch.full((len(part), width), int(tokenizer.pad_token_id), device=device)
        mask = torch.zeros_like(ids)
        for row, (tokens, _) in enumerate(part):
            # On the left: what is said next follows the last token of each.
            ids[row, width - len(tokens) :] = torch.tensor(tokens, device=device)
            mask[row, width - len(tokens) :] = 1
        longest = max(len(packing.piece(tokenizer, text)) for _, text in part)
        with torch.no_grad():
            out = model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=min(MOST_TOKENS, longest + longest // 2),
                do_sample=False,
                use_cache=True,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        said = tokenizer.batch_decode(out[:, width:], skip_special_tokens=True)
        answers += [Answer(text, s.strip()) for (_, text), s in zip(part, said, strict=True)]
    return answers


def settings_of(final: Path) -> Settings:
    """What a `final/` was trained with."""
    path = final / "settings.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        parts = {
            f.name: type(getattr(Settings(), f.name))(**data[f.name])
            for f in dataclasses.fields(Settings)
            if f.name != "name"
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{final} is no final/ of a training: settings.json: {error}") from error
    return Settings(name=data["name"], **parts)


def main() -> None:
    from training.finetune import checkpoint, model

    parser = argparse.ArgumentParser(prog="python -m training.finetune.evaluate")
    parser.add_argument("final", type=Path, help="the final/ that a training left")
    parser.add_argument("--data", type=Path, required=True, help="conversations, Glaive v2 format")
    parser.add_argument("--model", metavar="PATH", help="where the base model is now")
    options = parser.parse_args()
    try:
        settings = settings_of(options.final)
        if options.model is not None:
            settings = settings.but("model", path=options.model)
        conversations, _ = glaive.read(options.data)
        model.offline()
        import torch
        from transformers import AutoTokenizer

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        found = checkpoint.reload(options.final, settings, device)
        tokenizer = AutoTokenizer.from_pretrained(options.final, local_files_only=True)
        answers = ask(found, tokenizer, conversations)
        shown = {"calls": len(answers), **{k: round(v, 1) for k, v in rates(answers).items()}}
    except (InputError, ValueError) as error:
        sys.exit(f"python -m training.finetune.evaluate: {error}")
    print(json.dumps(shown, indent=1))


if __name__ == "__main__":
    main()
