"""Limits that are proposed from a fleet's runs, for a person to edit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from fixtures.calibration import proposal
from fixtures.calibration.fleet import Fleet, Metric
from fixtures.calibration.fleet_statistics import FleetStatistics
from fixtures.calibration.observed_contract import ObservedContract
from fixtures.calibration.proposal import Proposal, propose, row_text
from fixtures.cluster.population import Population
from fixtures.errors import ConfigError
from fixtures.thresholds.limits import Limit
from tests.selftests import support
from tests.selftests.verdict.made import criterion, row

pytestmark = pytest.mark.cpu

NODES = ("n1", "n2")
KNOWN = ObservedContract(nodes=NODES, gpus_per_node=2, gpu_model="H200 SXM")
NEW = ObservedContract(nodes=NODES, gpus_per_node=2, gpu_model="Z100")
FACTS = {"model": "H200 SXM", "gpus": 2, "nodes": 1, "size": 2**30}
BELOW, ABOVE = row(fail_below=80), row(fail_above=120)


def statistics(expect: float = 100, device: float = 0.01, run: float = 0.0) -> FleetStatistics:
    return FleetStatistics(expect=expect, device_sigma=device, run_sigma=run, devices=8, runs=3)


def metric(of: Any, values: list[float] | None = None, devices: int = 8, **given: Any) -> Metric:
    """A criterion with the same values on every device, those of the runs r0, r1, ..."""
    made = Metric(of, given.pop("facts", FACTS), given.pop("valid", {}))
    for k in range(devices):
        for n, value in enumerate(values or [100.0, 101.0, 102.0]):
            made.values[f"n1 gpu{k}"][f"r{n}"] = value + k / 10
        made.device_of[f"n1 gpu{k}"] = f"n1 gpu{k}"
    return made


def runs(count: int = 3, **given: Any) -> Fleet:
    population = Population(
        origin=given.pop("origin", "cluster"), nodes=NODES, gpus_per_node=2,
        gpu_model=given.pop("gpu_model", "H200 SXM"), ordered=given.pop("ordered", True),
    )  # fmt: skip
    made: Any = [
        SimpleNamespace(
            id=f"run{k}", nonce=f"r{k}", population=population, created="2026-11-20T12:00",
            contract=given.get("contract"), commit=given.get("commit"),
        )
        for k in range(count)
    ]  # fmt: skip
    return Fleet(made, given.get("left_out", []))


# --- one row


def test_the_limit_of_a_row_lies_five_sigma_on_the_bad_side():
    made = proposal._row(metric(criterion(BELOW)), statistics(), "2026-11-20T12:00")
    assert made == {
        "model": "H200 SXM", "expect": 100, "fail_below": 95,
        "source": "calibrated on this fleet, 8 devices in 3 runs up to 2026-11-20: "
        "devices 1.00%, runs 0.00%, 5 sigma 5.0%",
    }  # fmt: skip
    above = proposal._row(metric(criterion(ABOVE, unit="us")), statistics(), "2026-11-20")
    assert (above["expect"], above["fail_above"]) == (100, 105)
    valid = metric(criterion(BELOW), valid={"overlap": (0.5, None)})
    assert proposal._row(valid, statistics(), "d")["valid"] == {"overlap": [0.5, None]}
    thirds = proposal._row(metric(criterion(BELOW)), statistics(100 / 3), "d")
    assert (thirds["expect"], thirds["fail_below"]) == (33.33, 31.66), "the lenient side"
    times = proposal._row(metric(criterion(ABOVE)), statistics(100 / 3), "d")
    assert times["fail_above"] == 35.01


def test_a_row_that_no_file_could_hold_is_refused():
    with pytest.raises(ConfigError, match="the same number"):
        proposal._row(metric(criterion(BELOW)), statistics(device=0), "d")
    with pytest.raises(ConfigError, match="physical ceiling of 99"):
        proposal._row(metric(criterion(BELOW, ceiling=99.0)), statistics(), "d")
    for of in (criterion(BELOW, ceiling=100.0), criterion(ABOVE, ceiling=99.0)):
        assert proposal._row(metric(of), statistics(), "d")["expect"] == 100
    unknown = criterion(BELOW, ceiling="gemm", metric="bf16")
    made = metric(unknown, facts={**FACTS, "model": "Z100"})
    assert proposal._has_ceiling(made) is False
    assert proposal._has_ceiling(metric(criterion(BELOW))) is True
    assert proposal._row(made, statistics(), "d")["fail_below"] == 95


def conditions(*rows: Limit, **given: Any) -> Any:
    return proposal._conditions(criterion(*rows, **given), FACTS)


def test_a_row_has_more_conditions_than_any_that_may_hold_for_the_same_facts():
    h200 = "H200 SXM"
    assert conditions(BELOW) == {"model": h200}
    assert conditions(row(fail_below=1, when={"nodes": 1})) == {"model": h200, "when": {"nodes": 1}}
    two = row(fail_below=1, model="H200 SXM", when={"nodes": 1})
    assert conditions(two) == {"model": h200, "when": {"gpus": 2, "nodes": 1}}
    other = row(fail_below=1, model="L40S", when={"nodes": 1, "gpus": 2})
    assert conditions(other) == {"model": h200, "when": {"gpus": 2, "nodes": 1}}
    unknown = row(fail_below=1, when={"nvls": True})
    assert conditions(unknown) == {"model": h200, "when": {"gpus": 2}}
    with pytest.raises(ConfigError, match="already has all conditions"):
        conditions(row(fail_below=1, model=h200, when={"gpus": 2, "nodes": 1, "size": "1GiB"}))
    sweep = {"key": "own.rate.1GiB", "at": {"size": 2**30}}
    assert conditions(BELOW, **sweep) == {"model": h200, "when": {"size": 2**30}}
    single = {"key": "own.rate", "at": {"size": 2**30}}
    assert conditions(BELOW, **single) == {"model": h200}
    assert proposal._is_sweep_point(criterion(BELOW, **sweep), "size") is True
    assert proposal._is_sweep_point(criterion(BELOW, **sweep), "to") is False
    assert proposal._is_sweep_point(criterion(BELOW, **single), "size") is False


def comments(of: Any, made: dict[str, Any]) -> list[str]:
    values = {"n1 gpu0": [95.0, 100.0, 94.9], "n1 gpu1": [105.0, 105.1, 100.0]}
    return list(proposal._row_comments(metric(of), statistics(), made, values))


def test_a_row_tells_the_limit_of_today_and_which_devices_it_would_fail():
    assert comments(criterion(BELOW), {"fail_below": 95.0}) == [
        "GB/s; today >= 80 (no conditions)", "outside of it: n1 gpu0 with 94.9 in 1 of 3 runs",
    ]  # fmt: skip
    assert comments(criterion(ABOVE), {"fail_above": 105.0}) == [
        "GB/s; today <= 120 (no conditions)", "outside of it: n1 gpu1 with 105.1 in 1 of 3 runs",
    ]  # fmt: skip
    for rows, today in (
        ([row(fail_below=1, model="L40S")], "GB/s; no row applies today"),
        ([Limit(calibrate=True)], "GB/s; today calibrate: true (no conditions)"),
        ([Limit(recorded="x")], "GB/s; today recorded (no conditions)"),
    ):
        assert comments(criterion(*rows), {"fail_below": 1.0}) == [today]


# --- all rows


def proposed(monkeypatch: Any, *metrics: Metric, fleet: Fleet | None = None, **given: Any) -> Any:
    monkeypatch.setattr(proposal, "collect_metrics", lambda *_: dict(enumerate(metrics)))
    limits = given.get("limits", SimpleNamespace(criteria={}, cluster=None))
    return propose(fleet or runs(), limits, given.get("observed", KNOWN))


def test_each_metric_of_enough_runs_and_devices_has_a_row(monkeypatch):
    made = proposed(monkeypatch, metric(criterion(BELOW)))
    assert (made.proposed, made.devices, made.without_limit) == (1, 8, [])
    (lines,) = made.rows.values()
    assert lines[0].startswith("# GB/s; today >= 80")
    assert yaml.safe_load(lines[-1])[0]["fail_below"] < 101
    assert made.summary == "1 limit from 3 runs of 8 devices"
    assert made.propose_contract is False


def test_what_has_no_row_says_why(monkeypatch):
    few = metric(criterion(BELOW, key="own.few"), devices=7)
    full = metric(criterion(BELOW))
    made = proposed(monkeypatch, few, full)
    assert made.without_limit == ["own.few (H200 SXM, 2): 3 of 3 runs, 7 of 8 devices"]
    assert made.proposed == 1
    alone = proposed(monkeypatch, few)
    assert (alone.without_limit, alone.devices) == ([], 7)
    assert alone.summary == "no limits yet: 3 of 3 runs, 7 of 8 devices"
    assert proposed(monkeypatch, full, fleet=runs(2)).summary.startswith("no limits yet: 2 of 3")
    assert proposed(monkeypatch).devices == 0
    wide = metric(criterion(BELOW, key="own.wide"), [10.0, 50.0, 100.0])
    (why,) = proposed(monkeypatch, wide).without_limit
    assert why.startswith("own.wide: median 50.35: the spread is too large")
    twice = proposed(monkeypatch, full, metric(criterion(BELOW), facts={**FACTS, "nodes": 3}))
    assert twice.proposed == 1
    assert "own.rate: a second row for - {model: H200 SXM}" in twice.without_limit[0]
    other = proposed(monkeypatch, full, metric(criterion(BELOW, key="own.other")))
    assert (other.proposed, other.without_limit) == (2, [])


def test_a_contract_is_proposed_where_nobody_ordered_and_none_was_given(monkeypatch):
    for given, wanted in (
        ({"ordered": False}, True), ({"ordered": True}, False),
        ({"ordered": False, "contract": "x"}, False),
    ):  # fmt: skip
        made = proposed(monkeypatch, fleet=runs(**given), observed=NEW)
        assert made.propose_contract is wanted
        assert ("the contract as it was seen" in made.summary) is wanted
        assert "what a datasheet of Z100 needs" in made.summary


def test_a_new_model_gets_rows_to_calibrate_where_it_has_no_limit(monkeypatch, limits):
    fleet = runs(gpu_model="Z100")
    made = proposed(monkeypatch, fleet=fleet, limits=limits, observed=NEW)
    assert made.rows["gemm.bf16"] == ["- {model: Z100, calibrate: true}"]
    assert "allreduce.latency" in made.rows
    assert "gemm.spread" not in made.rows, "one row holds for every model"
    assert made.proposed == 0
    known = proposed(monkeypatch, fleet=runs(), limits=limits)
    assert known.rows == {}
    found = metric(limits.criteria["gemm.bf16"], facts={"model": "Z100"})
    judged = proposed(monkeypatch, found, fleet=fleet, limits=limits, observed=NEW)
    assert "calibrate: true" not in str(judged.rows["gemm.bf16"])
    assert judged.proposed == 1


def test_a_criterion_of_a_sweep_or_that_does_not_apply_is_calibrated_as_such(
    monkeypatch, tmp_path: Path
):
    rows = "    limits:\n      - {model: H200 SXM, expect: 42"
    exempt = "not_applicable:\n  - {criteria: [gemm.bf16], reason: x}\nwaivers:\n"
    text = support.LIMITS.replace(rows, f"    at: {{size: [1MiB, 1GiB]}}\n{rows}")
    text = text.replace("waivers:\n", exempt, 1)
    limits = support.load(tmp_path, text)
    made = proposed(monkeypatch, fleet=runs(gpu_model="Z100"), limits=limits, observed=NEW)
    assert made.rows["allreduce.latency"] == [
        "- {model: Z100, when: {size: 1MiB}, calibrate: true}",
        "- {model: Z100, when: {size: 1GiB}, calibrate: true}",
    ]
    assert "gemm.bf16" not in made.rows


# --- numbers and text


def test_numbers_have_four_digits_and_no_exponent():
    for value, shown in (
        (1234.56, "1235"), (0.000012345, "0.00001234"), (1e7 / 3, "3333000"), (2.0, "2"),
    ):  # fmt: skip
        assert proposal._number(value) == shown
    assert proposal.number_text(605) == "605"
    assert proposal._facts_text({"gpus": 2, "model": "L40S", "size": 1}) == "L40S, 2"
    assert proposal._facts_text({}) == ""


def test_a_row_is_written_as_yaml_reads_it_back():
    data = {
        "model": "H200 SXM", "when": {"size": 2**30, "nvls": True}, "expect": 1e-5,
        "valid": {"a": [0.5, None]}, "source": "a: b", "driver": "13.0", "size": "large",
    }  # fmt: skip
    text = row_text(data)
    assert text.startswith("- {model: H200 SXM, when: {size: 1GiB, nvls: true}, expect: 0.00001,")
    assert yaml.safe_load(text) == [{**data, "when": {"size": "1GiB", "nvls": True}}]


def whole(**given: Any) -> Proposal:
    fleet = given.pop("fleet", runs(commit="c0ffee", left_out=["run9: another commit"]))
    fields: dict[str, Any] = {"observed": KNOWN, "propose_contract": False, "devices": 8}
    return Proposal(fleet=fleet, **fields | given)


def test_the_file_says_what_it_is_and_where_it_comes_from():
    text = proposal.text(whole(proposed=1, rows={"own.rate": ["# GB/s", "- {model: L40S}"]},
                               without_limit=["own.x: why"]))  # fmt: skip
    assert "# 1 limit from 3 runs of 8 devices." in text
    assert "# Commit c0ffee; runs run0, run1, run2." in text
    assert "# Not used: run9: another commit" in text
    assert "# No limit is proposed for:\n#   own.x: why\n" in text
    assert yaml.safe_load(text) == {
        "proposal": {"limits": 1, "runs": 3, "devices": 8},
        "criteria": {"own.rate": {"limits": [{"model": "L40S"}]}},
    }  # fmt: skip
    plain = proposal.text(whole(fleet=runs()))
    assert "Commit unknown" in plain
    assert set(yaml.safe_load(plain)) == {"proposal"}
    for odd in ("No limit", "datasheet", "Virtual", "As observed"):
        assert odd not in plain
    for fleet in (runs(origin="sandbox"), runs(gpu_model="cpu")):
        assert "Virtual nodes or a CPU" in proposal.text(whole(fleet=fleet))


def test_the_contract_is_written_as_it_was_observed():
    seen = ObservedContract(
        nodes=("n1", "n2"), gpus_per_node=2, gpu_model="H200 SXM", nic_gbps=400.0, cuda="13.0",
        deviations=("n2: driver 1",),
    )  # fmt: skip
    text = proposal.text(whole(observed=seen, propose_contract=True))
    assert yaml.safe_load(text)["cluster"] == {
        "nodes": "n[1-2]", "gpus_per_node": 2, "gpu_model": "H200 SXM", "nic_gbps": 400,
        "cuda": "13.0",
    }  # fmt: skip
    assert "  # driver: not observed\n" in text
    assert "  # n2: driver 1\n" in text


def test_a_new_model_needs_a_datasheet():
    device = {"memory_bytes": 80 * 2**30 + 1, "sm_count": 132}
    known = ObservedContract(nodes=NODES, gpus_per_node=2, gpu_model="Z100", device=device)
    text = proposal.text(whole(observed=known))
    assert 'GPUS: "Z100": Gpu(' in text
    assert "memory_gib=81," in text
    assert "sm_count=132," in text
    assert "compute_capability=?" in text
    assert "memory_gib=?" in proposal.text(whole(observed=NEW))
