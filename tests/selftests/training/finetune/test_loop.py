"""The training loop of the fine-tuning: a small model learns, in steps that nothing holds up."""

from __future__ import annotations

import shutil
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.verdict.model import Outcome
from tests.selftests.finetuning_cases import judged
from tests.selftests.training.finetune.small_training import Alone, small
from training.finetune import evaluate, glaive, sample

pytestmark = pytest.mark.cpu


# --- training, final/, logs


@pytest.fixture(scope="module")
def learned(tokenizer, conversations, tmp_path_factory) -> Any:
    """A short training of the small model, and its final/."""
    import torch

    from training.finetune import checkpoint, loop, model, packing

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("learned")
    ranks: Any = Alone(root)
    wanted = small(40)
    adapted = model.add_adapters(
        model.build(wanted.model, ranks.device, seed=0), wanted.lora, seed=0
    )
    packed = packing.pack(tokenizer, conversations, wanted.data.max_length)
    seen: list[int] = []
    tuned = model.prepare_for_training(adapted, wanted, ranks)
    found = loop.train(
        tuned, packed, wanted, ranks, on_step=lambda step, *figures: seen.append(step)
    )
    weights = checkpoint.adapters_of(adapted)
    final = checkpoint.save(weights, adapted, tokenizer, wanted, root)
    yield SimpleNamespace(
        found=found, seen=seen, wanted=wanted, ranks=ranks, weights=weights, final=final,
        packed=packed, loss=loop.first_batch_loss(tuned, packed, wanted, ranks),
    )  # fmt: skip
    torch.set_num_threads(threads)


def state_of(learned: Any, final: Path) -> str:
    from training.finetune import checkpoint, loop, model

    def probe(again: Any) -> float:
        tuned = model.LossModel(again, compiled=False)
        return loop.first_batch_loss(tuned, learned.packed, learned.wanted, learned.ranks)

    return checkpoint.check(
        final, learned.weights, learned.loss, probe, learned.wanted, learned.ranks
    )[0]


def test_a_training_learns_and_tells_of_every_step(learned, limits):
    found = learned.found
    assert learned.seen == list(range(40))
    assert found.losses[0] > 5 > 0.5 > found.losses[-1]
    assert max(found.learning_rates) == learned.wanted.training.learning_rate
    assert found.learning_rates[-1] < 0.01 * max(found.learning_rates)
    assert len(found.seconds) == len(found.ended) == 40
    assert sum(found.tokens) > found.learned_tokens > 0
    assert judged(limits, "finetune.loss", found.losses[-1]).ok


def test_a_training_on_shuffled_labels_is_red(learned, limits, tmp_path):
    """Fault below the workload: the answers do not belong to the questions."""
    import torch

    from training.finetune import loop, model, packing

    packed, wanted = learned.packed, learned.wanted
    real = packed.labels != packing.IGNORE_INDEX
    labels = packed.labels.clone()
    shuffle = torch.randperm(int(real.sum()), generator=torch.Generator().manual_seed(0))
    labels[real] = packed.labels[real][shuffle]
    adapted = model.add_adapters(
        model.build(wanted.model, torch.device("cpu"), seed=0), wanted.lora, seed=0
    )
    tuned = model.prepare_for_training(adapted, wanted, learned.ranks)
    wrong = packing.PackedSequences(packed.tokens, labels, packed.part)
    found = loop.train(tuned, wrong, wanted, learned.ranks)
    verdict = judged(limits, "finetune.loss", found.losses[-1])
    assert verdict.outcome is Outcome.FAIL, verdict.line


class OneOfTwo(Alone):
    """A rank of two; what the other one gathers is given."""

    def __init__(self, root: Path, rank: int) -> None:
        super().__init__(root)
        self.rank, self.world_size = rank, 2
        self.own: list[Any] = []
        self.others: list[Any] = []

    def gather(self, item: Any) -> list[Any]:
        self.own.append(item)
        return [item, *self.others]


