"""Training of every GPU alone: loss, throughput, and who is slow."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from training.settings import Settings

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("losses", "fall"),
    [
        ([12.5, 9.0, 7.0, 6.0, 6.1, 6.0, 5.9, 20.7], 52.0),  # seen on H200: one step jumped
        ([12.5, 9.0, 7.0, 6.0, 20.0, 21.0, 20.5, 22.0], 0.0),
        ([12.5, 9.0, math.nan, 6.0, 6.1, 6.0, 5.9, 6.0], 0.0),
    ],
)
def test_a_loss_has_fallen_where_the_last_steps_say_so(losses, fall):
    from training import single

    timed: Any = SimpleNamespace(losses=losses, norms=[1.0] * 8, settings=Settings())
    found = {m.metric: m.value for m in single.health(timed)}
    assert found["fall"] == pytest.approx(fall, abs=0.1)
