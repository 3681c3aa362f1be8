"""The LoRA fine-tuning of a small model: packed sequences, training, final/ and logs."""

from __future__ import annotations

import shutil
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.model import Outcome
from tests.selftests import support
from tests.selftests.finetuning_cases import CALL, ROW, judged
from training.finetune import evaluate, glaive, sample, settings
from training.finetune.settings import InputError, Settings

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def limits() -> Thresholds:
    return loader.load(support.SHIPPED)


# --- packed sequences


@pytest.fixture(scope="module")
def conversations() -> list[glaive.Conversation]:
    return [glaive.parse(row) for row in sample.rows(200)]


@pytest.fixture(scope="module")
def tokenizer(conversations: list[glaive.Conversation]) -> Any:
    return sample.tokenizer(conversations, 640)


def test_only_what_the_assistant_says_is_learned(tokenizer):
    from training.finetune import packing

    tokens, labels = packing.encode(tokenizer, glaive.parse(ROW))
    learned = [t for t, label in zip(tokens, labels, strict=True) if label != packing.IGNORE_INDEX]
    assert tokenizer.decode(learned) == f" {CALL}<|endoftext|> Done.<|endoftext|>"
    assert [x for x in labels if x != packing.IGNORE_INDEX] == learned


def test_packing_keeps_conversations_whole_and_counts_padding(tokenizer, conversations):
    from training.finetune import packing

    packed = packing.pack(tokenizer, conversations, 512)
    about = packed.counts()
    assert about["conversations"] == len(conversations)
    assert about["tokens"] == sum(len(packing.encode(tokenizer, c)[0]) for c in conversations)
    assert about["padding"] == pytest.approx(1 - about["tokens"] / packed.tokens.numel(), abs=1e-4)
    assert about["padding"] < 0.2
    for row in range(len(packed)):
        for part in range(1, int(packed.part[row].max()) + 1):
            text = tokenizer.decode(packed.tokens[row][packed.part[row] == part])
            assert text.startswith("SYSTEM: ")
            assert text.count("<|endoftext|>") == 2


def test_a_conversation_that_is_too_long_is_cut_and_one_without_an_answer_left_out(tokenizer):
    from training.finetune import packing

    conversation = glaive.parse(ROW)
    assert packing.pack(tokenizer, [conversation], 60).counts()["tokens"] == 60
    with pytest.raises(InputError, match="nothing to learn is left in sequences of 8 tokens"):
        packing.pack(tokenizer, [conversation], 8)


def test_a_batch_wants_the_token_after_each_place(tokenizer, conversations):
    from training.finetune import packing

    packed = packing.pack(tokenizer, conversations, 256)
    batch = packing.batch_of(packed, [0, 1], separate=True)
    flat = batch.tokens.flatten()
    real = batch.targets != packing.IGNORE_INDEX
    assert int(real.sum()) == batch.learned_count > 0
    assert flat[batch.learned_positions[real] + 1].tolist() == batch.targets[real].tolist()
    assert len(batch.learned_positions) % batch.chunk_size == 0
    assert batch.token_count == int((packed.part[:2] > 0).sum())
    assert batch.position_ids is not None
    begins = (batch.position_ids == 0).sum(dim=1)
    parts = packed.part[:2].max(dim=1).values + (packed.part[:2, -1] == 0).int()
    assert begins.tolist() == parts.tolist()


@pytest.mark.parametrize(("count", "world", "size"), [(12, 3, 2), (7, 4, 1), (3, 4, 2)])
def test_the_ranks_together_take_every_sequence_once_an_epoch(count, world, size):
    from training.finetune import packing

    passes = 2 * count
    ranks = [
        packing.sequences_per_pass(
            count, seed=1, passes=passes, batch_size=size, rank=rank, world_size=world
        )
        for rank in range(world)
    ]
    taken = [row for k in range(passes) for rank in ranks for row in rank[k]]
    assert len(taken) == passes * size * world
    for epoch in range(len(taken) // count):
        assert sorted(taken[epoch * count : (epoch + 1) * count]) == list(range(count))


class Alone:
    """The one rank of a training in this process."""

    def __init__(self, root: Path) -> None:
        import torch

        self.spec = {"run_directory": str(root)}
        self.rank, self.local_rank, self.world_size, self.node = 0, 0, 1, "worker0"
        self.on_gpu, self.device = False, torch.device("cpu")

    def gather(self, item: Any) -> list[Any]:
        return [item]

    def barrier(self) -> None:
        pass


def small(steps: int) -> Settings:
    found = settings.load(settings.find("small"))
    return found.with_values("training", steps=steps, batch_size=8)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_one_compiled_layer_serves_them_all(
    tokenizer, conversations, tmp_path, monkeypatch, checkpointing
):
    import torch
    from torch._dynamo.testing import CompileCounter

    from training.finetune import model, packing, shapes

    torch._dynamo.reset()
    monkeypatch.setitem(shapes.SHAPES["tiny"], "num_hidden_layers", 4)
    wanted = small(6)
    ranks: Any = Alone(tmp_path)
    adapted = model.add_adapters(
        model.build(wanted.model, ranks.device, seed=0), wanted.lora, seed=0
    )
    tuned = model.prepare_for_training(adapted, wanted, ranks)
    counter = CompileCounter()
    model.compile_layers(tuned, backend=counter)
    if checkpointing:
        model.recompute_layers(tuned)
    packed = packing.pack(tokenizer, conversations, 256)
    for rows in ([0, 1], [2, 3], [4, 5]):
        with model.deprecations_ignored():
            tuned(packing.batch_of(packed, rows, separate=False)).backward()
    assert len(tuned.layers) == 4
    # The first layer's input needs no gradient, that of the others does; and no graph is broken.
    assert counter.frame_count == 2
    torch._dynamo.reset()


def test_a_model_that_learns_starts_equal_on_every_device():
    """On H200 it started otherwise than on a CPU, and ended at other answers."""
    import torch

    from training.finetune import model

    torch.manual_seed(3)
    untouched = torch.get_rng_state()
    built = model.build(small(6).model, torch.device("meta"), seed=3)
    assert next(built.parameters()).device.type == "meta"
    assert not torch.equal(torch.get_rng_state(), untouched), "the CPU's numbers were not drawn"


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


def test_a_loss_that_is_no_number_ends_the_workload(learned):
    from training.finetune import summary

    broken = SimpleNamespace(losses=[1.0, float("nan")], norms=[1.0, 1.0])
    with pytest.raises(RuntimeError, match=r"small\.yaml: loss nan, .* at step 2 of 2"):
        summary.check_finite(broken, "small.yaml")  # type: ignore[arg-type]