def test_the_held_out_loss_is_that_of_all_sequences_whoever_takes_them(
    learned, tokenizer, tmp_path
):
    import torch

    from training.finetune import loop, model, packing

    held_out = [glaive.parse(row) for row in sample.rows(20, 7)]
    packed = packing.pack(tokenizer, held_out, learned.wanted.data.max_length)
    tuned = model.LossModel(_reloaded(learned), compiled=False)
    alone = loop.held_out_loss(tuned, packed, learned.wanted, learned.ranks)
    whole = packing.batch_of(packed, range(len(packed)), separate=learned.wanted.data.separate)
    tuned.eval()
    with torch.no_grad():
        expected = tuned(whole).item() / whole.learned_count
    assert alone == pytest.approx(expected, rel=1e-4)
    assert 0 < alone < 1, "it has learned such conversations"
    wanted = learned.wanted.with_values("training", batch_size=2)
    assert len(packed) > 2
    first, second = OneOfTwo(tmp_path, 0), OneOfTwo(tmp_path, 1)
    loop.held_out_loss(tuned, packed, wanted, first)  # type: ignore[arg-type]
    second.others = first.own
    shared = loop.held_out_loss(tuned, packed, wanted, second)  # type: ignore[arg-type]
    assert shared == pytest.approx(expected, rel=1e-4)


def _reloaded(learned: Any) -> Any:
    from training.finetune import checkpoint, loop, model

    def loss_of(again: Any) -> float:
        tuned = model.LossModel(again, compiled=False)
        return loop.first_batch_loss(tuned, learned.packed, learned.wanted, learned.ranks)

    state, again = checkpoint.check(
        learned.final, learned.weights, learned.loss, loss_of, learned.wanted, learned.ranks
    )
    assert again is not None, state
    return again


def test_no_step_waits_for_the_device(learned):
    """A number that is read on the way would stop the queue of a GPU in every step."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from training.finetune import loop, model

    read: list[str] = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if "_local_scalar_dense" in str(func) or "nonzero" in str(func):
                read.append("".join(traceback.format_stack(limit=12)))
            return func(*args, **(kwargs or {}))

    wanted = learned.wanted.with_values("data", separate=False)
    base = model.build(wanted.model, learned.ranks.device, seed=0)
    tuned = model.prepare_for_training(
        model.add_adapters(base, wanted.lora, seed=0), wanted, learned.ranks
    )
    with Count():
        loop.train(tuned, learned.packed, wanted, learned.ranks, max_steps=3)
    assert [where for where in read if "packing.py" not in where] == []


def test_recomputed_layers_train_the_same(learned):
    from training.finetune import loop, model

    wanted = learned.wanted.with_values("training", gradient_checkpointing=True)
    base = model.build(wanted.model, learned.ranks.device, seed=0)
    tuned = model.prepare_for_training(
        model.add_adapters(base, wanted.lora, seed=0), wanted, learned.ranks
    )
    found = loop.train(tuned, learned.packed, wanted, learned.ranks, max_steps=3)
    assert found.losses == pytest.approx(learned.found.losses[:3], rel=1e-5)


def test_accumulated_passes_are_one_large_batch(learned):
    from training.finetune import loop, model

    def losses(batch_size: int) -> list[float]:
        wanted = learned.wanted.with_values("training", batch_size=batch_size)
        base = model.build(wanted.model, learned.ranks.device, seed=0)
        tuned = model.prepare_for_training(
            model.add_adapters(base, wanted.lora, seed=0), wanted, learned.ranks
        )
        return loop.train(tuned, learned.packed, wanted, learned.ranks, max_steps=3).losses

    assert losses(2) == pytest.approx(learned.found.losses[:3], rel=1e-4)


def test_final_is_loaded_again(learned, limits):
    state = state_of(learned, learned.final)
    assert judged(limits, "finetune.checkpoint", state).ok, state
    assert evaluate.settings_of(learned.final) == learned.wanted


@pytest.mark.parametrize("damage", ["truncated", "altered", "gone"])
def test_a_damaged_final_is_red_and_says_how(learned, limits, tmp_path, damage):
    from safetensors.torch import load_file, save_file

    final = tmp_path / "final"
    shutil.copytree(learned.final, final)
    weights = final / "adapter_model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif damage == "altered":
        found = load_file(weights)
        found[min(found)].flatten()[0] += 1e-3
        save_file(found, weights)
    else:
        shutil.rmtree(final)
    verdict = judged(
        limits, "finetune.checkpoint", "reloads", "reloads", state_of(learned, final), "reloads"
    )
    assert verdict.outcome is Outcome.FAIL
    said = {"truncated": "does not reload", "altered": "1 of 28 weights differ"}
    assert said.get(damage, "does not reload") in str(verdict.value)
    assert verdict.worst is not None
    assert verdict.worst["node"] == "worker1"


def test_seconds_are_counted_from_a_point_in_time(monkeypatch):
    from training.finetune import loop

    monkeypatch.setattr(loop, "time", SimpleNamespace(time=lambda: 1012.3456))
    assert loop.elapsed(1000.0) == 12.35
