"""The signature on certificate.html, by ssh-keygen -Y (login side)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from fixtures.records.run_directory import RunDirectory
from reports import certificate
from reports.run_files import CommandError

NAME = f"{certificate.NAME}.sig"


def sign(directory: RunDirectory, key: Path) -> Path:
    """Sign certificate.html with an SSH key and return the path of the signature.

    Raises OSError or CalledProcessError where ssh-keygen fails.
    """
    page = directory.root / certificate.NAME
    signature = directory.root / NAME
    signature.unlink(missing_ok=True)
    subprocess.run(
        ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", certificate.NAMESPACE, str(page)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return signature


def check(directory: RunDirectory, signers: Path | None) -> tuple[bool, str]:
    """Return (whether the signature is wrong, the line to print)."""
    page = directory.root / certificate.NAME
    signature = directory.root / NAME
    if not signature.exists():
        if signers is not None:
            return True, f"{NAME}: missing, though --allowed-signers was given"
        return False, "signature: none; hashes show accidents, only a signature shows intent"
    if not page.exists():
        return True, f"{NAME}: there is no certificate.html to sign"
    text = page.read_bytes()
    if signers is None:
        done = _ssh_keygen(text, "check-novalidate", "-s", str(signature))
        signer = "by a key that was not checked: give --allowed-signers FILE"
    else:
        principals = _ssh_keygen(text, "find-principals", "-s", str(signature), "-f", str(signers))
        names = principals.stdout.decode("utf-8", "replace").strip().splitlines()
        if principals.returncode or not names:
            return True, f"signature: its key is not in {signers}"
        done = _ssh_keygen(text, "verify", "-f", str(signers), "-I", names[0], "-s", str(signature))
        signer = f"by {names[0]}"
    if done.returncode:
        return True, f"{NAME}: is not a signature of this certificate.html"
    return False, f"signature: good, {signer}"


def require_ssh_keygen() -> None:
    """CommandError, with the package that has it, where ssh-keygen is not on the PATH."""
    if shutil.which("ssh-keygen") is None:
        raise CommandError(
            "ssh-keygen is not on the PATH: install openssh-client (openssh-clients on Red Hat and "
            "SUSE), or take the certificate to a host that has it"
        )


def _ssh_keygen(text: bytes, operation: str, *options: str) -> subprocess.CompletedProcess[bytes]:
    require_ssh_keygen()
    command = ["ssh-keygen", "-Y", operation, "-n", certificate.NAMESPACE, *options]
    return subprocess.run(command, input=text, capture_output=True)
