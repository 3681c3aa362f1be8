"""statement.intoto.json: an in-toto Statement v1 of a run, and its signature by DSSE (login side).

Its subjects are all files of the run directory with their SHA-256, pages and node lists included;
outside are only the statement itself and its signatures, which are made of its bytes. The predicate
is in-toto's test result. Whoever has a verifier of in-toto attestations needs none of the suite.
ssh-keygen signs it (handover/signature.py); DSSE needs the extra `sign` (securesystemslib).
Formats:
https://github.com/in-toto/attestation, spec/v1 and spec/predicates/test-result.md;
https://github.com/secure-systems-lab/dsse.
"""

from __future__ import annotations

import base64
import importlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fixtures.records.files import RecordError, replace_file
from fixtures.records.foreign_files import (
    VERDICT,
    is_content,
    linked_beside,
    parse_json,
    read_bytes,
)
from fixtures.records.foreign_folders import digests_of, files_in, walk
from fixtures.records.inert import inert
from fixtures.records.run_directory import RunDirectory
from fixtures.wording import counted
from reports.evidence.findings import Findings, bounded
from reports.evidence.run_files import CommandError

NAME = "statement.intoto.json"
ENVELOPE = "statement.intoto.dsse.json"
SIGNATURES = "signatures"
"""Folder of the signatures by ssh-keygen: SIGNATURES/*.sig."""
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
SUMMARY = "urn:gpu-cluster-acceptance:verdict:2"
"""Name of the extension of the predicate that has the verdict: a URI, as in-toto wants it."""
FILES = "urn:gpu-cluster-acceptance:files:1"
"""Name of the extension that says that all files are subjects, and what else there is."""
FAILED = ("FAIL", "NOT_MEASURED")
"""Outcomes of `failedTests`: what was not measured is never a pass."""


# --- what is in the directory


@dataclass(frozen=True)
class Listing:
    """All that is in a run directory, except for the statement and its signatures."""

    files: Mapping[str, str]
    """Name -> SHA-256."""
    others: Mapping[str, str]
    """Name -> what it is: links, special files, and what cannot be read."""


def listing(root: Path) -> Listing:
    """Read every file below a directory once; no link is followed."""
    found = walk(root)
    others = dict(
        line.removeprefix(f"{root.name}/").rpartition(": ")[::2] for line in found.refused
    )
    inside = [path for path in found.files if not _is_outside(str(path.relative_to(root)))]
    files = {}
    for name, digest, why in digests_of(root, inside):
        if why:
            others[name] = why
        else:
            files[name] = digest
    return Listing(files, others)


def _is_outside(name: str) -> bool:
    folder, _, rest = name.rpartition("/")
    return name in (NAME, ENVELOPE) or (folder == SIGNATURES and rest.endswith(".sig"))


def is_of_submitit(root: Path, name: str) -> bool:
    """Whether this is a link to a file beside it, as submitit makes them: no reader follows it."""
    return name.startswith("jobs/") and linked_beside(root / name) is not None


# --- its text


def page(directory: RunDirectory, verdict: Mapping[str, Any], now: Listing | None = None) -> str:
    """Return the text of the statement, made from the files of the run directory alone.

    `now`: what is in it, where that has been read already.
    """
    run: Mapping[str, Any] = directory.read_run()
    limits = run.get("thresholds") or {}
    rows = verdict["criteria"]
    summary = {
        "runId": verdict["run_id"], "verdict": verdict["verdict"],
        "reasons": list(verdict["reasons"]), "counts": dict(verdict["counts"]),
        "scope": verdict["scope"], "suiteVersion": run.get("suite_version"),
        "commit": run.get("commit"), "created": run.get("created"), "ended": run.get("ended"),
    }  # fmt: skip
    return text(
        now or listing(directory.root),
        summary,
        limits={"limits": limits.get("sha256"), "definitions": limits.get("definitions_sha256")},
        failed=[_test(v) for v in rows if v["outcome"] in FAILED],
        warned=[_test(v) for v in rows if v["outcome"] == "WAIVED"],
    )


