"""Synthetic conversations with function calls, and a tokenizer for them (node side).

Generated from short lists, so that a small model can learn them in seconds; in the format of
Glaive v2, so that the same code reads and trains on them as on real data.
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
"""By name: the user's question, the arguments with their values, the assistant's final answer."""

TOKEN_PATTERN = r"\w+| ?[^\s\w]+|\s+"
"""Pieces the tokenizer splits text into: a word is the same token anywhere, and can be copied."""


def rows(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Return `count` conversations in the format of Glaive v2; equal for equal seeds."""
    rng = random.Random(seed)
    calls = [
        (name, dict(zip(values, chosen, strict=True)))
        for name, (_, values, _) in FUNCTIONS.items()
        for chosen in itertools.product(*values.values())
        if len(set(chosen)) == len(chosen)
    ]
    return [_row(rng, *rng.choice(calls)) for _ in range(count)]


def _row(rng: random.Random, name: str, arguments: dict[str, str]) -> dict[str, str]:
    question, _, answer = FUNCTIONS[name]
    offered = sorted({name, rng.choice([other for other in FUNCTIONS if other != name])})
    listed = "\n".join(
        json.dumps({"name": function, "parameters": sorted(FUNCTIONS[function][1])})
        for function in offered
    )
    call = f'{{"name": "{name}", "arguments": \'{json.dumps(arguments)}\'}}'
    return {
        "system": f"SYSTEM: You may call these functions:\n{listed}",
        "chat": (
            f"USER: {question.format(**arguments)}\n\n\n"
            f"ASSISTANT: {glaive.CALL} {call} {glaive.END}\n\n\n"
            f'FUNCTION RESPONSE: {{"status": "done"}}\n\n\n'
            f"ASSISTANT: {answer.format(**arguments)} {glaive.END}\n\n\n"
        ),
    }


def write(path: Path, count: int, seed: int = 0) -> None:
    """Write a file of conversations, one per line."""
    lines = [json.dumps(row) + "\n" for row in rows(count, seed)]
    path.write_text("".join(lines), encoding="utf-8")


def tokenizer(conversations: Iterable[glaive.Conversation], vocabulary: int) -> Any:
    """Return a byte-level BPE tokenizer trained on these conversations, for transformers."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(TOKEN_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[glaive.END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = ("".join(text for text, _ in glaive.segments(c, "")) for c in conversations)
    bpe.train_from_iterator(texts, trainer)
    wrapper: Any = PreTrainedTokenizerFast
    return wrapper(tokenizer_object=bpe, eos_token=glaive.END, pad_token=glaive.END)
