"""Small challenges and honest answers to them, for the tests of each side."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass

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
from tests.tools.bench_challenge import made_challenge

SMALL = Parameters(n=32, steps=2, segments=3, reads=2, ranks=3, openings=4, deadline_s=60)


@dataclass(frozen=True)
class Messages:
    """The four messages of an answer, and what the first three say."""

    challenge: Challenge
    commitment: Commitment
    opening: Opening
    first: bytes
    response: bytes

    def verdicts(self, **changed: bytes) -> tuple[str | None, str | None]:
        """Return what both verifiers have against it; `response` may be changed."""
        response = changed.get("response", self.response)
        found = first_verifier.refusal_of(
            self.challenge, self.commitment, self.opening, response
        )  # fmt: skip
        second = second_verifier.why_not(self.first, *self.texts(), response)
        return found and found.why, second

    def texts(self) -> tuple[bytes, bytes]:
        """Return the second and the third message."""
        return (
            json.dumps(commitment_fields(self.commitment)).encode(),
            json.dumps(opening_fields(self.opening)).encode(),
        )


def honest(
    parameters: Parameters = SMALL, ranks: tuple[int, ...] | None = None,
    answer_of: Callable[[Challenge, tuple[int, ...]], Answer] = Answer,
) -> Messages:  # fmt: skip
    """Return an honest answer, by these ranks of those that were asked."""
    challenge, first = made_challenge(parameters)
    answer = answer_of(challenge, ranks or tuple(range(parameters.ranks)))
    commitment = answer.compute()
    opening = Opening(challenge.digest, commitment.root, secrets.token_bytes(32))
    return Messages(
        challenge, commitment, opening, first, b"".join(answer.response(opening))
    )  # fmt: skip
