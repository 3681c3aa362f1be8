"""Goodput and energy of trainings: pure formulas (login side).

Goodput is the share of the time of a job whose work is kept: what checkpoints cost, what is done
again after a failure, detection and restart are lost.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence

DAY_S = 86400.0


def goodput(
    *, mtbf_s: float, interval_s: float, checkpoint_s: float, detect_s: float, restart_s: float
) -> float:
    """Return the expected share of useful time of a job that never ends.

    `mtbf_s`: of the whole job: that of a node over their number. Failures are a Poisson process,
    and may come during a restart too. Daly 2006 (A higher order estimate of the optimum checkpoint
    interval for restart dumps), equation 20: a segment of `interval_s` takes
    M exp(R/M) (exp((tau + delta)/M) - 1), with R of detection and restart together.

    Raises ValueError where a time is negative, or the mean time or interval is not positive.
    """
    if min(mtbf_s, interval_s) <= 0 or min(checkpoint_s, detect_s, restart_s) < 0:
        raise ValueError("times are positive, and MTBF and interval more than 0")
    exponent = (detect_s + restart_s + interval_s + checkpoint_s) / mtbf_s
    if exponent > 700:
        return 0.0
    lost = math.exp((detect_s + restart_s) / mtbf_s)
    segment = mtbf_s * lost * math.expm1((interval_s + checkpoint_s) / mtbf_s)
    return interval_s / segment


def best_interval_s(*, mtbf_s: float, checkpoint_s: float) -> float:
    """Return the interval between checkpoints with the most goodput, in seconds.

    Daly 2006, equation 37; the mean time itself where a checkpoint takes half of that and more.
    """
    if checkpoint_s >= mtbf_s / 2:
        return mtbf_s
    ratio = checkpoint_s / (2 * mtbf_s)
    return (
        math.sqrt(2 * checkpoint_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint_s
    )


def joules(samples: Sequence[tuple[float, float]], start: float, end: float) -> float | None:
    """Return the energy between two times, by the trapezoidal rule over (time in s, watts).

    Values at the edges are interpolated. None where the samples do not span the time, or leave a
    gap of more than a second: what was not sampled is not guessed.
    """
    ordered = sorted(samples)
    times = [t for t, _ in ordered]
    if len(ordered) < 2 or not start < end or times[0] > start or times[-1] < end:
        return None
    inner = [(t, w) for t, w in ordered if start < t < end]
    points = [(start, _at(ordered, times, start)), *inner, (end, _at(ordered, times, end))]
    total = 0.0
    for (t0, w0), (t1, w1) in itertools.pairwise(points):
        if t1 - t0 > 1.0:
            return None
        total += (t1 - t0) * (w0 + w1) / 2
    return total


def _at(ordered: Sequence[tuple[float, float]], times: Sequence[float], t: float) -> float:
    k = min(max(1, bisect.bisect_left(times, t)), len(times) - 1)
    (t0, w0), (t1, w1) = ordered[k - 1], ordered[k]
    return w0 if t1 == t0 else w0 + (w1 - w0) * (t - t0) / (t1 - t0)
