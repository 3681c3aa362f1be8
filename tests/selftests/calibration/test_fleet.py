"""Runs of one fleet, and what was measured in them that limits can be calibrated by."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.calibration import fleet
from fixtures.calibration.fleet import CalibrationRun, Fleet, Metric, collect_metrics, fleet_of
from fixtures.calibration.observed_contract import ObservedContract
from fixtures.cluster.population import Population
from fixtures.errors import ConfigError
from fixtures.records.model import Measurement
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds.limits import Limit
from tests.selftests import support
from tests.selftests.support import bf16, node_record, rank, record
from tests.selftests.verdict.made import criterion, row

pytestmark = pytest.mark.cpu

NODES = ("worker0", "worker1")
ORDER = {"nodes": 2, "gpus_per_node": 2, "gpu_model": "H200 SXM"}
OBSERVED = ObservedContract(nodes=NODES, gpus_per_node=2)


def people(**given: Any) -> Population:
    fields: dict[str, Any] = {
        "origin": "cluster", "nodes": NODES, "gpus_per_node": 2, "gpu_model": "H200 SXM",
        "ordered": True,
    }  # fmt: skip
    return Population(**fields | given)


def people_json(population: Population) -> dict[str, Any]:
    """A population as run.json has it; its origin stands beside it."""
    return {k: v for k, v in population.to_json().items() if k != "origin"}


def run(folder: Path, name: str, of: Population | None = None, **given: Any) -> Path:
    """A run directory with its run.json."""
    data = {
        "schema": 2, "id": name, "nonce": f"nonce-{name}", "created": "1970-01-01", "tier": "probe",
        "population": people_json(of or people()), "contract": ORDER, "commit": "c0ffee",
        "ended": "2026-11-21", "origin": "cluster", **given,
    }  # fmt: skip
    root = folder / name
    root.mkdir(parents=True)
    (root / "run.json").write_text(
        json.dumps({k: v for k, v in data.items() if v is not ...}), encoding="utf-8"
    )
    return root


def test_a_run_is_read_and_a_replay_counts_as_what_it_replays(tmp_path):
    found = CalibrationRun.of(run(tmp_path, "a"))
    assert (found.id, found.nonce, found.tier) == ("a", "nonce-a", "probe")
    assert (found.commit, found.created) == ("c0ffee", "1970-01-01")
    assert found.contract is not None
    assert found.contract.gpu_model == "H200 SXM"
    assert found.population.origin == "cluster"
    source = {"run": "first", "commit": "f00", "created": "2025-01-01"}
    replay = CalibrationRun.of(run(tmp_path, "b", replay_of=source, contract=None, tier=...))
    assert (replay.id, replay.commit, replay.created) == ("first", "f00", "2025-01-01")
    assert (replay.contract, replay.tier) == (None, "standard")
    old = CalibrationRun.of(run(tmp_path, "c", replay_of={"run": "x"}))
    assert (old.commit, old.created) == ("c0ffee", "1970-01-01")
    nobody = CalibrationRun.of(run(tmp_path, "d", replay_of={"commit": None}))
    assert nobody.commit is None


def test_runs_differ_by_their_hardware_their_code_and_their_order(tmp_path):
    first = CalibrationRun.of(run(tmp_path, "a"))
    for k, (population, given, differs) in enumerate((
        (people(), {}, []),
        (people(), {"contract": None}, []),
        (people(), {"contract": {**ORDER, "driver": "1"}}, ["order"]),
        (people(), {"contract": {**ORDER, "nic_fabric": "InfiniBand"}}, []),
        (people(), {"commit": "f00"}, ["commit"]),
        (people(), {"origin": "sandbox"}, ["kind"]),
        (people(nodes=("worker0",), gpus_per_node=4), {}, ["nodes", "GPUs per node"]),
    )):  # fmt: skip
        other = CalibrationRun.of(run(tmp_path, f"b{k}", population, **given))
        assert first.differences(other) == differs
        assert other.differences(first) == differs


def test_a_fleet_has_the_finished_runs_beside_it(tmp_path):
    for name, given in (
        ("a", {}), ("b", {}), ("c", {"ended": ""}), ("d", {"commit": "f00"}),
        ("e", {"schema": 9}), ("f", {"nonce": "nonce-b"}), ("g", {"population": {}}),
    ):  # fmt: skip
        run(tmp_path, name, **given)
    (tmp_path / "latest").symlink_to("b")
    found = fleet_of(CalibrationRun.of(tmp_path / "a"), tmp_path)
    assert [r.id for r in found.runs] == ["a", "b"]
    assert found.left_out[:2] == ["c: it has not ended", "d: another commit"]
    assert [why.partition(":")[0] for why in found.left_out[2:]] == ["e", "g"]
    assert all("\n" not in why for why in found.left_out)
    given = fleet_of(CalibrationRun.of(tmp_path / "a"), tmp_path, [tmp_path / "f", tmp_path / "b"])
    assert [r.id for r in given.runs] == ["a", "f"]
    assert given.left_out == ["b: the same run"]


# --- what was measured


def recorded(folder: Path, name: str, *records: Any, **given: Any) -> CalibrationRun:
    root = run(folder, name, **given)
    (root / "records").mkdir()
    found = CalibrationRun.of(root)
    for one in records:
        support.save(dataclasses.replace(one, run_id=name), RunDirectory(root))
    return found


def nodes(name: str, *rates: float) -> list[Any]:
    """A gemm record of each node, with these rates of its GPUs."""
    return [
        node_record(*rates[2 * k : 2 * k + 2], node=node, nonce=f"nonce-{name}")
        for k, node in enumerate(NODES)
    ]


def test_the_figure_of_every_device_is_collected_by_run(tmp_path, limits):
    runs = [
        recorded(tmp_path, "a", *nodes("a", 650, 651, 652, 653), tier="standard"),
        recorded(tmp_path, "b", *nodes("b", 640, 641, 642, 643)[:1], tier="standard"),
    ]
    metrics = collect_metrics(Fleet(runs), limits, OBSERVED)
    ((key, metric),) = metrics.items()
    assert key[0] == metric.criterion.key == "gemm.bf16"
    assert metric.facts["model"] == "H200 SXM"
    assert metric.facts["gpus_per_node"] == 2
    assert metric.values["worker0 gpu0"] == {"nonce-a": 650, "nonce-b": 640}
    assert metric.values["worker1 gpu1"] == {"nonce-a": 653}
    assert metric.values_in_all(["nonce-a", "nonce-b"]) == {
        "worker0 gpu0": [650, 640], "worker0 gpu1": [651, 641],
    }  # fmt: skip
    assert len(metric.values_in_all(["nonce-a"])) == 4
    assert metric.devices(metric.values) == 4
    metric.device_of["worker0 gpu0 to 1"] = "worker0 gpu0"
    assert metric.devices(["worker0 gpu0", "worker0 gpu0 to 1"]) == 1


def test_limits_of_today_do_not_count_and_what_is_not_valid_does_not(tmp_path, limits):
    def found(name: str, *ranks: Any) -> int:
        one = record(*ranks, nonce=f"nonce-{name}")
        source = recorded(tmp_path, name, one, tier="standard")
        return sum(
            len(m.values) for m in collect_metrics(Fleet([source]), limits, OBSERVED).values()
        )

    good = rank(1, "worker0", bf16())
    assert found("slow", rank(0, "worker0", bf16([300.0] * 5)), good) == 2
    assert found("invalid", rank(0, "worker0", bf16(checks={"overlap": 0.1})), good) == 0
    assert found("fast", rank(0, "worker0", bf16([2000.0] * 5)), good) == 0
    assert found("single", rank(0, "worker0", bf16([650.0])), good) == 0
    assert found("two", rank(0, "worker0", bf16([650.0, 651.0])), good) == 2
    assert found("half", good) == 0


def test_what_nobody_ordered_is_taken_as_it_was_observed():
    seen = ObservedContract(
        nodes=NODES, gpus_per_node=2, gpu_model="L40S", nics_per_node=4, nic_gbps=200.0
    )
    ordered = people()
    assert fleet.with_observed_fields(ordered, seen) is ordered
    bare = people(ordered=False, gpu_model=None)
    full = fleet.with_observed_fields(bare, seen)
    assert (full.gpu_model, full.nics_per_node, full.nic_gbps) == ("L40S", 4, 200.0)
    known = people(ordered=False, nics_per_node=8, nic_gbps=400)
    kept = fleet.with_observed_fields(known, seen)
    assert (kept.gpu_model, kept.nics_per_node, kept.nic_gbps) == ("H200 SXM", 8, 400)
    nothing = fleet.with_observed_fields(bare, OBSERVED)
    assert (nothing.gpu_model, nothing.nics_per_node, nothing.nic_gbps) == (None, 0, 0)


def test_several_things_on_one_device_are_told_apart():
    m = Measurement(metric="rate", unit="GB/s", at={"size": 1, "to": 3})
    item: Any = SimpleNamespace(subject="a--b", nodes=("worker0",))
    at_size = criterion(row(fail_below=1), at={"size": 1})
    assert fleet._measured_there(at_size, item, m) == ["to 3"]
    pair = criterion(row(fail_below=1), at={"size": 1, "to": 3}, per="pair")
    assert fleet._measured_there(pair, item, m) == ["in a--b"]
    plain = criterion(row(fail_below=1), at={"size": 1, "to": 3})
    assert fleet._measured_there(plain, item, m) == []


def test_a_fact_of_the_ranks_counts_where_all_agree():
    def facts(*conditions: dict[str, Any], **population: Any) -> dict[str, Any]:
        points = [
            (rank(k, "worker0", dtype="bf16"), Measurement(metric="r", unit="x", conditions=c))
            for k, c in enumerate(conditions)
        ]
        item: Any = SimpleNamespace(subject="worker0", nodes=("worker0",))
        of = criterion(row(fail_below=1), workload="gemm")
        return fleet._facts(of, item, people(**population), points)

    same = facts({"nvls": True}, {"nvls": True})
    assert (same["nvls"], same["nodes"], same["gpus"]) == (True, 1, 2)
    assert "nvls" not in facts({"nvls": True}, {"nvls": False})
    assert "nvls" not in facts({}, {})
    assert facts({"nvls": False}, {"nvls": False})["nvls"] is False
    assert "nic_gbps" not in facts({}), "nothing was ordered of it"
    assert facts({"gpus": 7})["gpus"] == 2, "the plan's stay"
    assert facts({}, nics_per_node=4, nic_gbps=400)["nic_gbps"] == 400


def test_the_row_that_held_gives_its_bounds():
    of = criterion(row(fail_below=1, when={"gpus": 2}, valid={"overlap": [0.5, None]}))
    assert fleet._valid_bounds(of, {"gpus": 2}) == {"overlap": (0.5, None)}
    assert fleet._valid_bounds(of, {"gpus": 4}) == {}


def test_every_row_is_replaced_by_one_that_any_number_satisfies(limits):
    rows = [row(fail_above=5, expect=3, when={"gpus": 2}), Limit(calibrate=True, model=["L40S"])]
    found = list(fleet._rows_without_numbers(criterion(*rows)))
    assert [r.conditions() for r in found] == [{"gpus": 2}, {"model": ("L40S",)}, {}]
    for made in found:
        assert made.resolve(None, None).kind == "below"
        assert made.fail_below is not None
        assert 0 < made.fail_below.number < 1e-200
        assert (made.fail_above, made.expect, made.calibrate, made.recorded) == (None,) * 4
    assert len(list(fleet._rows_without_numbers(criterion(row(fail_below=1))))) == 1


def test_without_a_datasheet_there_is_no_ceiling(limits):
    for model, ceiling in (("H200 SXM", "gemm"), (None, "gemm"), ("Z100", None)):
        found = fleet._criteria_without_limits(limits, people(gpu_model=model))
        assert found["gemm.bf16"].ceiling == ceiling
        assert set(found) == set(limits.criteria)
    assert fleet._has_datasheet("NVIDIA H200") is True
    assert fleet._has_datasheet(None) is True
    assert fleet._has_datasheet("Z100") is False


def test_a_criterion_that_is_not_planned_or_not_sampled_has_no_metric(tmp_path, limits):
    source = recorded(tmp_path, "a", *nodes("a", 650, 651, 652, 653), tier="standard")
    with pytest.raises(ConfigError):
        CalibrationRun.of(tmp_path / "none")
    found = collect_metrics(Fleet([source]), limits, OBSERVED)
    assert {key for key, _ in found} == {"gemm.bf16"}, "gemm.spread is not a rate of its own"
    metric = Metric(limits.criteria["gemm.bf16"], {}, {})
    assert metric.values["new"] == {}
