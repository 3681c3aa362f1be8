"""Training data: synthetic tokens, or a text or JSON-lines file with one token per byte.

A sample is identified by its index, whatever the rank and the number of ranks: the samples of a
step are the same set for one GPU and for a hundred, so their losses can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from fixtures.wording import counted
from training.settings import Settings, SettingsError

Sample = tuple[int, Tensor]
"""Index of a sample, and its tokens: one more than the sequence, inputs and targets overlap."""

MAX_SYNTHETIC_TOKENS = 512
"""Most distinct tokens of synthetic text: any model learns so few within tens of steps."""

MAX_LISTED_LINES = 5
"""Most broken lines that an error message lists by number."""


class Synthetic(Dataset[Sample]):
    """Sequences that count in steps of 1 to 4 over few tokens; one token in eight is random.

    The loss falls at once (few distinct tokens), and further once attention infers the step.
    """

    def __init__(self, vocabulary: int, tokens: int, samples: int, seed: int) -> None:
        self.distinct_tokens = min(vocabulary, MAX_SYNTHETIC_TOKENS)
        self.tokens = tokens
        self.samples = samples
        self.seed = seed

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Sample:
        positions = torch.arange(self.tokens + 1)
        noise = pseudo_random(positions + (index + 1) * 1_000_003 + self.seed * 7_919)
        first = int(noise[0]) % self.distinct_tokens
        counting = (first + positions * (1 + first % 4)) % self.distinct_tokens
        is_noise = noise % 8 == 0
        return index, torch.where(is_noise, (noise // 8) % self.distinct_tokens, counting)


def pseudo_random(x: Tensor) -> Tensor:
    """Return pseudo-random numbers from 0 to 2^31 - 1, hashed from `x` (splitmix64)."""
    x = x * -7046029254386353131
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return (x ^ (x >> 31)) & 0x7FFFFFFF


class Text(Dataset[Sample]):
    """The bytes of a file, cut into sequences; of JSON lines the fields `text`, concatenated.

    SettingsError if it is shorter than a sequence or has broken lines, listed by their numbers.
    """

    def __init__(self, path: Path, tokens: int) -> None:
        raw = _json_lines(path) if path.suffix in (".jsonl", ".json") else path.read_bytes()
        self.tokens = tokens
        self.bytes = torch.frombuffer(bytearray(raw or b"\0"), dtype=torch.uint8)
        if len(raw) <= tokens:
            raise SettingsError(
                f"{path}: {counted(len(raw), 'byte')}, fewer than a sequence of {tokens} + 1 tokens"
            )

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // self.tokens

    def __getitem__(self, index: int) -> Sample:
        start = index * self.tokens
        return index, self.bytes[start : start + self.tokens + 1].long()


def _json_lines(path: Path) -> bytes:
    broken: dict[int, str] = {}
    texts = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except ValueError as error:
            broken[number] = str(error).partition(":")[0]
            continue
        text = data.get("text") if isinstance(data, dict) else None
        if isinstance(text, str):
            texts.append(text.encode())
        else:
            broken[number] = "no field 'text' with text in it"
    if broken:
        shown = "; ".join(f"line {n}: {why}" for n, why in list(broken.items())[:MAX_LISTED_LINES])
        more = (
            f"; and {len(broken) - MAX_LISTED_LINES} more" if len(broken) > MAX_LISTED_LINES else ""
        )
        raise SettingsError(f"{path}: {len(broken)} broken lines: {shown}{more}")
    return b"\n".join(texts)


def dataset(settings: Settings, samples: int) -> Dataset[Sample]:
    """Return the data set that the settings name; synthetic data has `samples` samples."""
    if settings.data:
        return Text(Path(settings.data), settings.tokens)
    return Synthetic(settings.shape.vocabulary, settings.tokens, samples, settings.seed)


class ResumableSampler(DistributedSampler[int]):
    """A DistributedSampler that can begin within an epoch, for runs that are resumed."""

    skip = 0
    """Samples of this epoch, over all ranks, that were trained on before the resumption."""

    def __iter__(self) -> Iterator[int]:
        indices = list(super().__iter__())
        return iter(indices[self.skip // self.num_replicas :])


class BatchLoader:
    """The batches of one rank, epoch after epoch; records which samples were in them."""

    def __init__(
        self, data: Dataset[Sample], settings: Settings, *, rank: int, team_size: int, step: int = 0
    ) -> None:
        self.passes_per_step = settings.passes_per_step(team_size)
        self.samples_per_step = settings.batch * self.passes_per_step * team_size
        length = len(data)  # type: ignore[arg-type]
        if length < self.samples_per_step:
            raise SettingsError(
                f"the data: {counted(length, 'sample')}; a step takes {self.samples_per_step} "
                f"({counted(team_size, 'rank')} x {self.passes_per_step} x {settings.batch}): "
                "give more data or a smaller batch"
            )
        self.steps_per_epoch = length // self.samples_per_step
        self.sampler = ResumableSampler(
            data,
            num_replicas=team_size,
            rank=rank,
            shuffle=True,
            seed=settings.seed,
            drop_last=True,
        )
        self.loader: DataLoader[Any] = DataLoader(
            data,
            batch_size=settings.batch,
            sampler=self.sampler,
            num_workers=settings.workers,
            pin_memory=torch.cuda.is_available(),
            drop_last=True,
        )
        self.step = step
        self.seen_samples: list[int] = []
        """Indices of this rank's samples since the current epoch began."""

    def __iter__(self) -> Iterator[list[Tensor]]:
        """Yield each step's batches, one per forward pass, without end."""
        while True:
            epoch, steps_done = divmod(self.step, self.steps_per_epoch)
            self.sampler.set_epoch(epoch)
            self.sampler.skip = steps_done * self.samples_per_step
            self.seen_samples = []
            batches = iter(self.loader)
            for _ in range(steps_done, self.steps_per_epoch):
                step_batches = []
                for _ in range(self.passes_per_step):
                    indices, tokens = next(batches)
                    self.seen_samples += indices.tolist()
                    step_batches.append(tokens)
                self.step += 1
                yield step_batches
