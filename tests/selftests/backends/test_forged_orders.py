"""An accepted run whose run.json orders less, or releases rows, is accepted no longer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.paths import THRESHOLDS
from tests.selftests import support

pytestmark = pytest.mark.cpu

ACCEPTED = support.DATA / "h100-1x4-accepted"
ORDERED = (
    "{nodes: 1, gpus_per_node: 4, gpu_model: H100 SXM, nics_per_node: 0, "
    "nvls: {disabled: shared}, firmware: {driver: '999'}}"
)


def judged(tmp_path: Path, change: Callable[[Any], Any], order: str = "") -> dict[str, Any]:
    source = tmp_path / "source"
    shutil.copytree(ACCEPTED, source)
    with support.edited(source / "run.json") as run:
        change(run)
    limits = THRESHOLDS
    if order:
        limits = tmp_path / "own.yaml"
        limits.write_text(f"base: {THRESHOLDS}\ncluster: {order}\n")
    return dict(support.judged(source, tmp_path / "judged", limits)[1])


def test_the_run_itself_is_accepted(tmp_path):
    assert judged(tmp_path, lambda run: None)["verdict"] == "ACCEPTED"


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run["population"].update(installed=[]),
        lambda run: run["population"].update(emulated=True),
        lambda run: run["population"].update(nvls=True),
        lambda run: run["contract"].update(nics_per_node=2, nic_gbps=400),
    ],
    ids=["installed", "emulated", "nvls", "order"],
)
def test_what_run_json_says_otherwise_than_order_and_records_is_a_reason(tmp_path, change):
    verdict = judged(tmp_path, change)
    assert verdict["verdict"] == "INCOMPLETE"
    assert verdict["basis"]["order"]


def test_the_order_of_the_given_file_is_judged_and_not_that_of_run_json(tmp_path):
    verdict = judged(tmp_path, lambda run: None, ORDERED)
    assert verdict["verdict"] == "INCOMPLETE"
    assert "states another order than own.yaml" in verdict["reasons"][0]


def test_what_was_installed_is_judged_although_run_json_leaves_it_out(tmp_path):
    verdict = judged(tmp_path, lambda run: run["population"].update(installed=[]))
    rows = [v for v in verdict["criteria"] if v["criterion"] == "finetune.loss"]
    assert [v["outcome"] for v in rows] == ["PASS"]


def test_a_run_whose_ledger_has_no_end_was_killed_whatever_run_json_says(tmp_path):
    def cut(run: Any) -> None:
        assert run["ended"]
        (tmp_path / "source" / "ledger.jsonl").write_text('{"event": "test"}\n')

    verdict = judged(tmp_path, cut)
    assert verdict["verdict"] == "INCOMPLETE"
    assert "ledger.jsonl that it was killed" in verdict["basis"]["interrupted"]
