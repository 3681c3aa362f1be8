"""The criteria of the LoRA fine-tuning: grades of answers, and jobs of two ranks with faults."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.model import Outcome
from tests.selftests import support
from tests.selftests.finetuning_cases import CALL, decided, judged
from tests.selftests.rank_job import TORCH, Job
from training.finetune import WORKLOAD, evaluate, settings

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def limits() -> Thresholds:
    return loader.load(support.SHIPPED)


# --- grades of answers

OTHER_NAME = CALL.replace('"f"', '"g"')
OTHER_CITY = CALL.replace("Oslo", "Lima")
OTHER_ORDER = CALL.replace('"city": "Oslo", "n": 2', '"n": 2, "city": "Oslo"')


@pytest.mark.parametrize(
    ("said", "grades"),
    [
        (CALL, "parses function arguments exact"),
        (f" {CALL} ", "parses function arguments exact"),
        (OTHER_ORDER, "parses function arguments"),
        (OTHER_CITY, "parses function"),
        (OTHER_NAME, "parses"),
        (CALL[:-3], ""),
        ("I cannot do that.", ""),
    ],
)
def test_an_answer_gets_the_grades_that_it_deserves(said, grades):
    found = evaluate.Answer(CALL, said).grades()
    assert " ".join(name for name, given in found.items() if given) == grades


def test_wrong_function_names_are_red(limits):
    """Fault: a third of the answers calls another function."""
    answers = [evaluate.Answer(CALL, OTHER_NAME if k % 3 == 0 else CALL) for k in range(30)]
    rates = evaluate.grade_rates(answers)
    assert judged(limits, "finetune.parses", rates["parses"]).ok
    verdict = judged(limits, "finetune.function", rates["function"])
    assert verdict.outcome is Outcome.FAIL
    assert verdict.value == pytest.approx(100 * 2 / 3)
    wrong = [evaluate.Answer(CALL, OTHER_CITY)] * 2 + [evaluate.Answer(CALL, CALL)]
    for name in ("arguments", "exact"):
        verdict = judged(limits, f"finetune.{name}", evaluate.grade_rates(wrong)[name])
        assert verdict.outcome is Outcome.FAIL
    with pytest.raises(ValueError, match="nothing to evaluate"):
        evaluate.grade_rates([])


@pytest.mark.parametrize("key", ["parses", "function", "arguments", "exact", "loss", "speedup"])
def test_what_was_not_measured_never_passes(limits, key):
    assert judged(limits, f"finetune.{key}", None).outcome is Outcome.NOT_MEASURED


# --- as a job


def test_the_example_for_sbatch_is_a_script_that_starts_the_fine_tuning():
    path = settings.HERE / "finetune_2nodes.sbatch"
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=30)
    assert '-m training.finetune --out "$OUT" "$@"' in path.read_text()


WARM = (*TORCH, "torch.distributed.fsdp", "transformers", "peft")


def job_of(root: Path, metrics: list[str], module: str = "training.finetune") -> Job:
    job = Job(root, nodes=["worker0", "worker1"])
    job.spec["workloads"].append(
        {
            "name": "training_finetune", "module": module, "placement": "all",
            "metrics": metrics, "params": {}, "deadline_s": 110,
        }
    )  # fmt: skip
    return job


FAULTS = '''
"""In every rank: FSDP shards nothing, and on rank 1 attention is slow."""
import os, sys, time

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "training.finetune.loop":
            import torch.distributed.fsdp as fsdp
            from torch.nn import functional
            fsdp.fully_shard = lambda module, **settings: module
            attention = functional.scaled_dot_product_attention
            def slow(*given, **more):
                time.sleep(0.05)
                return attention(*given, **more)
            if os.environ.get("SLURM_PROCID") == "1":
                functional.scaled_dot_product_attention = slow
        return None

sys.meta_path.insert(0, Finder())
from training.finetune import WORKLOAD, run
'''


def test_faults_are_red_and_name_the_rank(tmp_path, limits):
    """Unsharded weights, and a rank whose kernels are slow: the job's rate is that rank's."""
    job = job_of(tmp_path, ["fsdp_loss", "fsdp_share", "rate", "speedup"], "faulty")
    (tmp_path / "faulty.py").write_text(FAULTS)
    assert job.run(slurm=True, warm=WARM) == [0, 0], job.output()
    record = job.record("training_finetune")
    share = decided(limits, "finetune.fsdp.share", record)
    assert (share.outcome, share.value) == (Outcome.FAIL, 200.0), share.line
    assert decided(limits, "finetune.fsdp.loss", record).ok
    rate = decided(limits, "finetune.rate", record)
    assert rate.worst is not None
    assert rate.worst["node"] == "worker1"
    assert any("worker1 gpu0 takes" in note for note in rate.notes), rate.line
    # Fifty times slower than it is, both settings, nobody is an outlier: the floor is what is red.
    for rank in record.ranks:
        for m in rank.measurements:
            if m.metric == "rate":
                m.samples[:] = [s / 50 for s in m.samples]
    for key in ("finetune.rate", "finetune.rate_optimised"):
        assert decided(limits, key, record).outcome is Outcome.FAIL
    for rank in record.ranks:
        for m in rank.measurements:
            if m.metric == "rate":
                m.samples[:] = [s * 1e9 for s in m.samples]
    assert decided(limits, "finetune.rate", record).outcome is Outcome.NOT_MEASURED


def test_fsdp_has_the_losses_of_the_plain_training_and_shards(tmp_path, limits):
    job = job_of(tmp_path, ["fsdp_loss", "fsdp_share"])
    assert job.run(slurm=True, warm=WARM) == [0, 0], job.output()
    record = job.record("training_finetune")
    for key in ("finetune.fsdp.loss", "finetune.fsdp.share"):
        verdict = decided(limits, key, record)
        assert verdict.ok, verdict.line
    assert {m.metric for r in record.ranks for m in r.measurements} <= set(WORKLOAD.metrics)


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
