"""`python -m reports verify`: whatever was changed in a run is found, and named."""

# Length: one run, made once, and each way to change or to sign it

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from fixtures.paths import version
from fixtures.records.files import json_lines, read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.wording import digits
from reports import __main__ as command
from reports.evidence import differences, statement
from reports.evidence.findings import Findings, show
from reports.evidence.run_files import Limits
from reports.handover import signature, verify
from reports.pages import certificate, figures, page
from reports.pages.artefacts import Artefacts
from tests.selftests import support
from tests.selftests.judged_runs import key_of, made_whole
from tests.selftests.reports.evidence import test_proof

pytestmark = pytest.mark.cpu

CHANGES = 200
NO_LIMITS = Limits()
SOUND: list[differences.Rejudged] = []


@pytest.fixture(scope="module")
def rendered(tmp_path_factory) -> Path:
    """A whole run with its verdict, certificate and manifest, made of a recorded one."""
    root = tmp_path_factory.mktemp("verify") / "run"
    assert made_whole(Path(shutil.copytree(support.DATA / "sandbox-2x2-cpu", root))) == 0
    drawn = page._figures(
        RunDirectory(root), read_json(root / "verdict.json"), read_json(root / "run.json"), None
    )
    (root.parent / "figures").write_text(json.dumps(vars(drawn)))
    return root


@pytest.fixture
def run(rendered, tmp_path) -> Path:
    return Path(shutil.copytree(rendered, tmp_path / "run"))


@pytest.fixture(scope="module")
def again(rendered) -> differences.Rejudged:
    """What judging the records of the run gives."""
    SOUND.append(differences.Rejudged(
        read_json(rendered / "verdict.json"), (rendered / "limits.csv").read_bytes()
    ))  # fmt: skip
    return SOUND[-1]


def checked(root: Path, signers: Path | None = None, limits: Limits = NO_LIMITS) -> Findings:
    """What verify finds, where the records give the verdict that render found."""
    return verify.check(RunDirectory(root), lambda: SOUND[-1], limits, signers=signers)


def found(root: Path, *, signers: Path | None = None) -> list[str]:
    return checked(root, signers).wrong


def stated_again(root: Path) -> None:
    """Write a new manifest, certificate and statement, as whoever changes a run can."""
    directory = RunDirectory(root)
    directory.write_manifest()
    certificate.write(directory)
    statement.write(directory, read_json(directory.verdict))


@pytest.fixture(autouse=True)
def sound(rendered, again, monkeypatch):
    # The charts take a second for each page; test_evidence_attacks.py has them.
    drawn = figures.Parts(**json.loads((rendered.parent / "figures").read_text()))
    monkeypatch.setattr(page, "_figures", lambda *_: drawn)


def test_a_run_as_it_was_is_verified_through_a_replay_of_its_own(rendered, capsys):
    assert command.main(["verify", str(rendered)]) == 0
    out = capsys.readouterr().out
    assert "WRONG" not in out
    assert f"VERIFIED: {rendered}" in out
    assert "unsigned: hashes show accidents, only a signature shows intent" in out


def test_a_challenge_is_found_again_by_verify_and_stands_on_the_pages(run, tmp_path):
    challenged = test_proof.made(tmp_path / "other")
    for folder in (challenged.challenge, challenged.proof):
        shutil.copytree(folder, run / folder.name)
    directory = RunDirectory(run)
    directory.write_manifest()
    artefacts = Artefacts(directory, read_json(directory.verdict))
    for name in (page.NAME, certificate.NAME, statement.NAME):
        artefacts.write(name)
    findings = checked(run)
    assert findings.wrong == findings.unchecked == []
    assert any(line.startswith("challenge: PROVEN: at least") for line in findings.confirmed)
    text = (run / certificate.NAME).read_text()
    assert "<dt>Challenge</dt><dd>PROVEN: at least" in text
    assert "SHA-256 of proof/response.bin" in text
    assert "Challenge of the customer: PROVEN" in (run / page.NAME).read_text()
    # Without the proof the pages say what is left of it, and no old page passes.
    shutil.rmtree(run / "proof")
    statement.write(directory, read_json(directory.verdict))
    assert any(line.startswith(f"{certificate.NAME}: does not match") for line in found(run))
    artefacts.write(certificate.NAME)
    assert "ANSWERED, NOT VERIFIED" in (run / certificate.NAME).read_text()


