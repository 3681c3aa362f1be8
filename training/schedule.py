"""The learning rate over a run: linear warm-up, then a cosine (stdlib only)."""

from __future__ import annotations

import math


def learning_rate_at(
    step: int, *, peak: float, steps: int, warm_up: int, final_share: float
) -> float:
    """Return the rate of a step, counted from 0; `final_share` of the peak is the last one."""
    if step < warm_up:
        return peak * (step + 1) / warm_up
    progress = min(1.0, (step - warm_up) / max(1, steps - 1 - warm_up))
    return peak * (final_share + (1 - final_share) * 0.5 * (1 + math.cos(math.pi * progress)))
