"""Drives a step of the search with answers that a test makes up."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from fixtures.localization.culprits import Rails
from fixtures.localization.measuring import Measurement, Measuring
from fixtures.localization.partners import Partners

Rounds = list[list[Measurement]]
FAILS: Rails = frozenset([0])
PASSES: Rails = frozenset()


def measuring(
    nodes: Sequence[str],
    leaves: Mapping[str, str] | None = None,
    *,
    rails: int = 1,
    good: bool = False,
) -> Measuring:
    """What measures these nodes; `good`: each of them has passed often."""
    partners = Partners(tuple(nodes), leaves or {})
    if good:
        partners.passes.update(dict.fromkeys(nodes, 9))
    return Measuring(frozenset(range(rails)), partners)


def drive(
    steps: Generator[Any, Any, Any], answer: Callable[[list[Measurement]], Sequence[Rails]]
) -> tuple[Any, Rounds]:
    """Return what the steps return, and the rounds that they asked for; 500 of them at most."""
    rounds: Rounds = []
    answers = None
    while len(rounds) < 500:
        try:
            asked = next(steps) if answers is None else steps.send(answers)
        except StopIteration as end:
            return end.value, rounds
        rounds.append(asked)
        answers = answer(asked)
    raise AssertionError("the search does not end")


def each(fails: Callable[[tuple[str, ...]], bool]) -> Callable[[list[Measurement]], list[Rails]]:
    """An answer by the nodes of each group alone: rail 0 fails, or nothing."""
    return lambda asked: [FAILS if fails(m.nodes) else PASSES for m in asked]


def in_turn(*answers: bool, then: bool = False) -> Callable[[list[Measurement]], list[Rails]]:
    """These answers, one after the other: whether rail 0 fails; afterwards always the same."""
    left = list(answers)
    return lambda asked: [FAILS if (left.pop(0) if left else then) else PASSES for _ in asked]
