"""Settings of a fine-tuning: the YAML files in this directory, or the user's own (node side).

Validation is strict: an unknown key, a wrong type or a number that YAML reads as text is a one-line
error, before torch is imported. PyYAML comes with transformers.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fixtures.suggestions import did_you_mean

HERE = Path(__file__).parent

REQUIRED_PACKAGES = ("transformers", "peft", "accelerate", "safetensors", "yaml")
PRECISIONS = ("bf16", "fp32")
STRATEGIES = ("plain", "fsdp", "zero3")

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
TARGETS = {"attention": ATTENTION, "all": (*ATTENTION, "gate_proj", "up_proj", "down_proj")}
"""Names for the sets of layers that get adapters. At r 64 the 7B shape trains 40.4 M parameters
with `attention` and 161 M with `all`."""


class InputError(ValueError):
    """Invalid input of the user: one line that names the file and what to change."""


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    preset: str = "qwen2-7b"
    """Shape with random weights, if no path is given: throughput and memory are the same."""
    precision: str = "bf16"
    """Precision of all weights on GPUs: bf16 or fp32. On a CPU it is fp32."""
    path: str | None = None
    """A local directory as written by transformers' save_pretrained; nothing is downloaded."""


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    r: int = 64
    alpha: int = 128
    dropout: float = 0.05
    targets: str | list[str] = "attention"
    """A name of TARGETS, or names of linear layers."""

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the linear layers that get adapters."""
        return TARGETS[self.targets] if isinstance(self.targets, str) else tuple(self.targets)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    batch_size: int = 2
    """Packed sequences per GPU and pass."""
    global_batch_size: int = 128
    """Packed sequences per step, over all GPUs; the passes per step follow from it."""
    steps: int = 100
    warmup_steps: int = 10
    learning_rate: float = 2e-5
    """Peak, reached at the end of the warm-up; then a cosine to zero."""
    max_grad_norm: float = 1.0
    gradient_checkpointing: bool = True
    """Recompute every layer in the backward pass: less memory, about 25 % more work."""
    compile: bool = True
    """Apply torch.compile to every decoder layer; on GPUs only, and not under ZeRO-3."""
    seed: int = 0

    def passes_per_step(self, world_size: int) -> int:
        """Return passes per step on `world_size` GPUs; InputError if the batch does not divide."""
        sequences_per_pass = self.batch_size * world_size
        if self.global_batch_size % sequences_per_pass:
            raise InputError(
                f"training.global_batch_size {self.global_batch_size} is not divisible by "
                f"batch_size x GPUs = {self.batch_size} x {world_size}; take a multiple of "
                f"{sequences_per_pass}"
            )
        return self.global_batch_size // sequences_per_pass


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    path: str | None = None
    """Glaive v2 format, .json or .jsonl; None: synthetic conversations (sample.py)."""
    max_length: int = 4096
    """Tokens per packed sequence."""
    separate: bool = False
    """Whether attention stays within a conversation of a sequence. Excludes flash attention:
    PyTorch's does not support such a mask."""
    held_out: float = 0.05
    """Share of the conversations that is held out for the evaluation."""
    skip_broken: bool = False
    """Skip broken lines instead of rejecting the file."""
    workers: int = 4
    """Data loader processes per GPU; none on a CPU, where ranks share the cores."""
    prefetch: int = 2
    """Batches that each loader process prefetches."""


