"""Two published acceptances of an H100 cluster: their limits and figures through this judge."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fixtures.cluster.population import Population
from fixtures.errors import ConfigError
from fixtures.plan.items import planned_list
from fixtures.records.model import Measurement, Record
from fixtures.thresholds import loader
from fixtures.thresholds.limits import Limit
from fixtures.thresholds.loader import Thresholds
from fixtures.thresholds.site_facts import INSTALLED
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Case, Outcome, Verdict
from tests.selftests import support
from tests.selftests.support import CHECKOUT, SHIPPED

pytestmark = pytest.mark.cpu

SEEDS = CHECKOUT / "docs" / "examples" / "thresholds-seed-h100.yaml"
H100 = {
    "name": "NVIDIA H100 80GB HBM3", "model": "NVIDIA H100 80GB HBM3", "power_limit": "default",
    "memory_clock_mhz": 2619, "memory_bus_bits": 5120,
}  # fmt: skip
NODES = ("gpu-node-0", "gpu-node-1")
NVLINK = {"nvls": True, "sharp": False, "domains": 1, "gpus_per_domain": 8}
TWO_NODES = {**NVLINK, "domains": 2}
LORA = {"flops_per_token": 31e9}
DDP = {"flops_per_token": 7.3e9}
"""Of the model that the suite trains: 1B of parameters."""


@pytest.fixture(scope="module")
def limits() -> Thresholds:
    return loader.load(SEEDS)


def judged(
    limits: Thresholds,
    key: str,
    figure: float,
    *,
    nodes: tuple[str, ...] = NODES,
    **conditions: Any,
) -> Verdict:
    """A criterion of 8 H100 a node, all of which show the one figure that was published."""
    criterion = limits.criteria[key]
    checks = {"batches": 30.0, "overlap": 1.0, "operand_std": 1.0, "relative_error": 0.0017}
    checks |= {"wall_over_events": 1.0, "array_over_cache": 300.0, "wrong": 0.0}
    checks |= {
        "clock_ceiling": 1.0,
        "steps": 30.0,
        "excluded": 10.0,
        "gradient_norm": 1.0,
        "padding": 0.0,
    }
    m = Measurement(
        metric=criterion.metric, unit=criterion.unit, samples=[figure] * 30, at=dict(criterion.at),
        conditions=conditions, checks=checks,
    )  # fmt: skip
    ranks = [support.rank(k, nodes[k // 8], m, gpus=8, **H100) for k in range(8 * len(nodes))]
    record: Record = support.record(*ranks, workload=criterion.workload, placement="all")
    facts = {
        "model": "H100 SXM", "nodes": len(nodes), "gpus": len(ranks), "gpus_per_node": 8,
        "nics_per_node": 8, "nic_gbps": 400.0, **criterion.at,
    }  # fmt: skip
    if criterion.workload == "gemm":
        facts["dtype"] = criterion.metric
    case = Case(
        criterion=criterion, subject="cluster", nodes=nodes, record_nodes=nodes, devices=len(ranks),
        facts=facts, record=record,
    )  # fmt: skip
    return judge(case, limits)


TABLE = [
    # what they measured
    ("allreduce.cluster.1GiB", 434.99, TWO_NODES, Outcome.PASS),
    ("allreduce.cluster.1GiB", 435.91, TWO_NODES, Outcome.PASS),
    ("allreduce.pair.1GiB", 434.99, TWO_NODES, Outcome.PASS),
    ("allreduce.node.1GiB", 442.21, NVLINK, Outcome.PASS),
    ("allreduce.node.1GiB", 442.28, NVLINK, Outcome.PASS),
    ("gemm.bf16", 730.97, {}, Outcome.PASS),
    ("memory.copy", 3020, {}, Outcome.PASS),
    ("training_ddp.cluster.tokens", 137_162 / 16, DDP, Outcome.PASS),
    ("finetune.rate", 136_970 / 16, LORA, Outcome.PASS),
    # just below what they wanted
    ("allreduce.cluster.1GiB", 349.9, TWO_NODES, Outcome.FAIL),
    ("allreduce.cluster.8GiB", 349.9, TWO_NODES, Outcome.FAIL),
    ("allreduce.pair.1GiB", 349.9, TWO_NODES, Outcome.FAIL),
    ("allreduce.node.1GiB", 399.9, NVLINK, Outcome.FAIL),
    ("allreduce.node.8GiB", 399.9, NVLINK, Outcome.FAIL),
    ("gemm.bf16", 699, {}, Outcome.FAIL),
    ("memory.copy", 2499, {}, Outcome.FAIL),
    ("training_ddp.cluster.tokens", 499, DDP, Outcome.FAIL),
    ("finetune.rate", 1999, LORA, Outcome.FAIL),
    ("training_ddp.cluster.efficiency", 89.9, {}, Outcome.FAIL),
    ("training_ddp.cluster.efficiency", 97.3, {}, Outcome.PASS),
    ("finetune.rate", 40_000, LORA, Outcome.NOT_MEASURED),
    # above what eight NVLinks or sixteen NICs of 400 Gbit/s can carry, and what 16 GPUs can gain
    ("allreduce.cluster.1GiB", 800, TWO_NODES, Outcome.NOT_MEASURED),
    ("allreduce.node.1GiB", 720, NVLINK, Outcome.NOT_MEASURED),
    ("memory.copy", 3500, {}, Outcome.NOT_MEASURED),
    ("training_ddp.cluster.efficiency", 120, {}, Outcome.NOT_MEASURED),
    ("training_ddp.cluster.tokens", 200_000, DDP, Outcome.NOT_MEASURED),
]


@pytest.mark.parametrize(("key", "figure", "conditions", "outcome"), TABLE)
def test_figures_get_the_verdict_that_arithmetic_demands(limits, key, figure, conditions, outcome):
    nodes = NODES[:1] if limits.criteria[key].per == "node" else NODES
    verdict = judged(limits, key, figure, nodes=nodes, **conditions)
    assert verdict.outcome is outcome, verdict.line
    if outcome is not Outcome.NOT_MEASURED:
        assert verdict.value == pytest.approx(figure)
        assert f"[{'guide' if key in GUIDE else '16gpu'}]" in source(limits, key)


GUIDE = ("gemm.bf16", "memory.copy", "allreduce.node.1GiB", "allreduce.node.8GiB")


def source(limits: Thresholds, key: str) -> str:
    return next(r.source or "" for r in limits.criteria[key].limits if "H100 SXM" in r.model)


def test_their_training_does_not_scale(limits):
    """8 GPUs did 331,842 tokens/s and 16 did 136,970; what is called 98 % is of bandwidths."""
    share = 100 * (136_970 / 16) / (331_842 / 8)
    assert share == pytest.approx(20.6, abs=0.05)
    verdict = judged(limits, "training_ddp.cluster.efficiency", share)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.limit == ">= 90"
    assert verdict.margin == pytest.approx(-0.77, abs=0.005)
    assert pytest.approx(0.98, abs=0.005) == 434.99 / 442.21


def of_other_models(rows: tuple[Limit, ...]) -> list[Limit]:
    """The rows of a criterion without what they say of H100 SXM."""
    others = [tuple(m for m in row.model if m != "H100 SXM") for row in rows]
    return [
        row.model_copy(update={"model": models})
        for row, models in zip(rows, others, strict=True)
        if models or not row.model
    ]


def test_everything_else_is_as_shipped(limits):
    shipped = loader.load(SHIPPED)
    changed = set()
    for key, criterion in shipped.criteria.items():
        found = limits.criteria[key]
        assert of_other_models(found.limits) == of_other_models(criterion.limits), key
        assert dataclasses.replace(found, limits=criterion.limits) == criterion
        if found.limits != criterion.limits:
            changed.add(key.rpartition(".")[0] if key[-1] == "B" else key)
    assert changed == {
        "gemm.bf16", "memory.copy", "allreduce.node", "allreduce.pair", "allreduce.cluster",
        "finetune.rate", "training_ddp.cluster.tokens", "training_ddp.cluster.efficiency",
    }  # fmt: skip
    assert set(limits.criteria) == set(shipped.criteria), "no criterion that no workload measures"


ORDER = """\
schema: 1
base: {base}
cluster: {{nodes: {nodes}, gpus_per_node: {gpus}, gpu_model: H100 SXM}}
"""
ACCEPTED_BY = {
    "connectivity.peers": "= 1", "allreduce.cluster.1GiB": ">= 350",
    "training_ddp.cluster.tokens": ">= 500", "training_ddp.cluster.efficiency": ">= 90",
}  # fmt: skip
"""The four rows of the acceptance table of [16gpu]."""


def test_every_row_of_their_acceptance_table_is_planned_and_judged_on_their_cluster(tmp_path):
    path = tmp_path / "order.yaml"
    path.write_text(ORDER.format(base=SEEDS, nodes=2, gpus=8))
    order = loader.load(path)
    assert order.cluster is not None
    assert order.cluster.gpu_model == "H100 SXM"
    people = Population(
        origin="cluster", nodes=NODES, gpus_per_node=8, gpu_model="H100 SXM", ordered=True,
        installed=INSTALLED,
    )  # fmt: skip
    items = [i for i in planned_list(order, people) if i.criterion in ACCEPTED_BY]
    assert {i.criterion for i in items} == set(ACCEPTED_BY)
    assert [i for i in items if i.not_applicable or i.recorded] == []


def test_a_recorded_training_is_judged_by_their_table(tmp_path):
    """Two nodes with sockets between them, as if their GPUs were H100: half the rate is lost."""
    source = Path(shutil.copytree(support.DATA / "h200-2x1-scaling", tmp_path / "source"))
    for file in (source / "run.json", *(source / "records").iterdir()):
        text = file.read_text().replace("H200 SXM", "H100 SXM")
        file.write_text(text.replace("NVIDIA H200", "NVIDIA H100 80GB HBM3"))
    order = tmp_path / "order.yaml"
    order.write_text(ORDER.format(base=SEEDS, nodes=2, gpus=1))
    _, verdict = support.judged(source, tmp_path / "run", order)
    rows = {v["criterion"]: v for v in verdict["criteria"]}
    tokens, efficiency = (rows[f"training_ddp.cluster.{name}"] for name in ("tokens", "efficiency"))
    assert (tokens["outcome"], efficiency["outcome"]) == ("PASS", "FAIL")
    assert tokens["limit"].startswith(ACCEPTED_BY["training_ddp.cluster.tokens"])
    assert efficiency["limit"] == ACCEPTED_BY["training_ddp.cluster.efficiency"]
    assert tokens["value"] > 500
    assert 45 < efficiency["value"] < 50


@pytest.mark.parametrize("backend", ["local", "sandbox"])
def test_a_run_can_be_collected_with_them(backend):
    shipped, seeds = (
        support.run_pytest(
            "--collect-only", "-q", "-m", "multinode", f"--cluster={backend}", *more,
        ).stdout.splitlines()
        for more in ((), (f"--thresholds={SEEDS}",))
    )  # fmt: skip
    assert len(seeds) > 50
    assert seeds[:-1] == shipped[:-1]


# --- a file of limits on top of another


def laid(tmp_path: Path, text: str, base: str = support.LIMITS) -> Thresholds:
    (tmp_path / "base.yaml").write_text(base)
    path = tmp_path / "own.yaml"
    path.write_text(f"schema: 1\nbase: base.yaml\n{text}")
    return loader.load(path)


def test_a_file_with_a_base_changes_what_it_says_and_nothing_else(tmp_path):
    plain = support.load(tmp_path)
    found = laid(
        tmp_path,
        "criteria:\n  gemm.bf16:\n    limits:\n"
        "      - {model: [H200 SXM, B200], expect: 740, fail_below: 730, source: mine}\n"
        "waivers:\n"
        "  - {criterion: gemm.bf16, node: n, owner: o, reason: r, expires: '2027-01-01'}\n",
    )
    assert set(found.criteria) == set(plain.criteria)
    changed = [k for k in plain.criteria if found.criteria[k] != plain.criteria[k]]
    assert changed == ["gemm.bf16"]
    assert [row.model for row in found.criteria["gemm.bf16"].limits] == [
        ("H200 SXM", "B200"), ("L40S",),
    ]  # fmt: skip
    assert found.criteria["gemm.bf16"].limit_for({"model": "H200 SXM"}).source == "mine"
    assert [w.node for w in found.waivers] == ["n", "waived"]
    assert found.cluster == plain.cluster
    assert found.spread == plain.spread


def test_a_base_may_have_a_base_and_its_tables_hold(tmp_path):
    """A customer's order on the limits of an example, which are on those that are shipped."""
    (tmp_path / "limits.yaml").write_text(
        "schema: 1\nbase: whole.yaml\nmodels: {ours: [H200 SXM]}\n"
        "criteria:\n  gemm.bf16:\n    limits:\n"
        "      - {model: ours, expect: 740, fail_below: 730, source: note 1}\n"
    )
    (tmp_path / "whole.yaml").write_text(f"{support.LIMITS}notes: {{'1': measured there}}\n")
    own = tmp_path / "own.yaml"
    own.write_text(
        "schema: 1\nbase: limits.yaml\ncluster: {nodes: 7, gpus_per_node: 2, gpu_model: H200 SXM}\n"
        "criteria:\n  gemm.spread:\n    limits:\n"
        "      - {model: ours, expect: 5, fail_above: 9, source: note 1}\n"
    )
    found = loader.load(own)
    assert found.cluster is not None
    assert found.cluster.nodes == 7
    for key in ("gemm.bf16", "gemm.spread"):
        row = found.criteria[key].limit_for({"model": "H200 SXM"})
        assert row.source == "measured there"
    assert loader.load(tmp_path / "limits.yaml").cluster != found.cluster
    before = found.sha256
    (tmp_path / "whole.yaml").write_text(
        f"{support.LIMITS}notes: {{'1': measured there}}\n# changed\n"
    )
    assert loader.load(own).sha256 != before


