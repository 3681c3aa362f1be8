"""`python -m reports`: what it writes into a run, and what it leaves alone."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.conclusion.run_verdict import judged_of
from fixtures.paths import CHECKOUT
from fixtures.thresholds import loader
from fixtures.verdict.model import Outcome, Verdict
from reports import __main__ as command
from tests.selftests import support

pytestmark = pytest.mark.cpu


def verdict(name: str, status: int, *, run_id: str) -> dict:
    return {
        "schema": 1, "run_id": run_id, "verdict": name, "exit_status": status,
        "reasons": ["stopped by its owner"], "criteria": [], "scope": {"nodes": ["worker0"]},
        "basis": {"whole_scope": True, "ordered": True, "origin": "cluster",
                  "demonstration": False},
        "counts": {"planned": 3, "pass": 2, "not_measured": 1},
    }  # fmt: skip


@pytest.fixture
def run(tmp_path) -> Path:
    """A run that was killed: it has evidence, and no verdict."""
    root = tmp_path / "20261120-141500-3fa2"
    support.run_directory(root, schema=2, id=root.name, thresholds={"sha256": "aaaa"})
    (root / "ledger.jsonl").write_text('{"event": "verdict"}\n')
    (root / "records" / "gemm@worker0.json").write_text("{}")
    return root


@pytest.fixture
def replayed(monkeypatch):
    """Stands in for the replay: writes what a replay writes; holds what is to be told."""
    told = {"sha256": "aaaa", "verdict": verdict("INCOMPLETE", 2, run_id="replay"), "more": ()}

    def replay(source: Path, made: Path, *more: str) -> dict:
        made.mkdir(parents=True)
        told["more"] = more
        (made / "run.json").write_text(json.dumps({"thresholds": {"sha256": told["sha256"]}}))
        return told["verdict"]

    monkeypatch.setattr(command, "_replay", replay)
    return told


def state(root: Path) -> dict[str, str]:
    return {
        str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in root.rglob("*")
        if p.is_file()
    }


def test_render_concludes_a_killed_run_and_leaves_its_evidence(run, replayed, capsys):
    before = state(run)
    assert command.main(["render", str(run)]) == 2
    after = state(run)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {
        "report.html", "junit.xml", "results.csv", "verdict.json", "good-nodes.txt",
        "bad-nodes.txt", "node-reasons.txt", "manifest.sha256",
    }  # fmt: skip
    assert json.loads((run / "verdict.json").read_text())["run_id"] == run.name
    out = capsys.readouterr().out
    assert out.startswith("INCOMPLETE: 2 of 3 judged\n")
    assert str(run / "report.html") in out


@pytest.mark.parametrize("same", [True, False])
def test_render_leaves_the_last_word_of_a_run_that_ended(run, replayed, same, capsys):
    support.change(run / "run.json", ended="2026-11-20T14:41:00+00:00")
    counts = {"planned": 3, "pass": 0, "fail": 0, "not_measured": 3, "not_applicable": 0,
              "waived": 0}  # fmt: skip
    replayed["verdict"]["counts"] = counts
    stated = json.dumps({**replayed["verdict"], "run_id": run.name, "reasons": ["its own words"]})
    (run / "verdict.json").write_text(stated)
    before = state(run)
    if same:
        assert command.main(["render", str(run)]) == 2
        # It is of no version that is known here: its texts are compared with nothing, so unused.
        assert "its own words" not in (run / "report.html").read_text()
        assert replayed["verdict"]["reasons"][0] in (run / "report.html").read_text()
        assert state(run)["verdict.json"] == before["verdict.json"]
    else:
        row = Verdict(criterion="gemm.bf16", title="", subject="w", outcome=Outcome.PASS)
        replayed["verdict"]["criteria"] = [row.to_json()]
        assert command.main(["render", str(run)]) == command.USAGE
        assert state(run) == before
        said = capsys.readouterr().err
        assert said.startswith(f"reports: no report is made of {run}: verdict.json: ")


def test_render_refuses_limits_that_the_run_never_had(run, replayed, capsys):
    before = state(run)
    replayed["sha256"] = "bbbb"
    assert command.main(["render", str(run)]) == command.USAGE
    assert state(run) == before
    assert "thresholds.yaml has changed since run" in capsys.readouterr().err


def test_judge_writes_elsewhere(run, replayed, tmp_path, capsys):
    limits = tmp_path / "strict.yaml"
    limits.write_text("")
    before = state(run)
    made = tmp_path / "made"
    replayed["verdict"] = verdict("REJECTED", 1, run_id="replay")
    arguments = ["judge", str(run), "--thresholds", str(limits), "--run-dir", str(made)]
    assert command.main(arguments) == 1
    assert state(run) == before
    assert replayed["more"] == (f"--thresholds={limits}",)
    assert str(made / "report.html") in capsys.readouterr().out


@pytest.mark.parametrize(
    "content",
    [None, "[]", "{", '{"schema": 3, "id": "x"}', '{"schema": 2}', '{"schema": 1, "id": "x"}'],
)
def test_a_wrong_run_is_one_line(tmp_path, capsys, content):
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    assert command.main(["render", str(tmp_path)]) == command.USAGE
    said = capsys.readouterr().err
    assert said.startswith("reports: ")
    assert said.count("\n") == 1


def test_a_replay_that_says_nothing_is_no_verdict(run, monkeypatch, capsys):
    silent = command.subprocess.CompletedProcess([], 1, "collected 0 items\n", "")
    monkeypatch.setattr(command, "_started", lambda *_: silent)
    assert command.main(["render", str(run)]) == command.BROKEN
    assert "collected 0 items" in capsys.readouterr().err


def test_the_report_of_a_run_that_was_killed_says_how_much_of_it_was_judged(tmp_path, capsys):
    root = Path(shutil.copytree(support.DATA / "sandbox-2x2-cpu", tmp_path / "run"))
    with support.edited(root / "run.json") as run:
        run["thresholds"]["sha256"] = loader.load(support.SHIPPED).sha256
        run.pop("ended", None)  # it never came so far
    (root / "verdict.json").unlink(missing_ok=True)
    for path in (root / "records").glob("training_*"):
        path.unlink()

    assert command.main(["render", str(root)]) == 2
    verdict = json.loads((root / "verdict.json").read_text())
    counts = verdict["counts"]
    judged = "{} of {}".format(*judged_of(counts))
    assert 0 < counts["not_measured"] < counts["planned"]
    assert f"INCOMPLETE: {judged} judged" in capsys.readouterr().out
    report = re.sub(r"<script.*?</script>", "", (root / "report.html").read_text(), flags=re.DOTALL)
    shown = " ".join(re.sub(r"<[^>]*>", " ", report).split())
    assert "GPU cluster acceptance: INCOMPLETE" in report
    assert "the run was killed before it ended" in shown
    assert f"{judged} judged; {counts['not_measured']} not measured" in shown
    certificate = (root / "certificate.html").read_text()
    assert "NOT ACCEPTED: INCOMPLETE" in certificate
    assert f"{judged} verdicts were reached" in " ".join(certificate.split())


def test_an_interpreter_without_the_packages_is_told_which_one_has_them():
    # -S: without site-packages, as the system's own python in a second terminal.
    command_line = [sys.executable, "-S", "-m", "reports", "watch"]
    done = subprocess.run(command_line, cwd=CHECKOUT, env={}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (4, "")
    assert re.fullmatch(
        r"\S+ lacks the suite's packages: `\. (\S+)/activate` first, or call \1/python .*\n",
        done.stderr,
    )
