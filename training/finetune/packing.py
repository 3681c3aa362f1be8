"""Conversations as packed sequences of tokens, and the batches of a training (node side).

A sequence holds whole conversations, best fit first, so that next to nothing is padding; only what
the assistant says is learned. Tokens of padding are known, and never counted in a rate.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from training.finetune import glaive
from training.finetune.settings import DataSettings, InputError

if TYPE_CHECKING:
    import torch

IGNORED = -100
"""Label of a token that is read and not learned, as PyTorch's cross entropy has it."""

CHUNK = 1024
"""Places that the loss is computed of at once, at most; a batch's are padded to a multiple."""


@dataclass(frozen=True)
class Packed:
    """Packed sequences: int32 tensors of shape (sequences, max_length)."""

    tokens: torch.Tensor
    labels: torch.Tensor
    """Of the token at the same place; IGNORED where nothing is learned."""
    part: torch.Tensor
    """Which conversation of its sequence a token is of, from 1 on; 0 for padding."""

    def __len__(self) -> int:
        return len(self.tokens)

    def about(self) -> dict[str, Any]:
        """Counts for the record and the reader."""
        used = int((self.part > 0).sum())
        return {
            "sequences": len(self),
            "conversations": int(self.part.max(dim=1).values.sum()),
            "tokens": used,
            "learned_tokens": int((self.labels != IGNORED).sum()),
            "padding": round(1 - used / self.tokens.numel(), 4),
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"tokens": self.tokens, "labels": self.labels, "part": self.part}


def encode(tokenizer: Any, conversation: glaive.Conversation) -> tuple[list[int], list[int]]:
    """Tokens and labels of a conversation; only the assistant's turns have labels."""
    tokens: list[int] = []
    labels: list[int] = []
    for text, learned in glaive.segments(conversation, tokenizer.eos_token):
        ids = piece(tokenizer, text)
        tokens += ids
        labels += ids if learned else [IGNORED] * len(ids)
    return tokens, labels


def piece(tokenizer: Any, text: str) -> list[int]:
    """Tokens of one piece of a conversation; cut elsewhere, the same text has other tokens."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def pack(tokenizer: Any, conversations: Iterable[glaive.Conversation], length: int) -> Packed:
    """Whole conversations into sequences of `length` tokens; what is longer is cut at its end."""
    import torch

    encoded = [encode(tokenizer, c) for c in conversations]
    encoded = [(t[:length], labels[:length]) for t, labels in encoded]
    # One whose every learned token was cut off would only be read.
    encoded = [(t, labels) for t, labels in encoded if any(x != IGNORED for x in labels)]
    if not encoded:
        raise InputError(f"nothing to learn is left in sequences of {length} tokens")
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens that still fit, which bin), sorted
    for k in sorted(range(len(encoded)), key=lambda k: -len(encoded[k][0])):
        size = len(encoded[k][0])
        at = bisect.bisect_left(room, (size, -1))
        left, which = room.pop(at) if at < len(room) else (length, len(bins))
        if which == len(bins):
            bins.append([])
        bins[which].append(k)
        bisect.insort(room, (left - size, which))
    shape = (len(bins), length)
    tokens = torch.full(shape, int(tokenizer.pad_token_id), dtype=torch.int32)
    labels = torch.full(shape, IGNORED, dtype=torch.int32)
    part = torch.zeros(shape, dtype=torch.int32)
    for row, members in enumerate(bins):
        end = 0
        for n, k in enumerate(members, 1):
            begin, end = end, end + len(encoded[k][0])
            tokens[row, begin:end] = torch.tensor(encoded[k][0], dtype=torch.int32)
            labels[row, begin:end] = torch.tensor(encoded[k][1], dtype=torch.int32)
            part[row, begin:end] = n
    return Packed(tokens, labels, part)


@dataclass(frozen=True)
class Batch:
    """What one pass of one rank takes; its counts are the host's: nothing waits for the GPU."""

    tokens: torch.Tensor
    """(batch, length), int64."""
    positions: torch.Tensor | None
    """(batch, length): restart with each conversation; None: all of a sequence sees itself."""
    where: torch.Tensor
    """Flat places whose next token is learned, padded to a multiple of `chunk`."""
    wanted: torch.Tensor
    """The token to be said there; IGNORED where `where` is padded."""
    used: int
    """Tokens that are no padding."""
    learned: int
    chunk: int

    def to(self, device: torch.device) -> Batch:
        def move(x: Any) -> Any:
            return None if x is None else x.to(device, non_blocking=True)

        return Batch(
            move(self.tokens), move(self.positions), move(self.where), move(self.wanted),
            self.used, self.learned, self.chunk,
        )  # fmt: skip

    def pin_memory(self) -> Batch:
        """Called by the loader, so that the copy to the GPU does not wait."""
        return Batch(
            self.tokens.pin_memory(),
            None if self.positions is None else self.positions.pin_memory(),
            self.where.pin_memory(), self.wanted.pin_memory(), self.used, self.learned, self.chunk,
        )  # fmt: skip


