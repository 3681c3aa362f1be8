"""Whether a node may take part in the later stages, by its gate criteria."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.backends.gates import make_gate
from fixtures.run.run import Run
from tests.selftests.run.small_run import small_run
from tests.selftests.support import node_record, save

pytestmark = pytest.mark.cpu


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = small_run(tmp_path)
    made.select([i.key for i in made.items])
    return made


def test_a_node_fails_a_gate_by_the_record_of_its_job(run):
    save(node_record(650, 500), run.directory)
    save(node_record(650, 650, node="worker1"), run.directory)
    gate = make_gate(run)
    for _ in range(2):
        failed = gate("worker0")
        assert (failed.reason, failed.follows_from) == ("gemm.bf16 failed on it", "gemm@worker0")
    assert gate("worker1") is None


def test_a_node_without_a_record_or_out_of_the_scope_fails_none(run):
    assert make_gate(run)("worker0") is None
    save(node_record(650, 500), run.directory)
    run.scope = []
    assert make_gate(run)("worker0") is None


def test_a_criterion_that_is_no_gate_leaves_no_node_out(run):
    save(node_record(650, 740), run.directory)  # the spread is too large, each rate is good
    assert make_gate(run)("worker0") is None


def test_a_gate_on_several_nodes_accuses_none_of_them(run, monkeypatch):
    (item,) = [i for i in run.items if i.criterion == "allreduce.pair"]
    run.thresholds.criteria["allreduce.pair"] = run.thresholds.criteria["gemm.bf16"]
    run.scope = [item]
    save(node_record(500, 500), run.directory, name="allreduce@all.json")
    assert make_gate(run)("worker0") is None
