"""Answers: committed, opened, interrupted."""

from __future__ import annotations

import functools
import secrets
from dataclasses import replace

import pytest

from fixtures.challenge import answer as answers
from fixtures.challenge.answer import Answer
from fixtures.challenge.messages import MessageError, Opening
from tests.selftests.challenged import SMALL, honest
from tests.tools.bench_challenge import made_challenge

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("one_thread")]


def test_the_same_challenge_gives_the_same_root_and_another_one_another():
    challenge, _ = made_challenge(SMALL)
    roots = [Answer(challenge, range(3)).compute().root for _ in range(2)]
    assert roots[0] == roots[1]
    assert Answer(challenge, (0, 2)).compute().root != roots[0]
    assert Answer(replace(challenge, nonce=bytes(32)), range(3)).compute().root != roots[0]


def test_an_interrupted_answer_goes_on_from_what_it_kept(tmp_path, monkeypatch):
    challenge, _ = made_challenge(SMALL)
    root = Answer(challenge, range(3)).compute().root
    advance = answers.advance
    done: list[int] = []

    def interrupted(chain, position, segment, exchange):
        if segment == 2:
            raise KeyboardInterrupt
        advance(chain, position, segment, exchange)

    monkeypatch.setattr(answers, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Answer(challenge, range(3), work=tmp_path).compute()
    monkeypatch.setattr(
        answers, "advance", lambda *call: (done.append(call[2]), advance(*call))
    )  # fmt: skip
    again = Answer(challenge, range(3), work=tmp_path)
    assert again.compute().root == root
    assert done == [2, 2, 2]
    # A state that was cut off is computed again, and so are those after it.
    done.clear()
    (cut,) = tmp_path.glob("*/rank1/state2.bin")
    cut.write_bytes(cut.read_bytes()[:-1])
    assert Answer(challenge, range(3), work=tmp_path).compute().root == root
    assert done == [1, 1, 1, 2, 2, 2]
    # Chains of other ranks are other chains.
    assert Answer(challenge, (0, 1), work=tmp_path).compute().root != root


def test_a_resumed_answer_is_verified(tmp_path):
    work = functools.partial(Answer, work=tmp_path)

    def twice(challenge, ranks):
        work(challenge, ranks).compute()
        return work(challenge, ranks)

    assert honest(answer_of=twice).verdicts() == (None, None)


def test_the_opening_of_another_commitment_is_not_answered():
    challenge, _ = made_challenge(SMALL)
    answer = Answer(challenge, range(3))
    answer.compute()
    opening = Opening(challenge.digest, bytes(32), secrets.token_bytes(32))
    with pytest.raises(MessageError, match="another commitment"):
        next(answer.response(opening))
