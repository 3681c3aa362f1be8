"""The lines of `verify` on what a verdict rests on."""

from __future__ import annotations

import json

import pytest

from fixtures.cluster.population import contract_json
from fixtures.paths import THRESHOLDS
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds import loader
from reports.evidence import basis
from tests.selftests import support

pytestmark = pytest.mark.cpu


def test_the_order_is_named_with_its_file_and_hash(tmp_path):
    own = tmp_path / "order.yaml"
    own.write_text(
        f"base: {THRESHOLDS}\ncluster: {{nodes: 2, gpus_per_node: 8, gpu_model: H200 SXM}}\n"
    )
    loaded = loader.load(own)
    run = {"population": {"origin": "cluster"}, "contract": contract_json(loaded.cluster)}
    assert basis.order_line(run, own) == f"that of {own}, SHA-256 {loaded.sha256}"
    assert basis.order_line(run, None) == (
        "that of run.json alone: thresholds.yaml has no `cluster:`"
    )
    assert basis.order_line({"population": {"origin": "cluster"}}, None) == "none"
    made_up = run | {"population": {"origin": "sandbox"}}
    assert basis.order_line(made_up, own) == "that of the options, of virtual nodes"
    assert basis.order_line(run, tmp_path / "none").startswith("not known: ")


def test_times_and_devices_are_those_of_the_records(directory):
    support.save(support.node_record(650, 650), directory)
    run = {"created": "A", "ended": "B"}
    _, times, devices = basis.lines(directory, run, None)
    assert times == (
        "times  run from A to B; measured from 1970-01-01T00:01:40+00:00 to "
        "1970-01-01T00:01:50+00:00"
    )
    assert devices == "devices  2 GPUs by the records"
    rank = {"device": {"uuid": "GPU-1"}, "start": 90, "end": 1e3, "samples": {"started": 1}}
    for name in ("inventory@n1.json", "inventory@n1.attempt2.json"):
        (directory.records / name).write_text(json.dumps({"ranks": [rank]}))
    _, times, devices = basis.lines(directory, {}, None)
    assert "from not stated to not stated; measured from 1970-01-01T00:01:30" in times
    assert devices == "devices  1 GPU by the inventory in 1 node"


def test_a_run_without_records_has_no_times_and_no_devices(directory, tmp_path):
    for of in (RunDirectory(tmp_path / "nowhere"), directory):
        _, times, devices = basis.lines(of, {}, None)
        assert times.endswith("measured from none")
        assert devices == "devices  0 GPUs by the records"
    (directory.records / "a@b.json").write_text('{"start": 999999999999, "end": 1}')
    assert "1970-01-01T00:00:01+00:00 to 1e+12" in basis.lines(directory, {}, None)[1]
