"""The messages of a challenge: what is read, and what is refused."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fixtures.challenge import messages
from fixtures.challenge.messages import FULL, RANGES, Commitment, MessageError, Opening, Parameters
from fixtures.records.foreign_files import RecordError
from tests.selftests.challenged import SMALL

pytestmark = pytest.mark.cpu

NONCE = bytes(range(32))


def read(tmp_path: Path, fields: object) -> messages.Challenge:
    path = tmp_path / "challenge.json"
    path.write_text(fields if isinstance(fields, str) else json.dumps(fields))
    return messages.read_challenge(path)


def test_each_message_is_read_as_it_was_written(tmp_path):
    challenge = read(tmp_path, messages.challenge_fields(SMALL, NONCE))
    assert (challenge.parameters, challenge.nonce) == (SMALL, NONCE)
    path = tmp_path / "message.json"
    for message, write, take in (
        (Commitment(challenge.digest, (0, 2), NONCE), messages.commitment_fields,
         messages.read_commitment),
        (Opening(challenge.digest, NONCE, NONCE), messages.opening_fields, messages.read_opening),
    ):  # fmt: skip
        path.write_text(json.dumps(write(message)))
        assert take(path, challenge) == message


@pytest.mark.parametrize("name", RANGES)
def test_a_parameter_outside_its_range_is_refused(name):
    least, most = RANGES[name]
    for value in (least - 1, most + 1, float(least), True, str(least), None):
        with pytest.raises(MessageError, match=name):
            replace(SMALL, **{name: value})


def test_parameters_that_do_not_go_together_are_refused():
    with pytest.raises(MessageError, match="power of two"):
        replace(SMALL, n=48)
    with pytest.raises(MessageError, match="reads"):
        replace(SMALL, n=32, reads=8)
    assert replace(SMALL, n=32, reads=7).reads == 7
    with pytest.raises(MessageError, match="openings"):
        replace(FULL, openings=4096)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2}, {"schema": True}, {"kind": "opening"}, {"nonce": "00"}, {"nonce": 5},
        {"nonce": "F" * 64}, {"more": 1}, {"n": None},
    ],
)  # fmt: skip
def test_another_challenge_is_refused(change, tmp_path):
    with pytest.raises(RecordError):
        read(tmp_path, messages.challenge_fields(SMALL, NONCE) | change)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 5000, '{"schema": 1}', "x" * 70000])
def test_what_is_no_message_is_refused(text, tmp_path):
    with pytest.raises(RecordError):
        read(tmp_path, text)


@pytest.mark.parametrize(
    "ranks", [[], [1, 0], [0, 0], [3], [-1], [0.0], [True], "0", None, {"0": 1}]
)
def test_ranks_that_were_not_asked_are_refused(ranks, tmp_path):
    challenge = read(tmp_path, messages.challenge_fields(SMALL, NONCE))
    fields = messages.commitment_fields(Commitment(challenge.digest, (0,), NONCE))
    path = tmp_path / "commitment.json"
    path.write_text(json.dumps(fields | {"ranks": ranks}))
    with pytest.raises(MessageError, match="ranks"):
        messages.read_commitment(path, challenge)


def test_an_answer_to_another_challenge_is_refused(tmp_path):
    challenge = read(tmp_path, messages.challenge_fields(SMALL, NONCE))
    path = tmp_path / "message.json"
    path.write_text(json.dumps(messages.commitment_fields(Commitment("0" * 64, (0,), NONCE))))
    with pytest.raises(MessageError, match="another challenge"):
        messages.read_commitment(path, challenge)
    path.write_text(json.dumps(messages.opening_fields(Opening("0" * 64, NONCE, NONCE))))
    with pytest.raises(MessageError, match="another challenge"):
        messages.read_opening(path, challenge)


def test_the_figures_of_the_page_are_those_of_the_code():
    assert FULL.operations(8) == pytest.approx(1.90e17, rel=0.01)
    assert (FULL.leaves(8), FULL.depth(8), FULL.shift) == (43, 26, 8)
    assert FULL.response_bytes(8) == 94_756_864
    assert (SMALL.shift, SMALL.states, SMALL.leaves(1), SMALL.depth(3)) == (3, 4, 6, 5 + 2 + 2)


def test_the_draw_reaches_every_unit_and_depends_on_root_and_nonce():
    parameters = Parameters(
        n=32, steps=1, segments=2, reads=1, ranks=2, openings=4096, deadline_s=1
    )  # fmt: skip
    opening = Opening("", NONCE, NONCE)
    units = messages.drawn_units(parameters, opening, 2)
    assert len(units) == 4096
    assert set(units) == {(p, s, r) for p in range(2) for s in range(2) for r in range(32)}
    assert units != messages.drawn_units(parameters, replace(opening, root=bytes(32)), 2)
    assert units != messages.drawn_units(parameters, replace(opening, nonce=bytes(32)), 2)
    assert asdict(parameters)["openings"] == 4096
