"""Conversations with function calls in the format of Glaive v2 (node side, stdlib).

One conversation a line (.jsonl) or an entry of one list (.json), each with `system` and `chat`:

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
NAMED = 5
"""So many broken lines are named; of the others the number is enough."""

_TURN = re.compile(r"(?:^|\n)[ \t]*(USER|ASSISTANT|FUNCTION RESPONSE):")
# Glaive's own spelling: the arguments are JSON inside single quotes, which is no JSON.
_GLAIVE_CALL = re.compile(
    r"\{\s*\"name\"\s*:\s*(\"(?:[^\"\\]|\\.)*\")\s*,\s*\"arguments\"\s*:\s*'(.*)'\s*\}", re.DOTALL
)


@dataclass(frozen=True)
class Call:
    """A function call: what the assistant wants to be run."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Turn:
    role: str
    text: str

    @property
    def calls(self) -> bool:
        return self.role == ASSISTANT and CALL in self.text


@dataclass(frozen=True)
class Conversation:
    """SYSTEM first, then the turns in their order; texts without markers and end signs."""

    system: str
    turns: tuple[Turn, ...]


def call_of(text: str) -> Call | None:
    """The function call in an assistant's text; None where there is none that can be read."""
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
    """One entry of the file; ValueError says what is wrong with it."""
    if not isinstance(row, dict):
        raise ValueError(f"no object with system and chat: {row!r:.30}")
    for name in ("system", "chat"):
        if not isinstance(row.get(name), str):
            raise ValueError(f"{name} is missing, or no text")
    pieces = _TURN.split(row["chat"])
    if pieces[0].strip():
        raise ValueError(f"chat begins with {pieces[0].strip()!r:.30}, expected USER:")
    turns = tuple(
        Turn(role, text.replace(END, "").strip())
        for role, text in zip(pieces[1::2], pieces[2::2], strict=True)
    )
    if not any(turn.role == ASSISTANT and turn.text for turn in turns):
        raise ValueError("chat has no ASSISTANT: turn, so nothing to learn")
    for turn in turns:
        if turn.calls and call_of(turn.text) is None:
            raise ValueError(f"function call cannot be read: {turn.text!r:.60}")
    return Conversation(row["system"].strip().removeprefix("SYSTEM:").strip(), turns)


def row_of(conversation: Conversation) -> dict[str, str]:
    """The entry that parse() reads as this conversation."""
    said = [
        f"{turn.role}: {turn.text}{f' {END}' if turn.role == ASSISTANT else ''}\n\n\n"
        for turn in conversation.turns
    ]
    return {"system": f"SYSTEM: {conversation.system}", "chat": "".join(said)}


def read(path: Path, *, skip_broken: bool = False) -> tuple[list[Conversation], list[str]]:
    """The conversations of a file, and its broken lines ("line 7: ...").

    InputError names them by number, unless they are to be skipped; or says why nothing is there.
    """
    found: list[Conversation] = []
    broken: list[str] = []
    for where, row in _rows(path):
        try:
            if isinstance(row, ValueError):
                raise row
            found.append(parse(row))
        except ValueError as error:
            broken.append(f"{where}: {error}")
    if broken and not skip_broken:
        shown = "; ".join(broken[:NAMED])
        more = f"; and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
        raise InputError(
            f"{path}: {len(broken)} of {len(found) + len(broken)} conversations are broken: {shown}"
            f"{more}; mend them, or set data.skip_broken: true"
        )
    if not found:
        raise InputError(f"{path}: no conversation in Glaive v2 format (system, chat) in it")
    return found, broken


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """(place in the file, its object, or what is wrong with it as a ValueError)."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no UTF-8 text: {error}") from error
    if text.lstrip().startswith("["):
        try:
            rows = json.loads(text)
        except ValueError as error:
            raise InputError(f"{path} is no JSON list: {error}") from error
        yield from ((f"entry {k}", row) for k, row in enumerate(rows, 1))
        return
    for k, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield f"line {k}", json.loads(line)
        except ValueError as error:
            yield f"line {k}", ValueError(f"no JSON: {error}")


def split(
    conversations: Iterable[Conversation], share: float, seed: int
) -> tuple[list[Conversation], list[Conversation]]:
    """Those to train on and those held out: the same for the same seed, on every rank."""
    order = list(conversations)
    random.Random(seed).shuffle(order)
    out = round(share * len(order))
    return order[out:], order[:out]


def segments(conversation: Conversation, end: str) -> Iterator[tuple[str, bool]]:
    """The text as the model reads it, in pieces; True for what it has to learn to say."""
    yield f"SYSTEM: {conversation.system}\n\n", False
    for turn in conversation.turns:
        if turn.role == ASSISTANT:
            yield f"{ASSISTANT}:", False
            yield f" {turn.text}{end}", True
            yield "\n\n", False
        else:
            yield f"{turn.role}: {turn.text}\n\n", False


def questions(conversation: Conversation, end: str) -> Iterator[tuple[list[str], str]]:
    """(the pieces that come before it, the call itself) for every function call."""
    before: list[str] = []
    calls = iter(turn for turn in conversation.turns if turn.role == ASSISTANT)
    for text, learned in segments(conversation, end):
        if learned and next(calls).calls:
            yield list(before), text.removesuffix(end).strip()
        before.append(text)
