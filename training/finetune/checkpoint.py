"""`final/`: adapters as peft saves them, tokenizer, settings; whole or not at all (node side)."""

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
"""Relative: a reloaded model on the same batch; bf16 rounds, and FSDP adds in another order."""


def adapters_of(adapted: Any) -> dict[str, torch.Tensor]:
    """The trained weights on the host, whole; all ranks must call it where they are sharded."""
    return {
        name: _whole(p).detach().cpu().clone()
        for name, p in adapted.named_parameters()
        if p.requires_grad
    }


def _whole(parameter: Any) -> torch.Tensor:
    """A parameter that FSDP or ZeRO-3 may have sharded."""
    if hasattr(parameter, "full_tensor"):
        return parameter.full_tensor()  # type: ignore[no-any-return]
    if hasattr(parameter, "ds_id"):
        import deepspeed

        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().clone()  # type: ignore[no-any-return]
    return parameter  # type: ignore[no-any-return]


def save(
    adapters: dict[str, torch.Tensor],
    adapted: Any,
    tokenizer: Any,
    settings: Settings,
    folder: Path,
) -> Path:
    """Write `final/` beside its final place and rename it; one rank calls it."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    final, draft = folder / "final", folder / ".final"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    with model.between_libraries():
        weights = get_peft_model_state_dict(adapted, state_dict=adapters)
        adapted.peft_config["default"].save_pretrained(draft)
    save_file({name: w.contiguous() for name, w in weights.items()}, draft / WEIGHTS)
    tokenizer.save_pretrained(draft)
    (draft / "settings.json").write_text(json.dumps(settings.to_json(), indent=1) + "\n")
    shutil.rmtree(final, ignore_errors=True)
    draft.rename(final)
    return final


def reload(final: Path, settings: Settings, device: torch.device) -> Any:
    """The model with the adapters of `final/`, on a device; InputError where it cannot be read."""
    from peft import PeftModel
    from safetensors import SafetensorError

    base = model.build(settings.model, device, seed=settings.training.seed)
    try:
        with model.between_libraries():
            return PeftModel.from_pretrained(base, final, autocast_adapter_dtype=False)
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError) as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"{final} cannot be loaded: {why}") from error


def difference(adapters: dict[str, torch.Tensor], again: Any) -> str:
    """RELOADS where every weight is the same bit for bit, else what is not."""
    found = {name: p for name, p in again.named_parameters() if name in adapters}
    if missing := adapters.keys() - found.keys():
        return f"{len(missing)} of {len(adapters)} weights are missing"
    other = [n for n, p in found.items() if not torch.equal(p.detach().cpu(), adapters[n])]
    return f"{len(other)} of {len(adapters)} weights differ" if other else RELOADS


def check(
    final: Path,
    adapters: dict[str, torch.Tensor],
    loss: float,
    probe: Any,
    settings: Settings,
    ranks: Ranks,
) -> tuple[str, Any]:
    """RELOADS, or what is wrong with `final/`; and the reloaded model, None where there is none.

    `loss` is that of the trained model on a batch, `probe(model)` that of another on the same.
    """
    try:
        again = reload(final, settings, ranks.device)
    except InputError as error:
        return f"does not reload: {error}", None
    state = difference(adapters, again)
    if state == RELOADS:
        found = probe(again)
        if not abs(found - loss) <= LOSS_TOLERANCE * max(loss, 0.1):
            state = f"reloads, but its loss is {found:.4f}, before it was {loss:.4f}"
    return state, again
