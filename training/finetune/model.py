"""The model to fine-tune, from a local directory or with random weights of a shape (node side).

All weights have one precision, on GPUs bf16 by default, on a CPU fp32; loop.py keeps fp32 master
weights of the adapters, because an update of 2e-5 is lost in bf16.
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
from training.finetune.packing import Batch
from training.finetune.settings import (
    InputError,
    LoraSettings,
    ModelSettings,
    Settings,
    check_model,
)
from training.finetune.shapes import SHAPES
from training.loss import sum_of_learned

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks

GIB = 2**30

RECOMPILE_LIMIT = 64
"""Highest number of recompilations: one serves all layers, unless the guards of layers differ."""


def set_offline() -> None:
    """Disable downloads and tokenizer threads; must be called before transformers is imported."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@contextmanager
def deprecations_ignored() -> Iterator[None]:
    """Ignore deprecation warnings for calls between libraries, which this project cannot fix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=FutureWarning)
        warnings.simplefilter("ignore", category=DeprecationWarning)
        yield


def dtype_of(settings: ModelSettings, device: torch.device) -> torch.dtype:
    """Return the dtype of the weights on a device."""
    use_bf16 = settings.precision == "bf16" and device.type == "cuda"
    return torch.bfloat16 if use_bf16 else torch.float32


def config_of(settings: ModelSettings) -> Any:
    """Return transformers' configuration of the model."""
    set_offline()
    from transformers import AutoConfig, Qwen2Config

    if settings.path is not None:
        check_model(settings.path)
        return AutoConfig.from_pretrained(settings.path, local_files_only=True)
    return Qwen2Config(**SHAPES[settings.preset], use_cache=False)


def build(settings: ModelSettings, device: torch.device, *, seed: int) -> Any:
    """Return the model on its device, frozen; random weights are equal on every rank.

    Those of a small model, which learns, are drawn on the CPU: so they are equal on every device,
    and what it has learned in the end does not depend on where it did. Large ones are only timed.
    """
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
        with torch.device("cpu") if settings.preset == "tiny" else device:
            from_config: Any = AutoModelForCausalLM.from_config
            model = from_config(config, dtype=dtype, attn_implementation="sdpa")
        model = model.to(device)
    return model.requires_grad_(False)


def add_adapters(model: Any, settings: LoraSettings, *, seed: int) -> Any:
    """Return the model with new LoRA adapters, as a peft model; only they are trainable."""
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
        with deprecations_ignored():
            return get_peft_model(model, config, autocast_adapter_dtype=False)
    except ValueError as error:
        raise InputError(f"lora.targets: {error}") from error


def count_parameters(model: Any) -> tuple[int, int]:
    """Return the numbers of (trainable, all) parameters."""
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return sum(n for n, trained in sizes if trained), sum(n for n, _ in sizes)


@dataclass(frozen=True)
class TrainingCost:
    """Estimates of the FLOPs per token and of the memory of a fine-tuning."""

    shape: Any
    """transformers' configuration."""
    trainable: int
    total: int

    def flop_per_token(self, length: int, learned_share: float) -> float:
        """Return 4 N + 6 N_lora + attention, in FLOP; recomputation is not counted.

        Frozen weights get no gradient of their own: 4, not 6, per parameter. The head computes
        learned positions only. Attention is causal: 6 x layers x width x length, half of the
        full matrix.
        """
        head = int(self.shape.vocab_size * self.shape.hidden_size)
        embedding = 0 if self.shape.tie_word_embeddings else head
        body = self.total - self.trainable - head - embedding
        attention = 6 * int(self.shape.num_hidden_layers * self.shape.hidden_size) * length
        return 4 * (body + head * learned_share) + 6 * self.trainable + attention

    def memory_gib(self, tokens: int, *, checkpointing: bool, bytes_per_value: int = 2) -> float:
        """Return the peak memory of a pass over `tokens`, by a rule fitted to measured runs.

        Measured at 8,192 tokens of the Qwen2-7B shape: 67 GiB without recomputation, 31 with; about
        ten of them were logits, of which sum_of_learned() keeps one chunk.
        """
        feed_forward_width, width = int(self.shape.intermediate_size), int(self.shape.hidden_size)
        layer = bytes_per_value * (3 * feed_forward_width + 10 * width) * tokens
        layers = int(self.shape.num_hidden_layers)
        activations = (
            layers * bytes_per_value * width * tokens + layer if checkpointing else layers * layer
        )
        weights = bytes_per_value * self.total + 20 * self.trainable
        logits = 3e9 + 4 * bytes_per_value * width * tokens
        return (weights + activations + logits) / GIB


