"""Logs and summary of a fine-tuning."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fixtures.verdict.model import Outcome
from tests.selftests.finetuning_cases import judged

pytestmark = pytest.mark.cpu


def test_a_loss_that_is_no_number_ends_the_workload():
    from training.finetune import summary

    broken = SimpleNamespace(losses=[1.0, float("nan")], norms=[1.0, 1.0])
    with pytest.raises(RuntimeError, match=r"small\.yaml: loss nan, .* at step 2 of 2"):
        summary.check_finite(broken, "small.yaml")  # type: ignore[arg-type]


def test_logs_that_lack_a_step_are_red(limits, tmp_path):
    from training.finetune import summary

    log = summary.TensorBoardLog(tmp_path)
    for step in range(3):
        log.add_step(step, 1.0, 1.0, 1.0)
    log.close()
    assert log.completeness(3) == summary.COMPLETE
    assert judged(limits, "finetune.logs", log.completeness(3)).ok
    state = log.completeness(4)
    assert state == "TensorBoard has 3 of 4 values of loss"
    assert judged(limits, "finetune.logs", state).outcome is Outcome.FAIL
    assert judged(limits, "finetune.logs", None).outcome is Outcome.NOT_MEASURED
