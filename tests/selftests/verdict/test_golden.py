"""The verdicts on recorded runs are frozen: a change of the code that changes one must say so."""

from __future__ import annotations

import pytest

from tests.selftests import golden, support

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(("run", "variant"), golden.CASES)
def test_a_recorded_run_is_judged_as_it_was(run, variant, tmp_path):
    frozen = golden.file_of(run, variant).read_text(encoding="utf-8")
    assert golden.frozen_text(run, variant, tmp_path) == frozen, (
        "the verdict on a recorded run has changed; if that is meant, run "
        "`python -m tests.selftests.golden --write` and commit its diff by itself"
    )


def test_every_frozen_file_belongs_to_a_case():
    held = sorted(golden.file_of(*case) for case in golden.CASES)
    assert sorted(golden.FROZEN.iterdir()) == held


@pytest.mark.parametrize(("run", "variant"), [("h200-2x2", "missing-node")])
def test_the_acceptance_tests_come_to_the_same_verdicts(run, variant, tmp_path):
    frozen = golden.file_of(run, variant).read_text(encoding="utf-8")
    assert golden.frozen_text(run, variant, tmp_path, support.replay) == frozen
