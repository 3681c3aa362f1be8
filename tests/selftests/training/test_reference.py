"""The known losses of the reference run: what a CPU gets is what is written."""

from __future__ import annotations

import pytest

from tests.selftests.training.one_rank import a_team
from training import reference

pytestmark = pytest.mark.cpu


def test_the_losses_of_the_reference_run_are_those_that_are_written():
    from training import reference_run

    losses = reference_run.losses(reference_run.settings_for("single"), a_team())
    assert losses == pytest.approx(reference.LOSSES, rel=1e-4)
    assert len(losses) == 12
