"""What of an earlier run is judged again, and where that is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.backends import replay as module
from fixtures.backends.replay import ReplayBackend
from fixtures.errors import ConfigError
from fixtures.records.files import append_line, read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.records.run_schema import RUN_SCHEMA
from fixtures.run.options import RunOptions
from fixtures.thresholds import loader
from tests.selftests.run.small_run import BEGAN, PEOPLE, TEXT
from tests.selftests.support import NONCE, SHIPPED, node_record, result_line, run_directory, save

pytestmark = pytest.mark.cpu

ORDER = {"nodes": 2, "gpus_per_node": 2, "gpu_model": "H200 SXM"}


@pytest.fixture
def source(tmp_path: Path) -> RunDirectory:
    return run_directory(tmp_path / "source")


def opened(source: RunDirectory, options: Any = None, **more: Any):
    """The run that judges a source, whose run.json says this."""
    data = {
        "schema": RUN_SCHEMA, "id": "before", "nonce": NONCE, "contract": ORDER,
        "population": {**PEOPLE.to_json(), "installed": []}, "scope": [["gemm.bf16", "worker0"]],
        "owner": {}, "ended": "2026", **more,
    }  # fmt: skip
    data = {key: value for key, value in data.items() if value is not ...}
    (source.root / "run.json").write_text(json.dumps(data))
    limits = source.root.parent / "thresholds.yaml"
    limits.write_text(TEXT)
    given = {"from_run": source.root, "run_dir": source.root.parent / "judged", **(options or {})}
    backend = ReplayBackend(RunOptions(thresholds=limits, **given))
    return backend, backend.open_run()


def test_a_replay_has_the_population_the_order_and_the_scope_of_its_source(source):
    backend, run = opened(source, destructive=True)
    assert (run.population.nodes, run.population.gpu_model) == (PEOPLE.nodes, "H200 SXM")
    assert [tuple(k) for k in run.earlier["scope"]] == [("gemm.bf16", "worker0")]
    assert run.earlier["scope"][0] is next(i.key for i in run.items if i.subject == "worker0")
    assert (run.nonce, run.tier, run.destructive) == (NONCE, "standard", True)
    assert run.replayed == source.root.resolve()
    assert run.id != "before"
    assert run.cut_short == ""
    assert opened(source, tier="probe")[1].tier == "probe"
    assert opened(source, ended="")[1].cut_short == "the run was killed before it ended"
    assert (backend.no_more_records(), backend.stop("x")) == (True, "")


@pytest.mark.parametrize("scope", [[], [["gemm.bf16", "worker1"]], [["gemm.bf16 ", "worker0"]]])
def test_a_row_that_the_ledger_has_is_judged_whatever_the_scope_says(source, scope):
    line = {"event": "verdict", "criterion": "gemm.bf16", "subject": "worker0", "outcome": "FAIL"}
    append_line(source.ledger, line)
    append_line(source.ledger, {**line, "criterion": "of.older.limits"})
    _, run = opened(source, scope=scope)
    assert ("gemm.bf16", "worker0") in [tuple(k) for k in run.earlier["scope"]]
    told = "run.json leaves out 1 row that ledger.jsonl has verdicts on"
    assert told in run.order_differences
    _, whole = opened(source)
    assert told not in whole.order_differences


def test_models_are_named_as_the_limits_have_them(source):
    people = {**PEOPLE.to_json(), "gpu_model": "NVIDIA H200"}
    assert opened(source, population=people)[1].population.gpu_model == "H200 SXM"
    with pytest.raises(ConfigError, match="population"):
        opened(source, population={"gpu_model": None})


def test_the_nodes_are_those_of_the_order_whatever_run_json_says_of_them(source):
    assert opened(source)[1].population.ordered is True
    changed = {**PEOPLE.to_json(), "ordered": True, "installed": [], "nvls": True}
    _, run = opened(source, population=changed)
    assert run.population.nvls is False, "two GPUs of a node are not attached to switches"
    assert run.order_differences == (
        "run.json says of its nodes nvls True, where its order means False",
    )
    unordered = {**PEOPLE.to_json(), "installed": []}
    _, run = opened(source, population=unordered, contract=None)
    assert run.population.ordered is True
    assert run.order_differences == (
        "run.json states another order than thresholds.yaml, which counts: run.json has none",
    )


def test_what_a_run_had_installed_is_what_it_says_or_what_it_measured(source, monkeypatch):
    monkeypatch.setattr(module.run_order, "installed_by", lambda *_: ("measured",))
    said = {**PEOPLE.to_json(), "installed": ["said"]}
    assert opened(source, population=said)[1].population.installed == ("said",)
    assert opened(source, population=PEOPLE.to_json())[1].population.installed == ("measured",)


def test_nothing_is_written_over_another_run_or_into_the_source(source, tmp_path):
    with pytest.raises(ConfigError, match="other --run-dir"):
        opened(source, {"run_dir": source.root})
    for name, kind in (("run.json", "touch"), ("records", "mkdir")):
        folder = tmp_path / kind
        folder.mkdir()
        getattr(folder / name, kind)()
        with pytest.raises(ConfigError, match="holds a run already"):
            opened(source, {"run_dir": folder})
    with pytest.raises(ConfigError, match="needs --from RUN"):
        ReplayBackend(RunOptions())


def test_a_run_by_hand_planned_what_it_has_lines_of(source):
    folder = source.job("a")
    folder.mkdir()
    append_line(folder / "rank0.jsonl", result_line(0))
    _, run = opened(source, scope=...)
    assert [tuple(k) for k in run.earlier["scope"]] == [
        ("gemm.bf16", "worker0"), ("gemm.spread", "worker0"),
    ]  # fmt: skip


def test_a_run_by_hand_is_as_deep_as_its_workloads_need(source):
    """Workloads of the burn-in and of the load on the fabric were deselected: nothing to judge."""
    criteria = loader.load(SHIPPED).criteria.values()
    tiers = {
        workload: module._tier_by_hand(criteria, {("gemm", "worker0"), (workload, "worker0")})
        for workload in ("gemm", "burnin", "permutations")
    }
    assert tiers == {"gemm": "standard", "burnin": "burnin", "permutations": "fabric"}
    assert opened(source, scope=...)[1].tier == "standard"  # these limits have no deeper ones
    assert opened(source, scope=..., tier="probe")[1].tier == "probe"


def test_records_are_copied_and_the_run_that_measured_is_named(source, monkeypatch, tmp_path):
    links: list[Path] = []
    monkeypatch.setattr(module, "link_latest", links.append)
    monkeypatch.setattr(module, "RUNS", tmp_path / "runs")
    save(node_record(650, 650), source)
    backend, run = opened(source, created=BEGAN, commit="c")
    run.files.make()
    backend.start(run)
    assert run.directory.record("gemm", "worker0").exists()
    known = read_json(run.directory.run_json)["replay_of"]
    assert (known["run"], known["path"], known["created"]) == ("before", "source", BEGAN)
    assert (known["commit"], known["ended"]) == ("c", "2026")
    assert links == []
    backend, run = opened(source, {"run_dir": None}, replay_of={"run": "first", "created": BEGAN})
    run.files.make()
    backend.start(run)
    known = run.extra["replay_of"]
    assert (known["run"], known["created"], known["ended"]) == ("first", BEGAN, None)
    assert links == [run.directory.root]
