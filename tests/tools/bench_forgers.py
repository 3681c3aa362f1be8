"""How often each forgery of a challenge is missed, beside the formula of docs/challenge.md.

python -m tests.tools.bench_forgers              10,000 instances of each attack
python -m tests.tools.bench_forgers --count N

An attack commits to small chains of which it knows how many units are false; the customer draws so
few that some are missed. Both verifiers look at each draw and have to agree. Time is counted in
steps of a row, which a device does at its speed, and the customer's two instants lie so far apart;
the deadline is a tenth above the honest time.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from unittest import mock

import numpy as np
import torch

from fixtures.challenge import chain as chains
from fixtures.challenge.answer import Answer
from fixtures.challenge.messages import (
    Challenge,
    Commitment,
    Opening,
    Parameters,
    commitment_fields,
    opening_fields,
)
from reports import second_verifier
from reports.evidence import challenge as first_verifier
from reports.evidence import proof
from tests.tools.bench_challenge import made_challenge

SMALL = Parameters(n=32, steps=2, segments=3, reads=2, ranks=2, openings=3, deadline_s=60)
HONEST_S = SMALL.deadline_s / 1.1
"""What an honest answer takes."""
DRAWS = 100
"""Of each forged answer: each draw is an instance."""
Unit = tuple[int, int, int]


@dataclass
class Forged:
    """What a forger has: an answer, the units in it that are false, and the work that it cost."""

    answer: Answer
    message: bytes
    """The challenge that the customer sent."""
    challenge: Challenge
    false: set[Unit]
    seconds: float
    """Between the customer's two instants."""

    @property
    def share(self) -> float:
        """False units of all."""
        return len(self.false) / self.challenge.parameters.units(len(self.answer.ranks))

    @property
    def late(self) -> bool:
        """Whether the customer's command says so, whatever the rows are."""
        return proof.late(self.challenge.parameters, self.seconds) is not None


Spoil = Callable[[Answer, int, int], set[int]]
"""Changes a rank's newest kept state, and returns the rows whose units are false by that."""


def computed(answer: Answer, spoil: Spoil) -> set[Unit]:
    """Compute an answer's chains with a forger's changes, and return its false units."""
    false: set[Unit] = set()
    for segment in range(answer.challenge.parameters.segments):
        for position, chain in answer.chains.items():
            chains.advance(chain, position, segment, answer.exchange)
        for position in answer.chains:
            false |= {(position, segment, row) for row in spoil(answer, position, segment)}
    answer.hash()
    answer.commit()
    return false


def forged(
    spoil: Spoil, *, parameters: Parameters = SMALL, speed: float = 1.0, devices: float = 1.0
) -> Forged:
    """Return a forged answer; what is false was not computed."""
    challenge, message = made_challenge(parameters)
    answer = Answer(challenge, range(parameters.ranks))
    found = Forged(answer, message, challenge, computed(answer, spoil), 0.0)
    found.seconds = HONEST_S * (1 - found.share) / (speed * devices)
    return found


def noise(rows: int, n: int) -> torch.Tensor:
    """Return rows that cost nothing."""
    return torch.randint(-128, 128, (rows, n), dtype=torch.int8)


def nothing(answer: Answer, position: int, segment: int) -> set[int]:
    """Change nothing."""
    return set()


def skipping(share: float) -> Spoil:
    """Return what leaves out a share of all units, and puts noise in their place."""

    def spoil(answer: Answer, position: int, segment: int) -> set[int]:
        n = answer.challenge.parameters.n
        rows = {row for row in range(n) if random.random() < share}
        index = torch.tensor(sorted(rows), dtype=torch.int64)
        answer.chains[position].memory[segment + 1][index] = noise(len(rows), n)
        return rows

    return spoil


def late() -> Forged:
    """Right in every bit, on a machine of half the speed."""
    return forged(nothing, speed=0.5)


def slower_device() -> Forged:
    """At 0.8 of the speed: what does not fit into the time is left out."""
    return forged(skipping(0.2), speed=0.8)


def skipped_steps() -> Forged:
    """A tenth is left out."""
    return forged(skipping(0.1))


