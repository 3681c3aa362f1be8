"""statement.intoto.json: an in-toto Statement v1 of a run, and its signature by DSSE (login side).

Its subjects are the files of the evidence with their SHA-256, as the manifest has them, manifest
and verdict.json; the predicate is in-toto's test result. Whoever has a verifier of in-toto
attestations needs none of the suite. ssh-keygen signs the certificate (reports/signature.py); DSSE
needs the extra `sign` (securesystemslib). Formats: https://github.com/in-toto/attestation, spec/v1
and spec/predicates/test-result.md; https://github.com/secure-systems-lab/dsse.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fixtures.records.files import RecordError, read_json, replace_file
from fixtures.records.run_directory import RunDirectory
from reports.run_files import CommandError

NAME = "statement.intoto.json"
ENVELOPE = "statement.intoto.dsse.json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
SUMMARY = "urn:gpu-cluster-acceptance:verdict:2"
"""Name of the extension of the predicate that has the verdict: a URI, as in-toto wants it."""
FAILED = ("FAIL", "NOT_MEASURED")
"""Outcomes of `failedTests`: what was not measured is never a pass."""


def page(directory: RunDirectory, verdict: Mapping[str, Any]) -> str:
    """Return the text of the statement, made from the files of the run directory alone."""
    run: Mapping[str, Any] = directory.read_run()
    limits = run.get("thresholds") or {}
    stated = {"limits": limits.get("sha256"), "definitions": limits.get("definitions_sha256")}
    rows = verdict["criteria"]
    predicate = {
        "result": "PASSED" if verdict["verdict"] == "ACCEPTED" else "FAILED",
        "configuration": [
            {"name": name, "digest": {"sha256": digest}}
            for name, digest in stated.items()
            if digest
        ],
        "failedTests": [_test(v) for v in rows if v["outcome"] in FAILED],
        "warnedTests": [_test(v) for v in rows if v["outcome"] == "WAIVED"],
        SUMMARY: {
            "runId": verdict["run_id"], "verdict": verdict["verdict"],
            "reasons": list(verdict["reasons"]), "counts": dict(verdict["counts"]),
            "scope": verdict["scope"], "suiteVersion": run.get("suite_version"),
            "commit": run.get("commit"), "created": run.get("created"), "ended": run.get("ended"),
        },
    }  # fmt: skip
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": n, "digest": {"sha256": d}} for n, d in _subjects(directory)],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }
    return json.dumps(statement, indent=1, sort_keys=True) + "\n"


def _test(row: Mapping[str, Any]) -> str:
    return f"{row['criterion']} {row['subject']}"


def _subjects(directory: RunDirectory) -> Iterator[tuple[str, str]]:
    """Yield the files of the evidence with their SHA-256: what the manifest says, and its own."""
    if directory.manifest.exists():
        for line in directory.manifest.read_text(encoding="utf-8").splitlines():
            digest, _, name = line.partition("  ")
            yield name, digest
    for path in (directory.manifest, directory.verdict):
        if path.exists():
            yield path.name, hashlib.sha256(path.read_bytes()).hexdigest()


def write(directory: RunDirectory, verdict: Mapping[str, Any]) -> None:
    """Write the statement; an envelope of another one is removed."""
    path = directory.root / NAME
    content = page(directory, verdict).encode("utf-8", "replace")
    if path.exists() and path.read_bytes() == content:
        return
    replace_file(path, (content,), durable=False)
    (directory.root / ENVELOPE).unlink(missing_ok=True)


# --- DSSE


def _library(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise CommandError(
            "DSSE needs the extra `sign`: `pip install 'securesystemslib[crypto]'`; "
            "ssh-keygen signs without it"
        ) from None


def sign(directory: RunDirectory, key: Path) -> Path:
    """Write the DSSE envelope of the statement, signed by a private key; return its path.

    Keys are Ed25519, ECDSA or RSA, as PEM or as ssh-keygen writes them, without a passphrase.
    CommandError where the extra `sign` is missing or the key cannot be used.
    """
    dsse, signers = _library("securesystemslib.dsse"), _library("securesystemslib.signer")
    statement = (directory.root / NAME).read_bytes()
    envelope = dsse.Envelope(statement, PAYLOAD_TYPE, {})
    try:
        envelope.sign(signers.CryptoSigner(_private_key(key)))
    except Exception as error:  # whatever the libraries find wrong with the key
        raise CommandError(f"signing with {key}: {error}") from None
    path = directory.root / ENVELOPE
    replace_file(path, (json.dumps(envelope.to_dict(), indent=1).encode() + b"\n",), durable=False)
    return path


def _private_key(path: Path) -> Any:
    serialization = _library("cryptography.hazmat.primitives.serialization")
    data = path.read_bytes()
    of_ssh = b"OPENSSH PRIVATE KEY" in data
    load = serialization.load_ssh_private_key if of_ssh else serialization.load_pem_private_key
    return load(data, password=None)


def check(directory: RunDirectory, key: Path | None) -> tuple[list[str], list[str], list[str]]:
    """Return (wrong, confirmed, not checked) lines on the envelope; `key`: the signer's public key.

    CommandError where a key is given and the extra `sign` is missing.
    """
    path = directory.root / ENVELOPE
    if not path.exists():
        return ([f"{ENVELOPE}: missing, though --dsse-key was given"] if key else [], [], [])
    try:
        data = read_json(path)
        payload = _payload(data)
    except (OSError, RecordError, KeyError, TypeError, ValueError) as error:
        return [f"{ENVELOPE}: is not a DSSE envelope: {error!r}"], [], []
    statement = directory.root / NAME
    if not statement.exists() or payload != statement.read_bytes():
        return [f"{ENVELOPE}: its payload is not {NAME}"], [], []
    if key is None:
        return [], [], [f"{ENVELOPE}: signer not checked: give --dsse-key FILE"]
    dsse, signers = _library("securesystemslib.dsse"), _library("securesystemslib.signer")
    serialization = _library("cryptography.hazmat.primitives.serialization")
    try:
        text = key.read_bytes()
        ssh = text.startswith((b"ssh-", b"ecdsa-"))
        load = serialization.load_ssh_public_key if ssh else serialization.load_pem_public_key
        public = signers.SSlibKey.from_crypto(load(text))
        dsse.Envelope.from_dict(data).verify([public], 1)
    except Exception as error:  # whatever the library finds wrong with key, envelope or signature
        return [f"{ENVELOPE}: is not signed by {key}: {error}"], [], []
    return [], [f"{ENVELOPE}: good, by {key}"], []


def _payload(envelope: Mapping[str, Any]) -> bytes:
    if envelope["payloadType"] != PAYLOAD_TYPE:
        raise ValueError(f"payloadType {envelope['payloadType']!r}")
    return base64.b64decode(envelope["payload"], validate=True)
