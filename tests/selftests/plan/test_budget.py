"""Minutes known before the run, from recorded ones; a budget chooses the depth and says so."""

from __future__ import annotations

import itertools
import json

import pytest

from fixtures.errors import ConfigError
from fixtures.plan.budget import BudgetedPlan, fit_budget, parse_budget
from fixtures.plan.items import planned_list
from fixtures.records.files import read_json
from fixtures.thresholds import loader
from tests.selftests.support import DATA, SHIPPED, population, run_pytest

pytestmark = pytest.mark.cpu

LIMITS = loader.load(SHIPPED)
RUNS = [DATA / name for name in ("h200-2x2", "h200-1x4", "sandbox-2x2-cpu")]


def whole(nodes: int = 2, gpus: int = 2, model: str = "cpu", tier: str = "standard"):
    people = population(nodes, gpus, model)
    return planned_list(LIMITS, people, tier=tier), people


@pytest.mark.parametrize(
    ("text", "seconds"), [("20m", 1200), ("90s", 90), ("1h30m", 5400), ("1.5h", 5400)]
)
def test_a_budget_is_a_duration(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "20", "0m", "-5m", "20 m", "m", "30m1h", "nanm", "1e3s"])
def test_anything_else_is_refused(text):
    with pytest.raises(ConfigError, match="expected a duration, as 20m"):
        parse_budget(text)


@pytest.mark.parametrize("tier", ["standard", "burnin"])
def test_what_is_chosen_fits_and_more_time_never_costs_a_criterion(tier):
    items, people = whole(3, 8, "H200 SXM", tier)
    everything = fit_budget(1e9, items, LIMITS, people)
    assert not everything.left_out
    budgets = [30, 60, 120, 180, 240, 600, everything.whole_s]
    depths = [fit_budget(b, items, LIMITS, people) for b in budgets]
    for depth in depths:
        assert depth.takes_s <= depth.budget_s
    lost = [sum(d.left_out.values()) for d in depths]
    assert all(more >= less for more, less in itertools.pairwise(lost))
    assert lost[0] > 0
    assert lost[-1] == 0


def test_gates_come_first():
    items, people = whole(2, 8, "H200 SXM")
    depth = fit_budget(120, items, LIMITS, people)
    gates = {i.workload for i in items if LIMITS.criteria[i.criterion].gate}
    assert gates
    assert not gates & set(depth.left_out)
    assert depth.left_out


def test_a_budget_for_nothing_is_refused():
    items, people = whole()
    with pytest.raises(ConfigError, match="is too short for any workload"):
        fit_budget(0.5, items, LIMITS, people)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "-n 2"])
def test_a_budget_for_nothing_is_one_line_and_no_run(tmp_path, workers):
    into = tmp_path / "run"
    run = run_pytest(
        "-m", "singlenode", "--cluster", "local", "--budget=0.5s", f"--run-dir={into}", *workers
    )
    assert run.returncode == 4, run.stdout + run.stderr
    assert "INTERNALERROR" not in run.stdout + run.stderr
    (said,) = [line for line in run.stderr.splitlines() if line.strip()]
    assert said.startswith("ERROR: --budget 0.5 s is too short for any workload")
    assert not into.exists()


def test_the_plan_says_what_a_budget_leaves_out():
    run = run_pytest("-m", "multinode", "--cluster", "sandbox", "--plan", "--budget=25s", "-q")
    assert run.returncode == 0, run.stdout + run.stderr
    (said,) = [line for line in run.stdout.splitlines() if line.startswith("--budget")]
    assert " allreduce (" in said.partition("left out")[2]
    (gemm,) = [n for n in run.stdout.splitlines() if n.startswith("node     node-worker0")]
    assert "gemm" in gemm
    assert "allreduce" not in gemm


def test_a_budget_is_of_a_new_run():
    source = DATA / "sandbox-2x2-cpu"
    run = run_pytest("--cluster", "replay", f"--from={source}", "--budget=20m", "-q")
    assert run.returncode == 4
    assert "--budget chooses the depth of a new run" in run.stderr


def test_a_run_under_a_budget_is_of_a_part_and_says_which(tmp_path):
    into = tmp_path / "run"
    run = run_pytest(
        "-m", "singlenode", "--cluster", "local", "--budget=12s", f"--run-dir={into}", "-q"
    )
    said = json.loads((into / "verdict.json").read_text(encoding="utf-8"))
    assert said["scope"]["whole"] is False, run.stdout
    assert said["verdict"] in ("DEMONSTRATION", "PARTIAL")
    (reason,) = [r for r in said["reasons"] if r.startswith("--budget 0.2 min")]
    assert "gemm" in reason
    assert {c["criterion"].partition(".")[0] for c in said["criteria"]} >= {"environment"}
    assert "gemm.bf16" not in {c["criterion"] for c in said["criteria"]}
    assert read_json(into / "run.json")["budget"]["left_out"]["gemm"] > 0


def test_a_budget_in_run_json_has_its_line():
    plan = BudgetedPlan(budget_s=60, takes_s=30, whole_s=120, left_out={"memory": 2})
    assert plan.to_json() == {
        "budget_s": 60, "takes_s": 30, "whole_s": 120, "left_out": {"memory": 2},
        "line": "--budget 1 min of 2.0 min: left out memory (2 criteria); takes about 0.5 min",
    }  # fmt: skip
