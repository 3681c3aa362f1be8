"""The first verifier beside the second: honest answers, forgeries, and messages of any content."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.challenge.answer import Answer
from fixtures.challenge.messages import Parameters
from reports.evidence import challenge as first_verifier
from tests.selftests.challenged import SMALL, Messages, honest
from tests.tools import bench_forgers

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("one_thread")]


def drawn_parameters(number: int) -> tuple[Parameters, tuple[int, ...]]:
    """Return parameters of the n-th honest answer, and who answers."""
    draw = random.Random(number)
    ranks = 1 + number % 16
    parameters = Parameters(
        n=draw.choice((32, 64)), steps=draw.randint(1, 4), segments=draw.randint(1, 5),
        reads=draw.randint(1, 4), ranks=ranks, openings=draw.randint(1, 8), deadline_s=60,
    )  # fmt: skip
    present = tuple(range(ranks))
    if number % 3 == 0 and ranks > 1:
        present = tuple(sorted(draw.sample(present, ranks - 1)))
    return parameters, present


@pytest.mark.parametrize("number", range(16))
def test_an_honest_answer_is_verified_by_both(number):
    parameters, present = drawn_parameters(number)
    assert honest(parameters, present).verdicts() == (None, None)


@pytest.mark.slow
def test_two_hundred_honest_answers_are_verified_by_both(tmp_path):
    """With 1 to 16 ranks; of every third one is dead, and every fifth was interrupted."""

    def resumed(challenge, ranks):
        work = tmp_path / challenge.digest
        with pytest.raises(KeyboardInterrupt), mock.patch.object(Answer, "hash", interrupted):
            Answer(challenge, ranks, work=work).compute()
        return Answer(challenge, ranks, work=work)

    def interrupted(answer):
        raise KeyboardInterrupt

    for number in range(200):
        parameters, present = drawn_parameters(number)
        answer_of = Answer if number % 5 else resumed
        assert honest(parameters, present, answer_of).verdicts() == (None, None), number


def test_each_changed_byte_of_a_response_is_found_by_both(whole):
    random.seed(36)
    for _ in range(25):
        at = random.randrange(len(whole.response))
        changed = bytearray(whole.response)
        changed[at] ^= 1 << random.randrange(8)
        assert None not in whole.verdicts(response=bytes(changed))


def test_a_step_that_was_left_out_is_found_where_its_unit_is_drawn():
    found = bench_forgers.forged(bench_forgers.skipping(0.3))
    passed = sum(passes for _, passes in zip(range(40), bench_forgers.drawn(found), strict=False))
    assert 0 < passed < 40


def test_how_far_away_a_number_is_follows_from_how_rare_it_is():
    def away(passed: int, chance: float, count: int = 20) -> float:
        return bench_forgers.Tally(passed, [chance] * count).away

    assert away(4, 0.0269) == pytest.approx(2.91, abs=0.01), "once in 560 times: no disagreement"
    assert away(9, 0.0269) > 4.5
    assert away(1, 0.0) == away(19, 1.0) == math.inf
    assert away(0, 0.0) == away(20, 1.0) == 0
    assert away(244, 0.02692, 10_000) == pytest.approx(1.6, abs=0.1), "as the normal distribution"


@pytest.mark.parametrize("name", bench_forgers.ATTACKS)
def test_an_attack_passes_as_often_as_the_page_says(name):
    tally = bench_forgers.played(bench_forgers.ATTACKS[name], 20, draws=20)
    assert tally.away < 4.5, tally


@pytest.mark.slow
@pytest.mark.parametrize("name", bench_forgers.ATTACKS)
def test_three_hundred_of_an_attack_pass_as_often_as_the_page_says(name):
    tally = bench_forgers.played(bench_forgers.ATTACKS[name], 300)
    assert tally.away < 4, tally


def test_products_are_exact_where_every_number_is_an_extreme():
    parameters = replace(SMALL, n=2048, reads=1)
    weights = first_verifier.Weights(parameters, bytes(32))
    weights._transposed[:] = -128
    rows = np.full((1, 2048), -128, dtype=np.int8)
    assert set(weights.product(rows).flatten().tolist()) == {2048 * 128 * 128}
    rows[0, 0] = 127
    assert set(weights.product(rows).flatten().tolist()) == {2047 * 128 * 128 - 127 * 128}


@pytest.fixture(scope="module")
def whole() -> Messages:
    return honest()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=70),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)


@settings(deadline=None, max_examples=25)
@given(content=st.binary(max_size=300), cut=st.integers(0, 4000), at=st.integers(0, 4000))
def test_no_response_but_the_honest_one_passes_and_none_raises(whole, content, cut, at):
    honest_one = whole.response
    for changed in (
        content, honest_one[:cut], honest_one + content,
        honest_one[:at] + content + honest_one[at + len(content) :],
    ):  # fmt: skip
        if changed != honest_one:
            assert None not in whole.verdicts(response=changed)
