"""What a fine-tuning is told: the YAML files beside this module, or one of your own (node side).

Strict: an unknown key, a wrong type or a number that YAML reads as text is one clear line, before
torch is imported. PyYAML comes with transformers.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

NEEDED = ("transformers", "peft", "accelerate", "safetensors", "yaml")
PRECISIONS = ("bf16", "fp32")
STRATEGIES = ("plain", "fsdp", "zero3")

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
TARGETS = {"attention": ATTENTION, "all": (*ATTENTION, "gate_proj", "up_proj", "down_proj")}
"""Named choices of the layers that get adapters. At r 64 the 7B shape trains 40.4 M parameters
with `attention` and 161 M with `all`."""


class InputError(ValueError):
    """What the user gave cannot be used: one line that names the file and what to do."""


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    preset: str = "qwen2-7b"
    """Shape that gets random weights where no path is given: throughput and memory are the same."""
    precision: str = "bf16"
    """Of all weights, on GPUs: bf16 or fp32. On a CPU it is fp32."""
    path: str | None = None
    """A local directory as transformers' save_pretrained leaves it; nothing is downloaded."""


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    r: int = 64
    alpha: int = 128
    dropout: float = 0.05
    targets: str | list[str] = "attention"
    """A name of TARGETS, or names of linear layers."""

    @property
    def layers(self) -> tuple[str, ...]:
        return TARGETS[self.targets] if isinstance(self.targets, str) else tuple(self.targets)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    batch_size: int = 2
    """Packed sequences a GPU and pass."""
    global_batch_size: int = 128
    """Packed sequences a step, over all GPUs; the passes a step follow from it."""
    steps: int = 100
    warmup_steps: int = 10
    learning_rate: float = 2e-5
    """At the end of the warm-up; falls to zero along a cosine."""
    max_grad_norm: float = 1.0
    gradient_checkpointing: bool = True
    """Every layer is computed again on the way back: less memory, about a quarter more work."""
    compile: bool = True
    """torch.compile of every decoder layer; on GPUs only, and not under ZeRO-3."""
    seed: int = 0

    def passes(self, world_size: int) -> int:
        """Passes a step on so many GPUs; InputError where the batch does not divide."""
        together = self.batch_size * world_size
        if self.global_batch_size % together:
            raise InputError(
                f"training.global_batch_size {self.global_batch_size} does not divide by"
                f" batch_size x GPUs = {self.batch_size} x {world_size}; take a multiple of"
                f" {together}"
            )
        return self.global_batch_size // together


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    path: str | None = None
    """Glaive v2 format, .json or .jsonl; without one, conversations that the project makes."""
    max_length: int = 4096
    """Tokens a packed sequence."""
    separate: bool = False
    """Conversations of a sequence do not see each other. Costs flash attention: PyTorch's takes no
    such mask."""
    held_out: float = 0.05
    """Share of the conversations that is kept for the evaluation."""
    skip_broken: bool = False
    """Leave broken lines out instead of refusing the file."""
    workers: int = 4
    """Loader processes a GPU; none on a CPU, where ranks share the cores."""
    prefetch: int = 2
    """Batches that each of them loads ahead."""