def text(
    now: Listing,
    summary: Mapping[str, Any],
    *,
    limits: Mapping[str, Any],
    failed: Sequence[str] = (),
    warned: Sequence[str] = (),
) -> str:
    """Return the text of a statement; `summary`: with the verdict as `verdict`."""
    predicate = {
        "result": "PASSED" if summary["verdict"] == "ACCEPTED" else "FAILED",
        "configuration": [
            {"name": name, "digest": {"sha256": digest}}
            for name, digest in limits.items()
            if digest
        ],
        "failedTests": list(failed),
        "warnedTests": list(warned),
        SUMMARY: summary,
        FILES: {"subject": "every file but this statement and its signatures",
                "others": dict(now.others)},
    }  # fmt: skip
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": n, "digest": {"sha256": d}} for n, d in now.files.items()],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }
    return json.dumps(statement, indent=1, sort_keys=True) + "\n"


def _test(row: Mapping[str, Any]) -> str:
    return f"{row['criterion']} {row['subject']}"


def write(directory: RunDirectory, verdict: Mapping[str, Any]) -> None:
    """Write the statement, after all other files; signatures of another one are removed."""
    replace(directory.root, page(directory, verdict))


def replace(root: Path, text: str) -> None:
    """Write a statement; signatures of another one are removed."""
    path, content = root / NAME, text.encode("utf-8", "replace")
    if not is_content(path, content):
        remove(root)
        replace_file(path, (content,), durable=False)


def remove(root: Path) -> None:
    """Remove the statement with its signatures: the run goes on, or something was made again."""
    for path in (root / NAME, root / ENVELOPE):
        path.unlink(missing_ok=True)
    with suppress(OSError, RecordError):  # absent, a link, or with files of others
        for path in files_in(root / SIGNATURES, "*.sig"):
            path.unlink()
        (root / SIGNATURES).rmdir()


# --- its check


def check(root: Path, now: Listing, found: Findings) -> None:
    """Hold a directory against its statement."""
    try:
        found.statement = read_bytes(root / NAME, below=root)
        stated = parse_json(root / NAME, found.statement)
        subjects = [(str(s["name"]), str(s["digest"]["sha256"])) for s in stated["subject"]]
        found.word = str(stated["predicate"][SUMMARY]["verdict"])
        files = stated["predicate"].get(FILES)
        others = None if files is None else {str(k): str(v) for k, v in files["others"].items()}
    except FileNotFoundError:
        remedy = f"`python -m reports render {shlex.quote(str(root))}` makes it"
        found.wrong.append(f"{NAME}: missing; {remedy}")
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        found.wrong.append(f"{NAME}: is not a statement of this suite: {error!r}")
        return
    listed = dict(subjects)
    if len(listed) < len(subjects):
        found.wrong.append(f"{NAME}: lists a file twice")
    if others is None:
        now = Listing({n: d for n, d in now.files.items() if n in listed}, {})
        found.unchecked.append(
            f"pages and lists: {NAME} is of an earlier version and covers the evidence alone: "
            "`python -m reports render RUN` makes one of all files"
        )
    differing = list(_differences(listed, others or {}, now))
    found.wrong += bounded(differing)
    if not differing and others is not None:
        found.confirmed.append(
            f"{NAME}: says {found.word}; {counted(len(listed), 'file')}, all as it lists them"
        )
    found.whole = others is not None


def _differences(
    listed: Mapping[str, str], others: Mapping[str, str], now: Listing
) -> Iterator[str]:
    for name, digest in listed.items():
        current = now.files.get(name)
        if current is None:
            yield f"{inert(name)}: {now.others.get(name, 'missing')}, though {NAME} lists the file"
        elif current != digest:
            yield (
                f"{inert(name)}: changed: SHA-256 {current[:12]}..., {NAME} says {digest[:12]}..."
            )
    for name in sorted(now.files.keys() - listed.keys()):
        yield f"{inert(name)}: added: {NAME} does not list it"
    for name in sorted(now.others.keys() | others.keys()):
        if now.others.get(name) != others.get(name) and name not in listed:
            was, is_now = others.get(name, "does not have it"), now.others.get(name, "missing")
            yield f"{inert(name)}: {inert(is_now)}; {NAME}: {inert(was)}"


