"""Nothing that a node writes changes what a person copies from any output into a root shell."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.selftests import derive_runs, questions, support
from tests.selftests.hostile_texts import HARMLESS, TEXTS, commands, fill

pytestmark = pytest.mark.cpu

SMALL = {"h200-1x2-neighbour": 3, "h200-2x2-scaling": 1}
"""Recorded run with a failure, judged in a second -> one of how many strings is another."""


def said(
    folder: Path, name: str, text_of: Callable[[int], str], share: int, variant: str = "unchanged"
) -> set[tuple[str, str]]:
    """What could be copied of a recorded run in whose records these texts stand."""
    source = folder / "source"
    derive_runs.derive(support.DATA / name, source, variant)
    fill(source, text_of, share)
    support.judged(source, folder / "run")
    found = set(commands(questions.judged_here(folder / "run")))
    shutil.rmtree(folder)
    # Beside the texts both are alike but for the folder of the run.
    return {(place, text.replace(str(folder), "FOLDER")) for place, text in found}


@pytest.mark.parametrize(("name", "share"), SMALL.items())
def test_no_text_of_a_node_is_in_a_command(tmp_path, name, share):
    plain = said(tmp_path / "run", name, lambda k: HARMLESS, share)
    assert any(text for _, text in plain)
    texts = [*TEXTS.values()]
    for first in range(0, len(texts), 13):
        hostile = said(
            tmp_path / "run", name, lambda k, n=first: texts[(n + k) % len(texts)], share
        )
        assert hostile == plain


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["other-losses", "slow-gpu-spread"])
@pytest.mark.parametrize("kind", TEXTS)
def test_no_text_of_any_node_is_in_a_command(tmp_path, kind, variant):
    name = "sandbox-2x2-cpu"
    harmless = HARMLESS * (len(TEXTS[kind]) // len(HARMLESS)) if kind == "long" else HARMLESS
    plain = said(tmp_path / "run", name, lambda k: harmless, 3, variant)
    assert said(tmp_path / "run", name, lambda k: TEXTS[kind], 3, variant) == plain


def test_there_are_thirty_kinds_of_text():
    assert len(TEXTS) >= 30
    assert len(set(TEXTS.values())) == len(TEXTS)
