"""The fine-tuning as a job of two ranks, healthy and with faults."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fixtures.verdict.model import Outcome
from tests.selftests.finetuning_cases import decided
from tests.selftests.rank_job import TORCH, Job
from training.finetune import WORKLOAD, settings

pytestmark = pytest.mark.cpu


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
            "metrics": metrics, "params": {}, "deadline_s": 900,
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


@pytest.mark.slow
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