class LossModel(torch.nn.Module):
    """The model and its loss as one module, so that FSDP and ZeRO-3 hook a single forward."""

    def __init__(self, peft_model: Any, *, compiled: bool) -> None:
        super().__init__()
        self.causal = peft_model.get_base_model()
        self._compiled = compiled

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the sum of the losses over the learned positions, in nats; fp32."""
        decoder = getattr(self.causal, self.causal.base_model_prefix)
        layer_types = getattr(self.causal.config, "layer_types", None)
        mask = None
        if (
            batch.position_ids is None
            and layer_types is not None
            and set(layer_types) == {"full_attention"}
        ):
            # Else transformers checks for packed positions, which makes the host wait for the GPU.
            mask = {"full_attention": None}
        hidden = decoder(
            input_ids=batch.tokens,
            attention_mask=mask,
            position_ids=batch.position_ids,
            use_cache=False,
        ).last_hidden_state
        learned_states = hidden.flatten(0, 1).index_select(0, batch.learned_positions)
        weight = self.causal.get_output_embeddings().weight
        return sum_of_learned(
            learned_states,
            weight,
            batch.targets,
            chunk_size=batch.chunk_size,
            compiled=self._compiled,
        )

    @property
    def layers(self) -> Any:
        return getattr(self.causal, self.causal.base_model_prefix).layers


def prepare_for_training(peft_model: Any, settings: Settings, ranks: Ranks) -> LossModel:
    """Return the model in training mode, compiled, with recomputation and sharding as set."""
    compiled = is_compiled(settings, ranks)
    loss_model = LossModel(peft_model, compiled=compiled)
    loss_model.train()
    if compiled:
        compile_layers(loss_model)
    if settings.training.gradient_checkpointing:
        recompute_layers(loss_model)
    if settings.distributed.strategy == "fsdp":
        shard(loss_model, ranks)
    return loss_model


def is_compiled(settings: Settings, ranks: Ranks) -> bool:
    """Whether layers are compiled: not on CPUs, nor under ZeRO-3.

    ZeRO-3 hooks every module of a layer, and each hook is recompiled: on H200 (2026-11) no step
    was done within two minutes.
    """
    usable = ranks.on_gpu and settings.distributed.strategy != "zero3"
    return usable and settings.training.compile


def compile_layers(loss_model: LossModel, backend: Any = "inductor") -> None:
    """Compile each layer's forward only: recomputation and FSDP's hooks stay outside of it."""
    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    for layer in loss_model.layers:
        layer.forward = torch.compile(layer.forward, dynamic=False, backend=backend)


def recompute_layers(loss_model: LossModel) -> None:
    """Keep only the input of each layer and recompute the layer in the backward pass.

    Not by transformers' own option: versions differ in whether FSDP's hooks are called again too.
    """
    for layer in loss_model.layers:
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)


def shard(loss_model: LossModel, ranks: Ranks) -> None:
    """Shard frozen weights and adapters by FSDP2, one unit per layer; reduce gradients in fp32."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    process_group.of(ranks)
    mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for layer in loss_model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(loss_model, mesh=mesh, mp_policy=policy)


def resident_bytes(model: Any) -> int:
    """Return the bytes of weights on this rank: its shards if they are sharded."""
    shards = (p.to_local() if hasattr(p, "to_local") else p for p in model.parameters())
    return sum(p.numel() * p.element_size() for p in shards)
