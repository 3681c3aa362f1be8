"""The settings of a training run, with their validation (stdlib only).

Invalid settings raise a one-line error before torch is imported or a GPU is used.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fixtures.shapes import PRESETS, Shape
from fixtures.suggestions import did_you_mean
from fixtures.wording import counted


class SettingsError(ValueError):
    """Invalid settings: one line with what was given, what is wrong and what to give."""


STRATEGIES = ("single", "ddp", "fsdp")
CHOICES = {
    "strategy": STRATEGIES,
    "preset": tuple(PRESETS),
    "dtype": ("bf16", "fp32"),
    "recompute": ("none", "block"),
    "wrap": ("block", "root", "size"),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one training run."""

    strategy: str = "single"
    preset: str = "tiny"
    sequence: int = 0
    """Tokens per sequence; 0: the preset's."""
    batch: int = 2
    """Sequences per rank and forward pass."""
    global_batch: int = 0
    """Sequences per step over all ranks, by accumulation; 0: one forward pass per rank."""
    steps: int = 40
    learning_rate: float = 3e-4
    last_rate: float = 0.1
    """Share of the learning rate that the cosine ends at."""
    warm_up: int = 5
    """Steps of linear warm-up."""
    weight_decay: float = 0.1
    clip: float = 1.0
    """Largest norm of the gradient; a larger one is clipped."""
    seed: int = 1234
    dtype: str = "bf16"
    compile: bool = False
    recompute: str = "none"
    """block: recompute the activations of each block in the backward pass."""
    wrap: str = "block"
    """What FSDP shards as one unit: a block, the whole model (root), or large modules (size)."""
    reshard: bool = True
    """Whether FSDP frees a block's parameters after its forward pass; costs a second all-gather."""
    offload: bool = False
    """Whether FSDP keeps parameters, gradients and optimizer state on the host."""
    data: str = ""
    """A text or JSON-lines file; empty: synthetic tokens."""
    workers: int = 0
    """Data loader processes per rank."""
    checkpoint: str = ""
    """Directory of checkpoints; empty: none are written."""
    save_every: int = 0
    """Steps between checkpoints; 0: one at the end only."""
    resume: bool = False
    """Whether to continue from the newest intact checkpoint."""

    @property
    def shape(self) -> Shape:
        return PRESETS[self.preset]

    @property
    def tokens(self) -> int:
        """Length of a sequence."""
        return self.sequence or self.shape.sequence

    def passes_per_step(self, team_size: int) -> int:
        """Return forward passes per rank and step; SettingsError if the batch does not divide."""
        global_batch = self.global_batch or team_size * self.batch
        passes, rest = divmod(global_batch, team_size * self.batch)
        if rest or passes < 1:
            raise SettingsError(
                f"global batch {global_batch} is not divisible by {counted(team_size, 'rank')} x "
                f"{self.batch} sequences: give a multiple of {team_size * self.batch}"
            )
        return passes


def settings_of(values: dict[str, Any]) -> Settings:
    """Return Settings from a job's spec or command line; SettingsError for invalid values."""
    types = {f.name: type(f.default) for f in fields(Settings)}
    for name, value in values.items():
        if name not in types:
            raise SettingsError(f"no setting {name!r}{did_you_mean(str(name), types)}")
        wanted = types[name]
        type_matches = isinstance(value, wanted) or (wanted is float and type(value) is int)
        if not type_matches or (isinstance(value, bool) and wanted is not bool):
            raise SettingsError(f"{name} is {value!r}, expected a {wanted.__name__}")
        if name in CHOICES and value not in CHOICES[name]:
            raise SettingsError(f"no {name} {value!r}{did_you_mean(str(value), CHOICES[name])}")
    settings = Settings(**values)
    for name in ("batch", "steps", "learning_rate", "clip"):
        if not getattr(settings, name) > 0:
            raise SettingsError(f"{name} is {getattr(settings, name)}, expected more than 0")
    for name in ("sequence", "global_batch", "warm_up", "save_every", "workers", "weight_decay"):
        if getattr(settings, name) < 0:
            raise SettingsError(f"{name} is {getattr(settings, name)}, expected 0 or more")
    if settings.compile and settings.wrap == "size":
        raise SettingsError(
            "wrap size shards inside a block, but blocks are compiled whole: switch compile off"
        )
    if settings.resume and not settings.checkpoint:
        raise SettingsError("resume needs a directory of checkpoints (checkpoint)")
    if settings.data and not Path(settings.data).is_file():
        raise SettingsError(f"data file {settings.data} is not on the node")
    return settings
