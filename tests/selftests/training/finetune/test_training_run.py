"""One training: what fits into a GPU, its times and its entry in the summary."""

from __future__ import annotations

import pytest

from training.finetune import settings

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(("gib", "batch"), [(126, 4), (71, 2), (36, 1)])
def test_the_batch_is_halved_until_it_fits_and_the_step_stays(cost, gib, batch):
    from training.finetune import training_run

    wanted = settings.load(settings.find("optimised"))
    found, notes = training_run.fit_to_memory(wanted, cost, gib)
    assert found.training.batch_size == batch
    assert found.training.global_batch_size == wanted.training.global_batch_size
    assert bool(notes) == (batch != 4)
