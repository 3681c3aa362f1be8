"""The second verifier: what it takes, and what it refuses whatever the content."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports import second_verifier
from tests.selftests.challenged import Messages, honest

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def whole() -> Messages:
    return honest()


def test_it_takes_an_honest_answer(whole):
    assert second_verifier.why_not(whole.first, *whole.texts(), whole.response) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=70)
    | st.just("0" * 64),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(which=st.integers(0, 2), data=st.data(), value=VALUES)
def test_a_changed_field_never_passes_and_never_raises(whole, which, data, value):
    messages = [json.loads(text) for text in (whole.first, *whole.texts())]
    name = data.draw(st.sampled_from([*sorted(messages[which]), "more"]))
    if messages[which].get(name, "none") == value and type(messages[which].get(name)) is type(
        value
    ):
        return
    # What else is drawn from another nonce of the opening, the response does not open.
    messages[which][name] = value
    texts = [json.dumps(message).encode() for message in messages]
    assert second_verifier.why_not(*texts, whole.response) is not None


@settings(deadline=None, max_examples=30)
@given(contents=st.lists(st.binary(max_size=90), min_size=4, max_size=4))
def test_bytes_never_pass_and_never_raise(contents):
    assert second_verifier.why_not(*contents) is not None


@pytest.mark.parametrize(
    "text", [b"[" * 60_000, b'{"a":' * 12_000, b"1" * 65_000, b"\xff", b" " * 70_000]
)
def test_json_that_is_made_to_break_readers_is_refused(whole, text):
    assert second_verifier.why_not(text, *whole.texts(), whole.response) is not None


@pytest.mark.parametrize(
    ("which", "change"),
    [
        (1, {"ranks": [0, 1]}), (1, {"ranks": [0, 0, 1]}), (1, {"ranks": [2, 1, 0]}),
        (1, {"ranks": []}), (1, {"ranks": [0, 1, 3]}), (1, {"ranks": [0, True, 2]}),
        (1, {"root": "0" * 64}), (2, {"root": "0" * 64}), (2, {"nonce": "0" * 64}),
        (2, {"challenge": "0" * 64}), (0, {"n": 48}), (0, {"reads": 8}), (0, {"schema": True}),
    ],
)  # fmt: skip
def test_each_rule_of_the_page_on_messages(whole, which, change):
    messages = [json.loads(text) for text in (whole.first, *whole.texts())]
    messages[which] |= change
    texts = [json.dumps(message).encode() for message in messages]
    assert second_verifier.why_not(*texts, whole.response) is not None


def test_levels_of_a_tree():
    assert [second_verifier._levels(n) for n in (1, 2, 3, 4, 5, 16384)] == [0, 1, 2, 2, 3, 14]