def _append(root: Path, name: str) -> None:
    with (root / name).open("ab") as file:
        file.write(b" ")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("jobs/out.txt", ""),
        ("verdict.json", "is not in the format that the suite writes"),
        ("certificate.html", "does not match the evidence"),
        ("results.csv", "does not match the evidence"),
    ],
)
def test_a_byte_more_in_any_file_is_found_and_named(run, name, what):
    """By its hash; and, where that was written anew, by making the file again."""
    assert found(run) == []
    _append(run, name)
    assert any(line.startswith(f"{name}: changed: SHA-256 ") for line in found(run))
    statement.write(RunDirectory(run), json.loads((run / "verdict.json").read_text()))
    said = found(run)
    assert any(line.startswith(f"{name}: ") and what in line for line in said), said


@pytest.mark.parametrize("name", ["records/gemm@worker0.json", "jobs/out.txt"])
def test_a_missing_file_is_named(run, name):
    (run / name).unlink()
    assert f"{name}: missing, though manifest.sha256 names it" in found(run)


@pytest.mark.parametrize(
    "name", ["records/gemm@worker9.json", "jobs/x/rank0.jsonl", "guests/worker9.fio.json"]
)
def test_an_added_file_is_named(run, name):
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_text("{}")
    assert f"{name}: added: manifest.sha256 does not name it" in found(run)


def test_a_replay_has_no_certificate_and_needs_none(run, capsys):
    (run / "certificate.html").unlink()
    support.change(run / "run.json", origin="replay")
    RunDirectory(run).write_manifest()
    (run / statement.NAME).unlink()
    for name in ("report.html", "junit.xml"):
        Artefacts(RunDirectory(run), read_json(run / "verdict.json")).write(name)
    findings = checked(run)
    assert (findings.status, findings.notes) == (0, [
        "unsigned: a replay, or a run by hand, is not signed"
    ])  # fmt: skip
    assert not any("certificate" in line for line in findings.confirmed)
    (run / "certificate.html").write_text("ACCEPTED")
    assert (checked(run).status, checked(run, run / "run.json").status) == (2, 1)
    (run / "certificate.html").unlink()
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
    stated_again(run)
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
    annex = text.partition("Annex 6: power of the test")[2]
    for key in judged:
        assert 0 < stated[key]["finds"] < 1
        assert f"a value that falls by {digits(100 * stated[key]['finds'])} %" in annex


def test_a_power_that_was_rewritten_is_found(run):
    verdict = json.loads((run / "verdict.json").read_text())
    verdict["power"][0]["finds"] = 0.001
    (run / "verdict.json").write_text("".join(json_lines(verdict)))
    stated_again(run)
    (line,) = [line for line in found(run) if line.startswith("verdict.json")]
    assert line.startswith("verdict.json: power is ")


def test_records_that_were_changed_with_the_manifest_are_judged_again(run, capsys):
    with support.edited(run / "records" / "gemm@worker0.json") as data:
        for m in data["ranks"][0]["measurements"]:
            m["samples"] = [s / 50 for s in m.get("samples", [])]
    stated_again(run)
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


# --- signatures, and runs that cannot be made again here


@pytest.fixture(scope="module")
def key(tmp_path_factory) -> Path:
    path = key_of(tmp_path_factory.mktemp("key"))
    public = path.with_suffix(".pub").read_text()
    (path.parent / "signers").write_text(f"kim@example.org {public}")
    (path.parent / "strangers").write_text("")
    return path


def signed(root: Path, key: Path) -> Path:
    signature.sign(root, key, (root / statement.NAME).read_bytes())
    return key.parent / "signers"


CLAIMS: dict[str, dict[str, Any]] = {
    "this version": {}, "another version": {"suite_version": "0.1.9"},
    "no version": {"suite_version": None},
    "other libraries": {"versions": {"matplotlib": "3.8.0"}},
}  # fmt: skip
"""What a run may say of who wrote it."""


@pytest.fixture(scope="module")
def claiming(rendered, key, tmp_path_factory) -> dict[str, Path]:
    """A signed run for each of CLAIMS, all of whose files fit what it says."""
    made = {}
    for claim, other in CLAIMS.items():
        root = Path(shutil.copytree(rendered, tmp_path_factory.mktemp("claiming") / "run"))
        support.change(root / "run.json", **other)
        stated_again(root)
        signed(root, key)
        made[claim] = root
    return made


