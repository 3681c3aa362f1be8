"""What the visits of a patrol show: history, drift, a suspect measurement, page, hook, textfile."""

from __future__ import annotations

import configparser
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.paths import CHECKOUT
from fixtures.records.files import append_line
from fixtures.records.run_directory import RunDirectory
from reports import __main__ as command
from reports.evidence.run_files import read_verdict
from reports.handover import patrol, visit_history
from tests.selftests import support
from tests.selftests.judged_runs import judged_run

pytestmark = pytest.mark.cpu

RECORDED = support.DATA / "h200-1x4"
PATROL = CHECKOUT / "deploy" / "patrol"


class Visits:
    """A log of visits of nodes that have the GPUs of the certificate, four of a node."""

    def __init__(self, state: Path) -> None:
        self.state, self.clock = state, time.time() - 5 * patrol.DAY_S
        self.rng = random.Random(6)
        streams = patrol.certified_streams(RunDirectory(RECORDED))
        self.certified = {stream: value for stream, (value, _) in streams.items()}

    def visit(self, *, slow: dict[str, float] | None = None, node: str = "node0") -> None:
        self.clock += 3600
        begun = {"node": node, "job": "1", "start": self.clock}
        append_line(self.state / "visits.jsonl", {**begun, "outcome": "begun"})
        values = [
            {"uuid": uuid, "gpu": 0, "metric": metric,
             "value": value * (1 - (slow or {}).get(uuid, 0)) * self.rng.gauss(1, 0.004)}
            for (uuid, metric), value in self.certified.items()
        ]  # fmt: skip
        done = {**begun, "end": self.clock + 30, "outcome": "done", "values": values}
        append_line(self.state / "visits.jsonl", done)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """The recorded run with its verdict and manifest."""
    return judged_run(RECORDED, tmp_path_factory.mktemp("certificate") / "run")


@pytest.fixture
def report(certificate, monkeypatch) -> Callable[..., int]:
    """Reports by a certificate that stands; test_reference.py confirms one in full."""
    monkeypatch.setattr(command, "confirmed_verdict", lambda source, *_: read_verdict(source))

    def report(state: Path, *more: str) -> int:
        return command.main(["patrol", str(state), "--certificate", str(certificate), *more])

    return report


def status(state: Path) -> Any:
    return json.loads((state / patrol.STATUS).read_text())


@pytest.fixture
def log(tmp_path) -> Visits:
    return Visits(tmp_path)


def test_a_drifting_gpu_is_named_and_healthy_ones_are_not(log, report, capsys):
    for _ in range(12):
        log.visit()
    assert report(log.state) == 0
    sick = sorted({uuid for uuid, _ in log.certified})[0]
    for _ in range(5):
        log.visit(slow={sick: 0.03})
    textfile = log.state / "patrol.prom"
    assert report(log.state, f"--textfile={textfile}") == 1
    assert {g["uuid"] for g in status(log.state)["gpus"] if g["accused"]} == {sick}
    said = capsys.readouterr().out
    assert f"{sick}: gemm.bf16_per_ghz" in said
    assert "below its certificate" in said
    text = textfile.read_text()
    assert f'gpu_patrol_accused{{node="node0",gpu="0",uuid="{sick}"' in text
    assert "gpu_patrol_suspect 0" in text
    page = (log.state / patrol.PAGE).read_text()
    assert page.count(": accused</td>") == 2
    assert "17 done" in page


def test_the_history_takes_every_visit_once(log):
    history = log.state / "history"
    for _ in range(3):
        log.visit()
    assert visit_history.take_in(log.state / "visits.jsonl", history) == 6
    assert visit_history.take_in(log.state / "visits.jsonl", history) == 0
    log.visit()
    append_line(log.state / "visits.jsonl", {"node": "n1", "job": "9", "start": 1.0, "end": 2.0,
                                             "outcome": "gave way", "values": []})  # fmt: skip
    assert visit_history.take_in(log.state / "visits.jsonl", history) == 3
    rows = visit_history.read(history)
    assert len(rows) == 4 * len(log.certified) + 1
    assert [row["outcome"] for row in rows if row["value"] is None] == ["gave way"]
    assert len(list(history.glob("visits-*.parquet"))) == 2


def _fleet(sick: int) -> list[dict[str, Any]]:
    rng = random.Random(7)
    return [
        {"start": 3600.0 * k, "end": 3600.0 * k + 30, "node": f"n{n}", "job": "1", "gpu": 0,
         "outcome": "done", "uuid": f"GPU-{n}", "metric": "memory.triad",
         "value": 4000 * (0.96 if n < sick and k > 8 else 1) * rng.gauss(1, 0.004)}
        for k in range(14) for n in range(8)
    ]  # fmt: skip


