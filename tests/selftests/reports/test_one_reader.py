"""What the judge voids is a good figure nowhere: dossier, watch, charts, pages, patrol, tables."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.model import Measurement, RankResult, Record
from fixtures.records.run_directory import RunDirectory
from fixtures.run.reader import RunReader
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.tails import COMES_AND_GOES
from reports.console import watch
from reports.exports import tables
from reports.facts import causes
from reports.handover import patrol
from reports.pages import dossier, figures
from reports.pages.cluster import Cluster
from tests.selftests import support

pytestmark = pytest.mark.cpu

NODES = ("worker0", "worker1")
RUN: dict[str, Any] = {
    "schema": 2, "id": support.RUN_ID, "nonce": support.NONCE, "origin": "cluster",
    "created": "1970-01-01T00:00:01+00:00", "suite_version": "x",
    "population": {"nodes": [*NODES], "gpus_per_node": 2, "gpu_model": "H200 SXM"},
}  # fmt: skip
SPOILED = "worker1"
ROW = {
    "criterion": "gemm.bf16", "title": "", "subject": SPOILED, "outcome": "FAIL", "value": 600.0,
    "unit": "TFLOPS", "limit": "", "margin": -0.1, "record": f"gemm@{SPOILED}.json", "attempt": 1,
    "reason": f"{COMES_AND_GOES}: one sample", "worst": {"node": SPOILED, "gpu": 0},
}  # fmt: skip


def measured(node: str, k: int) -> RankResult:
    """A rank whose samples are like those of no other."""
    rates = random.Random(f"{node} {k}")
    samples = [650 + rates.random() for _ in range(12)]
    m = Measurement(metric="bf16", unit="TFLOPS", samples=samples, started=101.0,
                    ended=[101.5 + n / 4 for n in range(12)])  # fmt: skip
    made = support.rank(k, node, m)
    gauges = {uuid: {"util": {"mean": 99.0, "max": 99.0}} for uuid in (made.device["uuid"],)}
    return replace(made, facts={"telemetry": {"gpus": gauges}, "driver": f"580 {node}"})


def record_of(node: str, workload: str = "gemm") -> Record:
    made = support.record(*(measured(node, k) for k in (0, 1)), workload=workload, placement=node)
    if workload == "gemm":
        return made
    return replace(made, ranks=[replace(r, measurements=[], facts={**r.facts, "telemetry": None})
                                for r in made.ranks])  # fmt: skip


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "run")
    made.records.mkdir(parents=True)
    made.run_json.write_text(json.dumps(RUN))
    for node in NODES:
        for workload in ("inventory", "environment", "gemm"):
            support.save(record_of(node, workload), made)
    return made


@pytest.fixture(scope="module")
def limits(tmp_path_factory: pytest.TempPathFactory) -> Thresholds:
    return support.load(tmp_path_factory.mktemp("limits"))


def device_of_others(record: Record) -> Record:
    first, *others = record.ranks
    return replace(
        record, ranks=[replace(first, device={**first.device, "uuid": "GPU-x"}), *others]
    )


def began_after_its_samples(record: Record) -> Record:
    return replace(record, ranks=[replace(r, start=109.5) for r in record.ranks])


def samples_of_the_neighbour(record: Record) -> Record:
    of_other = record_of(NODES[0]).ranks
    pairs = zip(record.ranks, of_other, strict=True)
    return replace(record, ranks=[replace(r, measurements=o.measurements) for r, o in pairs])


CHANGED: dict[str, Callable[[Record], Record]] = {
    "the nonce of another run": lambda r: replace(r, nonce="f" * 32),
    "the id of another run": lambda r: replace(r, run_id="20200101-000000-0000"),
    "a GPU that the node does not have": device_of_others,
    "one GPU too few": lambda r: replace(r, ranks=r.ranks[:1], world_size=1),
    "of a later century": lambda r: replace(r, ranks=[support.later(k, 4e9) for k in r.ranks]),
    "under the name of another attempt": lambda r: replace(r, attempt=2),
}
OF_SAMPLES = {
    "samples before the rank began": began_after_its_samples,
    "the samples of another node": samples_of_the_neighbour,
}


def claimed_twice(directory: RunDirectory) -> None:
    made = record_of(SPOILED, "inventory")
    of_other = record_of(NODES[0], "inventory").ranks[0].device["uuid"]
    first, second = made.ranks
    ranks = [replace(first, device={**first.device, "uuid": of_other}), second]
    support.save(replace(made, ranks=ranks), directory)


def newer_attempt_lost(directory: RunDirectory, workload: str = "gemm") -> None:
    line = {"event": "verdict", "criterion": "gemm.bf16", "subject": SPOILED, "outcome": "PASS",
            "record": f"{workload}@{SPOILED}.attempt2.json"}  # fmt: skip
    directory.ledger.write_text(json.dumps(line) + "\n")


def spoil(directory: RunDirectory, change: Callable[[Record], Record], workload: str) -> None:
    name = f"{workload}@{SPOILED}.json"
    support.save(change(record_of(SPOILED, workload)), directory, name=name)


def shown_of_gemm(directory: RunDirectory, limits: Thresholds) -> dict[str, bool]:
    """Which commands show a figure of gemm on the spoiled node."""
    verdict = {"verdict": "REJECTED", "scope": {"nodes": [*NODES]}, "criteria": [ROW]}
    told = dossier.of(directory.root, verdict, limits, SPOILED)
    reader = RunReader.of(directory)
    drawn = list(figures._records_to_draw(reader, NODES, (), []))
    parts = figures._failure(reader, causes.Failure([ROW]), limits)
    frames = list(watch.frames_of_records(directory))
    return {
        "dossier": bool(told["rows"][0]["measured"]),
        "dossier, telemetry": bool(told["telemetry"]["summaries"].get(ROW["record"])),
        "charts": (SPOILED in [r.placement for r in drawn if r.workload == "gemm"]),
        "chart of the failure": parts["over_time"] is not None,
        "telemetry of the failure": bool(parts["telemetry"]),
        "watch": any(f[SPOILED].activity.startswith("gemm") for f in frames if SPOILED in f),
        "tables": (("gemm", SPOILED) in
                   {(r.workload, r.placement) for r in tables.records_of(directory)}),
        "patrol": any(place[0] == SPOILED
                      for _, place in patrol.certified_streams(directory).values()),
    }  # fmt: skip


def test_a_good_record_is_shown_by_every_command(directory, limits, monkeypatch):
    monkeypatch.setattr(patrol, "METRICS", {"gemm.bf16"})
    shown = shown_of_gemm(directory, limits)
    assert all(shown.values()), shown


@pytest.mark.parametrize("change", [*CHANGED, *OF_SAMPLES, "claimed twice"])
def test_a_void_record_is_shown_by_none(directory, limits, change, monkeypatch):
    monkeypatch.setattr(patrol, "METRICS", {"gemm.bf16"})
    if change == "claimed twice":
        claimed_twice(directory)
    else:
        spoil(directory, {**CHANGED, **OF_SAMPLES}[change], "gemm")
    shown = shown_of_gemm(directory, limits)
    assert not any(shown.values()), shown
    verdict = {"verdict": "REJECTED", "scope": {"nodes": [*NODES]}, "criteria": [ROW]}
    told = dossier.of(directory.root, verdict, limits, SPOILED)
    assert ROW["record"] in [line["record"] for line in told["not_counted"]], "with the reason"


def test_where_the_newest_attempt_is_lost_the_one_before_is_not_shown_as_the_newest(
    directory, limits, monkeypatch
):
    monkeypatch.setattr(patrol, "METRICS", {"gemm.bf16"})
    newer_attempt_lost(directory)
    shown = shown_of_gemm(directory, limits)
    assert (shown["tables"], shown["patrol"]) == (False, False)


def test_a_row_that_stands_by_the_ledger_has_no_measurement_of_its_record(directory, limits):
    reason = f"ledger.jsonl says so of attempt 1: records/x gives 650; {ROW['reason']}"
    verdict = {"verdict": "REJECTED", "scope": {"nodes": [*NODES]},
               "criteria": [{**ROW, "reason": reason}]}  # fmt: skip
    assert dossier.of(directory.root, verdict, limits, SPOILED)["rows"][0]["measured"] == []


def cluster_of(directory: RunDirectory) -> Cluster:
    return Cluster.of(directory, RUN, {"nodes": [*NODES], "gpus_per_node": 2, "gpu_model": "H200"})


@pytest.mark.parametrize("change", [*CHANGED, "claimed twice", "newest lost"])
def test_the_cluster_page_has_no_facts_of_a_void_record(directory, change):
    assert [str(n.facts["driver"]) for n in cluster_of(directory).found.values()] == [
        "580 worker0", "580 worker1"
    ]  # fmt: skip
    if change == "claimed twice":
        claimed_twice(directory)
        directory.record("environment", SPOILED).unlink()
    elif change == "newest lost":
        directory.record("inventory", SPOILED).unlink()
        newer_attempt_lost(directory, "environment")
    else:
        spoil(directory, CHANGED[change], "environment")
        directory.record("inventory", SPOILED).unlink()
        if change == "a GPU that the node does not have":
            inventory = record_of(SPOILED, "inventory")
            support.save(replace(inventory, nonce=support.NONCE), directory)
    found = cluster_of(directory)
    facts = found.found.get(SPOILED)
    assert facts is None or "GPU-x" not in {gpu.get("uuid") for gpu in facts.gpus}
    if change != "a GPU that the node does not have":
        assert SPOILED in found.silent
    if change not in ("newest lost", "a GPU that the node does not have"):
        assert found.not_counted, "why"
