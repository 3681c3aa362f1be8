"""`python -m reports`: what each command prints and returns, with replay and checks as fakes."""

from __future__ import annotations

import json
import subprocess
from argparse import Namespace
from pathlib import Path

import pytest

from fixtures.errors import EvidenceError
from fixtures.paths import version
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds.published import REFUSED
from reports import __main__ as command
from reports.evidence import statement
from reports.evidence.findings import Findings
from reports.evidence.run_files import Limits
from reports.handover import signature, verify

pytestmark = pytest.mark.cpu

VERDICT = {
    "schema": 1, "run_id": "a", "verdict": "PARTIAL", "exit_status": 2, "reasons": ["a reason"],
    "criteria": [], "scope": {"nodes": ["worker0"]},
    "counts": {"planned": 3, "pass": 2, "not_measured": 1},
}  # fmt: skip


def made(root: Path, **more) -> Path:
    root.mkdir()
    (root / "run.json").write_text(json.dumps({"schema": 2, "id": root.name, **more}))
    return root


@pytest.fixture
def run(tmp_path) -> Path:
    root = made(tmp_path / "a", origin="cluster")
    (root / "verdict.json").write_text(json.dumps(VERDICT))
    return root


@pytest.mark.parametrize(
    ("status", "has_verdict", "expected"),
    [(0, True, None), (1, True, None), (2, True, None), (3, True, 3), (4, True, 4), (5, True, 5),
     (0, False, 3), (1, False, 3), (4, False, 4), (5, False, 5), (6, False, 3)],
)  # fmt: skip
def test_a_replay_gives_a_verdict_only_with_a_verdicts_exit_status(
    tmp_path, monkeypatch, status, has_verdict, expected
):
    called = {}

    def started(words, **more):
        called.update(more, words=words)
        if has_verdict:
            (tmp_path / "verdict.json").write_text(json.dumps(VERDICT))
        return subprocess.CompletedProcess(words, status, "some text\nERROR: one\n", "ERROR: two\n")

    monkeypatch.setattr(command, "_started", command._started.__wrapped__)
    monkeypatch.setattr(command.subprocess, "run", started)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k none")
    monkeypatch.setenv("A_VARIABLE", "kept")
    if expected is None:
        assert command._replay(Path("/source"), tmp_path, "--more")["verdict"] == "PARTIAL"
    else:
        with pytest.raises(command.CommandError) as raised:
            command._replay(Path("/source"), tmp_path, "--more")
        assert (raised.value.status, str(raised.value)) == (expected, "one\ntwo")
    assert not [name for name in called["env"] if name.startswith("PYTEST_")]
    assert called["env"]["A_VARIABLE"] == "kept"
    assert called["text"] is called["capture_output"] is True
    assert called["words"][-1] == "--more"


def proposal(monkeypatch, limits: object) -> list[tuple]:
    calls: list[tuple] = []

    def replay(source, into, *options):
        calls.append((source, *options))
        into.mkdir()
        if limits is not None:
            text = f"# first\n# second\n#\nproposal: {{limits: {limits}}}\n"
            (into / command.PROPOSAL).write_text(text)
        return VERDICT

    monkeypatch.setattr(command, "_replay", replay)
    return calls


def test_limits_are_proposed_from_the_newest_run_and_the_others(tmp_path, monkeypatch, capsys):
    old = made(tmp_path / "old", created="2026-01-01")
    new = made(tmp_path / "new", created="2026-01-02")
    calls = proposal(monkeypatch, "[1]")
    out = tmp_path / "out.yaml"
    assert command.main(["calibrate", str(new), str(old), "--out", str(out)]) == 0
    assert calls.pop() == (new, "--calibrate", f"--calibrate-with={old}")
    assert capsys.readouterr().out == f"proposal {out}\n  second\n"
    assert out.read_text().startswith("# first\n")
    assert command.calibrate([old], None) == 0
    assert calls.pop() == (old, "--calibrate", f"--calibrate-with={old}")
    assert capsys.readouterr().out == out.read_text()
    proposal(monkeypatch, "[]")
    assert command.calibrate([old], None) == 2
    proposal(monkeypatch, None)
    with pytest.raises(command.CommandError) as raised:
        command.calibrate([old], None)
    assert raised.value.status == 3