def test_rows_without_a_model_replace_all(tmp_path):
    found = laid(
        tmp_path,
        "criteria:\n  gemm.spread:\n    limits:\n"
        "      - {expect: 1, fail_above: 2, source: mine}\n",
    )
    assert len(found.criteria["gemm.spread"].limits) == 1


def test_the_hash_is_of_both_files(tmp_path):
    first = laid(tmp_path, "")
    assert first.sha256 != laid(tmp_path, "waivers: []\n").sha256
    assert first.sha256 != laid(tmp_path, "", support.LIMITS + "\n# changed\n").sha256
    assert first.sha256 == laid(tmp_path, "").sha256


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("spread: {}\n", "own.yaml:3: spread: unknown key 'spread'"),
        ("criteria:\n  gemm.bf61: {limits: []}\n", "own.yaml:4: .*did you mean 'gemm.bf16'"),
        (
            "criteria:\n  gemm.bf16: {tier: optional, limits: []}\n",
            "own.yaml:4: .*only its `limits:`",
        ),
        ("criteria:\n  gemm.bf16: {limits: 3}\n", "own.yaml:4: .*only its `limits:`"),
        ("criteria: 3\n", "own.yaml:3: criteria: expected a mapping"),
        ("waivers: 3\n", "own.yaml:3: waivers: expected a list"),
        (
            "criteria:\n  gemm.bf16:\n    limits:\n      - {model: H200 SXM, fail_below: 1}\n",
            "own.yaml:6: .*source",
        ),
        ("criteria:\n  a.b: {title: t}\n", "own.yaml:4: criteria.a.b: missing key"),
    ],
)
def test_what_a_file_with_a_base_cannot_say_is_one_clean_line(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said):
        laid(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema: 1\nbase: base.yaml\n", "base.yaml:2: base: base.yaml is based on itself"),
        ("schema: 1\nbase: own.yaml\n", "base.yaml:2: base: own.yaml is based on itself"),
        ("schema: 1\ncriterias: {}\n", "base.yaml:2: unknown key 'criterias'"),
        ("3\n", "own.yaml:2: base: base.yaml is not a file of limits"),
    ],
)
def test_a_base_must_be_a_whole_and_valid_file(tmp_path, text, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        laid(tmp_path, "", text)


@pytest.mark.parametrize(
    ("named", "said"),
    [("3", "own.yaml:2: base: expected the name of a file"), ("none.yaml", "cannot be read")],
)
def test_a_base_is_a_file(tmp_path, named, said):
    path = tmp_path / "own.yaml"
    path.write_text(f"schema: 1\nbase: {named}\n")
    with pytest.raises(ConfigError, match=re.escape(said)):
        loader.load(path)
