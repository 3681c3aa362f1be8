"""The model that is fine-tuned: from a local directory, or random weights of a shape (node side).

All weights are of one precision, on GPUs bf16 as a rule, on a CPU fp32; loop.py keeps fp32 copies
of the adapters, because an update of 2e-5 is lost in bf16.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from fixtures.workloads.runtime import process_group
from training.finetune.loss import head_loss
from training.finetune.packing import Batch
from training.finetune.settings import (
    InputError,
    LoraSettings,
    ModelSettings,
    Settings,
    check_model,
)
from training.finetune.shapes import SHAPES

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks

GIB = 2**30

RECOMPILE_LIMIT = 64
"""One compiled layer should serve them all; where the guards differ, each may have its own."""


def offline() -> None:
    """Before transformers is imported: no download, and no processes of its own in the loader's."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@contextmanager
def between_libraries() -> Iterator[None]:
    """What libraries call of each other may be deprecated there; that is not ours to mend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=FutureWarning)
        warnings.simplefilter("ignore", category=DeprecationWarning)
        yield


def dtype_of(settings: ModelSettings, device: torch.device) -> torch.dtype:
    halved = settings.precision == "bf16" and device.type == "cuda"
    return torch.bfloat16 if halved else torch.float32


def config_of(settings: ModelSettings) -> Any:
    """transformers' configuration of the model."""
    offline()
    from transformers import AutoConfig, Qwen2Config

    if settings.path is not None:
        check_model(settings.path)
        return AutoConfig.from_pretrained(settings.path, local_files_only=True)
    return Qwen2Config(**SHAPES[settings.preset], use_cache=False)


def build(settings: ModelSettings, device: torch.device, *, seed: int) -> Any:
    """The model on its device, frozen; random weights are the same on every rank."""
    config = config_of(settings)
    from transformers import AutoModelForCausalLM

    dtype = dtype_of(settings, device)
    if settings.path is not None:
        model: Any = AutoModelForCausalLM.from_pretrained(
            settings.path, dtype=dtype, local_files_only=True, attn_implementation="sdpa"
        )
        model = model.to(device)
    else:
        torch.manual_seed(seed)
        with device:
            made: Any = AutoModelForCausalLM.from_config
            model = made(config, dtype=dtype, attn_implementation="sdpa")
    return model.requires_grad_(False)


def adapt(model: Any, settings: LoraSettings, *, seed: int) -> Any:
    """The model with fresh adapters, as peft has it; only they are trained."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed + 1)
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(settings.layers),
        task_type="CAUSAL_LM",
    )
    try:
        with between_libraries():
            return get_peft_model(model, config, autocast_adapter_dtype=False)
    except ValueError as error:
        raise InputError(f"lora.targets: {error}") from error


def count(model: Any) -> tuple[int, int]:
    """(trainable, all) parameters."""
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return sum(n for n, trained in sizes if trained), sum(n for n, _ in sizes)


def trainable_of_shape(preset: str, lora: LoraSettings) -> int:
    """Parameters that LoRA trains on a shape, from the shape alone: no weight is made."""
    meta = torch.device("meta")
    with meta:
        return count(adapt(build(ModelSettings(preset=preset), meta, seed=0), lora, seed=0))[0]


@dataclass(frozen=True)
class Cost:
    """Floating point operations that a fine-tuning does a token, and what it holds in memory."""

    shape: Any
    """transformers' configuration."""
    trainable: int
    total: int

    def flop_per_token(self, length: int, learned_share: float) -> float:
        """4 N + 6 N_lora + attention, in FLOP; nothing that is computed twice is counted.

        Frozen weights get no gradient of their own: 4, not 6, a parameter. The head works on
        learned places only. Attention is causal, half of the square: 6 x layers x width x length.
        """
        head = int(self.shape.vocab_size * self.shape.hidden_size)
        embedding = 0 if self.shape.tie_word_embeddings else head
        body = self.total - self.trainable - head - embedding
        attention = 6 * int(self.shape.num_hidden_layers * self.shape.hidden_size) * length
        return 4 * (body + head * learned_share) + 6 * self.trainable + attention

    def memory_gib(self, tokens: int, *, checkpointing: bool, bytes_each: int = 2) -> float:
        """What passes over so many tokens hold at their peak, by a rule fitted to measured runs.

        67 GiB measured at 8,192 tokens of the Qwen2-7B shape without recomputation, 31 with; about
        ten of them were logits, of which head_loss() keeps one chunk.
        """
        wide, narrow = int(self.shape.intermediate_size), int(self.shape.hidden_size)
        layer = bytes_each * (3 * wide + 10 * narrow) * tokens
        layers = int(self.shape.num_hidden_layers)
        kept = layers * bytes_each * narrow * tokens + layer if checkpointing else layers * layer
        weights = bytes_each * self.total + 20 * self.trainable
        logits = 3e9 + 4 * bytes_each * narrow * tokens
        return (weights + kept + logits) / GIB


