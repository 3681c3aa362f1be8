"""Limits and ceilings do not rest on the word of one record: each claim has a second source."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.cluster.population import Population
from fixtures.plan.items import planned_list
from fixtures.records.model import Record
from fixtures.run.judge_item import judge_item
from fixtures.shapes import PRESETS
from fixtures.thresholds import loader
from fixtures.verdict import claims
from fixtures.verdict.causes import Cause
from fixtures.verdict.model import Outcome, Verdict
from tests.selftests.support import SHIPPED
from tests.tools.fleet_run import Fleet
from tests.tools.platforms import PLATFORMS

pytestmark = pytest.mark.cpu

Json = dict[str, Any]
Change = Callable[[Json], None]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory) -> Path:
    """Two nodes of eight H200, with nothing wrong."""
    root = tmp_path_factory.mktemp("claims") / "run"
    Fleet(root, 2, 8, PLATFORMS["hgx"]).write()
    return Path(root)


def judged(fleet: Path, key: str, change: Change = lambda _: None) -> Verdict:
    """The verdict on the first row of a criterion, whose record was changed."""
    limits = loader.load(SHIPPED)
    people = Population.of_run(json.loads((fleet / "run.json").read_text()))
    item = next(i for i in planned_list(limits, people) if i.criterion == key)
    data = json.loads((fleet / "records" / f"{item.workload}@{item.placement}.json").read_text())
    change(data)
    found = Record.from_json(data)
    return judge_item(item, found, thresholds=limits, population=people)


def slow(share: float, metric: str, **said: Any) -> Change:
    """All devices have a share of the rate, and say what makes it enough, or possible."""

    def change(data: Json) -> None:
        for rank in data["ranks"]:
            for name in said.keys() & rank["device"].keys():
                rank["device"][name] = said[name]
            for m in rank["measurements"]:
                if m["metric"] == metric:
                    m["samples"] = [x * share for x in m["samples"]]
                    for name in said.keys() - rank["device"].keys():
                        m.setdefault("conditions", {})[name] = said[name]

    return change


@pytest.mark.parametrize(
    ("key", "change", "says"),
    [
        ("gemm.bf16", slow(1.6, "bf16", sm_count=264), "sm_count is 264"),
        ("gemm.fp16", slow(1.4, "fp16", sm_count=200), "the data sheet says 132"),
        ("gemm.bf16_per_ghz", slow(1.6, "bf16_per_ghz", sm_count=264), "the data sheet says 132"),
        ("hostcopy.h2d", slow(1, "h2d", pcie_gen=6), "the data sheet says 5"),
        ("hostcopy.h2d", slow(1, "h2d", pcie_width=32), "pcie_width is 32"),
        ("hostcopy.d2h", slow(1, "d2h", pcie_gen=6), "pcie_gen is 6"),
        ("hostcopy.h2d_all", slow(0.5, "h2d_all", alone_gbps=28), "gpu0001 measured 55"),
        ("hostcopy.d2h_all", slow(0.2, "d2h_all", alone_gbps=11.1), "alone_gbps is 11.1"),
        ("hostcopy.h2d_all", slow(1, "h2d_all", alone_gbps=63.0), "alone_gbps is 63.0"),
        ("allgather.cluster.1GiB", slow(1, "busbw", domains=1, gpus_per_domain=16), "ends at the"),
        ("training_single.tokens", slow(0.2, "tokens", flops_per_token=45e9), "of 1b takes 9.02"),
        ("training_ddp.tokens", slow(0.1, "tokens", dtype="fp32"), "what is measured is bf16"),
        ("training_single.tokens", slow(0.5, "tokens", sm_count=66), "the data sheet says 132"),
    ],
)  # fmt: skip
def test_no_row_passes_by_a_claim_that_its_second_source_contradicts(fleet, key, change, says):
    assert judged(fleet, key).outcome is Outcome.PASS
    found = judged(fleet, key, change)
    assert found.outcome is Outcome.NOT_MEASURED
    assert says in found.reason
    assert "by this record alone" in found.reason
    assert (found.cause, found.cause_nodes) == (Cause.MEASUREMENT, []), "nobody is accused"
    assert "find out which of the two is so" in found.next_step


def test_a_failure_stays_one_whatever_it_claims(fleet):
    found = judged(fleet, "hostcopy.h2d", slow(0.5, "h2d", pcie_gen=6))
    assert found.outcome is Outcome.FAIL


def test_a_claim_without_any_second_source_is_named_in_its_row(fleet):
    def without_the_copy_alone(data: Json) -> None:
        for rank in data["ranks"]:
            rank["measurements"] = [m for m in rank["measurements"] if m["metric"] != "h2d"]

    found = judged(fleet, "hostcopy.h2d_all", without_the_copy_alone)
    assert found.outcome is Outcome.PASS
    (note,) = [n for n in found.notes if "alone_gbps" in n]
    assert note.endswith("by this record alone: nothing else says it")
    assert not any("alone" in n for n in judged(fleet, "hostcopy.h2d_all").notes)


# --- the sources, one by one


CRITERIA = loader.load(SHIPPED).criteria


def said(key: str, planned: Json | None = None, chosen_by: tuple[str, ...] = (), **facts: Any):
    given = {"model": "H200 SXM", "nodes": 2, "gpus": 16, "nics_per_node": 8, **facts}
    return claims.contradicted(CRITERIA[key], given, chosen_by, planned or {})


def test_a_gpu_of_tomorrow_may_be_in_a_host_of_today():
    for gen in (5, 6):
        assert said("hostcopy.h2d", model="B200", pcie_gen=gen, pcie_width=16) == ("", "")
    assert "says 6" in said("hostcopy.h2d", model="B200", pcie_gen=4)[0]
    assert "says 4" in said("hostcopy.h2d", model="A100 SXM 80", pcie_gen=5)[0]
    assert said("hostcopy.h2d", model="GB200", pcie_gen=1) == ("", ""), "by C2C"


def test_nodes_of_a_rack_share_domains_and_others_do_not():
    key = "allreduce.cluster.1GiB"
    assert said(key, model="GB200", domains=1, gpus_per_domain=16) == ("", "")
    assert said(key, model="GB200", domains=3, gpus_per_domain=8)[0]
    assert said(key, domains=2, gpus_per_domain=8) == ("", "")
    for domains, each in ((1, 16), (4, 4), (2, 4), (True, 8), ("2", 8)):
        assert said(key, domains=domains, gpus_per_domain=each)[0]


def test_what_the_plan_says_is_no_claim_and_more_nics_than_ordered_lower_nothing():
    key = "allreduce.cluster.1GiB"
    assert said(key, planned={"domains": 1}, domains=1) == ("", "")
    assert said(key, nics_found=12) == ("", "")
    assert "nics_found is 7" in said(key, nics_found=7)[0]


def test_without_a_data_sheet_the_row_says_that_nothing_else_does():
    assert said("gemm.bf16", model="B300", sm_count=148)[1].startswith(
        "sm_count 148 by this record"
    )
    assert said("finetune.rate", sm_count=132, dtype="bf16", flops_per_token=3e10)[1].startswith(
        "flops_per_token"
    )
    assert "algorithm ring" in said("allreduce.cluster.1GiB", None, ("algorithm",),
                                    algorithm="ring")[1]  # fmt: skip
    assert said("gemm.bf16", model="cpu", sm_count=1) == ("", "")


def test_the_shape_of_a_criterion_says_what_its_tokens_take():
    of_shape: Any = SimpleNamespace(workload="training_fsdp", at={"preset": "8b-short"})
    exact = claims.flops_of(PRESETS["8b-short"])
    for given, right in ((exact, True), (exact / 2, True), (1.1 * exact, False), (0, False)):
        assert (claims._flops({"flops_per_token": given}, of_shape) == "") is right


def test_largest_shapes_are_those_that_the_workloads_train():
    pytest.importorskip("torch")
    from training import ddp, fsdp, single

    assert claims.LARGEST_PRESET == {
        "training_single": single.PRESET, "training_ddp": ddp.PRESET,
        "training_fsdp": fsdp.FULL_PRESET,
    }  # fmt: skip