def copied(root: Path, into: Path) -> Path:
    shutil.rmtree(into, ignore_errors=True)
    return Path(shutil.copytree(root, into))


def never() -> differences.Rejudged:
    raise AssertionError("judged again, though hashes decide")


def by_hashes(root: Path, signers: Path | None = None, limits: Limits = NO_LIMITS) -> Findings:
    """What verify finds where nothing is judged again."""
    return verify.check(RunDirectory(root), never, limits, signers=signers)


def test_a_signed_run_of_another_version_is_verified_and_not_judged_again(
    claiming, key, run, capsys
):
    run = copied(claiming["another version"], run)
    findings = by_hashes(run, key.parent / "signers")
    assert (findings.status, findings.covered, findings.wrong) == (0, True, [])
    assert findings.notes == [
        "not judged again: verdict, limits, pages and lists: written by suite version 0.1.9, "
        f"this is {version()}"
    ]
    assert show(run, findings) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"VERIFIED, BUT NOT JUDGED AGAIN: {run}"
    for unknown in (None, key.parent / "strangers"):
        assert by_hashes(run, unknown).status != 0
    shutil.rmtree(run / statement.SIGNATURES)
    assert by_hashes(run).status == 2, "nothing confirms it"


def test_a_signed_page_of_other_libraries_is_not_compared_and_an_unsigned_one_not_verified(
    claiming, key, run
):
    run = copied(claiming["other libraries"], run)
    path = run / "report.html"
    path.write_text(path.read_text() + "<!-- as other libraries make it -->")
    statement.write(RunDirectory(run), read_json(run / "verdict.json"))
    findings = checked(run, signed(run, key))
    assert (findings.status, findings.wrong) == (0, [])
    (line,) = findings.notes
    assert line.startswith("not judged again: report.html: made by gpu-cluster-acceptance ")
    assert "matplotlib 3.8.0" in line
    assert checked(run, key.parent / "strangers").status != 0
    shutil.rmtree(run / statement.SIGNATURES)
    assert checked(run).status == 2


FORGED = [
    ("certificate.html", '<p class="word">NOT ACCEPTED: DEMONSTRATION</p>',
     '<!-- <p class="word">NOT ACCEPTED: DEMONSTRATION</p> --><p class="word">ACCEPTED</p>'),
    ("report.html", "</script>", "document.title = 'ACCEPTED'</script>"),
    ("report.html", "</style>", ".fail { display: none }</style>"),
    ("good-nodes.txt", "worker0", "n[0-1023]"), ("results.csv", ",PASS,", ",RECORDED,"),
    ("junit.xml", "<testsuite", "<testsuite "),
]  # fmt: skip


@pytest.mark.parametrize("claim", ["another version", "other libraries"])
@pytest.mark.parametrize(("name", "old", "new"), FORGED)
def test_nothing_that_a_run_claims_makes_a_forged_page_pass(
    claiming, run, key, claim, name, old, new
):
    """Neither with the hashes as they were, nor with all of them written anew by the forger."""
    run = copied(claiming[claim], run)
    path = run / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    for known in (None, key.parent / "signers"):
        findings = by_hashes(run, known)
        assert (findings.status, name in " ".join(findings.wrong)) == (1, True)
    statement.write(RunDirectory(run), read_json(run / "verdict.json"))
    assert not (run / statement.SIGNATURES).exists()
    assert checked(run).status != 0
    assert by_hashes(run, key.parent / "signers").status == 1


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_signed_run_is_found_changed_by_its_hashes_alone(claiming, run, key, claim, tmp_path):
    """A byte, a file less or more, two exchanged, a link in the place of one."""
    run, signers = copied(claiming[claim], run), key.parent / "signers"
    random_bytes = random.Random(claim)
    files = sorted(p for p in run.rglob("*") if p.is_file() and p.stat().st_size)
    single = [p for p in files if p.parent == run or p.parent.name == statement.SIGNATURES]
    for path in [*single, *random_bytes.sample(files, CHANGES // len(CLAIMS) - len(single))]:
        content = path.read_bytes()
        at = random_bytes.randrange(len(content))
        bit = content[at] ^ 1 << random_bytes.randrange(8)
        path.write_bytes(content[:at] + bytes([bit]) + content[at + 1 :])
        assert by_hashes(run, signers).status == 1, path
        path.write_bytes(content)
    for name in ("report.html", "records/gemm@worker0.json", "limits.csv", statement.NAME):
        path = run / name
        path.rename(tmp_path / "away")
        assert by_hashes(run, signers).status == 1, f"without {name}"
        path.symlink_to(tmp_path / "away")
        assert by_hashes(run, signers).status == 1, f"{name} is a link"
        path.unlink()
        (tmp_path / "away").rename(path)
    (run / "report-final.html").write_text("ACCEPTED")
    assert by_hashes(run, signers).status == 1
    (run / "report-final.html").unlink()
    one, other = run / "records" / "gemm@worker0.json", run / "records" / "gemm@worker1.json"
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])
    assert by_hashes(run, signers).status == 1


