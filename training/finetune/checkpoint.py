"""`final/`: peft adapters, tokenizer and settings, written atomically (node side)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from training.finetune import model
from training.finetune.settings import InputError, Settings

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks

WEIGHTS = "adapter_model.safetensors"
RELOADS = "reloads"
LOSS_TOLERANCE = 0.01
"""Relative loss difference after reloading: bf16 rounds, and FSDP sums in another order."""


def adapters_of(peft_model: Any) -> dict[str, torch.Tensor]:
    """Return the trained weights, unsharded, on the host; if sharded, all ranks must call it."""
    return {
        name: _unsharded(p).detach().cpu().clone()
        for name, p in peft_model.named_parameters()
        if p.requires_grad
    }


def _unsharded(parameter: Any) -> torch.Tensor:
    """Return the full tensor of a parameter that FSDP or ZeRO-3 may have sharded."""
    if hasattr(parameter, "full_tensor"):
        return parameter.full_tensor()  # type: ignore[no-any-return]
    if hasattr(parameter, "ds_id"):
        import deepspeed

        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().clone()  # type: ignore[no-any-return]
    return parameter  # type: ignore[no-any-return]


def save(
    adapters: dict[str, torch.Tensor],
    peft_model: Any,
    tokenizer: Any,
    settings: Settings,
    folder: Path,
) -> Path:
    """Write `final/` under a temporary name and rename it; only one rank calls it."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    final, partial = folder / "final", folder / ".final"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with model.deprecations_ignored():
        weights = get_peft_model_state_dict(peft_model, state_dict=adapters)
        peft_model.peft_config["default"].save_pretrained(partial)
    save_file({name: w.contiguous() for name, w in weights.items()}, partial / WEIGHTS)
    tokenizer.save_pretrained(partial)
    (partial / "settings.json").write_text(json.dumps(settings.to_json(), indent=1) + "\n")
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    return final


def reload(final: Path, settings: Settings, device: torch.device) -> Any:
    """Return the model with the adapters of `final/`; InputError if it cannot be read."""
    from peft import PeftModel
    from safetensors import SafetensorError

    base = model.build(settings.model, device, seed=settings.training.seed)
    try:
        with model.deprecations_ignored():
            return PeftModel.from_pretrained(base, final, autocast_adapter_dtype=False)
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError) as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"{final} cannot be loaded: {why}") from error


def compare_weights(adapters: dict[str, torch.Tensor], reloaded: Any) -> str:
    """Return RELOADS if every weight is equal bit for bit, else the number that are not."""
    reloaded_weights = {name: p for name, p in reloaded.named_parameters() if name in adapters}
    if missing := adapters.keys() - reloaded_weights.keys():
        return f"{len(missing)} of {len(adapters)} weights are missing"
    differing = [
        n for n, p in reloaded_weights.items() if not torch.equal(p.detach().cpu(), adapters[n])
    ]
    return f"{len(differing)} of {len(adapters)} weights differ" if differing else RELOADS


def check(
    final: Path,
    adapters: dict[str, torch.Tensor],
    expected_loss: float,
    loss_of: Any,
    settings: Settings,
    ranks: Ranks,
) -> tuple[str, Any]:
    """Return RELOADS or what is wrong with `final/`, and the reloaded model or None.

    `expected_loss` is the trained model's on a batch; `loss_of(model)` computes another model's
    on the same batch.
    """
    try:
        reloaded = reload(final, settings, ranks.device)
    except InputError as error:
        return f"does not reload: {error}", None
    state = compare_weights(adapters, reloaded)
    if state == RELOADS:
        reloaded_loss = loss_of(reloaded)
        if not abs(reloaded_loss - expected_loss) <= LOSS_TOLERANCE * max(expected_loss, 0.1):
            state = (
                f"reloads, but its loss is {reloaded_loss:.4f}, before it was {expected_loss:.4f}"
            )
    return state, reloaded
