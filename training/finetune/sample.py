"""The project's own conversations with function calls, and a tokenizer for them (node side).

Made by rule from short lists, so that a small model can learn them in seconds; in the format of
Glaive v2, so that what reads and trains on them is what reads and trains on the real ones.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from training.finetune import glaive

CITIES = ("Oslo", "Lima", "Cairo", "Perth")
CURRENCIES = ("USD", "EUR", "JPY")
SYMBOLS = ("ABC", "KLM", "XYZ", "QRS")
WORDS = ("river", "window", "garden", "silver")

FUNCTIONS: dict[str, tuple[str, dict[str, Sequence[str]], str]] = {
    "get_weather": ("How is the weather in {city}?", {"city": CITIES}, "It is sunny in {city}."),
    "get_time": ("What time is it in {city}?", {"city": CITIES}, "It is noon in {city}."),
    "get_exchange_rate": (
        "How many {target} do I get for {source}?",
        {"target": CURRENCIES, "source": CURRENCIES},
        "Two {target}.",
    ),
    "get_stock_price": ("How much is a share of {symbol}?", {"symbol": SYMBOLS}, "It is 7."),
    "translate": ("What is {word} in Italian?", {"word": WORDS}, "I found it."),
}
"""Name: what the user asks, the arguments with their values, what the assistant says at last."""

WORD = r"\w+| ?[^\s\w]+|\s+"
"""What the tokenizer cuts at: a word is the same token wherever it stands, and can be copied."""


def rows(count: int, seed: int = 0) -> list[dict[str, str]]:
    """So many conversations in the format of Glaive v2; the same for the same seed."""
    chance = random.Random(seed)
    every = [
        (name, dict(zip(values, chosen, strict=True)))
        for name, (_, values, _) in FUNCTIONS.items()
        for chosen in itertools.product(*values.values())
        if len(set(chosen)) == len(chosen)
    ]
    return [_row(chance, *chance.choice(every)) for _ in range(count)]


def _row(chance: random.Random, name: str, arguments: dict[str, str]) -> dict[str, str]:
    asked, _, said = FUNCTIONS[name]
    offered = sorted({name, chance.choice([other for other in FUNCTIONS if other != name])})
    listed = "\n".join(
        json.dumps({"name": one, "parameters": sorted(FUNCTIONS[one][1])}) for one in offered
    )
    call = f'{{"name": "{name}", "arguments": \'{json.dumps(arguments)}\'}}'
    return {
        "system": f"SYSTEM: You may call these functions:\n{listed}",
        "chat": (
            f"USER: {asked.format(**arguments)}\n\n\n"
            f"ASSISTANT: {glaive.CALL} {call} {glaive.END}\n\n\n"
            f'FUNCTION RESPONSE: {{"status": "done"}}\n\n\n'
            f"ASSISTANT: {said.format(**arguments)} {glaive.END}\n\n\n"
        ),
    }


def write(path: Path, count: int, seed: int = 0) -> None:
    """A file of conversations, one a line."""
    lines = [json.dumps(row) + "\n" for row in rows(count, seed)]
    path.write_text("".join(lines), encoding="utf-8")


def tokenizer(conversations: Iterable[glaive.Conversation], vocabulary: int) -> Any:
    """A byte-level BPE tokenizer trained on these conversations, as transformers wants it."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bare.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[glaive.END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = ("".join(text for text, _ in glaive.segments(c, "")) for c in conversations)
    bare.train_from_iterator(texts, trainer)
    wrap: Any = PreTrainedTokenizerFast
    return wrap(tokenizer_object=bare, eos_token=glaive.END, pad_token=glaive.END)
