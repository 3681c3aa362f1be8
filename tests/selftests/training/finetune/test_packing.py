"""Conversations packed into sequences, and the batches of a training."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.selftests.finetuning_cases import CALL, ROW
from training.finetune import glaive, packing
from training.finetune.settings import InputError

pytestmark = pytest.mark.cpu


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


# --- batches


def packed_rows(length: int = 8) -> Any:
    tokens = torch.arange(1, 2 * length + 1, dtype=torch.int32).reshape(2, length)
    part = torch.ones_like(tokens)
    part[:, -1] = 0
    labels = tokens.clone()
    labels[:, :3] = labels[:, -1:] = packing.IGNORE_INDEX
    return packing.PackedSequences(tokens, labels, part)


def test_learned_tokens_are_counted_and_tensors_named():
    packed = packed_rows()
    assert packed.counts() == {
        "sequences": 2, "conversations": 2, "tokens": 14, "learned_tokens": 8, "padding": 0.125,
    }  # fmt: skip
    assert list(packed.tensors()) == ["tokens", "labels", "part"]
    # PyTorch's cross entropy leaves out this label unless told otherwise.
    assert torch.nn.CrossEntropyLoss().ignore_index == packing.IGNORE_INDEX


def test_losses_are_computed_for_1024_positions_at_most():
    batch = packing.batch_of(packed_rows(3000), [0, 1], separate=False)
    assert batch.chunk_size == 1024
    assert len(batch.targets) % 1024 == 0
    assert batch.learned_count == 2 * 2996
    assert batch.token_count == 2 * 2999


@pytest.mark.parametrize("separate", [False, True])
def test_a_batch_moves_and_is_pinned_as_a_whole(separate, monkeypatch):
    batch = packing.batch_of(packed_rows(), [0], separate=separate)
    assert (batch.position_ids is not None) is separate
    there = batch.to(torch.device("meta"))
    assert there.tokens.device.type == there.targets.device.type == "meta"
    assert (there.position_ids is not None) is separate
    assert there.learned_count == batch.learned_count
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 0)
    pinned = batch.pin_memory()
    assert torch.equal(pinned.tokens, batch.tokens)
    assert pinned.tokens is not batch.tokens
    assert (pinned.position_ids is not None) is separate


def test_batches_come_in_the_order_of_the_passes():
    from training.finetune.settings import DataSettings

    data = packing._BatchDataset(packed_rows(), [[1], [0]], False)
    assert len(data) == 2
    assert data[0].tokens[0, 0] == 9
    rows = [[1], [0, 1]]
    found = list(packing.load_batches(packed_rows(), rows, DataSettings(), on_gpu=False))
    assert [batch.tokens[:, 0].tolist() for batch in found] == [[9], [1, 9]]