@pytest.mark.parametrize("sick", [0, 1, 3, 4, 8])
def test_half_of_the_fleet_at_once_is_a_suspect_measurement(sick):
    certified = {(f"GPU-{n}", "memory.triad"): 4000.0 for n in range(8)}
    findings, tests = patrol.assess(_fleet(sick), certified, shift=0.03, false_alarms=1)
    accused = [f for f in findings if f.track.accused]
    assert {f.node for f in accused} == {f"n{n}" for n in range(sick)}
    suspect = patrol.cusum.is_suspect([f.node for f in accused], [f.node for f in findings])
    assert suspect == (sick >= 4)
    said = " ".join(patrol.lines(findings, tests, suspect=suspect, age=3))
    assert ("SUSPECT" in said) == suspect


def test_the_hook_is_started_once_for_each_gpu_and_names_none_if_suspect(tmp_path, capsys):
    certified = {(f"GPU-{n}", "memory.triad"): 4000.0 for n in range(8)}
    findings, _ = patrol.assess(_fleet(2), certified, shift=0.03, false_alarms=1)
    accused = [f for f in findings if f.track.accused]
    out = tmp_path / "hooked"
    hook = tmp_path / "hook.sh"
    hook.write_text(f'#!/bin/sh\necho "$ACCEPTANCE_EVENT $ACCEPTANCE_NODE" >> {out}\n')
    hook.chmod(0o755)
    for _ in range(2):
        patrol.call_hook(tmp_path, str(hook), accused, suspect=False)
    assert out.read_text().splitlines() == ["drift n0", "drift n1"]
    for _ in range(2):
        patrol.call_hook(tmp_path, str(hook), accused, suspect=True)
    assert out.read_text().splitlines()[2:] == ["suspect "]
    # A command that fails is started again.
    assert patrol.call_hook(tmp_path, "false", accused[:1], suspect=False)
    assert patrol.call_hook(tmp_path, "true", accused[:1], suspect=False)
    assert "--hook for GPU-0" in capsys.readouterr().out


def test_a_gpu_that_was_never_certified_is_said_and_not_tested(log, report, capsys):
    log.certified["GPU-new", "memory.triad"] = 4000.0
    for _ in range(6):
        log.visit(slow={"GPU-new": 0.5})
    assert report(log.state) == 0
    assert "not in the certificate: 1 GPU, as GPU-new" in capsys.readouterr().out


# --- what a site installs


@pytest.mark.waits("the script gives Slurm its time to answer")
def test_a_round_by_the_script_reports_although_slurm_is_away(log, certificate):
    for _ in range(6):
        log.visit()
    env = {
        **os.environ, "PATH": "/usr/bin:/bin", "PATROL_STATE": str(log.state),
        "PATROL_CERTIFICATE": str(certificate), "PATROL_PYTHON": sys.executable,
        "PATROL_REPORT": f"--textfile={log.state / 'patrol.prom'}", "SLURM_CONF": "/nowhere",
    }  # fmt: skip
    done = subprocess.run([PATROL / "patrol.sh"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no visit: " in done.stdout
    assert "gpu_patrol_visits" in (log.state / "patrol.prom").read_text()
    without = {name: text for name, text in env.items() if name != "PATROL_STATE"}
    refused = subprocess.run([PATROL / "patrol.sh"], env=without, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "PATROL_STATE: name a directory" in refused.stderr


def test_what_starts_a_round_starts_the_script_that_is_there():
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read(PATROL / "acceptance-patrol.service")
    assert unit["Service"]["Type"] == "oneshot"
    texts = [(PATROL / name).read_text() for name in ("crontab", "scrontab")]
    for text in (unit["Service"]["ExecStart"], *texts):
        (script,) = re.findall(r"/opt/acceptance/(\S+\.sh)", text)
        assert os.access(CHECKOUT / script, os.X_OK)
    timer = configparser.ConfigParser()
    timer.read(PATROL / "acceptance-patrol.timer")
    assert timer["Timer"]["OnCalendar"] == "*:0/10"
    names = set(re.findall(r"PATROL_[A-Z]+", (PATROL / "patrol.env.example").read_text()))
    assert names <= set(re.findall(r"PATROL_[A-Z]+", (PATROL / "patrol.sh").read_text()))
