"""Whether a run's evidence, verdict and certificate are what they were (login side).

Three things, each of which finds what the others cannot: the manifest names every changed, added
and missing file; the records are judged again, so a verdict that does not follow from them is
found; the certificate is made again, and a signature on it binds all of them.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fixtures.records.files import RecordError, read_json
from fixtures.records.run_directory import RunDirectory
from reports import certificate, export

COMPARED = ("outcome", "value", "unit", "limit", "ceiling", "margin", "worst", "devices", "record")
"""What must come out of the records again; reasons and notes are words."""
NAMED = 20
"""So many differences of a kind are named one by one."""


def check(
    directory: RunDirectory,
    rejudge: Callable[[], Mapping[str, Any]],
    signers: Path | None,
    *,
    certified: bool = True,
) -> tuple[list[str], list[str]]:
    """(what is wrong, what was found in order or could not be asked), in lines.

    `certified`: whether a run of its origin has a certificate.
    """
    wrong, fine = [], []
    found = list(_evidence(directory))
    wrong += found
    if not found:
        count = len(directory.manifest.read_text(encoding="utf-8").splitlines())
        fine.append(f"evidence: all {count} files are as manifest.sha256 says")
    verdict = read_json(directory.verdict) if directory.verdict.exists() else None
    if verdict is None:
        wrong.append("verdict.json: missing; `python -m reports render RUN` makes it")
    else:
        found = list(_differences(verdict, rejudge()))
        wrong += found
        if not found:
            fine.append(f"verdict: {len(verdict['criteria'])} verdicts follow from the records")
        made = [certificate.NAME, "results.csv"] if certified else ["results.csv"]
        found = list(_made_again(directory, verdict, made))
        wrong += found
        if not found:
            fine.append(f"{' and '.join(made)}: what the evidence gives")
    if certified:
        (wrong if (said := _signature(directory, signers))[0] else fine).append(said[1])
    return wrong, fine


def _evidence(directory: RunDirectory) -> Iterator[str]:
    """Differences between the files of the evidence and the manifest's list of them."""
    try:
        lines = directory.manifest.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        yield f"manifest.sha256: {error}: nothing says what the evidence was"
        return
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    there = {str(p.relative_to(directory.root)): p for p in directory.evidence()}
    for name, digest in listed.items():
        if name not in there:
            yield f"{name}: missing, though manifest.sha256 names it"
            continue
        with there[name].open("rb") as file:
            now = hashlib.file_digest(file, "sha256").hexdigest()
        if now != digest:
            yield f"{name}: changed: SHA-256 {now[:12]}..., manifest.sha256 says {digest[:12]}..."
    for name in there:
        if name not in listed:
            yield f"{name}: added: manifest.sha256 does not name it"


def _differences(stated: Mapping[str, Any], again: Mapping[str, Any]) -> Iterator[str]:
    """Rows of verdict.json that the records do not give."""
    rows, rejudged = (
        {(v["criterion"], v["subject"]): v for v in of["criteria"]} for of in (stated, again)
    )
    if len(rows) != len(stated["criteria"]):
        yield "verdict.json: names a criterion twice for one subject"
    apart = []
    for key in {**rows, **rejudged}:
        ours, theirs = rows.get(key), rejudged.get(key)
        if ours is None or theirs is None:
            apart.append(f"{key[0]} {key[1]}: {'added' if theirs is None else 'missing'}")
        elif _expired_since(ours, theirs):
            continue
        elif names := [n for n in COMPARED if ours.get(n) != theirs.get(n)]:
            said, judged = (repr(of.get(names[0]))[:60] for of in (ours, theirs))
            apart.append(f"{' '.join(key)}: {names[0]} is {said}, from the records {judged}")
    yield from (f"verdict.json: {line}" for line in apart[:NAMED])
    if len(apart) > NAMED:
        yield f"verdict.json: {len(apart) - NAMED} more rows differ"
    for name in ("verdict", "counts", "exit_status"):
        if not apart and stated.get(name) != again.get(name) and not _waived_once(stated, again):
            yield f"verdict.json: {name} is {stated.get(name)}, from the records {again.get(name)}"


def _expired_since(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """A waiver holds on the day of the run; that it has run out since changes nothing of it."""
    expired = "waiver expired" in str(theirs.get("reason"))
    same = all(ours.get(n) == theirs.get(n) for n in COMPARED if n != "outcome")
    return same and expired and (ours["outcome"], theirs["outcome"]) == ("WAIVED", "FAIL")


def _waived_once(said: Mapping[str, Any], again: Mapping[str, Any]) -> bool:
    gone = said["counts"].get("waived", 0) - again["counts"].get("waived", 0)
    return bool(gone) and again["counts"]["fail"] - said["counts"]["fail"] == gone


def _made_again(
    directory: RunDirectory, verdict: Mapping[str, Any], names: Iterable[str]
) -> Iterator[str]:
    makers: dict[str, Callable[[], str]] = {
        certificate.NAME: lambda: certificate.page(directory, verdict),
        "results.csv": lambda: export.results(verdict),
    }
    for name in names:
        path = directory.root / name
        try:
            if path.read_bytes() != makers[name]().encode("utf-8", "replace"):
                yield (
                    f"{name}: not what this suite makes of the evidence (changed, or made by "
                    "another version: check out the run's commit, or `python -m reports render`)"
                )
        except FileNotFoundError:
            yield f"{name}: missing; `python -m reports render RUN` makes it"
        except (RecordError, KeyError, TypeError) as error:
            yield f"{name}: cannot be made of this evidence: {error!r}"


# --- signatures


def sign(directory: RunDirectory, key: Path) -> Path:
    """Sign certificate.html with an SSH key; OSError or CalledProcessError where that fails."""
    page = directory.root / certificate.NAME
    signature = page.with_name(f"{page.name}.sig")
    signature.unlink(missing_ok=True)
    subprocess.run(
        ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", certificate.NAMESPACE, str(page)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return signature


def _signature(directory: RunDirectory, signers: Path | None) -> tuple[bool, str]:
    """(whether it is wrong, what is to be said of it)."""
    page = directory.root / certificate.NAME
    signature = page.with_name(f"{page.name}.sig")
    if not signature.exists():
        if signers is not None:
            return True, "certificate.html.sig: missing, though --allowed-signers was given"
        return False, "signature: none; hashes show accidents, only a signature shows intent"
    if not page.exists():
        return True, "certificate.html.sig: there is no certificate.html that it could sign"
    text = page.read_bytes()
    if signers is None:
        done = _keygen(text, "check-novalidate", "-s", str(signature))
        said = "by a key that nobody vouched for: give --allowed-signers FILE"
    else:
        who = _keygen(text, "find-principals", "-s", str(signature), "-f", str(signers))
        name = who.stdout.decode("utf-8", "replace").strip().splitlines()
        if who.returncode or not name:
            return True, f"signature: its key is not in {signers}"
        done = _keygen(text, "verify", "-f", str(signers), "-I", name[0], "-s", str(signature))
        said = f"by {name[0]}"
    if done.returncode:
        return True, "certificate.html.sig: is not a signature of this certificate.html"
    return False, f"signature: good, {said}"


def _keygen(text: bytes, what: str, *options: str) -> subprocess.CompletedProcess[bytes]:
    command = ["ssh-keygen", "-Y", what, "-n", certificate.NAMESPACE, *options]
    return subprocess.run(command, input=text, capture_output=True)
