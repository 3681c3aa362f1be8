"""The fixtures of several files: limits, conversations, their tokenizer, costs of the 7B shape."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from tests.selftests import support
from training.finetune import glaive, sample
from training.finetune.settings import Settings


@pytest.fixture(scope="module")
def limits() -> Thresholds:
    return loader.load(support.SHIPPED)


@pytest.fixture(scope="module")
def conversations() -> list[glaive.Conversation]:
    return [glaive.parse(row) for row in sample.rows(200)]


@pytest.fixture(scope="module")
def tokenizer(conversations: list[glaive.Conversation]) -> Any:
    return sample.tokenizer(conversations, 640)


@pytest.fixture(scope="module")
def cost() -> Any:
    from training.finetune import model

    shape = model.config_of(Settings().model)
    return model.TrainingCost(shape, 40_370_176, 7_615_616_512 + 40_370_176)