def precomputed_steps() -> Forged:
    """A third of all rows was computed before, for a nonce that was guessed."""
    guessed = Answer(made_challenge(SMALL)[0], range(SMALL.ranks))
    computed(guessed, nothing)

    def spoil(answer: Answer, position: int, segment: int) -> set[int]:
        rows = {row for row in range(SMALL.n) if random.random() < 1 / 3}
        index = torch.tensor(sorted(rows), dtype=torch.int64)
        before = guessed.chains[position].memory[segment + 1][index]
        answer.chains[position].memory[segment + 1][index] = before
        return rows

    return forged(spoil)


def two_on_one_device() -> Forged:
    """Both chains, each step, on one device: all is right, and it takes twice the time."""
    return forged(nothing, devices=0.5)


def one_of_two_chains() -> Forged:
    """One device computes its own chain in time, and commits to noise for the other."""

    def spoil(answer: Answer, position: int, segment: int) -> set[int]:
        if position == 0:
            return set()
        answer.chains[1].memory[segment + 1] = noise(SMALL.n, SMALL.n)
        return set(range(SMALL.n))

    return forged(spoil, devices=0.5)


def chains_in_turns() -> Forged:
    """One chain after the other, each at twice the speed: the first has to guess what the second
    would have sent."""
    with mock.patch.object(chains.Beside, "rows", _guessed_exchange):
        found = forged(nothing)
    # A guess is right where the guessed row is the one that was drawn: never.
    found.false = {(0, s, row) for s in range(SMALL.segments) for row in range(SMALL.n)}
    return found


_EXCHANGED = chains.Beside.rows


def _guessed_exchange(
    beside: chains.Beside, position: int, segment: int, index: torch.Tensor, wanted: torch.Tensor
) -> torch.Tensor:
    if position == 0:
        return noise(len(index), SMALL.n)
    return _EXCHANGED(beside, position, segment, index, wanted)


