"""`python -m reports verify`: whatever was changed in a run is found, and named."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from fixtures.paths import version
from fixtures.records.files import json_lines, read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds import loader
from fixtures.wording import digits
from reports import __main__ as command
from reports import certificate, differences, figures, page, signature, verify
from reports.artefacts import Artefacts
from tests.selftests import support

pytestmark = pytest.mark.cpu

SSH = shutil.which("ssh-keygen")
needs_ssh = pytest.mark.skipif(SSH is None, reason="no ssh-keygen on the PATH")


@pytest.fixture(scope="module")
def rendered(tmp_path_factory) -> Path:
    """A whole run with its verdict, certificate and manifest, made of a recorded one."""
    root = tmp_path_factory.mktemp("verify") / "run"
    shutil.copytree(support.DATA / "sandbox-2x2-cpu", root)
    run = json.loads((root / "run.json").read_text())
    # It was judged by the limits of its day.
    run["thresholds"]["sha256"] = loader.load(support.SHIPPED).sha256
    run["suite_version"] = version()
    (root / "run.json").write_text(json.dumps(run))
    support.judged(root, root.parent / "judged")
    shutil.copy(root.parent / "judged" / "limits.csv", root)  # a run writes it at its start
    (root / "jobs").mkdir(exist_ok=True)
    (root / "jobs" / "out.txt").write_text("what a rank printed\n")
    assert command.main(["render", str(root)]) == 0
    drawn = page._figures(
        RunDirectory(root), read_json(root / "verdict.json"), read_json(root / "run.json"), None
    )
    (root.parent / "figures").write_text(json.dumps(vars(drawn)))
    return root


@pytest.fixture
def run(rendered, tmp_path) -> Path:
    return Path(shutil.copytree(rendered, tmp_path / "run"))


def checked(root: Path, signers: Path | None = None) -> verify.Findings:
    """What verify finds, where the records give the verdict that render found."""
    sound = json.loads((root.parent / "sound.json").read_text())
    limits_csv = (root.parent / "limits.csv").read_bytes()
    again = differences.Rejudged(sound, limits_csv)
    return verify.check(RunDirectory(root), lambda: again, signers)


def found(root: Path, *, signers: Path | None = None) -> list[str]:
    return checked(root, signers).wrong


@pytest.fixture(autouse=True)
def sound(rendered, tmp_path, monkeypatch):
    shutil.copy(rendered / "verdict.json", tmp_path / "sound.json")
    shutil.copy(rendered / "limits.csv", tmp_path)
    # The charts take a second for each page; test_evidence_attacks.py has them.
    drawn = figures.Parts(**json.loads((rendered.parent / "figures").read_text()))
    monkeypatch.setattr(page, "_figures", lambda *_: drawn)


def test_a_run_as_it_was_is_verified_through_a_replay_of_its_own(rendered, capsys):
    assert command.main(["verify", str(rendered)]) == 0
    out = capsys.readouterr().out
    assert "WRONG" not in out
    assert f"VERIFIED: {rendered}" in out
    assert "only a signature shows intent" in out


def _append(root: Path, name: str) -> None:
    with (root / name).open("ab") as file:
        file.write(b" ")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("records/gemm@worker0.json", "changed"),
        ("run.json", "changed"),
        ("jobs/out.txt", "changed"),
        ("verdict.json", "does not match the evidence"),
        ("certificate.html", "does not match the evidence"),
        ("results.csv", "does not match the evidence"),
    ],
)
def test_a_byte_more_in_any_file_is_found_and_named(run, name, what):
    assert found(run) == []
    _append(run, name)
    said = found(run)
    assert any(what in line for line in said), said
    # The certificate holds the hash of the verdict.
    named = "certificate.html" if name == "verdict.json" else name
    assert any(line.startswith(named) for line in said)


@pytest.mark.parametrize("name", ["records/gemm@worker0.json", "jobs/out.txt"])
def test_a_missing_file_is_named(run, name):
    (run / name).unlink()
    assert f"{name}: missing, though manifest.sha256 names it" in found(run)


@pytest.mark.parametrize(
    "name", ["records/gemm@worker9.json", "jobs/x/rank0.jsonl", "ledger.jsonl"]
)
def test_an_added_file_is_named(run, name):
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_text("{}")
    assert f"{name}: added: manifest.sha256 does not name it" in found(run)


def test_a_replay_has_no_certificate_and_needs_none(run, capsys):
    (run / "certificate.html").unlink()
    made = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**made, "origin": "replay"}))
    RunDirectory(run).write_manifest()
    for name in ("report.html", "junit.xml"):
        Artefacts(RunDirectory(run), read_json(run / "verdict.json")).write(name)
    findings = checked(run)
    assert findings.wrong == []
    assert not any("certificate" in line for line in findings.confirmed)
    assert command.main(["sign", "--key", "no-key", str(run)]) == 4
    assert "this is a replay" in capsys.readouterr().err


def test_without_a_manifest_nothing_is_in_order(run):
    (run / "manifest.sha256").unlink()
    assert any(line.startswith("manifest.sha256: ") for line in found(run))


def test_a_verdict_that_was_rewritten_with_its_certificate_is_found(run):
    verdict = json.loads((run / "verdict.json").read_text())
    row = next(v for v in verdict["criteria"] if v["criterion"] == "gemm.bf16")
    row["value"] = 1e6
    (run / "verdict.json").write_text("".join(json_lines(verdict)))
    certificate.write(RunDirectory(run))
    (line,) = [line for line in found(run) if line.startswith("verdict.json")]
    assert line.startswith(
        f"verdict.json: gemm.bf16 {row['subject']}: value is 1000000.0, from the"
    )


def test_the_certificate_says_the_smallest_defect_that_each_rate_finds(run):
    verdict = json.loads((run / "verdict.json").read_text())
    stated = {row["criterion"]: row for row in verdict["power"]}
    judged = {
        v["criterion"] for v in verdict["criteria"]
        if v["outcome"] == "PASS" and v["criterion"].startswith(("gemm.bf16", "memory.copy"))
    }  # fmt: skip
    assert judged
    assert judged <= stated.keys()
    text = (run / "certificate.html").read_text()
    annex = text.partition("Annex 8: power of the test")[2]
    for key in judged:
        assert 0 < stated[key]["finds"] < 1
        assert f"a value that falls by {digits(100 * stated[key]['finds'])} %" in annex


def test_a_power_that_was_rewritten_is_found(run):
    verdict = json.loads((run / "verdict.json").read_text())
    verdict["power"][0]["finds"] = 0.001
    (run / "verdict.json").write_text("".join(json_lines(verdict)))
    certificate.write(RunDirectory(run))
    (line,) = [line for line in found(run) if line.startswith("verdict.json")]
    assert line.startswith("verdict.json: power is ")


def test_records_that_were_changed_with_the_manifest_are_judged_again(run, capsys):
    path = run / "records" / "gemm@worker0.json"
    data = json.loads(path.read_text())
    for m in data["ranks"][0]["measurements"]:
        m["samples"] = [s / 50 for s in m.get("samples", [])]
    path.write_text(json.dumps(data))
    RunDirectory(run).write_manifest()
    certificate.write(RunDirectory(run))
    assert command.main(["verify", str(run)]) == 1
    out = capsys.readouterr().out
    assert "ok     evidence" in out
    assert (
        "WRONG  verdict.json: gemm.fp32 worker0: outcome is 'PASS', from the records 'FAIL'" in out
    )


def test_a_waiver_that_has_run_out_since_changes_nothing(run):
    verdict = json.loads((run / "verdict.json").read_text())
    row = next(v for v in verdict["criteria"] if v["criterion"] == "gemm.bf16")
    again = json.loads(json.dumps(verdict))
    row.update(outcome="WAIVED", reason="waived by Kim, until 2026-12-31: heat sink")
    verdict["counts"]["waived"] += 1
    verdict["counts"]["pass"] -= 1
    other = next(v for v in again["criteria"] if v["criterion"] == "gemm.bf16")
    other.update(outcome="FAIL", reason="waiver expired (Kim, until 2026-12-31: heat sink)")
    again["counts"]["fail"] += 1
    again["counts"]["pass"] -= 1
    again["verdict"] = "REJECTED"
    directory, made = RunDirectory(run), json.loads((run / "run.json").read_text())
    directory.verdict.write_text("".join(json_lines(verdict)))
    compared = differences.differences(directory, made, verdict, again)
    assert compared.wrong == []
    assert compared.unchecked == ["verdict.json: 1 waivers that have expired since"]
    # On the day of the run it had run out already.
    late = {**made, "created": "2027-01-01T00:00:00+00:00", "ended": None}
    assert differences.differences(directory, late, verdict, again).wrong
    other["value"] = 1.0
    assert differences.differences(directory, made, verdict, again).wrong


# --- a run of another suite version, whose words may differ


@pytest.fixture
def of_another_version(run) -> Path:
    directory = RunDirectory(run)
    before = certificate.hashes(directory)
    data = read_json(run / "run.json") | {"suite_version": "0.1.9"}
    (run / "run.json").write_text(json.dumps(data))
    directory.write_manifest()
    text = (run / certificate.NAME).read_text()
    for name, digest in certificate.hashes(directory).items():
        text = text.replace(before[name], digest)
    (run / certificate.NAME).write_text(text)
    return run


def test_its_text_is_reported_as_not_compared(of_another_version):
    findings = checked(of_another_version)
    assert findings.wrong == []
    said = f"text not compared: written by suite version 0.1.9, this is {version()}"
    assert any(said in line for line in findings.confirmed)
    assert "limits.csv: written by suite version 0.1.9" in findings.unchecked


@pytest.mark.parametrize(
    ("name", "old", "new", "what"),
    [
        ("certificate.html", "NOT ACCEPTED: DEMONSTRATION", "ACCEPTED", "does not say"),
        ("certificate.html", '<dl class="hashes">', '<dl class="x" hidden>', None),
        ("results.csv", ",PASS,", ",FAIL,", "its figures are not those"),
        ("run.json", '"schema"', ' "schema"', "changed"),
        ("verdict.json", '"outcome": "PASS"', '"outcome": "FAIL"', "verdict.json: "),
    ],
)
def test_changed_figures_of_it_are_found_all_the_same(of_another_version, name, old, new, what):
    path = of_another_version / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    wrong = found(of_another_version)
    if what is None:
        assert wrong == []
    else:
        assert any(line.startswith(f"{name}: ") and what in line for line in wrong)


# --- signatures


@pytest.fixture(scope="module")
def key(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("key") / "id"
    subprocess.run([str(SSH), "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    public = path.with_suffix(".pub").read_text()
    (path.parent / "signers").write_text(f"kim@example.org {public}")
    (path.parent / "strangers").write_text("")
    return path


@needs_ssh
def test_a_signature_is_made_and_checked(run, key, capsys):
    assert command.main(["sign", str(run), "--key", str(key)]) == 0
    assert "says NOT ACCEPTED: DEMONSTRATION" in capsys.readouterr().out
    assert (run / "certificate.html.sig").exists()
    findings = checked(run, key.parent / "signers")
    assert findings.wrong == []
    assert "signature: good, by kim@example.org" in findings.confirmed


@needs_ssh
def test_a_signature_of_another_page_or_by_another_key_is_none(run, key):
    signature.sign(RunDirectory(run), key)
    assert found(run, signers=key.parent / "strangers")[0].startswith(
        "signature: its key is not in"
    )
    _append(run, "certificate.html")
    said = found(run, signers=key.parent / "signers")
    assert "certificate.html.sig: is not a signature of this certificate.html" in said


@needs_ssh
def test_a_signature_that_is_asked_for_and_missing_is_wrong(run, key):
    (line,) = found(run, signers=key.parent / "signers")
    assert line.startswith("certificate.html.sig: missing")


def test_a_key_that_is_none_is_one_line(run, capsys):
    assert command.main(["sign", str(run), "--key", str(run / "run.json")]) == command.USAGE
    said = capsys.readouterr().err
    assert said.startswith("reports: ssh-keygen -Y sign")


def test_a_new_certificate_takes_the_old_signature_away(run):
    (run / "certificate.html.sig").write_text("old")
    certificate.write(RunDirectory(run))
    assert (run / "certificate.html.sig").exists(), "it is the same page, byte by byte"
    _append(run, "certificate.html")
    certificate.write(RunDirectory(run))
    assert not (run / "certificate.html.sig").exists()
