"""The signature on the certificate: what ssh-keygen is asked, and what its answers mean."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures.records.run_directory import RunDirectory
from reports import signature
from reports.run_files import CommandError

pytestmark = pytest.mark.cpu


@pytest.fixture
def keygen(monkeypatch):
    """A ssh-keygen that answers each operation as it is told: (exit status, output)."""
    answers = {"verify": (0, b""), "check-novalidate": (0, b""), "find-principals": (0, b"kim\n")}
    asked: list[list[str]] = []

    def run(command, **options):
        asked.append(command)
        status, out = answers.get(command[2], (0, b""))
        return subprocess.CompletedProcess(command, status, out, b"")

    monkeypatch.setattr(signature.subprocess, "run", run)
    monkeypatch.setattr(signature.shutil, "which", lambda _: "/usr/bin/ssh-keygen")
    return SimpleNamespace(answers=answers, asked=asked)


def signed(root: Path) -> RunDirectory:
    (root / "certificate.html").write_text("page")
    (root / signature.NAME).write_text("signature")
    return RunDirectory(root)


def test_a_new_signature_takes_the_place_of_the_old_one(tmp_path, keygen):
    directory = signed(tmp_path)
    path = signature.sign(directory, tmp_path / "key")
    assert path == tmp_path / signature.NAME
    assert not path.exists()
    (command,) = keygen.asked
    assert command[:3] == ["ssh-keygen", "-Y", "sign"]
    assert command[-1] == str(tmp_path / "certificate.html")


def test_without_a_signature_only_one_that_was_asked_for_is_wrong(tmp_path, keygen):
    wrong, line = signature.check(RunDirectory(tmp_path), None)
    assert (wrong, "none" in line) == (False, True)
    wrong, line = signature.check(RunDirectory(tmp_path), tmp_path / "signers")
    assert (wrong, "missing" in line) == (True, True)


def test_a_signature_of_nothing_is_wrong(tmp_path, keygen):
    directory = signed(tmp_path)
    (tmp_path / "certificate.html").unlink()
    wrong, line = signature.check(directory, None)
    assert (wrong, "there is no certificate.html" in line) == (True, True)


def test_a_good_signature_says_by_whom_or_that_nobody_was_checked(tmp_path, keygen):
    directory = signed(tmp_path)
    wrong, line = signature.check(directory, None)
    assert (wrong, "good, by a key that was not checked" in line) == (False, True)
    assert [c[2] for c in keygen.asked] == ["check-novalidate"]
    wrong, line = signature.check(directory, tmp_path / "signers")
    assert (wrong, line) == (False, "signature: good, by kim")
    assert [c[2] for c in keygen.asked[1:]] == ["find-principals", "verify"]


@pytest.mark.parametrize(
    ("operation", "answer", "said"),
    [
        ("find-principals", (0, b""), "its key is not in"),
        ("find-principals", (1, b"kim"), "its key is not in"),
        ("verify", (1, b""), "is not a signature of this certificate.html"),
    ],
)
def test_an_unknown_key_or_another_page_is_wrong(tmp_path, keygen, operation, answer, said):
    keygen.answers[operation] = answer
    wrong, line = signature.check(signed(tmp_path), tmp_path / "signers")
    assert (wrong, said in line) == (True, True)


def test_without_ssh_keygen_its_package_is_named(monkeypatch):
    monkeypatch.setattr(signature.shutil, "which", lambda _: "/usr/bin/ssh-keygen")
    signature.require_ssh_keygen()
    monkeypatch.setattr(signature.shutil, "which", lambda _: None)
    with pytest.raises(CommandError, match="openssh-client"):
        signature.require_ssh_keygen()
