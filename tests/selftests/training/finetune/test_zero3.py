"""The training under ZeRO-3, as far as it needs no DeepSpeed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.selftests.training.one_rank import a_rank
from training.finetune import packing, zero3

pytestmark = pytest.mark.cpu


def test_learned_tokens_of_a_step_are_those_of_all_ranks_and_passes():
    labels = torch.full((3, 5), packing.IGNORE_INDEX)
    labels[0, 1:3] = 7  # two learned
    labels[1, 0] = 7  # the first token of a row is predicted by none
    labels[2, 4] = 7
    packed: Any = packing.PackedSequences(labels, labels, labels)
    ranks = a_rank(gather=lambda own: [own, [10, 20]])
    found = zero3._learned_tokens_per_step(packed, [[0], [1], [2], [0]], 2, ranks)
    assert found == [2 + 0 + 10, 1 + 2 + 20]
