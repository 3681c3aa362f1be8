"""Evaluation: does the model call the right function with the right arguments? (node side)

    python -m training.finetune.evaluate FINAL --data FILE [--model PATH]

The model is given a conversation up to a function call and generates the call by greedy decoding.
Rates are in % of the expected calls.
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

GRADES = ("parses", "function", "arguments", "exact")
MAX_CALL_TOKENS = 200
"""Longest generated call; also at most 1.5 times the longest expected one of its batch."""

BATCH_SIZE = 16


@dataclass(frozen=True)
class Answer:
    """An expected call, and the model's text."""

    expected: str
    text: str

    def grades(self) -> dict[str, bool]:
        """Return the grades, each implying those before; `exact`: equal text up to outer blanks."""
        expected_call, call = glaive.call_of(self.expected), glaive.call_of(self.text)
        parses = call is not None
        function = (
            call is not None and expected_call is not None and call.name == expected_call.name
        )
        arguments = function and call is not None and expected_call is not None
        arguments = arguments and dict(call.arguments) == dict(expected_call.arguments)  # type: ignore[union-attr]
        exact = arguments and self.text.strip() == self.expected.strip()
        return {"parses": parses, "function": function, "arguments": arguments, "exact": exact}


def grade_rates(answers: Sequence[Answer]) -> dict[str, float]:
    """Return the % of the answers with each grade; ValueError if there are none."""
    if not answers:
        raise ValueError("no call was asked for: nothing to evaluate")
    grades = [answer.grades() for answer in answers]
    return {name: 100 * sum(g[name] for g in grades) / len(grades) for name in GRADES}


def generate_answers(
    model: Any, tokenizer: Any, conversations: Sequence[glaive.Conversation]
) -> list[Answer]:
    """Return the model's answer for every function call of these conversations."""
    import torch

    prompts = [
        ([token for text in texts for token in packing.tokenize(tokenizer, text)], expected)
        for conversation in conversations
        for texts, expected in glaive.expected_calls(conversation, tokenizer.eos_token)
    ]
    prompts.sort(key=lambda prompt: len(prompt[0]))  # similar lengths in a batch: less padding
    device = next(model.parameters()).device
    model.eval()
    answers = []
    for begin in range(0, len(prompts), BATCH_SIZE):
        batch = prompts[begin : begin + BATCH_SIZE]
        width = max(len(tokens) for tokens, _ in batch)
        ids = torch.full((len(batch), width), int(tokenizer.pad_token_id), device=device)
        mask = torch.zeros_like(ids)
        for row, (tokens, _) in enumerate(batch):
            # Padding on the left: generation continues after the last token of each.
            ids[row, width - len(tokens) :] = torch.tensor(tokens, device=device)
            mask[row, width - len(tokens) :] = 1
        longest = max(len(packing.tokenize(tokenizer, expected)) for _, expected in batch)
        with torch.no_grad():
            out = model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=min(MAX_CALL_TOKENS, longest + longest // 2),
                do_sample=False,
                use_cache=True,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        replies = tokenizer.batch_decode(out[:, width:], skip_special_tokens=True)
        answers += [
            Answer(expected, reply.strip())
            for (_, expected), reply in zip(batch, replies, strict=True)
        ]
    return answers


def settings_of(final: Path) -> Settings:
    """Return the settings that a `final/` was trained with."""
    path = final / "settings.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        sections = {
            f.name: type(getattr(Settings(), f.name))(**data[f.name])
            for f in dataclasses.fields(Settings)
            if f.name != "name"
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{final} is not the final/ of a training: settings.json: {error}"
        ) from error
    return Settings(name=data["name"], **sections)


def main() -> None:
    from training.finetune import checkpoint, model

    parser = argparse.ArgumentParser(prog="python -m training.finetune.evaluate")
    parser.add_argument("final", type=Path, help="final/ of a training")
    parser.add_argument("--data", type=Path, required=True, help="conversations, Glaive v2 format")
    parser.add_argument("--model", metavar="PATH", help="directory of the base model")
    options = parser.parse_args()
    try:
        settings = settings_of(options.final)
        if options.model is not None:
            settings = settings.with_values("model", path=options.model)
        conversations, _ = glaive.read(options.data)
        model.set_offline()
        import torch
        from transformers import AutoTokenizer

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        peft_model = checkpoint.reload(options.final, settings, device)
        tokenizer = AutoTokenizer.from_pretrained(options.final, local_files_only=True)
        answers = generate_answers(peft_model, tokenizer, conversations)
        report = {
            "calls": len(answers),
            **{k: round(v, 1) for k, v in grade_rates(answers).items()},
        }
    except (InputError, ValueError) as error:
        sys.exit(f"python -m training.finetune.evaluate: {error}")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
