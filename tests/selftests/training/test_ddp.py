"""DistributedDataParallel: its parts, its correctness and its figures."""

from __future__ import annotations

import pytest

from training.settings import Settings

pytestmark = pytest.mark.cpu


def test_a_part_has_the_passes_and_sequences_of_the_whole():
    from training import ddp

    whole = Settings(batch=2, global_batch=32, checkpoint="somewhere", resume=True)
    part = ddp.settings_of_part(whole, 4, 1)
    assert (part.passes_per_step(1), part.batch, part.global_batch) == (4, 2, 8)
    assert (part.checkpoint, part.resume) == ("", False)
    assert ddp.settings_of_part(Settings(batch=2), 4, 2).passes_per_step(2) == 1
