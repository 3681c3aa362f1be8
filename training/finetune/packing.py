"""Conversations packed into sequences of tokens, and the batches of a training (node side).

A sequence holds whole conversations, packed by best fit, so that there is little padding; only the
assistant's turns are learned. Padding tokens are never counted in a rate.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fixtures.wording import counted
from training.finetune import glaive
from training.finetune.settings import DataSettings, InputError

if TYPE_CHECKING:
    import torch

IGNORE_INDEX = -100
"""Label of a token that is read but not learned, as in PyTorch's cross entropy."""

MAX_CHUNK_SIZE = 1024
"""Most positions whose loss is computed at once; a batch is padded to a multiple of the chunk."""


@dataclass(frozen=True)
class PackedSequences:
    """Packed sequences: int32 tensors of shape (sequences, max_length)."""

    tokens: torch.Tensor
    labels: torch.Tensor
    """The token at the same position, or IGNORE_INDEX if it is not learned."""
    part: torch.Tensor
    """Number of a token's conversation within its sequence, from 1 on; 0 for padding."""

    def __len__(self) -> int:
        return len(self.tokens)

    def counts(self) -> dict[str, Any]:
        """Return the numbers of sequences, conversations and tokens, and the share of padding."""
        token_count = int((self.part > 0).sum())
        return {
            "sequences": len(self),
            "conversations": int(self.part.max(dim=1).values.sum()),
            "tokens": token_count,
            "learned_tokens": int((self.labels != IGNORE_INDEX).sum()),
            "padding": round(1 - token_count / self.tokens.numel(), 4),
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors by name, for a safetensors file."""
        return {"tokens": self.tokens, "labels": self.labels, "part": self.part}


def encode(tokenizer: Any, conversation: glaive.Conversation) -> tuple[list[int], list[int]]:
    """Return tokens and labels of a conversation; only the assistant's turns have labels."""
    tokens: list[int] = []
    labels: list[int] = []
    for text, learned in glaive.segments(conversation, tokenizer.eos_token):
        ids = tokenize(tokenizer, text)
        tokens += ids
        labels += ids if learned else [IGNORE_INDEX] * len(ids)
    return tokens, labels


def tokenize(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of one segment; split elsewhere, the same text has other tokens."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def pack(
    tokenizer: Any, conversations: Iterable[glaive.Conversation], length: int
) -> PackedSequences:
    """Pack whole conversations into sequences of `length` tokens; truncate longer ones."""
    import torch

    encoded = [encode(tokenizer, c) for c in conversations]
    encoded = [(t[:length], labels[:length]) for t, labels in encoded]
    # Drop those that have lost all learned tokens by truncation.
    encoded = [(t, labels) for t, labels in encoded if any(x != IGNORE_INDEX for x in labels)]
    if not encoded:
        raise InputError(f"nothing to learn is left in sequences of {counted(length, 'token')}")
    sequences: list[list[int]] = []
    free_space: list[tuple[int, int]] = []  # (tokens that still fit, which sequence), sorted
    for k in sorted(range(len(encoded)), key=lambda k: -len(encoded[k][0])):
        size = len(encoded[k][0])
        place = bisect.bisect_left(free_space, (size, -1))
        free, sequence = (
            free_space.pop(place) if place < len(free_space) else (length, len(sequences))
        )
        if sequence == len(sequences):
            sequences.append([])
        sequences[sequence].append(k)
        bisect.insort(free_space, (free - size, sequence))
    shape = (len(sequences), length)
    tokens = torch.full(shape, int(tokenizer.pad_token_id), dtype=torch.int32)
    labels = torch.full(shape, IGNORE_INDEX, dtype=torch.int32)
    part = torch.zeros(shape, dtype=torch.int32)
    for row, members in enumerate(sequences):
        end = 0
        for n, k in enumerate(members, 1):
            start, end = end, end + len(encoded[k][0])
            tokens[row, start:end] = torch.tensor(encoded[k][0], dtype=torch.int32)
            labels[row, start:end] = torch.tensor(encoded[k][1], dtype=torch.int32)
            part[row, start:end] = n
    return PackedSequences(tokens, labels, part)


@dataclass(frozen=True)
class Batch:
    """The input of one pass on one rank; counts are Python ints, so nothing waits for the GPU."""

    tokens: torch.Tensor
    """(batch, length), int64."""
    position_ids: torch.Tensor | None
    """(batch, length), from 0 in each conversation; None: attention across conversations."""
    learned_positions: torch.Tensor
    """Flat positions whose next token is learned, padded to a multiple of `chunk_size`."""
    targets: torch.Tensor
    """The next token at each of them; IGNORE_INDEX at the padding."""
    token_count: int
    """Tokens that are not padding."""
    learned_count: int
    """Positions whose next token is learned."""
    chunk_size: int

    def to(self, device: torch.device) -> Batch:
        def move(x: Any) -> Any:
            return None if x is None else x.to(device, non_blocking=True)

        return Batch(
            move(self.tokens), move(self.position_ids), move(self.learned_positions),
            move(self.targets), self.token_count, self.learned_count, self.chunk_size,
        )  # fmt: skip

    def pin_memory(self) -> Batch:
        """Return a copy in pinned memory, for asynchronous transfer; the DataLoader calls it."""
        return Batch(
            self.tokens.pin_memory(),
            None if self.position_ids is None else self.position_ids.pin_memory(),
            self.learned_positions.pin_memory(), self.targets.pin_memory(),
            self.token_count, self.learned_count, self.chunk_size,
        )  # fmt: skip


def batch_of(packed: PackedSequences, rows: Sequence[int], *, separate: bool) -> Batch:
    """Return the batch of these sequences; `separate`: with position ids per conversation."""
    import torch

    indices = torch.as_tensor(rows)
    tokens, part = packed.tokens[indices].long(), packed.part[indices]
    # A token is predicted at the position before it; the first token of a row is not.
    next_labels = torch.full_like(tokens, IGNORE_INDEX)
    next_labels[:, :-1] = packed.labels[indices][:, 1:]
    learned_positions = (next_labels.flatten() != IGNORE_INDEX).nonzero().flatten()
    targets = next_labels.flatten()[learned_positions]
    learned_count = len(learned_positions)
    chunk_size = min(MAX_CHUNK_SIZE, tokens.shape[1])
    padding = -learned_count % chunk_size if learned_count else chunk_size
    learned_positions = torch.nn.functional.pad(learned_positions, (0, padding))
    targets = torch.nn.functional.pad(targets, (0, padding), value=IGNORE_INDEX)
    position_ids = _position_ids(part) if separate else None
    return Batch(
        tokens,
        position_ids,
        learned_positions,
        targets,
        int((part > 0).sum()),
        learned_count,
        chunk_size,
    )


def _position_ids(part: torch.Tensor) -> torch.Tensor:
    """Return positions counted from the start of each conversation."""
    import torch

    positions = torch.arange(part.shape[1]).expand_as(part)
    is_start = torch.ones_like(part, dtype=torch.bool)
    is_start[:, 1:] = part[:, 1:] != part[:, :-1]
    return positions - torch.where(is_start, positions, 0).cummax(dim=1).values


def shuffled_sequences(count: int, seed: int) -> Iterator[int]:
    """Yield every sequence once per epoch, reshuffled each time; endless, equal on all ranks."""
    import torch

    epoch = 0
    while True:
        generator = torch.Generator().manual_seed(seed + epoch)
        yield from torch.randperm(count, generator=generator).tolist()
        epoch += 1


def sequences_per_pass(
    count: int, *, seed: int, passes: int, batch_size: int, rank: int, world_size: int
) -> list[list[int]]:
    """Return the sequences of each pass of a rank; all ranks together use each once per epoch."""
    sequences = shuffled_sequences(count, seed)
    own_passes = []
    for _ in range(passes):
        pass_sequences = [next(sequences) for _ in range(batch_size * world_size)]
        own_passes.append(pass_sequences[rank * batch_size : (rank + 1) * batch_size])
    return own_passes


class _BatchDataset:
    """A data set whose items are whole batches, so that loader processes build them."""

    def __init__(self, packed: PackedSequences, rows: list[list[int]], separate: bool) -> None:
        self.packed, self.rows, self.separate = packed, rows, separate

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, k: int) -> Batch:
        return batch_of(self.packed, self.rows[k], separate=self.separate)


def load_batches(
    packed: PackedSequences, rows: list[list[int]], data: DataSettings, *, on_gpu: bool
) -> Iterator[Batch]:
    """Iterate over the batches of these passes, prefetched by loader processes on GPU nodes."""
    from torch.utils.data import DataLoader

    workers = data.workers if on_gpu else 0
    loader: Any = DataLoader(
        _BatchDataset(packed, rows, data.separate),  # type: ignore[arg-type]
        batch_size=None,
        num_workers=workers,
        prefetch_factor=data.prefetch if workers else None,
        pin_memory=on_gpu,
    )
    return iter(loader)