def test_a_statement_of_an_earlier_version_covers_no_page(run, key):
    with support.edited(run / statement.NAME) as stated:
        stated["predicate"].pop(statement.FILES)
        stated["subject"] = [s for s in stated["subject"] if not s["name"].endswith(".html")]
    signers = signed(run, key)
    findings = checked(run, signers)
    assert (findings.status, findings.covered, findings.wrong) == (2, False, [])
    assert findings.unchecked[0].startswith("pages and lists: statement.intoto.json is of an ")
    (run / "report.html").write_text("ACCEPTED")
    assert checked(run, signers).status == 1, "it is still made again and compared"


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"subject": [], "predicate": {}}', '{"subject": 3}', "[" * 100_000,
     '{"subject": [{"name": "a"}], "predicate": {}}'],
)  # fmt: skip
def test_what_is_no_statement_is_wrong_in_one_line(run, text):
    (run / statement.NAME).write_text(text)
    (line,) = found(run)
    assert line.startswith("statement.intoto.json: is not a statement of this suite: ")
    assert "\n" not in line


def test_a_file_that_stands_twice_in_the_statement_is_wrong(run):
    with support.edited(run / statement.NAME) as stated:
        stated["subject"].append(stated["subject"][0])
    assert "statement.intoto.json: lists a file twice" in found(run)


@pytest.mark.parametrize("claim", ["this version", "another version"])
def test_limits_that_only_the_run_names_are_not_agreed_whoever_signed(claiming, key, claim):
    foreign = Limits(None, "limits: those of x")
    findings = checked(claiming[claim], key.parent / "signers", limits=foreign)
    assert (findings.status, findings.unchecked) == (2, ["limits: those of x"])


# --- signing


@pytest.fixture
def judged_here(again, monkeypatch):
    monkeypatch.setattr(command, "_rejudge", lambda *_: again)


def test_a_signature_is_made_and_checked(run, key, judged_here, capsys):
    assert command.main(["sign", str(run), "--key", str(key), "--expect", "ACCEPTED"]) == 4
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "its verdict is DEMONSTRATION, expected ACCEPTED" in said.err
    arguments = ["sign", str(run), "--key", str(key), "--expect", "DEMONSTRATION"]
    assert command.main(arguments) == 0
    assert "verdict   DEMONSTRATION\n" in capsys.readouterr().out
    findings = checked(run, key.parent / "signers")
    assert findings.status == 0
    assert findings.confirmed[1].startswith("signature: good, by kim@example.org, SHA256:")


def test_the_word_of_a_page_that_is_not_made_again_is_that_of_the_statement(claiming, run, key):
    run = copied(claiming["another version"], run)
    page = run / "certificate.html"
    text = page.read_text()
    for forged in (
        text.replace("NOT ACCEPTED: DEMONSTRATION", "ACCEPTED"),
        text.replace('<p class="word">', '<!-- <p class="word">'),
        text.replace('<p class="word">', '<p class="word">ACCEPTED</p><p class="word">'),
    ):
        page.write_text(forged)
        statement.write(RunDirectory(run), read_json(run / "verdict.json"))
        findings = by_hashes(run, signed(run, key))
        assert any(line.startswith("certificate.html: says [") for line in findings.wrong)


def test_a_key_that_is_none_is_one_line(run, judged_here, capsys):
    assert command.main(["sign", str(run), "--key", str(run / "run.json")]) == command.USAGE
    said = capsys.readouterr().err
    assert said.startswith("reports: ssh-keygen -Y sign")
