"""One's own model and data: fine-tuned by hand, judged by the suite."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.selftests import support
from training.finetune import glaive, sample, settings

pytestmark = pytest.mark.cpu

OWN_SETTINGS = """
model: {precision: fp32}
lora: {r: 64, alpha: 128, dropout: 0.0, targets: all}
training: {batch_size: 8, global_batch_size: 16, steps: 6, warmup_steps: 2, learning_rate: 2.0e-3,
  gradient_checkpointing: false, compile: false}
data: {max_length: 256, separate: true, held_out: 0.1}
"""


def test_a_local_model_and_data_are_trained_on_and_the_suite_judges_them(tmp_path):
    import torch

    from training.finetune import model

    conversations = [glaive.parse(row) for row in sample.rows(200)]
    small = settings.load(settings.find("small"))
    model.build(small.model, torch.device("cpu"), seed=3).save_pretrained(tmp_path / "model")
    sample.tokenizer(conversations, 640).save_pretrained(tmp_path / "model")
    rows = [json.dumps(glaive.row_of(c)) for c in conversations]
    (tmp_path / "data.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "own.yaml").write_text(OWN_SETTINGS)
    done = subprocess.run(
        [
            sys.executable, "-m", "training.finetune", "--config", tmp_path / "own.yaml",
            "--model", tmp_path / "model", "--data", tmp_path / "data.jsonl",
            "--out", tmp_path / "out",
        ],
        cwd=support.CHECKOUT, capture_output=True, text=True, timeout=900,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out/finetune/summary.json").read_text())["trainings"]["own"]
    assert found["model"] == str(tmp_path / "model")
    assert 0 < found["held_out_loss"] < 2 * found["final_loss"]
    assert (tmp_path / "out/finetune/own/final/adapter_model.safetensors").exists()
    _, verdict = support.judged(tmp_path / "out", tmp_path / "judged")
    outcomes = {c["criterion"]: c["outcome"] for c in verdict["criteria"]}
    assert outcomes["finetune.checkpoint"] == "PASS"
    assert outcomes["finetune.logs"] == "PASS"
    assert outcomes["finetune.loss"] == "FAIL", "six steps do not teach it"
    assert outcomes["finetune.speedup"] == "NOT_MEASURED", "one file of settings only"
