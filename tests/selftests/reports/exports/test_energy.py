"""What a training cost: tokens, floating-point operations and energy of its timed steps."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.records.model import Measurement
from fixtures.records.run_directory import RunDirectory
from reports import __main__ as command
from reports.exports import energy
from reports.exports.tables import records_of
from tests.selftests import support

pytestmark = pytest.mark.cpu


def test_the_cost_of_a_training_is_that_of_its_timed_steps(tmp_path, capsys):
    root = tmp_path / "run"
    shutil.copytree(support.DATA / "h200-1x4", root)
    (record,) = [r for r in records_of(RunDirectory(root)) if r.workload == "training_single"]
    (root / "jobs" / "training").mkdir(parents=True)
    lines = []
    (timed,) = [m for m in record.ranks[0].measurements if m.metric == "tokens"]
    assert timed.started is not None
    for k in range(-10, 2000):
        gpus = {str(r.device["uuid"]): {"power_w": 600.0 + 10 * r.local_rank} for r in record.ranks}
        lines.append(json.dumps({"t": timed.started + k / 5, "gpus": gpus}))
    telemetry = root / "jobs" / "training" / "telemetry-node0.jsonl"
    telemetry.write_text("\n".join(lines) + "\n")
    found = [c for c in energy.costs(RunDirectory(root)) if c.training == "training_single 1b"]
    assert [c.gpu for c in found] == [0, 1, 2, 3]
    cost = found[0]
    assert cost.joules == pytest.approx(600 * cost.seconds, rel=1e-6)
    assert cost.tokens == pytest.approx(30 * 16384, rel=0.01)
    assert cost.pflop == pytest.approx(cost.tokens * 9.0255e9 / 1e15, rel=1e-3)
    assert cost.joules_per_pflop == pytest.approx(600 / 0.4955, rel=0.03)
    assert command.main(["energy", str(root)]) == 0
    assert "J/PFLOP" in capsys.readouterr().out
    telemetry.unlink()
    assert all(c.joules is None for c in energy.costs(RunDirectory(root)))


def tokens(metric: str = "tokens", **more) -> Measurement:
    given = {"samples": [10.0, 20.0], "ended": [101.0, 103.0], "started": 100.0}
    return Measurement(
        metric=metric, unit="tokens/s", at={"preset": "1b"}, conditions={"flops_per_token": 2e13},
        **{**given, **more},
    )  # fmt: skip


def a_training(root: Path, *measurements: Measurement, workload: str = "training_ddp"):
    """A run with one record, of a GPU that drew 600 W all the time."""
    run = support.run_directory(root, schema=2, id=support.RUN_ID, nonce=support.NONCE)
    support.save(support.record(support.rank(0, "worker0", *measurements), workload=workload), run)
    samples = [{"t": 99.0 + k, "gpus": {"GPU-worker0-0": {"power_w": 600}}} for k in range(6)]
    broken = [{"t": 101.5, "gpus": {"GPU-worker0-0": {"power_w": None}}}, {"t": 101.5, "gpus": 5},
              {"t": None, "gpus": {"GPU-worker0-0": {"power_w": 9000}}},
              {"t": 101.6, "gpus": {"GPU-worker0-0": 5}}]  # fmt: skip
    support.say(run.jobs / "j" / "telemetry-worker0.jsonl", [*samples, *broken])
    return run


def test_a_cost_is_worked_out_of_the_timed_steps(tmp_path):
    (cost,) = energy.costs(a_training(tmp_path, tokens(), tokens("loss")))
    assert (cost.training, cost.node, cost.gpu) == ("training_ddp 1b", "worker0", 0)
    assert (cost.seconds, cost.tokens, cost.pflop) == (3.0, 50.0, 1.0)
    assert (cost.joules, cost.joules_per_pflop) == (1800.0, 1800.0)
    assert cost.tokens_per_joule == pytest.approx(50 / 1800)
    (unknown,) = [replace(cost, joules=None)]
    assert (unknown.joules_per_pflop, unknown.tokens_per_joule) == (None, None)


@pytest.mark.parametrize("missing", [{"samples": []}, {"ended": []}, {"started": None}])
def test_a_training_without_timed_steps_has_no_cost(tmp_path, missing):
    assert list(energy.costs(a_training(tmp_path, tokens(**missing)))) == []


def test_the_table_has_a_dash_for_what_is_not_known(tmp_path, capsys):
    run = a_training(tmp_path / "run", tokens())
    assert energy.show(run.root) == 0
    row, median = capsys.readouterr().out.splitlines()[1:]
    assert row.split()[-3:] == ["1.8", "1800", "0.02778"]
    assert median == "median 1800 J/PFLOP, of 1 of 1"
    shutil.rmtree(run.jobs)
    assert energy.show(run.root) == 0
    (row,) = capsys.readouterr().out.splitlines()[1:]
    assert row.split()[-3:] == ["-", "-", "-"]
    other = a_training(tmp_path / "other", tokens(), workload="gemm")
    assert energy.show(other.root) == 2
    assert "no timed training" in capsys.readouterr().out
