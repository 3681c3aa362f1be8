"""What is trained on: synthetic tokens, or a text or JSON-lines file, byte by byte.

A sample is known by its index, whatever rank draws it and whatever the number of ranks: the samples
of a step are the same set for one GPU and for a hundred, so their losses can be compared.
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

from training.settings import Settings, SettingsError

Sample = tuple[int, Tensor]
"""Its index, and one token more than a sequence has: inputs and targets overlap."""

WORDS = 512
"""Of synthetic text, at most: a model of any vocabulary learns these within tens of steps."""

NAMED = 5
"""Broken lines that a message names by number."""


class Synthetic(Dataset[Sample]):
    """Counting in steps of 1 to 4 over a small vocabulary, one token in eight at random.

    The loss falls at once (few words), and further with attention (the step is to be found out).
    """

    def __init__(self, vocabulary: int, tokens: int, samples: int, seed: int) -> None:
        self.words = min(vocabulary, WORDS)
        self.tokens = tokens
        self.samples = samples
        self.seed = seed

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Sample:
        place = torch.arange(self.tokens + 1)
        noise = scramble(place + (index + 1) * 1_000_003 + self.seed * 7_919)
        first = int(noise[0]) % self.words
        counted = (first + place * (1 + first % 4)) % self.words
        at_random = noise % 8 == 0
        return index, torch.where(at_random, (noise // 8) % self.words, counted)


def scramble(x: Tensor) -> Tensor:
    """Numbers without a pattern, 0 to 2^31, from numbers with one (splitmix64)."""
    x = x * -7046029254386353131
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return (x ^ (x >> 31)) & 0x7FFFFFFF


class Text(Dataset[Sample]):
    """The bytes of a file, cut into sequences; of JSON lines the field `text`, one after another.

    SettingsError where nothing can be learnt from it; broken lines are named by their numbers.
    """

    def __init__(self, path: Path, tokens: int) -> None:
        raw = _json_lines(path) if path.suffix in (".jsonl", ".json") else path.read_bytes()
        self.tokens = tokens
        self.bytes = torch.frombuffer(bytearray(raw or b"\0"), dtype=torch.uint8)
        if len(raw) <= tokens:
            raise SettingsError(f"{path}: {len(raw)} bytes are no sequence of {tokens} + 1 tokens")

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
        shown = "; ".join(f"line {n}: {why}" for n, why in list(broken.items())[:NAMED])
        more = f"; and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
        raise SettingsError(f"{path}: {len(broken)} broken lines: {shown}{more}")
    return b"\n".join(texts)


def dataset(settings: Settings, samples: int) -> Dataset[Sample]:
    """What the settings name; synthetic data has `samples` samples."""
    if settings.data:
        return Text(Path(settings.data), settings.tokens)
    return Synthetic(settings.shape.vocabulary, settings.tokens, samples, settings.seed)


class Positions(DistributedSampler[int]):
    """A DistributedSampler that can begin in the middle of an epoch, where a run is resumed."""

    skip = 0
    """Samples over all ranks that have been seen in this epoch."""

    def __iter__(self) -> Iterator[int]:
        indices = list(super().__iter__())
        return iter(indices[self.skip // self.num_replicas :])


class Feed:
    """Batches of one rank, epoch after epoch; remembers which samples it handed out."""

    def __init__(
        self, data: Dataset[Sample], settings: Settings, *, rank: int, ranks: int, step: int = 0
    ) -> None:
        self.passes = settings.accumulation(ranks)
        self.a_step = settings.batch * self.passes * ranks
        length = len(data)  # type: ignore[arg-type]
        if length < self.a_step:
            raise SettingsError(
                f"the data are {length} samples, a step takes {self.a_step} ({ranks} ranks x "
                f"{self.passes} x {settings.batch}): give more data or a smaller batch"
            )
        self.steps_an_epoch = length // self.a_step
        self.sampler = Positions(
            data, num_replicas=ranks, rank=rank, shuffle=True, seed=settings.seed, drop_last=True
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
        self.seen: list[int] = []
        """Indices of this rank's samples since the last epoch began."""

    def __iter__(self) -> Iterator[list[Tensor]]:
        """The batches of one step after another, for ever."""
        while True:
            epoch, done = divmod(self.step, self.steps_an_epoch)
            self.sampler.set_epoch(epoch)
            self.sampler.skip = done * self.a_step
            self.seen = []
            batches = iter(self.loader)
            for _ in range(done, self.steps_an_epoch):
                found = []
                for _ in range(self.passes):
                    indices, tokens = next(batches)
                    self.seen += indices.tolist()
                    found.append(tokens)
                self.step += 1
                yield found
