"""Signatures of the statement by ssh-keygen -Y, one file for each signer (login side).

A file counts as the signature that it holds: it is decoded, and what ssh-keygen checks is written
anew from that, so that no text around it and no second block can hide anything.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fixtures.records.files import RecordError, replace_file
from fixtures.records.foreign_files import Bound, read_bytes
from fixtures.records.foreign_folders import files_in
from reports.evidence import statement
from reports.evidence.findings import Findings
from reports.evidence.run_files import CommandError
from reports.pages import certificate

OLD = f"{certificate.NAME}.sig"
"""What versions before 0.2.0 signed: the certificate, and no other file."""
MAX_BYTES = 100_000
"""Largest file that can be a signature; one by RSA with 16,384 bits has 8,000."""
_BLOCK = re.compile(
    rb"\s*-----BEGIN SSH SIGNATURE-----([A-Za-z0-9+/=\s]+)-----END SSH SIGNATURE-----\s*"
)
_FIELDS = 5
"""Strings of a signature: key, namespace, reserved, hash algorithm, signature (PROTOCOL.sshsig)."""


@dataclass(frozen=True)
class Signature:
    """A signature in its one form."""

    key: str
    """Fingerprint of the signer's key, as `ssh-keygen -l` prints it."""
    text: bytes

    @property
    def name(self) -> str:
        """Its place in the run directory: one file for each key."""
        safe = self.key.translate(str.maketrans(":/+", "-_."))
        return f"{statement.SIGNATURES}/{safe}.sig"


def parse(data: bytes) -> Signature:
    """Return the signature that a file holds; ValueError where it holds anything else."""
    match = _BLOCK.fullmatch(data)
    if match is None:
        raise ValueError("holds something else than one signature by ssh-keygen -Y sign")
    blob = base64.b64decode(b"".join(match[1].split()), validate=True)
    fields, at = [], 10
    for _ in range(_FIELDS):
        (size,) = struct.unpack_from(">I", blob, at)
        fields.append(blob[at + 4 : at + 4 + size])
        at += 4 + size
    if at != len(blob) or blob[:10] != b"SSHSIG\0\0\0\1":
        raise ValueError("is not a signature by ssh-keygen -Y sign, version 1")
    digest = base64.b64encode(hashlib.sha256(fields[0]).digest()).decode().rstrip("=")
    encoded = base64.b64encode(blob)
    lines = [encoded[k : k + 70] for k in range(0, len(encoded), 70)]
    text = b"\n".join(
        [b"-----BEGIN SSH SIGNATURE-----", *lines, b"-----END SSH SIGNATURE-----", b""]
    )
    return Signature(f"SHA256:{digest}", text)


def sign(root: Path, key: Path, content: bytes) -> tuple[Path, str]:
    """Sign the statement's content; return the file beside those of others, and the fingerprint."""
    try:
        done = subprocess.run(
            ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", certificate.NAMESPACE],
            input=content, check=True, capture_output=True,
        )  # fmt: skip
        signature = parse(done.stdout)
    except (OSError, ValueError, struct.error, subprocess.CalledProcessError) as error:
        message = (getattr(error, "stderr", None) or str(error).encode()).decode("utf-8", "replace")
        raise CommandError(f"ssh-keygen -Y sign with {key}: {message.strip()}") from None
    path = root / signature.name
    path.parent.mkdir(exist_ok=True)
    replace_file(path, (signature.text,))
    return path, signature.key


def check(
    root: Path, signers: Path | None, found: Findings, *, demanded: Sequence[str] = ()
) -> bool:
    """Add a line for each signature of found.statement; True if a known signer made one.

    `demanded`: names in the file `signers`, each of whom has to have signed.
    """
    if signers is not None and not signers.is_file():
        raise CommandError(f"--allowed-signers {signers}: no such file")
    if demanded and signers is None:
        raise CommandError("--signed-by needs --allowed-signers FILE")
    paths = files_in(root / statement.SIGNATURES, "*.sig")
    known = False
    missing = list(demanded)
    for path in paths:
        name = f"{statement.SIGNATURES}/{path.name}"
        who = _check_one(path, name, found.statement, statement.NAME, signers, found)
        if who and signers is not None:
            known = True
            found.confirmed.append(f"signature: good, by {who}")
            missing = [n for n in missing if not _is_by(n, path, found.statement, signers)]
    found.wrong += [f"signature: none by {who}, who has to have signed" for who in missing]
    by_old = not known and _check_old(root, signers, found)
    if signers is not None and not (known or by_old or found.covered):
        found.wrong.append(f"signature: none of this run by a key in {signers}")
    if not paths:
        found.notes.append("unsigned: hashes show accidents, only a signature shows intent")
    return known


def _check_old(root: Path, signers: Path | None, found: Findings) -> bool:
    """Check what earlier versions signed; True if a known signer did, which covers one page."""
    path = root / OLD
    if not path.exists():
        return False
    try:
        page = read_bytes(root / certificate.NAME)
    except (OSError, RecordError):
        found.wrong.append(f"{OLD}: there is no {certificate.NAME} to sign")
        return False
    who = _check_one(path, OLD, page, certificate.NAME, signers, found)
    if who:
        found.unchecked.append(
            f"{OLD}: by {who}: it covers {certificate.NAME} alone, and no other file"
        )
    return bool(who)


def _check_one(
    path: Path, name: str, content: bytes, of: str, signers: Path | None, found: Findings
) -> str:
    """Return the known signer of `content`; else add a line, and return ""."""
    try:
        signature = _read(path)
    except (OSError, ValueError, struct.error) as error:
        found.wrong.append(f"{name}: {error}")
        return ""
    who = ""
    if signers is not None:
        asked = _ssh_keygen(signature, "find-principals", content, "-f", str(signers))
        lines = asked.stdout.decode("utf-8", "replace").strip().splitlines()
        who = lines[0].split(",")[0] if lines and asked.returncode == 0 else ""
    options = ("verify", content, "-f", str(signers), "-I", who)
    done = _ssh_keygen(signature, *options if who else ("check-novalidate", content))
    if done.returncode:
        by = f"{who}, {signature.key}" if who else signature.key
        found.wrong.append(f"{name}: is not a signature of this {of}, by {by}")
        return ""
    if not who:
        remedy = f"which is not in {signers}" if signers else "not checked: give --allowed-signers"
        found.strangers.append(f"{name}: by an unknown key, {signature.key}, {remedy}")
        return ""
    return f"{who}, {signature.key}"


def _is_by(who: str, path: Path, content: bytes, signers: Path) -> bool:
    done = _ssh_keygen(_read(path), "verify", content, "-f", str(signers), "-I", who)
    return done.returncode == 0


def _read(path: Path) -> Signature:
    return parse(read_bytes(path, bound=Bound(MAX_BYTES)))


def require_ssh_keygen() -> None:
    """CommandError, with the package that has it, where ssh-keygen is not on the PATH."""
    if shutil.which("ssh-keygen") is None:
        raise CommandError(
            "ssh-keygen is not on the PATH: install openssh-client (openssh-clients on Red Hat and "
            "SUSE), or take the run directory to a host that has it"
        )


def _ssh_keygen(
    signature: Signature, operation: str, content: bytes, *options: str
) -> subprocess.CompletedProcess[bytes]:
    require_ssh_keygen()
    with tempfile.NamedTemporaryFile(suffix=".sig") as file:
        file.write(signature.text)
        file.flush()
        return subprocess.run(
            ["ssh-keygen", "-Y", operation, "-n", certificate.NAMESPACE, "-s", file.name, *options],
            input=content, capture_output=True,
        )  # fmt: skip
