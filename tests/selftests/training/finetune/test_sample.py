"""The project's own conversations."""

from __future__ import annotations

import pytest

from training.finetune import glaive, sample

pytestmark = pytest.mark.cpu


def test_the_projects_conversations_are_the_same_for_the_same_seed():
    assert sample.rows(20, 1) == sample.rows(20, 1) != sample.rows(20, 2)
    for row in sample.rows(50):
        conversation = glaive.parse(row)
        (call,) = [glaive.call_of(t.text) for t in conversation.turns if t.has_call]
        assert call is not None
        assert set(call.arguments) == set(sample.FUNCTIONS[call.name][1])
        assert all(value in conversation.turns[0].text for value in call.arguments.values())