@pytest.mark.parametrize(("refused", "status"), [(True, 1), (False, 0)])
def test_own_limits_that_a_published_figure_contradicts_end_with_1(
    tmp_path, monkeypatch, capsys, refused, status
):
    run = made(tmp_path / "run", created="2026-01-01")
    proposal(monkeypatch, "[1]")
    replay = command._replay
    said = f"{REFUSED} gemm.bf16" if refused else "gemm.bf16: 650 TFLOPS"

    def with_limits(source, into, *options):
        found = replay(source, into, *options)
        (into / command.OWN_LIMITS).write_text(f"# of run\n# {said}\nbase: a.yaml\n")
        return found

    monkeypatch.setattr(command, "_replay", with_limits)
    assert command.calibrate([run], None, replace=tmp_path / "own.yaml") == status
    assert capsys.readouterr().out == f"limits {tmp_path / 'own.yaml'}\n  {said}\n"
    assert (tmp_path / "own.yaml").exists()


@pytest.mark.parametrize("own_limits", [False, True])
def test_the_replay_that_proposes_limits_confirms_its_run_too(tmp_path, monkeypatch, own_limits):
    old, new = (made(tmp_path / n, created=f"2026-01-0{k}") for k, n in ((1, "old"), (2, "new")))
    calls = proposal(monkeypatch, "[1]")
    judged: list[tuple[str, bool]] = []

    def confirmed(source, run, thresholds, rejudge=None):
        judged.append((source.name, rejudge is not None))
        return VERDICT

    monkeypatch.setattr(command, "confirmed_verdict", confirmed)
    monkeypatch.setattr(command, "limits_file", lambda *_: tmp_path / "x" if own_limits else None)
    for run in (old, new):
        (run / "verdict.json").write_text("{}")
    assert command.calibrate([new, old], None) == 0
    assert judged == [("old", False), ("new", not own_limits)]
    assert len(calls) == 1, "the newest is replayed once"


def findings(monkeypatch, **more) -> list[tuple]:
    calls: list[tuple] = []

    def check(directory, rejudge, limits, **options):
        calls.append((directory.root, limits, options))
        return Findings(word="PARTIAL", statement=b"stated", **more)

    monkeypatch.setattr(verify, "check", check)
    monkeypatch.setattr(verify, "check_verdict", lambda *_: Findings(**more))
    monkeypatch.setattr(command, "agreed_limits", lambda run, given: Limits(given))
    return calls


def test_a_verdict_is_used_only_where_nothing_is_wrong_with_it(run, monkeypatch, capsys):
    findings(monkeypatch)
    of_here = {"suite_version": version()}
    assert command.confirmed_verdict(run, of_here) == VERDICT
    again = command.Rejudged({**VERDICT, "reasons": ["judged here"], "replay": "of it"}, b"")
    monkeypatch.setattr(command, "_rejudge", lambda *_: again)
    of_records = command.confirmed_verdict(run, {"id": "b", "suite_version": "0.1.9"})
    assert of_records == {**VERDICT, "reasons": ["judged here"], "run_id": "b"}
    monkeypatch.setattr(command, "is_of_this_version", lambda _: True)
    shown = []
    monkeypatch.setattr(command.github, "show", lambda verdict: shown.append(verdict) or 0)
    assert command.main(["summary", "--github", str(run)]) == 0
    assert shown == [VERDICT]
    findings(monkeypatch, wrong=["one", "two"])
    with pytest.raises(EvidenceError, match=r"is not confirmed: one \(and 1 more\)"):
        command.confirmed_verdict(run, {})
    assert command.summary(run, None) == 4
    (run / "run.json").unlink()
    assert command.summary(run, None) == 4
    (run / "verdict.json").unlink()
    assert command.summary(run, None) == 2
    titles = [line.partition("::")[2].split("::")[0] for line in
              capsys.readouterr().out.splitlines() if line.startswith("::error")]  # fmt: skip
    assert titles == ["error title=NO VERDICT", "error title=NO VERDICT", "error title=INCOMPLETE"]


def test_verify_notes_another_commit_of_the_suite(run, monkeypatch, capsys):
    calls = findings(monkeypatch)
    monkeypatch.setattr(command, "commit", lambda: "abc")
    options = Namespace(
        thresholds=Path("t"), allowed_signers=Path("s"), dsse_key=Path("k"), signed_by=["kim"]
    )
    for stated, note in ((None, False), ("abc", False), ("def", True)):
        assert command.check(run, {"commit": stated}, options) == 0
        assert ("note " in capsys.readouterr().out) is note
    assert calls[0] == (run, Limits(Path("t")), {
        "signers": Path("s"), "dsse_key": Path("k"), "demanded": ["kim"]
    })  # fmt: skip
    monkeypatch.setattr(command, "commit", lambda: "")
    command.check(run, {"commit": "def"}, options)
    assert "made by suite def, this one is not in git" in capsys.readouterr().out
    assert command.checker(options)(run, covered=True).status == 0
    assert calls[-1] == (run, Limits(Path("t")), {"signers": Path("s"), "covered": True})


