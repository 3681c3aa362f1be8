"""The in-toto statement of a run: it lists every file, and a stranger verifies it offline."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fixtures.records.run_directory import RunDirectory
from reports import __main__ as command
from reports.evidence import statement
from reports.evidence.findings import Findings
from reports.handover import verify
from reports.pages import figures, page
from tests.selftests import support
from tests.selftests.judged_runs import key_of, made_whole

pytestmark = pytest.mark.cpu

CHANGES = 200
ZEROS = base64.b64encode(bytes(64)).decode()


@pytest.fixture(scope="module")
def signed(tmp_path_factory) -> Path:
    """A whole run, made of a recorded one, with all of its pages; KEY and KEY.pub beside it."""
    root = tmp_path_factory.mktemp("statement") / "run"
    with pytest.MonkeyPatch.context() as patch:
        # The charts take seconds.
        patch.setattr(page, "_figures", lambda *_: figures.Parts("", ""))
        assert made_whole(Path(shutil.copytree(support.DATA / "sandbox-2x2-cpu", root))) == 0
    return root


@pytest.fixture
def run(signed, tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(page, "_figures", lambda *_: figures.Parts("", ""))
    return Path(shutil.copytree(signed, tmp_path / "run"))


def statement_of(root: Path) -> dict:
    return json.loads((root / statement.NAME).read_text())


def test_it_lists_every_file_but_itself_with_its_hash(run):
    subjects = {s["name"]: s["digest"]["sha256"] for s in statement_of(run)["subject"]}
    files = {str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()}
    assert set(subjects) == files - {statement.NAME}
    assert {"report.html", "certificate.html", "good-nodes.txt", "limits.csv"} <= set(subjects)
    for name, digest in subjects.items():
        assert hashlib.sha256((run / name).read_bytes()).hexdigest() == digest


def test_what_is_no_file_is_named_and_names_are_escaped(tmp_path):
    root = tmp_path / "run"
    (root / "jobs" / "a").mkdir(parents=True)
    (root / "jobs" / "a" / "out.txt").write_text("printed")
    (root / "jobs" / "a" / "link.sh").symlink_to("/no longer here/out.txt")
    (root / "jobs" / "a" / 'a "quoted\\ name').write_text("")
    (root / "records").symlink_to(tmp_path)
    (root / "linked.html").symlink_to("/etc/hostname")
    os.mkfifo(root / "pipe")
    (root / "two\nlines").write_text("")
    (root / statement.SIGNATURES).mkdir()
    (root / statement.SIGNATURES / "a.sig").write_text("outside")
    (root / statement.SIGNATURES / "note.txt").write_text("not a signature")
    now = statement.listing(root)
    assert set(now.files) == {"jobs/a/out.txt", 'jobs/a/a "quoted\\ name', "signatures/note.txt"}
    assert {name: what.partition(",")[0] for name, what in now.others.items()} == {
        "jobs/a/link.sh": "is a link to /no longer here/out.txt",
        "records": "a linked folder", "linked.html": "is a link to /etc/hostname",
        "pipe": "is a FIFO", "two\\nlines": "a name that is not one line of text",
    }  # fmt: skip
    text = statement.text(now, {"verdict": "PARTIAL"}, limits={})
    assert text.isascii()
    assert {s["name"] for s in json.loads(text)["subject"]} == set(now.files)
    statement.replace(root, text)
    found = Findings()
    statement.check(root, statement.listing(root), found)
    verify.check_others(root, now, found)
    assert (found.status, found.whole, found.word) == (2, True, "PARTIAL")
    assert [line.partition(": ")[0] for line in found.unchecked] == [
        name for name in now.others if name != "jobs/a/link.sh"
    ]


def test_its_parts_are_those_of_a_statement_v1_with_a_test_result(run):
    made = statement_of(run)
    assert set(made) == {"_type", "subject", "predicateType", "predicate"}
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    predicate = made["predicate"]
    assert predicate["result"] == "FAILED", "a demonstration is not an acceptance"
    assert [c["name"] for c in predicate["configuration"]] == ["limits", "definitions"]
    assert predicate[statement.SUMMARY]["verdict"] == "DEMONSTRATION"
    extensions = set(predicate) - {"result", "configuration", "failedTests", "warnedTests"}
    assert all(re.match(r"[a-z][a-z0-9+.-]*:", name) for name in extensions), "not a URI"


@pytest.mark.parametrize(
    ("verdict", "outcome", "result", "failed"),
    [
        ("ACCEPTED", "PASS", "PASSED", []),
        ("PARTIAL", "PASS", "FAILED", []),
        ("INCOMPLETE", "NOT_MEASURED", "FAILED", ["gemm.bf16 worker0"]),
        ("REJECTED", "FAIL", "FAILED", ["gemm.bf16 worker0"]),
    ],
)
def test_only_an_accepted_run_has_passed(run, verdict, outcome, result, failed):
    stated = json.loads((run / "verdict.json").read_text())
    row = next(r for r in stated["criteria"] if r["criterion"] == "gemm.bf16")
    stated |= {"verdict": verdict, "criteria": [{**row, "outcome": outcome}]}
    predicate = json.loads(statement.page(RunDirectory(run), stated))["predicate"]
    assert predicate["result"] == result
    assert predicate["failedTests"] == failed


def test_the_library_of_in_toto_reads_it(run):
    attestation = pytest.importorskip("in_toto_attestation.v1.statement_pb2")
    json_format = pytest.importorskip("google.protobuf.json_format")
    read = json_format.Parse((run / statement.NAME).read_text(), attestation.Statement())
    assert read.predicate_type == statement.PREDICATE_TYPE
    assert len(read.subject) == len(statement_of(run)["subject"])


# --- a stranger


def differing(root: Path, subjects: dict[str, str]) -> list[str]:
    """What a stranger does with `sha256sum`: the files whose hash is another."""
    return [
        name
        for name, digest in subjects.items()
        if hashlib.sha256((root / name).read_bytes()).hexdigest() != digest
    ]


def test_every_one_of_200_changed_bytes_is_found_by_its_hash(run):
    """By the suite and by a stranger, in every kind of file; nothing is judged for that."""
    random_bytes = random.Random(CHANGES)
    subjects = {s["name"]: s["digest"]["sha256"] for s in statement_of(run)["subject"]}
    contents = {name: (run / name).read_bytes() for name in sorted(subjects)}
    names = [name for name, content in contents.items() if content]
    single = [name for name in names if "/" not in name]
    found_by_us = found_by_stranger = 0
    for k in range(CHANGES):
        name = single[k % len(single)] if k < CHANGES // 2 else random_bytes.choice(names)
        content = bytearray(contents[name])
        content[random_bytes.randrange(len(content))] ^= random_bytes.randrange(1, 256)
        (run / name).write_bytes(content)
        found_by_stranger += differing(run, {name: subjects[name]}) == [name]
        found = Findings()
        statement.check(run, statement.listing(run), found)
        found_by_us += [line.partition(": changed")[0] for line in found.wrong] == [name]
        (run / name).write_bytes(contents[name])
    assert (found_by_stranger, found_by_us) == (CHANGES, CHANGES)
    assert differing(run, subjects) == []


def test_a_stranger_verifies_with_ssh_keygen_and_sha256sum(run, tmp_path):
    key = key_of(tmp_path)
    assert command.main(["sign", str(run), "--key", str(key)]) == 0
    signers = tmp_path / "signers"
    signers.write_text(f"vendor@example.com {(tmp_path / 'key.pub').read_text()}")
    verified = subprocess.run(
        ["ssh-keygen", "-Y", "verify", "-f", str(signers), "-I", "vendor@example.com",
         "-n", "gpu-cluster-acceptance", "-s", str(next((run / "signatures").iterdir()))],
        input=(run / statement.NAME).read_bytes(), capture_output=True,
    )  # fmt: skip
    assert verified.returncode == 0, verified.stderr
    # The statement lists every file; as docs/reading-a-report.md has it.
    sums = "".join(f"{s['digest']['sha256']}  {s['name']}\n" for s in statement_of(run)["subject"])
    listed = ["sha256sum", "--check", "--quiet", "--strict"]
    for changed, status in ((False, 0), (True, 1)):
        if changed:
            (run / "report.html").write_text("ACCEPTED")
        checked = subprocess.run(listed, cwd=run, input=sums.encode(), capture_output=True)
        assert checked.returncode == status


def test_a_stranger_verifies_with_a_library_for_dsse(run, tmp_path):
    dsse = pytest.importorskip("securesystemslib.dsse")
    signer = pytest.importorskip("securesystemslib.signer")
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    key = key_of(tmp_path)
    assert command.main(["sign", str(run), "--key", str(key), "--dsse"]) == 0
    public = serialization.load_ssh_public_key((tmp_path / "key.pub").read_bytes())
    envelope = dsse.Envelope.from_dict(json.loads((run / statement.ENVELOPE).read_text()))
    envelope.verify([signer.SSlibKey.from_crypto(public)], 1)
    assert envelope.payload_type == "application/vnd.in-toto+json"
    subjects = {s["name"]: s["digest"]["sha256"] for s in json.loads(envelope.payload)["subject"]}
    assert differing(run, subjects) == []


@pytest.fixture
def enveloped(run, tmp_path) -> Path:
    """A run whose statement is signed by KEY, which is beside it."""
    pytest.importorskip("securesystemslib.dsse")
    statement.sign(run, key_of(tmp_path), (run / statement.NAME).read_bytes())
    return run


def checked(root: Path, key: Path | None) -> Findings:
    found = Findings(statement=(root / statement.NAME).read_bytes())
    found.covered = statement.check_envelope(root, key, found)
    return found


def test_verify_confirms_the_envelope_by_its_key(enveloped, tmp_path):
    found = checked(enveloped, tmp_path / "key.pub")
    assert (found.status, found.covered) == (0, True)
    assert found.confirmed == [f"{statement.ENVELOPE}: good, by {tmp_path / 'key.pub'}"]


def test_verify_says_that_nobody_vouched_for_the_envelope(enveloped):
    found = checked(enveloped, None)
    assert (found.status, found.covered, found.wrong, found.confirmed) == (2, False, [], [])
    assert found.strangers == [f"{statement.ENVELOPE}: signer not checked: give --dsse-key FILE"]


def test_a_second_signer_of_the_envelope_keeps_the_first(enveloped, tmp_path):
    (tmp_path / "other").mkdir()
    other = key_of(tmp_path / "other")
    statement.sign(enveloped, other, (enveloped / statement.NAME).read_bytes())
    for key in (tmp_path / "key.pub", other.with_name("key.pub")):
        assert checked(enveloped, key).covered, key


def _forge(root: Path, change) -> None:
    with support.edited(root / statement.ENVELOPE) as data:
        change(data)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda e: e.update(payload=base64.b64encode(b"{}").decode()), "payload is not"),
        (lambda e: e.update(payloadType="text/plain"), "is not a DSSE envelope"),
        (lambda e: e.update(payload="?"), "is not a DSSE envelope"),
        (lambda e: e.update(signatures=[]), "is not signed by"),
        (lambda e: e["signatures"][0].update(sig=ZEROS), "is not signed by"),
        (lambda e: e.pop("signatures"), "is not signed by"),
    ],
    ids=["payload", "type", "base64", "no signature", "other signature", "no signatures"],
)  # fmt: skip
def test_a_forged_envelope_is_named(enveloped, tmp_path, change, said):
    _forge(enveloped, change)
    wrong = checked(enveloped, tmp_path / "key.pub").wrong
    assert [said in line for line in wrong] == [True], wrong


def test_an_envelope_by_another_key_is_not_confirmed(enveloped, tmp_path):
    (tmp_path / "other").mkdir()
    other = key_of(tmp_path / "other").with_name("key.pub")
    assert f"is not signed by {other}" in checked(enveloped, other).wrong[0]


def test_a_missing_envelope_is_wrong_where_a_key_is_given(run, tmp_path):
    found = checked(run, tmp_path / "key.pub")
    assert found.wrong == [f"{statement.ENVELOPE}: missing, though --dsse-key was given"]


def test_signatures_go_with_their_statement(enveloped):
    signature = enveloped / statement.SIGNATURES / "a.sig"
    signature.parent.mkdir()
    signature.write_text("signed")
    stated = json.loads((enveloped / "verdict.json").read_text())
    statement.write(RunDirectory(enveloped), stated)
    assert (enveloped / statement.ENVELOPE).exists(), "it is the same statement, byte by byte"
    assert signature.exists()
    statement.write(RunDirectory(enveloped), {**stated, "reasons": ["another"]})
    assert not (enveloped / statement.ENVELOPE).exists()
    assert not signature.parent.exists()


def test_signatures_are_not_removed_through_a_link(run, tmp_path):
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "a.sig").write_text("of another run")
    (run / statement.SIGNATURES).symlink_to(tmp_path / "others")
    statement.remove(run)
    assert (tmp_path / "others" / "a.sig").exists()
    assert not (run / statement.NAME).exists()


def test_without_the_extra_the_command_says_what_is_missing(run, tmp_path, monkeypatch, capsys):
    def no_module(name: str):
        raise ImportError(name)

    monkeypatch.setattr(statement.importlib, "import_module", no_module)
    (tmp_path / "key").write_text("a key")
    assert command.main(["sign", str(run), "--key", str(tmp_path / "key"), "--dsse"]) == 4
    assert "pip install 'securesystemslib[crypto]'" in capsys.readouterr().err