@dataclass(frozen=True, kw_only=True)
class DistributedSettings:
    strategy: str = "plain"
    environment: dict[str, str] = field(default_factory=dict)
    """Variables NCCL_... and CUDA_... to set before the GPUs are used, unless set already. In a job
    of the suite NCCL is running by then, and they are only recorded."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a fine-tuning; `name` is the file's, and is in the record."""

    name: str = "default"
    model: ModelSettings = field(default_factory=ModelSettings)
    lora: LoraSettings = field(default_factory=LoraSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    data: DataSettings = field(default_factory=DataSettings)
    distributed: DistributedSettings = field(default_factory=DistributedSettings)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def with_values(self, section: str, **values: Any) -> Settings:
        """Return a copy with other values in one section."""
        section_values = dataclasses.replace(getattr(self, section), **values)
        return dataclasses.replace(self, **{section: section_values})


def find(name: str) -> Path:
    """Return a settings file by its path, or by its name one of those in this directory."""
    shipped = HERE / (name if name.endswith(".yaml") else f"{name}.yaml")
    path = Path(name)
    if path.is_file():
        return path
    if shipped.parent == HERE and shipped.is_file():
        return shipped
    known = ", ".join(sorted(p.name for p in HERE.glob("*.yaml")))
    raise InputError(f"{name}: no such file of settings; shipped are {known}")


def load(path: Path) -> Settings:
    """Read and validate a settings file; InputError with one line if it is invalid."""
    import yaml

    class Loader(yaml.SafeLoader):
        """A loader that rejects duplicate keys: YAML would silently use the last one."""

    def mapping(loader: Any, node: Any) -> dict[Any, Any]:
        keys = [loader.construct_object(key) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise InputError(f"{path}: line {node.start_mark.line + 1}: {key} is given twice")
        return dict(yaml.SafeLoader.construct_mapping(loader, node, deep=True))

    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=Loader)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        raise InputError(f"{path}:{line} not YAML: {getattr(error, 'problem', error)}") from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected sections like training:, got {data!r:.40}")
    known_sections = {f.name: f.type for f in dataclasses.fields(Settings) if f.name != "name"}
    _check_keys(f"{path}", data, known_sections)
    hints = typing.get_type_hints(Settings)
    sections = {
        name: _section(f"{path}: {name}", hints[name], body or {}) for name, body in data.items()
    }
    settings = Settings(name=path.stem, **sections)
    try:
        check(settings)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return settings


def check(settings: Settings) -> None:
    """Check values beyond their types; InputError names the invalid setting."""
    from training.finetune.shapes import SHAPES

    _check_choice("model.preset", settings.model.preset, SHAPES)
    _check_choice("model.precision", settings.model.precision, PRECISIONS)
    _check_choice("distributed.strategy", settings.distributed.strategy, STRATEGIES)
    if isinstance(settings.lora.targets, str):
        _check_choice("lora.targets", settings.lora.targets, TARGETS)
    positive = {
        "lora.r": settings.lora.r,
        "lora.alpha": settings.lora.alpha,
        "training.batch_size": settings.training.batch_size,
        "training.global_batch_size": settings.training.global_batch_size,
        "training.steps": settings.training.steps,
        "training.learning_rate": settings.training.learning_rate,
        "training.max_grad_norm": settings.training.max_grad_norm,
        "data.max_length": settings.data.max_length,
        "data.prefetch": settings.data.prefetch,
    }
    for name, value in positive.items():
        if not value > 0:
            raise InputError(f"{name}: {value} is not above 0")
    for name, share in (
        ("lora.dropout", settings.lora.dropout),
        ("data.held_out", settings.data.held_out),
    ):
        if not 0 <= share < 1:
            raise InputError(f"{name}: {share} is not between 0 and 1")
    if not 0 <= settings.training.warmup_steps < settings.training.steps:
        raise InputError(
            f"training.warmup_steps: {settings.training.warmup_steps} is not below"
            f" training.steps, {settings.training.steps}"
        )


def with_overrides(
    settings: Settings,
    *,
    model: str | None = None,
    data: str | None = None,
    strategy: str | None = None,
) -> Settings:
    """Return settings with the command line's values; InputError for files that do not exist."""
    if model is not None:
        settings = settings.with_values("model", path=model)
    if data is not None:
        settings = settings.with_values("data", path=data)
    if strategy is not None:
        settings = settings.with_values("distributed", strategy=strategy)
    if settings.model.path is not None:
        check_model(settings.model.path)
    if settings.data.path is not None and not Path(settings.data.path).is_file():
        raise InputError(
            f"data.path: {settings.data.path} is not a file; give one in Glaive v2 format"
        )
    return settings


def check_model(path: str) -> None:
    """Raise InputError if `path` is not a model's directory; checks file names only."""
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(f"model.path: {path} is not a directory; give one that holds config.json")
    for content, patterns in (
        ("config.json", ["config.json"]),
        ("weights", ["*.safetensors", "*.bin"]),
    ):
        if not any(any(folder.glob(pattern)) for pattern in patterns):
            raise InputError(f"model.path: {path} holds no {content}; nothing is downloaded")


def check_packages(strategy: str) -> None:
    """Raise InputError if a required package is not installed; imports nothing."""
    required = (*REQUIRED_PACKAGES, *(("deepspeed",) if strategy == "zero3" else ()))
    missing = [name for name in required if importlib.util.find_spec(name) is None]
    if missing:
        extra = "zero3" if missing == ["deepspeed"] else "finetune"
        names = ", ".join("PyYAML" if name == "yaml" else name for name in missing)
        raise InputError(
            f"not installed: {names}; needed on the nodes beside torch (extra {extra!r} of"
            " pyproject.toml, versions in constraints.txt)"
        )


def _check_choice(name: str, value: str, known: typing.Iterable[str]) -> None:
    if value not in known:
        raise InputError(f"{name}: {value!r} is not known{did_you_mean(value, known)}")


def _check_keys(where: str, data: dict[Any, Any], known: typing.Iterable[str]) -> None:
    for key in data:
        if key not in known:
            raise InputError(f"{where}: unknown key {key!r}{did_you_mean(str(key), known)}")


def _section(where: str, settings_class: Any, values: Any) -> Any:
    if not isinstance(values, dict):
        raise InputError(f"{where}: expected keys with values, got {values!r:.40}")
    hints = typing.get_type_hints(settings_class)
    _check_keys(where, values, hints)
    return settings_class(
        **{k: _typed(f"{where}.{k}", hints[k], value) for k, value in values.items()}
    )


def _typed(where: str, annotation: Any, value: Any) -> Any:
    """Return the value if it has the annotated type; an int is accepted for a float."""
    accepted = annotation.__args__ if isinstance(annotation, types.UnionType) else (annotation,)
    for accepted_type in accepted:
        origin = typing.get_origin(accepted_type) or accepted_type
        if origin is float and type(value) is int:
            return float(value)
        if type(value) is not origin:
            continue
        if origin is list and not all(isinstance(item, str) for item in value):
            continue
        if origin is dict:
            return {str(k): str(v) for k, v in value.items()}
        return value
    if isinstance(value, str) and float in accepted:
        try:
            raise InputError(f"{where}: {value!r} is read as text: write {float(value)!r}")
        except ValueError as error:
            if isinstance(error, InputError):
                raise
    names = [str(getattr(k, "__name__", k)).replace("NoneType", "null") for k in accepted]
    raise InputError(f"{where}: expected {' or '.join(names)}, got {value!r:.40}")