class Tuned(torch.nn.Module):
    """The model and its loss as one module, so that FSDP and ZeRO-3 see one forward."""

    def __init__(self, adapted: Any, *, compiled: bool) -> None:
        super().__init__()
        self.causal = adapted.get_base_model()
        self._compiled = compiled

    def forward(self, batch: Batch) -> torch.Tensor:
        """Sum of the losses over the learned places, in nats; fp32."""
        decoder = getattr(self.causal, self.causal.base_model_prefix)
        kinds = getattr(self.causal.config, "layer_types", None)
        mask = None
        if batch.positions is None and kinds is not None and set(kinds) == {"full_attention"}:
            # Else transformers looks for restarting positions, and waits for the GPU to see them.
            mask = {"full_attention": None}
        hidden = decoder(
            input_ids=batch.tokens,
            attention_mask=mask,
            position_ids=batch.positions,
            use_cache=False,
        ).last_hidden_state
        places = hidden.flatten(0, 1).index_select(0, batch.where)
        weight = self.causal.get_output_embeddings().weight
        return head_loss(places, weight, batch.wanted, chunk=batch.chunk, compiled=self._compiled)

    @property
    def layers(self) -> Any:
        return getattr(self.causal, self.causal.base_model_prefix).layers


def prepared(adapted: Any, settings: Settings, ranks: Ranks) -> Tuned:
    """Ready to train: recomputation, compiled layers, sharding, as the settings say."""
    compiled = is_compiled(settings, ranks)
    tuned = Tuned(adapted, compiled=compiled)
    tuned.train()
    if compiled:
        compile_layers(tuned)
    if settings.training.gradient_checkpointing:
        recompute_layers(tuned)
    if settings.distributed.strategy == "fsdp":
        shard(tuned, ranks)
    return tuned


def is_compiled(settings: Settings, ranks: Ranks) -> bool:
    """Not under ZeRO-3: its hooks are on every part of a layer, and would be compiled again each.

    Seen on H200 (2026-11): no step within two minutes.
    """
    usable = ranks.on_gpu and settings.distributed.strategy != "zero3"
    return usable and settings.training.compile


def compile_layers(tuned: Tuned, backend: Any = "inductor") -> None:
    """Each layer's forward alone: recomputation and the hooks of FSDP stay around it."""
    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    for layer in tuned.layers:
        layer.forward = torch.compile(layer.forward, dynamic=False, backend=backend)


def recompute_layers(tuned: Tuned) -> None:
    """Keep a layer's input only and compute the layer again on the way back.

    Not by transformers' own switch: versions differ in whether FSDP's hooks are computed again too.
    """
    for layer in tuned.layers:
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)


def shard(tuned: Tuned, ranks: Ranks) -> None:
    """FSDP2: frozen weights and adapters alike, a group a layer; gradients are reduced in fp32."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    process_group.of(ranks)
    mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for layer in tuned.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(tuned, mesh=mesh, mp_policy=policy)


def resident_bytes(model: Any) -> int:
    """Bytes of weights that this rank keeps: its shards where they are sharded."""
    own = (p.to_local() if hasattr(p, "to_local") else p for p in model.parameters())
    return sum(p.numel() * p.element_size() for p in own)
