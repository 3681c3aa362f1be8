"""Whole runs of two ranks, healthy and with a fault below them, and how figures are judged."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fixtures import hardware
from fixtures.plan.items import planned_list
from fixtures.records.model import Measurement
from fixtures.run.judge_item import judge_item
from fixtures.thresholds import loader
from fixtures.verdict.model import Outcome
from tests.selftests import support, training_faults
from tests.selftests.support import CHECKOUT, SHIPPED
from tests.selftests.training_faults import NAMED, RED
from training.settings import STRATEGIES

pytestmark = pytest.mark.cpu

SCRIPTS = sorted((CHECKOUT / "training" / "slurm").glob("*.sbatch"))


# --- whole runs of two ranks, healthy and with a fault below them

HEALTHY = ("healthy_single", "healthy_ddp", "healthy_fsdp", "healthy_resume")


@pytest.fixture(scope="module")
def faulty_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One torchrun for all of them."""
    out = tmp_path_factory.mktemp("faults")
    training_faults.start(out)
    return out


def judged(run: Path, tmp_path: Path) -> dict[str, dict[str, Any]]:
    return training_faults.judged(run, tmp_path / "replay")


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_training_passes(name, faulty_runs, tmp_path):
    rows = judged(faulty_runs / name, tmp_path)
    assert len(rows) >= 3
    assert {row["outcome"] for row in rows.values()} <= {"PASS", "RECORDED"}
    assert "PASS" in {row["outcome"] for row in rows.values()}


@pytest.mark.parametrize("name", RED)
def test_a_fault_below_training_is_red_by_name_and_nothing_else(name, faulty_runs, tmp_path):
    rows = judged(faulty_runs / name, tmp_path)
    red = {key for key, row in rows.items() if row["outcome"] == "FAIL"}
    assert red == RED[name]
    rest = {row["outcome"] for key, row in rows.items() if key not in red}
    assert rest <= {"PASS"}
    for key in red:
        assert rows[key]["next_step"]
        if name in NAMED:
            assert rows[key]["worst"]["gpu"] == 1, key


def test_every_criterion_of_correct_training_has_a_fault_that_turns_it_red():
    criteria = {
        key
        for key, c in loader.load(SHIPPED).criteria.items()
        if c.workload.startswith("training_")
        and c.statistic == "value"
        and c.per != "cluster"
        and c.tier != "destructive"
    }
    # On GPUs only, or said by the same lines as for a single GPU.
    elsewhere = {
        "training_fsdp.offload", "training_fsdp.memory", "training_fsdp.fall",
        "training_fsdp.gradients",
    }  # fmt: skip
    assert criteria - set().union(*RED.values()) == elsewhere


# --- judging figures of GPUs


def judge_gpu(key: str, samples: list[float], *, nodes: int = 1, **more: Any) -> Any:
    """The verdict on a training figure of H200 nodes with four GPUs each."""
    limits = loader.load(SHIPPED)
    people = support.population(nodes, 4, "H200 SXM")
    item = next(i for i in planned_list(limits, people) if i.criterion == key)
    criterion = limits.criteria[key]
    checks = {"steps": 30.0, "excluded": 10.0, "overlap": 0.99, **more.pop("checks", {})}
    measured = Measurement(
        metric=criterion.metric, unit=criterion.unit, samples=samples, at=dict(criterion.at),
        checks=checks, conditions={"dtype": "bf16", "flops_per_token": 9.4e9}, **more,
    )  # fmt: skip
    ranks = [
        support.rank(k, f"worker{k // 4}", measured, gpus=4) for k in range(4 * len(item.nodes))
    ]
    found = support.record(*ranks, workload=criterion.workload, placement=item.placement)
    return judge_item(item, found, thresholds=limits, population=people)


def test_a_slow_network_between_nodes_fails_scaling_and_is_named():
    notes = ["network between the nodes: NET/Socket"]
    verdict = judge_gpu("training_fsdp.cluster.efficiency", [31.0] * 30, nodes=2, notes=notes)
    assert verdict.outcome is Outcome.FAIL
    assert "NET/Socket" in verdict.line


