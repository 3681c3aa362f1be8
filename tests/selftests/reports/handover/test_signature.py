"""Signatures of the statement: who made them, of what, and whether a file holds one at all."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest

from reports.evidence import statement
from reports.evidence.findings import Findings
from reports.evidence.run_files import CommandError
from reports.handover import signature
from tests.selftests.judged_runs import key_of

pytestmark = pytest.mark.cpu

CONTENT = b'{"a": 1}\n'
NAMES = ("supplier", "customer", "stranger")


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Path:
    """Keys NAME and NAME.pub of three people, and files of those who are known."""
    folder = tmp_path_factory.mktemp("keys")
    made = [key_of(folder, name).with_suffix(".pub").read_text() for name in NAMES]
    lines = [f"{name}@example.org {key}" for name, key in zip(NAMES, made, strict=True)]
    (folder / "one").write_text(lines[0])
    (folder / "both").write_text("".join(lines[:2]))
    return folder


@pytest.fixture(scope="module")
def signed(keys, tmp_path_factory) -> Path:
    """What supplier and customer have signed."""
    root = tmp_path_factory.mktemp("signed")
    (root / statement.NAME).write_bytes(CONTENT)
    for name in NAMES[:2]:
        path, key = signature.sign(root, keys / name, CONTENT)
        path.rename(path.with_name(f"{name}.sig"))
        assert key == fingerprint(keys / name)
    return root


@pytest.fixture
def run(signed, tmp_path) -> Path:
    return Path(shutil.copytree(signed, tmp_path / "run"))


def fingerprint(key: Path) -> str:
    listed = subprocess.run(["ssh-keygen", "-lf", f"{key}.pub"], capture_output=True, text=True)
    return listed.stdout.split()[1]


def checked(root: Path, signers: Path | None, *demanded: str) -> Findings:
    found = Findings(statement=(root / statement.NAME).read_bytes())
    found.covered = signature.check(root, signers, found, demanded=demanded)
    return found


def test_both_signers_are_named_with_their_keys(run, keys):
    found = checked(run, keys / "both", "customer@example.org")
    assert (found.status, found.covered, found.notes) == (0, True, [])
    assert found.confirmed == [
        f"signature: good, by {name}@example.org, {fingerprint(keys / name)}"
        for name in ("customer", "supplier")
    ]


def test_a_second_signer_keeps_the_first_and_signing_twice_makes_one_file(run, keys):
    before = sorted((run / statement.SIGNATURES).iterdir())
    for _ in range(2):
        path, key = signature.sign(run, keys / "stranger", CONTENT)
    assert sorted((run / statement.SIGNATURES).iterdir()) == sorted([*before, path])
    assert (path.stem, ":" in path.name) == (key.replace(":", "-").replace("/", "_").replace(
        "+", "."), False)  # fmt: skip


def test_one_of_two_signers_who_is_unknown_is_named_by_the_key_and_never_good(run, keys):
    found = checked(run, keys / "one")
    assert (found.status, len(found.confirmed)) == (2, 1)
    (line,) = found.strangers
    assert line == (
        f"signatures/customer.sig: by an unknown key, {fingerprint(keys / 'customer')}, which is "
        f"not in {keys / 'one'}"
    )


def test_without_known_keys_every_signer_is_unknown(run, keys):
    found = checked(run, None)
    assert (found.status, found.covered, found.confirmed) == (2, False, [])
    assert [line.partition(", not checked")[0] for line in found.strangers] == [
        f"signatures/{name}.sig: by an unknown key, {fingerprint(keys / name)}"
        for name in ("customer", "supplier")
    ]


def test_a_stripped_signature_is_missed_where_it_is_demanded(run, keys):
    (run / statement.SIGNATURES / "customer.sig").unlink()
    assert checked(run, keys / "both").status == 0, "the other signer vouches for all"
    found = checked(run, keys / "both", "customer@example.org")
    assert found.wrong == ["signature: none by customer@example.org, who has to have signed"]
    (run / statement.SIGNATURES / "supplier.sig").unlink()
    found = checked(run, keys / "both")
    assert found.wrong == [f"signature: none of this run by a key in {keys / 'both'}"]
    found = checked(run, None)
    assert (found.status, found.notes[0].partition(":")[0]) == (0, "unsigned")


def test_a_signature_of_another_run_or_purpose_is_wrong_and_the_other_stays_good(run, keys):
    made = ["ssh-keygen", "-Y", "sign", "-f", str(keys / "customer"), "-n"]
    for namespace, content in (("gpu-cluster-acceptance", b"another"), ("git", CONTENT)):
        other = subprocess.run([*made, namespace], input=content, capture_output=True, check=True)
        (run / statement.SIGNATURES / "customer.sig").write_bytes(other.stdout)
        for signers, by in ((keys / "both", "customer@example.org, "), (None, "")):
            found = checked(run, signers)
            assert found.wrong == [
                "signatures/customer.sig: is not a signature of this statement.intoto.json, by "
                f"{by}{fingerprint(keys / 'customer')}"
            ]
            assert len(found.confirmed) == (signers is not None)


def test_a_key_that_is_no_longer_valid_does_not_vouch(run, keys, tmp_path):
    public = (keys / "customer.pub").read_text()
    (tmp_path / "old").write_text(f'customer@example.org valid-before="20200101" {public}')
    assert checked(run, tmp_path / "old").status != 0


# --- what a file of a signature may hold


def armored(text: bytes) -> bytes:
    """The same signature in lines of another length, with the line ends of another system."""
    blob = b"".join(text.split(b"\n")[1:-2])
    again = b"\r\n".join(blob[k : k + 64] for k in range(0, len(blob), 64))
    return b"-----BEGIN SSH SIGNATURE-----\r\n" + again + b"\r\n-----END SSH SIGNATURE-----\r\n\r\n"


def test_the_same_signature_in_another_form_is_the_same(run, keys):
    path = run / statement.SIGNATURES / "customer.sig"
    text = path.read_bytes()
    assert signature.parse(text).text == text, "the form that ssh-keygen writes"
    path.write_bytes(armored(text))
    assert path.read_bytes() != text
    assert signature.parse(path.read_bytes()) == signature.parse(text)
    assert checked(run, keys / "both").status == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text + text, lambda text: b"Accepted by all.\n" + text,
        lambda text: text + b"ACCEPTED\n", lambda text: text[:-40], lambda text: b"",
        lambda text: text.replace(b"U1NIU0lH", b"U1NIU0lI"),
        lambda text: text.replace(b"\n-----END", b"AAAA\n-----END"),
        lambda text: text + b" " * 10**5,
        lambda text: b"-----BEGIN SSH SIGNATURE-----\n%s\n-----END SSH SIGNATURE-----\n"
        % base64.b64encode(b"SSHSIG\0\0\0\1" + b"\xff" * 40),
    ],
    ids=["a second block", "text before", "text behind", "cut", "empty", "magic", "more bytes",
         "large", "lengths"],
)  # fmt: skip
def test_a_file_that_holds_anything_else_is_refused_by_name(run, keys, change):
    path = run / statement.SIGNATURES / "customer.sig"
    path.write_bytes(change(path.read_bytes()))
    found = checked(run, keys / "both")
    assert (found.status, found.covered) == (1, True), found
    (line,) = found.wrong
    assert "customer.sig: " in line
    assert (line.count("\n"), len(found.confirmed)) == (0, 1)


def test_a_link_is_no_signature(run, keys, tmp_path):
    path = run / statement.SIGNATURES / "customer.sig"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert "is a link" in checked(run, keys / "both").wrong[0]


# --- what earlier versions signed


def old(root: Path, key: Path) -> None:
    (root / "certificate.html").write_text("page")
    made = ["ssh-keygen", "-q", "-Y", "sign", "-n", "gpu-cluster-acceptance", "-f", str(key)]
    subprocess.run([*made, str(root / "certificate.html")], check=True, capture_output=True)


def test_a_signature_on_the_certificate_says_that_it_covers_no_other_file(keys, tmp_path):
    (tmp_path / statement.NAME).write_bytes(CONTENT)
    old(tmp_path, keys / "supplier")
    found = checked(tmp_path, keys / "both")
    assert (found.status, found.covered, found.wrong) == (2, False, [])
    assert found.unchecked == [
        f"certificate.html.sig: by supplier@example.org, {fingerprint(keys / 'supplier')}: it "
        "covers certificate.html alone, and no other file"
    ]
    assert checked(tmp_path, None).status == 2
    (tmp_path / "certificate.html").write_text("another page")
    assert "is not a signature of this certificate.html" in checked(tmp_path, None).wrong[0]
    (tmp_path / "certificate.html").unlink()
    assert "there is no certificate.html" in checked(tmp_path, None).wrong[0]


# --- what the user gives


def test_what_is_given_and_cannot_be_used_is_one_line(run, keys, tmp_path):
    with pytest.raises(CommandError, match="no such file"):
        checked(run, tmp_path / "none")
    with pytest.raises(CommandError, match="needs --allowed-signers"):
        checked(run, None, "customer@example.org")
    with pytest.raises(CommandError, match=r"^ssh-keygen -Y sign with .*run\.json: ") as error:
        signature.sign(run, run / "run.json", CONTENT)
    assert "\n" not in str(error.value)


def test_without_ssh_keygen_its_package_is_named(monkeypatch):
    monkeypatch.setattr(signature.shutil, "which", lambda _: "/usr/bin/ssh-keygen")
    signature.require_ssh_keygen()
    monkeypatch.setattr(signature.shutil, "which", lambda _: None)
    with pytest.raises(CommandError, match="openssh-client"):
        signature.require_ssh_keygen()
