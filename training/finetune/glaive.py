"""Conversations with function calls in the format of Glaive v2 (node side, stdlib).

One conversation per line (.jsonl) or per entry of one list (.json), with `system` and `chat`:

    SYSTEM: You are a helpful assistant with access to the following functions ...
    USER: ...
    ASSISTANT: <functioncall> {"name": "get_weather", "arguments": '{"city": "Oslo"}'} <|endoftext|>
    FUNCTION RESPONSE: {...}
    ASSISTANT: ... <|endoftext|>
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.finetune.settings import InputError

END = "<|endoftext|>"
CALL = "<functioncall>"
ASSISTANT = "ASSISTANT"
MAX_LISTED_LINES = 5
"""Most broken lines that an error message lists; the others are counted."""

_TURN = re.compile(r"(?:^|\n)[ \t]*(USER|ASSISTANT|FUNCTION RESPONSE):")
# Glaive's own spelling: the arguments are JSON inside single quotes, which is not JSON itself.
_GLAIVE_CALL = re.compile(
    r"\{\s*\"name\"\s*:\s*(\"(?:[^\"\\]|\\.)*\")\s*,\s*\"arguments\"\s*:\s*'(.*)'\s*\}", re.DOTALL
)


@dataclass(frozen=True)
class Call:
    """A function call by the assistant."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Turn:
    """One message of a conversation."""

    role: str
    text: str

    @property
    def has_call(self) -> bool:
        """Whether the assistant calls a function in it."""
        return self.role == ASSISTANT and CALL in self.text


@dataclass(frozen=True)
class Conversation:
    """The system prompt and the turns in order; texts without role markers and end tokens."""

    system: str
    turns: tuple[Turn, ...]


def call_of(text: str) -> Call | None:
    """Return the function call in an assistant's text; None if there is none or it is invalid."""
    _, marker, rest = text.partition(CALL)
    body = rest.replace(END, "").strip()
    if not marker:
        return None
    match = _GLAIVE_CALL.fullmatch(body)
    try:
        if match:
            name, arguments = json.loads(match[1]), json.loads(match[2].replace("\\'", "'"))
        else:
            data = json.loads(body)
            name, arguments = data["name"], data.get("arguments", {})
            if isinstance(arguments, str):
                arguments = json.loads(arguments)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return Call(name, arguments)


def parse(row: Any) -> Conversation:
    """Return the conversation of one entry of the file; ValueError if it is invalid."""
    if not isinstance(row, dict):
        raise ValueError(f"no object with system and chat: {row!r:.30}")
    for name in ("system", "chat"):
        if not isinstance(row.get(name), str):
            raise ValueError(f"{name} is missing or not text")
    parts = _TURN.split(row["chat"])
    if parts[0].strip():
        raise ValueError(f"chat begins with {parts[0].strip()!r:.30}, expected USER:")
    turns = tuple(
        Turn(role, text.replace(END, "").strip())
        for role, text in zip(parts[1::2], parts[2::2], strict=True)
    )
    if not any(turn.role == ASSISTANT and turn.text for turn in turns):
        raise ValueError("chat has no ASSISTANT: turn, so there is nothing to learn")
    for turn in turns:
        if turn.has_call and call_of(turn.text) is None:
            raise ValueError(f"function call cannot be read: {turn.text!r:.60}")
    return Conversation(row["system"].strip().removeprefix("SYSTEM:").strip(), turns)


def row_of(conversation: Conversation) -> dict[str, str]:
    """Return the file entry that parse() reads as this conversation."""
    turns = [
        f"{turn.role}: {turn.text}{f' {END}' if turn.role == ASSISTANT else ''}\n\n\n"
        for turn in conversation.turns
    ]
    return {"system": f"SYSTEM: {conversation.system}", "chat": "".join(turns)}


def read(path: Path, *, skip_broken: bool = False) -> tuple[list[Conversation], list[str]]:
    """Return the conversations of a file, and messages on its broken lines ("line 7: ...").

    InputError if lines are broken, unless they are to be skipped, or if there is no conversation.
    """
    conversations: list[Conversation] = []
    broken: list[str] = []
    for place, row in _rows(path):
        try:
            if isinstance(row, ValueError):
                raise row
            conversations.append(parse(row))
        except ValueError as error:
            broken.append(f"{place}: {error}")
    if broken and not skip_broken:
        shown = "; ".join(broken[:MAX_LISTED_LINES])
        more = (
            f"; and {len(broken) - MAX_LISTED_LINES} more" if len(broken) > MAX_LISTED_LINES else ""
        )
        raise InputError(
            f"{path}: {len(broken)} of {len(conversations) + len(broken)} conversations are "
            f"broken: {shown}{more}; fix them, or set data.skip_broken: true"
        )
    if not conversations:
        raise InputError(f"{path}: no conversation in Glaive v2 format (system, chat) in it")
    return conversations, broken


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (place in the file, the JSON value there or a ValueError if it is not JSON)."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error}") from error
    if text.lstrip().startswith("["):
        try:
            rows = json.loads(text)
        except ValueError as error:
            raise InputError(f"{path} is not a JSON list: {error}") from error
        yield from ((f"entry {k}", row) for k, row in enumerate(rows, 1))
        return
    for k, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield f"line {k}", json.loads(line)
        except ValueError as error:
            yield f"line {k}", ValueError(f"not JSON: {error}")


def split(
    conversations: Iterable[Conversation], share: float, seed: int
) -> tuple[list[Conversation], list[Conversation]]:
    """Split into those to train on and those held out; equal for equal seeds, on every rank."""
    shuffled = list(conversations)
    random.Random(seed).shuffle(shuffled)
    held_out_count = round(share * len(shuffled))
    return shuffled[held_out_count:], shuffled[:held_out_count]


def segments(conversation: Conversation, end: str) -> Iterator[tuple[str, bool]]:
    """Yield the text as the model reads it, in segments, each with whether it is learned."""
    yield f"SYSTEM: {conversation.system}\n\n", False
    for turn in conversation.turns:
        if turn.role == ASSISTANT:
            yield f"{ASSISTANT}:", False
            yield f" {turn.text}{end}", True
            yield "\n\n", False
        else:
            yield f"{turn.role}: {turn.text}\n\n", False


def expected_calls(conversation: Conversation, end: str) -> Iterator[tuple[list[str], str]]:
    """Yield (segments before the call, text of the call) for every function call."""
    prompt: list[str] = []
    assistant_turns = iter(turn for turn in conversation.turns if turn.role == ASSISTANT)
    for text, learned in segments(conversation, end):
        if learned and next(assistant_turns).has_call:
            yield list(prompt), text.removesuffix(end).strip()
        prompt.append(text)
