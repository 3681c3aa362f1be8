"""The learning rate over a run: linear warm-up, then a cosine (stdlib only)."""

from __future__ import annotations

import math


def rate(step: int, *, peak: float, steps: int, warm_up: int, last: float) -> float:
    """Learning rate of a step, counted from 0; `last` is the share of the peak it ends at."""
    if step < warm_up:
        return peak * (step + 1) / warm_up
    over = min(1.0, (step - warm_up) / max(1, steps - 1 - warm_up))
    return peak * (last + (1 - last) * 0.5 * (1 + math.cos(math.pi * over)))