def half_the_memory() -> Forged:
    """Every second row of the states before the newest is not held, and read as zeros."""
    false: set[Unit] = set()
    step = chains.Chain.step

    def forgetful(
        chain: chains.Chain, mixed: torch.Tensor, places: torch.Tensor,
        exchanged: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        if len(mixed) < SMALL.n:
            return step(chain, mixed, places, exchanged)
        held = chain.memory
        forgotten = held.clone()
        forgotten[: segment_of[0], 1::2] = 0
        missed = ((places // SMALL.n < segment_of[0]) & (places % 2 == 1)).any(dim=1)
        rows = missed.nonzero().flatten().tolist()
        false.update((chain.rank, segment_of[0], row) for row in rows)
        chain.memory = forgotten
        try:
            return step(chain, mixed, places, exchanged)
        finally:
            chain.memory = held

    segment_of = [0]

    def spoil(answer: Answer, position: int, segment: int) -> set[int]:
        segment_of[0] = segment + (position == SMALL.ranks - 1)
        return set()

    with mock.patch.object(chains.Chain, "step", forgetful):
        found = forged(spoil)
    found.false = false
    return found


def states_without_products() -> Forged:
    """Noise for every state."""
    return forged(skipping(1.0))


def one_row_for_all() -> Forged:
    """All rows of the middle state are one row: the product after it is cheap as well."""

    def spoil(answer: Answer, position: int, segment: int) -> set[int]:
        if segment != 1:
            return set()
        memory = answer.chains[position].memory
        memory[2] = memory[2][:1].clone()
        return set(range(1, SMALL.n))

    return forged(spoil)


def exchanged_ranks() -> Forged:
    """Of four chains two are given for each other."""
    parameters = replace(SMALL, ranks=4, openings=2)
    found = forged(nothing, parameters=parameters)
    answer = found.answer
    for what in (answer.chains, answer.trees):
        what[0], what[1] = what[1], what[0]  # type: ignore[index]
    answer.commit()
    # Whoever took a row from one of the two has another in its place.
    found.false = {
        (position, s, row)
        for position in range(4) for s in range(SMALL.segments) for row in range(SMALL.n)
        if position < 2 or (position + 1 + row % 3) % 4 < 2
    }  # fmt: skip
    return found


def _of_another(parameters: Parameters) -> Forged:
    honest = forged(nothing, parameters=parameters)
    other, message = made_challenge(SMALL)
    every = {
        (k, s, row)
        for k in range(SMALL.ranks) for s in range(SMALL.segments) for row in range(SMALL.n)
    }  # fmt: skip
    return Forged(honest.answer, message, other, every, 1.0)


def reused_answer() -> Forged:
    """The commitment of an earlier challenge, given for this one."""
    return _of_another(replace(SMALL, deadline_s=59))


def another_nonce() -> Forged:
    """Chains from a nonce that the forger chose."""
    return _of_another(SMALL)


ATTACKS: dict[str, Callable[[], Forged]] = {
    "emulator, correct but late": late,
    "slower device": slower_device,
    "skipped steps": skipped_steps,
    "precomputed steps": precomputed_steps,
    "two chains on one device": two_on_one_device,
    "one of two chains skipped": one_of_two_chains,
    "chains in turns": chains_in_turns,
    "half the memory": half_the_memory,
    "states without products": states_without_products,
    "one row copied to all": one_row_for_all,
    "ranks exchanged": exchanged_ranks,
    "answer of another challenge": reused_answer,
    "another nonce": another_nonce,
}


def drawn(found: Forged) -> Iterator[bool]:
    """Yield for each new draw whether the forgery passes; AssertionError where verifiers differ."""
    challenge, ranks = found.challenge, found.answer.ranks
    root = found.answer.tree[-1][0]
    commitment = Commitment(challenge.digest, ranks, root)
    committed = json.dumps(commitment_fields(commitment)).encode()
    while True:
        opening = Opening(challenge.digest, root, secrets.token_bytes(32))
        response = b"".join(found.answer.response(opening))
        first = first_verifier.refusal_of(challenge, commitment, opening, response)
        opened = json.dumps(opening_fields(opening)).encode()
        second = second_verifier.why_not(found.message, committed, opened, response)
        assert (first is None) == (second is None), (first, second)
        yield first is None and not found.late


@dataclass
class Tally:
    """Forgeries that passed, of how many, and what the formula expects."""

    passed: int = 0
    chances: list[float] = field(default_factory=list)
    """Of each forgery, to pass."""

    @property
    def count(self) -> int:
        return len(self.chances)

    @property
    def expected(self) -> float:
        return math.fsum(self.chances)

    @property
    def away(self) -> float:
        """How rare so many or so few are, as standard deviations of a normal distribution.

        By the exact distribution of the number that passes: four where 0.54 are expected are 4.8
        of its standard deviations away, and come once in 560 times.
        """
        law = np.ones(1)
        for chance in self.chances:
            law = np.convolve(law, (1 - chance, chance))
        rare = float(min(law[: self.passed + 1].sum(), law[self.passed :].sum()))
        if rare >= 0.5:
            return 0.0
        return -NormalDist().inv_cdf(rare) if rare > 0 else math.inf


def played(attack: Callable[[], Forged], count: int, draws: int = DRAWS) -> Tally:
    """Play an attack so often, by a new forged answer for every few draws."""
    tally = Tally()
    while tally.count < count:
        found = attack()
        openings = found.challenge.parameters.openings
        chance = 0.0 if found.late else (1 - found.share) ** openings
        for _, passes in zip(range(min(draws, count - tally.count)), drawn(found), strict=False):
            tally.passed += passes
            tally.chances.append(chance)
    return tally


def main() -> int:
    """Play all attacks, and return 1 where one does not agree with its formula."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, metavar="N")
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    bad = 0
    print(f"{'attack':<30}{'instances':>10}{'passed':>8}{'formula':>10}  standard deviations")
    for name in options.only:
        tally = played(ATTACKS[name], options.count)
        bad += tally.away > 4
        print(
            f"{name:<30}{tally.count:>10}{tally.passed:>8}{tally.expected:>10.1f}"
            f"  {tally.away:.1f}", flush=True,
        )  # fmt: skip
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