# --- DSSE


def _library(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise CommandError(
            "DSSE needs the extra `sign`: `pip install 'securesystemslib[crypto]'`; "
            "ssh-keygen signs without it"
        ) from None


def sign(root: Path, key: Path, content: bytes) -> Path:
    """Add a signature by a private key to the DSSE envelope of the statement; return its path.

    Keys are Ed25519, ECDSA or RSA, as PEM or as ssh-keygen writes them, without a passphrase.
    CommandError where the extra `sign` is missing or the key cannot be used.
    """
    dsse, signers = _library("securesystemslib.dsse"), _library("securesystemslib.signer")
    path, envelope = root / ENVELOPE, dsse.Envelope(content, PAYLOAD_TYPE, {})
    with suppress(OSError, RecordError, KeyError, TypeError, ValueError):
        earlier = dsse.Envelope.from_dict(parse_json(path, read_bytes(path, bound=VERDICT)))
        if (earlier.payload, earlier.payload_type) == (content, PAYLOAD_TYPE):
            envelope = earlier  # another signer's
    try:
        envelope.sign(signers.CryptoSigner(_private_key(key)))
    except Exception as error:  # whatever the libraries find wrong with the key
        raise CommandError(f"signing with {key}: {error}") from None
    replace_file(path, (json.dumps(envelope.to_dict(), indent=1).encode() + b"\n",), durable=False)
    return path


def _private_key(path: Path) -> Any:
    serialization = _library("cryptography.hazmat.primitives.serialization")
    data = path.read_bytes()
    of_ssh = b"OPENSSH PRIVATE KEY" in data
    load = serialization.load_ssh_private_key if of_ssh else serialization.load_pem_private_key
    return load(data, password=None)


def check_envelope(root: Path, key: Path | None, found: Findings) -> bool:
    """Check the envelope of found.statement; True where `key`, the public one, signed it.

    CommandError where a key is given and the extra `sign` is missing.
    """
    path = root / ENVELOPE
    if not path.exists():
        if key:
            found.wrong.append(f"{ENVELOPE}: missing, though --dsse-key was given")
        return False
    try:
        data = parse_json(path, read_bytes(path, below=root, bound=VERDICT))
        payload = _payload(data)
    except (OSError, RecordError, KeyError, TypeError, ValueError) as error:
        found.wrong.append(f"{ENVELOPE}: is not a DSSE envelope: {error!r}")
        return False
    if payload != found.statement:
        found.wrong.append(f"{ENVELOPE}: its payload is not {NAME}")
        return False
    if key is None:
        found.strangers.append(f"{ENVELOPE}: signer not checked: give --dsse-key FILE")
        return False
    dsse, signers = _library("securesystemslib.dsse"), _library("securesystemslib.signer")
    serialization = _library("cryptography.hazmat.primitives.serialization")
    try:
        text = key.read_bytes()
        ssh = text.startswith((b"ssh-", b"ecdsa-"))
        load = serialization.load_ssh_public_key if ssh else serialization.load_pem_public_key
        public = signers.SSlibKey.from_crypto(load(text))
        dsse.Envelope.from_dict(data).verify([public], 1)
    except Exception as error:  # whatever the library finds wrong with key, envelope or signature
        found.wrong.append(f"{ENVELOPE}: is not signed by {key}: {error}")
        return False
    found.confirmed.append(f"{ENVELOPE}: good, by {key}")
    return True


def _payload(envelope: Mapping[str, Any]) -> bytes:
    if envelope["payloadType"] != PAYLOAD_TYPE:
        raise ValueError(f"payloadType {envelope['payloadType']!r}")
    return base64.b64decode(envelope["payload"], validate=True)