@pytest.mark.parametrize(
    ("key", "good", "bad", "impossible"),
    [
        ("training_fsdp.mfu", 60, 50, 103),
        ("training_fsdp.mfu_half", 53, 45, 103),
        ("training_fsdp.mfu_8b", 57, 48, 103),
        ("training_fsdp.gemm", 80, 65, 103),
        ("training_fsdp.efficiency", 99, 88, 111),
        ("training_fsdp.efficiency_slowest", 99, 94, 111),
        ("training_ddp.efficiency", 97, 88, 111),
        ("training_ddp.efficiency_slowest", 97, 94, 111),
        ("training_single.tokens", 45_000, 20_000, 200_000),
        ("training_ddp.tokens", 44_000, 20_000, 200_000),
    ],
)
def test_figures_pass_fail_or_are_not_believed(key, good, bad, impossible):
    assert judge_gpu(key, [float(good)] * 30).outcome is Outcome.PASS
    assert judge_gpu(key, [float(bad)] * 30).outcome is Outcome.FAIL
    above = judge_gpu(key, [float(impossible)] * 30)
    assert above.outcome is Outcome.NOT_MEASURED
    assert "physical ceiling" in above.reason


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        ({"steps": 29.0}, "steps is 29"),
        ({"steps": 31.0}, "30 samples of 31 steps"),
        ({"excluded": 9.0}, "excluded is 9"),
    ],
)
def test_too_few_steps_or_a_start_that_was_counted_is_not_measured(checks, said):
    verdict = judge_gpu("training_fsdp.mfu", [60.0] * 30, checks=checks)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert said in verdict.reason


def test_the_ceiling_of_training_is_that_of_its_products():
    facts = {
        "model": "H200 SXM", "compute_capability": 9.0, "sm_count": 132, "max_sm_clock_mhz": 1980,
        "flops_per_token": 51.5e9,
    }  # fmt: skip
    bound = hardware.ceiling("training", facts)
    assert bound is not None
    assert math.isclose(bound * 51.5e9 / 1e12, hardware.ceiling("gemm", facts | {"dtype": "bf16"}))
    with pytest.raises(hardware.MissingFact, match="flops_per_token"):
        hardware.ceiling("training", {k: v for k, v in facts.items() if k != "flops_per_token"})


# --- the three ways to start it


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_for_sbatch_is_a_script_and_names_a_strategy(path):
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=30)
    text = path.read_text()
    assert "set -euo pipefail" in text
    (strategy,) = re.findall(r"-m training --strategy (\w+) ", text)
    assert strategy in STRATEGIES


def test_there_is_an_example_for_every_strategy():
    assert {p.stem for p in SCRIPTS} == {
        "1gpu", "ddp_1node", "ddp_2nodes", "fsdp_1node", "fsdp_2nodes",
    }  # fmt: skip


@pytest.mark.slow
def test_a_plain_sbatch_script_leaves_what_the_suite_judges(shared_sandbox, checkout, tmp_path):
    out = tmp_path / "out"
    given = f"ALL,PYTHON={sys.executable},OUT={out},RANKS=2"
    command = ["sbatch", "--wait", "--nodes=2", "--gpus-per-node=2", f"--export={given}"]
    command += [f"--output={tmp_path}/said.txt", "training/slurm/ddp_2nodes.sbatch", "--cpu"]
    done = subprocess.run(
        command, cwd=checkout, env=shared_sandbox.environ, capture_output=True, text=True,
        timeout=900,
    )  # fmt: skip
    said = (tmp_path / "said.txt").read_text()
    assert done.returncode == 0, done.stderr + said
    assert "strategy=ddp" in said
    rows = judged(out, tmp_path)
    assert {row["subject"] for row in rows.values()} == {"cluster"}
    assert {row["outcome"] for row in rows.values()} <= {"PASS", "RECORDED"}
    assert {f"training_ddp.cluster.{m}" for m in ("replicas", "curve", "tokens")} <= set(rows)
