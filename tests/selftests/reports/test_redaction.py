"""What looks like a secret is removed from data that leaves the site, and nothing else."""

from __future__ import annotations

import pytest

from reports.redaction import REMOVED, redacted, without_secrets

pytestmark = pytest.mark.cpu


def test_the_text_of_a_key_that_is_named_like_a_secret_is_removed():
    data = {"api_key": "x", "Password": "y", "tokens": "3", "name": "n", "secret": "", "token": 5,
            "secrets": {"a": "b"}}  # fmt: skip
    assert redacted(data) == {**data, "api_key": REMOVED, "Password": REMOVED}


def test_lists_and_what_is_in_them_keep_their_shape():
    assert redacted([{"token": "x"}, ("a", 1), None, True]) == [
        {"token": REMOVED}, ["a", 1], None, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run --token abc --nodes 4", f"run --token {REMOVED} --nodes 4"),
        ("API_KEY=abc", f"API_KEY={REMOVED}"),
        ("https://me:pw@host/x", f"https://{REMOVED}host/x"),
        ("hf_0123456789abcdefgh", REMOVED),
        ("tokens/s 54897", "tokens/s 54897"),
        ("-----BEGIN PRIVATE KEY-----\nabc", REMOVED),
    ],
)
def test_a_secret_in_a_text_is_removed_and_what_names_it_is_kept(text, expected):
    assert without_secrets(text) == expected
    assert redacted({"out": text})["out"] == expected


def test_secrets_that_are_known_are_removed_wherever_they_stand():
    assert redacted(["at site-7"], ["site-7"]) == [f"at {REMOVED}"]