def test_only_a_confirmed_certificate_of_the_suite_is_signed(run, monkeypatch, capsys):
    options = Namespace(
        thresholds=None, allowed_signers=None, key=Path("key"), dsse=False, expect=None
    )
    for origin, remedy in (("cluster", "reports render"), ("replay", "this is a replay")):
        with pytest.raises(command.CommandError, match=remedy):
            command.sign_run(run, {"origin": origin}, options)
    (run / "certificate.html").write_text("")
    for lines in ({"wrong": ["one"]}, {"unchecked": ["one"]}):
        findings(monkeypatch, **lines)
        with pytest.raises(EvidenceError, match="is not signed: one"):
            command.sign_run(run, {}, options)
    findings(monkeypatch, strangers=["of another signer"])
    monkeypatch.setattr(
        signature, "sign", lambda root, key, text: (f"S {key} {text!r}", "SHA256:x")
    )
    monkeypatch.setattr(statement, "sign", lambda root, key, text: f"E {key} {text!r}")
    assert command.sign_run(run, {}, options) == 0
    signed = ["of another signer", "verdict   PARTIAL", "signature S key b'stated' by SHA256:x"]
    assert capsys.readouterr().out.splitlines() == signed
    both = Namespace(**{**vars(options), "dsse": True, "expect": "PARTIAL"})
    assert command.sign_run(run, {}, both) == 0
    assert capsys.readouterr().out.splitlines() == [*signed, "envelope  E key b'stated'"]
    other = Namespace(**{**vars(options), "expect": "ACCEPTED"})
    with pytest.raises(EvidenceError, match="its verdict is PARTIAL, expected ACCEPTED"):
        command.sign_run(run, {}, other)


def test_each_command_reaches_its_function_and_returns_its_status(run, monkeypatch):
    reached = []

    def status(name):
        return lambda *words, **more: reached.append((name, words, more)) or 7

    places = {
        "limits": (command.limits, "main"), "patrol": (command.patrol, "main"),
        "predict": (command.predict, "show"), "energy": (command.energy, "show"),
        "dossier": (command.dossier, "write"), "join": (command.join, "main"),
        "watch": (command.watch, "main"), "export": (command.export, "write"),
        "rejudge": (command.rejudge, "main"), "tables": (command, "tables"),
    }  # fmt: skip
    monkeypatch.setattr(command, "confirmed_verdict", lambda *_: VERDICT)
    monkeypatch.setattr(command.loader, "load_with_contract", lambda file, _: file.name)
    options = Namespace(
        run=run, runs=[run], out=None, thresholds=None, kind="json", run_dir=None, all=False,
        audience=None, without_host_names=False,
    )  # fmt: skip
    for name, (module, function) in places.items():
        monkeypatch.setattr(module, function, status(name))
        options.command = name
        assert command._carry_out(options) == 7, name
        assert reached[-1][0] == name
        assert name != "dossier" or reached[-1][1][2].path.name == "thresholds.yaml"
        reached.pop()
    joined = Namespace(is_joined=lambda _: True, UNITS="units", check=lambda *_: Findings())
    monkeypatch.setattr(command, "join", joined)
    with pytest.raises(command.CommandError, match="joins several runs"):
        command._carry_out(options)
    options.command, options.allowed_signers, options.signed_by = "verify", None, []
    assert command._carry_out(options) == 0


def test_a_run_of_schema_1_is_checked_by_its_hashes_only(run, monkeypatch):
    (run / "run.json").write_text('{"schema": 1, "id": "a"}')
    calls = []

    def hashes(directory, signers, **more):
        calls.append((directory.root, signers, more))
        return Findings(unchecked=["the verdict"])

    monkeypatch.setattr(verify, "check_hashes", hashes)
    assert command.main(["verify", str(run), "--allowed-signers", "s", "--dsse-key", "k"]) == 2
    assert calls == [(run, Path("s"), {"dsse_key": Path("k")})]


def test_an_ended_run_keeps_its_manifest_and_a_killed_one_gets_one(run, monkeypatch):
    again = command.Rejudged(VERDICT | {"replay": "of it"}, b"")
    monkeypatch.setattr(command, "_rejudge", lambda *_: again)
    monkeypatch.setattr(command, "Artefacts", lambda *_: Namespace(names=()))
    manifest = RunDirectory(run).manifest
    for ended, before, kept in ((True, "x", True), (True, None, False), (False, "x", False)):
        (run / "verdict.json").unlink(missing_ok=True)
        manifest.unlink(missing_ok=True)
        if before:
            manifest.write_text(before)
        assert command.render(run, {"id": "b", "ended": ended}) == 2
        assert (manifest.read_text() == "x") is kept
        stated = json.loads((run / "verdict.json").read_text())
        assert stated["run_id"] == "b"
        assert "replay" not in stated
