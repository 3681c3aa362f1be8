"""Whether an order could be ACCEPTED as shipped is said before anything is measured."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from fixtures import hardware
from fixtures.cluster.population import Population
from fixtures.plan import missing_limits
from tests.selftests.support import SHIPPED, run_pytest
from tests.tools import gpu_models, sections
from tests.tools.gpu_models import plan, unset_count

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(("page", "name", "made"), gpu_models.TABLES, ids=lambda x: str(x)[:9])
def test_the_tables_of_models_are_those_of_the_limits(page, name, made):
    assert sections.section(page, name) == made(), "python -m tests.tools.gpu_models --write"


def test_the_readme_promises_a_verdict_only_to_models_that_have_all_limits():
    table = gpu_models.acceptance_table()
    (promised,) = re.findall(r"^\| ([^|]+) \| none \| \*\*can be ACCEPTED", table, re.M)
    complete = [m for m in hardware.GPUS if unset_count(m, 1) == unset_count(m, 4) == 0]
    assert promised.split(", ") == complete
    assert all(re.search(rf"\b{re.escape(m)}\b", table) for m in hardware.GPUS)


@pytest.mark.parametrize("model", ["H200 SXM", "H100 SXM", "A100 SXM 80", "H20 96", "GH200 96"])
def test_an_order_that_has_all_its_limits_can_be_accepted(model):
    for nodes in (1, 4):
        assert missing_limits.lines(*plan(model, nodes))[:1] == [
            "limits   thresholds.yaml has every limit: this order can be ACCEPTED by it"
        ]


def test_how_many_limits_are_published_figures_is_said_with_how_to_refuse_them():
    (_, figures) = missing_limits.lines(*plan("H20 96", 1))
    assert re.match(r" +\d+ limits are published figures: `cluster: {limits: measured}`", figures)
    items, limits, people = plan("H20 96", 4)
    count = len(missing_limits.by_published_figures(items, limits, people))
    order = limits.cluster.model_copy(update={"limits": "measured"})
    measured = replace(limits, cluster=order)
    lacking = missing_limits.missing(items, measured, people)
    assert sum(map(len, lacking.values())) == count > 20, "each of them is missing then"
    assert missing_limits.by_published_figures(items, measured, people) == []
    (line, _) = missing_limits.lines(items, measured, people)
    assert "CANNOT be ACCEPTED" in line


def test_what_is_missing_is_named_with_who_can_supply_it():
    first, second, *_ = missing_limits.lines(*plan("A100 SXM 40", 4))
    assert "CANNOT be ACCEPTED by thresholds.yaml as it is" in first
    assert "2 limits for A100 SXM 40 are not set: finetune.rate, finetune.rate_opt" in first
    assert "`pytest --calibrate` on healthy nodes can supply them" in second


def test_a_fact_that_the_order_does_not_state_is_named_with_what_needs_it():
    (line,) = missing_limits.lines(*plan("H200 SXM", 1, states_rate=False))
    assert "CANNOT be ACCEPTED by thresholds.yaml as it is" in line
    assert "cluster: does not give nic_gbps, which is needed for" in line
    assert "infiniband.rate" in line


def test_limits_of_the_model_need_what_the_model_is_computed_from(monkeypatch):
    """Nothing of this is missing from the file: with the rate of the NICs it has all."""
    stated, unstated = (plan("H200 SXM", 4, states_rate=known) for known in (True, False))
    assert missing_limits.missing(*stated) == missing_limits.missing(*unstated) == {}
    (complete,) = missing_limits.lines(*stated)
    assert "has every limit: this order can be ACCEPTED" in complete
    monkeypatch.setattr(missing_limits, "MOST_NAMED", 1000)
    (line,) = missing_limits.lines(*unstated)
    head, _, keys = line.rpartition(": ")
    assert "does not give nic_gbps" in head
    assert {"infiniband.rate", "allgather.cluster.8GiB", "allreduce_ring.cluster.8GiB"} <= {
        *keys.split(", ")
    }


def test_a_demonstration_is_asked_nothing():
    items, limits, _ = plan("H200 SXM", 1)
    cpu = Population(origin="local", nodes=("n0",), gpus_per_node=2, gpu_model="cpu")
    assert missing_limits.lines(items, limits, cpu) == []


@pytest.mark.parametrize("selection", [[], ["-k", "health"]], ids=["whole", "selection"])
def test_the_plan_says_so_of_the_whole_order(tmp_path, selection):
    path = tmp_path / "order.yaml"
    path.write_text(
        f"schema: 1\nbase: {SHIPPED}\ncluster: {{nodes: 1, gpus_per_node: 8, gpu_model: B200}}\n"
    )
    done = run_pytest(
        "--plan", "--cluster", "local", "-m", "multinode", f"--thresholds={path}", *selection
    )  # fmt: skip
    assert "limits for B200 are not set" in done.stdout, done.stdout + done.stderr


def test_twelve_names_are_shown_and_the_rest_is_counted():
    names = [f"n{k}" for k in range(14)]
    assert missing_limits._shown(names[:12]) == ", ".join(names[:12])
    assert missing_limits._shown(names) == ", ".join(names[:12]) + " and 2 more"