def batch_of(packed: Packed, rows: Sequence[int], *, separate: bool) -> Batch:
    """The batch of these sequences."""
    import torch

    picked = torch.as_tensor(rows)
    tokens, part = packed.tokens[picked].long(), packed.part[picked]
    # What stands at a place is learned at the one before it; the first of a row at none.
    follows = torch.full_like(tokens, IGNORED)
    follows[:, :-1] = packed.labels[picked][:, 1:]
    where = (follows.flatten() != IGNORED).nonzero().flatten()
    wanted = follows.flatten()[where]
    learned = len(where)
    chunk = min(CHUNK, tokens.shape[1])
    short = -learned % chunk if learned else chunk
    where = torch.nn.functional.pad(where, (0, short))
    wanted = torch.nn.functional.pad(wanted, (0, short), value=IGNORED)
    positions = _positions(part) if separate else None
    return Batch(tokens, positions, where, wanted, int((part > 0).sum()), learned, chunk)


def _positions(part: torch.Tensor) -> torch.Tensor:
    """Places counted from the start of each conversation."""
    import torch

    place = torch.arange(part.shape[1]).expand_as(part)
    begins = torch.ones_like(part, dtype=torch.bool)
    begins[:, 1:] = part[:, 1:] != part[:, :-1]
    return place - torch.where(begins, place, 0).cummax(dim=1).values


def order(count: int, seed: int) -> Iterator[int]:
    """Every sequence once an epoch, in an order of its own each; endless, the same on all ranks."""
    import torch

    epoch = 0
    while True:
        shuffle = torch.Generator().manual_seed(seed + epoch)
        yield from torch.randperm(count, generator=shuffle).tolist()
        epoch += 1


def schedule(
    count: int, *, seed: int, passes: int, batch_size: int, rank: int, world_size: int
) -> list[list[int]]:
    """The sequences of each pass of a rank: the ranks together take them all, each one once."""
    endless = order(count, seed)
    mine = []
    for _ in range(passes):
        together = [next(endless) for _ in range(batch_size * world_size)]
        mine.append(together[rank * batch_size : (rank + 1) * batch_size])
    return mine


class _Batches:
    """A data set whose items are whole batches, so that loader processes make them."""

    def __init__(self, packed: Packed, rows: list[list[int]], separate: bool) -> None:
        self.packed, self.rows, self.separate = packed, rows, separate

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, k: int) -> Batch:
        return batch_of(self.packed, self.rows[k], separate=self.separate)


def batches(
    packed: Packed, rows: list[list[int]], data: DataSettings, *, on_gpu: bool
) -> Iterator[Batch]:
    """The batches of these passes, made ahead by loader processes on GPU machines."""
    from torch.utils.data import DataLoader

    workers = data.workers if on_gpu else 0
    loader: Any = DataLoader(
        _Batches(packed, rows, data.separate),  # type: ignore[arg-type]
        batch_size=None,
        num_workers=workers,
        prefetch_factor=data.prefetch if workers else None,
        pin_memory=on_gpu,
    )
    return iter(loader)