@dataclass(frozen=True, kw_only=True)
class DistributedSettings:
    strategy: str = "plain"
    environment: dict[str, str] = field(default_factory=dict)
    """NCCL_... and CUDA_... that are set before the GPUs are used; what is set already stays. In a
    job of the suite NCCL runs by then, and they are only recorded."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All of a fine-tuning's settings; `name` is the file's, and stands in the record."""

    name: str = "default"
    model: ModelSettings = field(default_factory=ModelSettings)
    lora: LoraSettings = field(default_factory=LoraSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    data: DataSettings = field(default_factory=DataSettings)
    distributed: DistributedSettings = field(default_factory=DistributedSettings)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def but(self, section: str, **changes: Any) -> Settings:
        """The same with other values in one section."""
        part = dataclasses.replace(getattr(self, section), **changes)
        return dataclasses.replace(self, **{section: part})


def find(name: str) -> Path:
    """A file of settings by its path, or one of those beside this module by its name."""
    own = HERE / (name if name.endswith(".yaml") else f"{name}.yaml")
    path = Path(name)
    if path.is_file():
        return path
    if own.parent == HERE and own.is_file():
        return own
    known = ", ".join(sorted(p.name for p in HERE.glob("*.yaml")))
    raise InputError(f"{name}: no such file of settings; shipped are {known}")


def load(path: Path) -> Settings:
    """Read and check a file of settings; InputError with one line for whatever is wrong."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key that is given twice: YAML would silently take the last."""

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
        raise InputError(f"{path}:{line} no YAML: {getattr(error, 'problem', error)}") from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected sections like training:, got {data!r:.40}")
    sections = {f.name: f.type for f in dataclasses.fields(Settings) if f.name != "name"}
    _known(f"{path}", data, sections)
    hints = typing.get_type_hints(Settings)
    parts = {
        name: _section(f"{path}: {name}", hints[name], body or {}) for name, body in data.items()
    }
    settings = Settings(name=path.stem, **parts)
    try:
        check(settings)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return settings


def check(settings: Settings) -> None:
    """Values that no type rules out; InputError names the setting."""
    from training.finetune.shapes import SHAPES

    _one_of("model.preset", settings.model.preset, SHAPES)
    _one_of("model.precision", settings.model.precision, PRECISIONS)
    _one_of("distributed.strategy", settings.distributed.strategy, STRATEGIES)
    if isinstance(settings.lora.targets, str):
        _one_of("lora.targets", settings.lora.targets, TARGETS)
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


def told(
    settings: Settings,
    *,
    model: str | None = None,
    data: str | None = None,
    strategy: str | None = None,
) -> Settings:
    """The settings with what the command line names; InputError for files that are not there."""
    if model is not None:
        settings = settings.but("model", path=model)
    if data is not None:
        settings = settings.but("data", path=data)
    if strategy is not None:
        settings = settings.but("distributed", strategy=strategy)
    if settings.model.path is not None:
        check_model(settings.model.path)
    if settings.data.path is not None and not Path(settings.data.path).is_file():
        raise InputError(
            f"data.path: {settings.data.path} is no file; give one in Glaive v2 format"
        )
    return settings


def check_model(path: str) -> None:
    """InputError where a model's directory is not one; looks at names only."""
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(f"model.path: {path} is no directory; give one that holds config.json")
    for what, kinds in (("config.json", ["config.json"]), ("weights", ["*.safetensors", "*.bin"])):
        if not any(any(folder.glob(kind)) for kind in kinds):
            raise InputError(f"model.path: {path} holds no {what}; nothing is downloaded")


def check_packages(strategy: str) -> None:
    """InputError in one line for what is not installed; nothing is imported."""
    wanted = (*NEEDED, *(("deepspeed",) if strategy == "zero3" else ()))
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        extra = "zero3" if missing == ["deepspeed"] else "finetune"
        names = ", ".join("PyYAML" if name == "yaml" else name for name in missing)
        raise InputError(
            f"not installed: {names}; needed on the nodes beside torch (extra {extra!r} of"
            " pyproject.toml, versions in constraints.txt)"
        )


def _one_of(name: str, value: str, known: typing.Iterable[str]) -> None:
    if value not in known:
        raise InputError(f"{name}: {value!r} is not known{_hint(value, known)}")


def _hint(wrong: str, known: typing.Iterable[str]) -> str:
    near = difflib.get_close_matches(wrong, list(known), 1)
    return f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"


def _known(where: str, data: dict[Any, Any], known: typing.Iterable[str]) -> None:
    for key in data:
        if key not in known:
            raise InputError(f"{where}: unknown key {key!r}{_hint(str(key), known)}")


def _section(where: str, kind: Any, body: Any) -> Any:
    if not isinstance(body, dict):
        raise InputError(f"{where}: expected keys with values, got {body!r:.40}")
    hints = typing.get_type_hints(kind)
    _known(where, body, hints)
    return kind(**{k: _typed(f"{where}.{k}", hints[k], value) for k, value in body.items()})


def _typed(where: str, kind: Any, value: Any) -> Any:
    """The value where it is of the annotated type; a whole number may stand for a fraction."""
    kinds = kind.__args__ if isinstance(kind, types.UnionType) else (kind,)
    for one in kinds:
        origin = typing.get_origin(one) or one
        if origin is float and type(value) is int:
            return float(value)
        if type(value) is not origin:
            continue
        if origin is list and not all(isinstance(item, str) for item in value):
            continue
        if origin is dict:
            return {str(k): str(v) for k, v in value.items()}
        return value
    if isinstance(value, str) and float in kinds:
        try:
            raise InputError(f"{where}: {value!r} is read as text: write {float(value)!r}")
        except ValueError as error:
            if isinstance(error, InputError):
                raise
    names = [str(getattr(k, "__name__", k)).replace("NoneType", "null") for k in kinds]
    raise InputError(f"{where}: expected {' or '.join(names)}, got {value!r:.40}")
