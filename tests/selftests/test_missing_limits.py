"""Whether an order could be ACCEPTED as shipped is said before anything is measured."""

from __future__ import annotations

import re

import pytest

from fixtures import hardware
from fixtures.cluster.population import Population
from fixtures.paths import CHECKOUT
from fixtures.plan import missing_limits
from fixtures.plan.items import Item, planned_list
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from tests.selftests.support import SHIPPED, run_pytest

pytestmark = pytest.mark.cpu

Plan = tuple[list[Item], Thresholds, Population]


def plan(model: str, nodes: int, *, states_rate: bool = True) -> Plan:
    """The plan of an order: 8 GPUs and 8 NICs per node, of Grace 4."""
    gpus = 4 if model.startswith("GB") else 8
    gbps = (200.0 if model.startswith("A100") else 400.0) if states_rate else None
    order = {
        "nodes": nodes, "gpus_per_node": gpus, "gpu_model": model, "nics_per_node": gpus,
        "nic_gbps": gbps,
    }  # fmt: skip
    limits = loader.load_with_contract(SHIPPED, order)
    assert limits.cluster is not None
    people = Population(
        origin="cluster", nodes=tuple(f"n{k}" for k in range(nodes)), gpus_per_node=gpus,
        gpu_model=model, ordered=True, nics_per_node=gpus, nic_gbps=gbps,
        nvls=limits.cluster.expects_nvls,
    )  # fmt: skip
    return planned_list(limits, people), limits, people


def count(model: str, nodes: int) -> int:
    return sum(map(len, missing_limits.missing(*plan(model, nodes)).values()))


def test_the_table_in_the_docs_says_what_is_missing():
    text = (CHECKOUT / "docs" / "03-performance.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w[\w ]*) \| (\d+) \| (\d+) \|", text, re.M)
    table = {name: (int(one), int(four)) for name, one, four in rows if name in hardware.GPUS}
    assert table == {model: (count(model, 1), count(model, 4)) for model in hardware.GPUS}


@pytest.mark.parametrize("model", ["H200 SXM", "H100 SXM"])
def test_an_order_that_has_all_its_limits_can_be_accepted(model):
    assert missing_limits.lines(*plan(model, 1)) == [
        "limits   thresholds.yaml has all: this order can be ACCEPTED by it"
    ]


def test_what_is_missing_is_named_with_who_can_supply_it():
    first, second = missing_limits.lines(*plan("A100 SXM 80", 4))
    assert "CANNOT be ACCEPTED by thresholds.yaml as it is" in first
    assert "10 limits for A100 SXM 80 are not set: gemm.bf16_per_ghz, p2p.both" in first
    assert "`pytest --calibrate` on healthy nodes can supply them" in second


def test_a_fact_that_the_order_does_not_state_is_named_with_what_needs_it():
    (line,) = missing_limits.lines(*plan("H200 SXM", 1, states_rate=False))
    assert "CANNOT be ACCEPTED by thresholds.yaml as it is" in line
    assert "cluster: does not say nic_gbps, and without it" in line
    assert "infiniband.rate" in line


def test_limits_of_the_model_need_what_the_model_is_computed_from():
    """Nothing of this is missing from the file: with the rate of the NICs it has all."""
    stated, unstated = (plan("H200 SXM", 4, states_rate=known) for known in (True, False))
    assert missing_limits.missing(*stated) == missing_limits.missing(*unstated) == {}
    assert missing_limits.unstated(*stated) == {}
    keys = missing_limits.unstated(*unstated)["nic_gbps"]
    assert {"infiniband.rate", "allgather.cluster.8GiB", "allreduce_ring.cluster.8GiB"} <= {*keys}


def test_a_demonstration_is_asked_nothing():
    items, limits, _ = plan("H200 SXM", 1)
    cpu = Population(origin="local", nodes=("n0",), gpus_per_node=2, gpu_model="cpu")
    assert missing_limits.lines(items, limits, cpu) == []


@pytest.mark.parametrize("selection", [[], ["-k", "gpu_health"]], ids=["whole", "selection"])
def test_the_plan_says_so_of_the_whole_order(tmp_path, selection):
    path = tmp_path / "order.yaml"
    path.write_text(
        f"schema: 1\nbase: {SHIPPED}\ncluster: {{nodes: 1, gpus_per_node: 8, gpu_model: B200}}\n"
    )
    done = run_pytest(
        "--plan", "--cluster", "local", "-m", "multinode", f"--thresholds={path}", *selection
    )  # fmt: skip
    assert "limits for B200 are not set" in done.stdout, done.stdout + done.stderr
