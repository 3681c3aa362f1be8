"""Whether a run's evidence, verdict and certificate are unchanged (login side).

Three checks, each of which finds what the others cannot: the manifest names every changed, added
and missing file; the records are judged again, which finds a verdict that does not follow from
them; the certificate is made again, and a signature on it covers manifest and verdict.
"""

from __future__ import annotations

import csv
import hashlib
import html
import io
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fixtures.paths import version
from fixtures.records.files import RecordError, read_json
from fixtures.records.run_directory import RunDirectory
from reports import certificate, export

COMPARED = ("outcome", "value", "unit", "limit", "ceiling", "margin", "worst", "devices", "record")
"""Fields of a verdict that judging again must reproduce; reasons and notes are only text."""
MAX_NAMED = 20
"""Most differences of verdict.json that are named one by one."""


def check(
    directory: RunDirectory,
    rejudge: Callable[[], Mapping[str, Any]],
    signers: Path | None,
    *,
    certified: bool = True,
) -> tuple[list[str], list[str]]:
    """Return the lines (what is wrong, what was confirmed or could not be checked).

    `certified` states whether a run of its origin has a certificate.
    """
    wrong, confirmed = [], []
    differences = list(_evidence_differences(directory))
    wrong += differences
    if not differences:
        count = len(directory.manifest.read_text(encoding="utf-8").splitlines())
        confirmed.append(f"evidence: all {count} files are as manifest.sha256 says")
    verdict = read_json(directory.verdict) if directory.verdict.exists() else None
    if verdict is None:
        wrong.append("verdict.json: missing; `python -m reports render RUN` makes it")
    else:
        differences = list(_differences(verdict, rejudge()))
        wrong += differences
        if not differences:
            confirmed.append(
                f"verdict: {len(verdict['criteria'])} verdicts follow from the records"
            )
        pages = [certificate.NAME, "results.csv"] if certified else ["results.csv"]
        made_by = _suite_version(directory)
        if made_by == version():
            differences = list(_page_differences(directory, verdict, pages))
        else:
            differences = list(_page_fact_differences(directory, verdict, pages))
            confirmed.append(
                f"{' and '.join(pages)}: text not compared: written by suite version {made_by}, "
                f"this is {version()}; verdict, hashes and figures were compared"
            )
        wrong += differences
        if not differences and made_by == version():
            confirmed.append(f"{' and '.join(pages)}: what the evidence gives")
    if certified:
        is_wrong, line = _check_signature(directory, signers)
        (wrong if is_wrong else confirmed).append(line)
    return wrong, confirmed


def _evidence_differences(directory: RunDirectory) -> Iterator[str]:
    """Yield differences between the files of the evidence and the manifest's list of them."""
    try:
        lines = directory.manifest.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        yield f"manifest.sha256: {error}: nothing says what the evidence was"
        return
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    present = {str(p.relative_to(directory.root)): p for p in directory.evidence()}
    for name, digest in listed.items():
        if name not in present:
            yield f"{name}: missing, though manifest.sha256 names it"
            continue
        with present[name].open("rb") as file:
            now = hashlib.file_digest(file, "sha256").hexdigest()
        if now != digest:
            yield f"{name}: changed: SHA-256 {now[:12]}..., manifest.sha256 says {digest[:12]}..."
    for name in present:
        if name not in listed:
            yield f"{name}: added: manifest.sha256 does not name it"


def _differences(stated: Mapping[str, Any], rejudged: Mapping[str, Any]) -> Iterator[str]:
    """Yield differences between verdict.json and what the records give when judged again."""
    stated_rows, rejudged_rows = (
        {(v["criterion"], v["subject"]): v for v in verdict["criteria"]}
        for verdict in (stated, rejudged)
    )
    if len(stated_rows) != len(stated["criteria"]):
        yield "verdict.json: names a criterion twice for one subject"
    differences = []
    for key in {**stated_rows, **rejudged_rows}:
        before, now = stated_rows.get(key), rejudged_rows.get(key)
        if before is None or now is None:
            differences.append(f"{key[0]} {key[1]}: {'added' if now is None else 'missing'}")
        elif _waiver_expired_since(before, now):
            continue
        elif names := [n for n in COMPARED if before.get(n) != now.get(n)]:
            old, new = (repr(row.get(names[0]))[:60] for row in (before, now))
            differences.append(f"{' '.join(key)}: {names[0]} is {old}, from the records {new}")
    yield from (f"verdict.json: {line}" for line in differences[:MAX_NAMED])
    if len(differences) > MAX_NAMED:
        yield f"verdict.json: {len(differences) - MAX_NAMED} more rows differ"
    for name in ("verdict", "counts", "exit_status"):
        value, rejudged_value = stated.get(name), rejudged.get(name)
        is_different = not differences and value != rejudged_value
        if is_different and not _counts_differ_by_expired_waivers(stated, rejudged):
            yield f"verdict.json: {name} is {value}, from the records {rejudged_value}"


def _waiver_expired_since(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether only the outcome differs, because a waiver expired after the run: no difference."""
    expired = "waiver expired" in str(now.get("reason"))
    same = all(before.get(n) == now.get(n) for n in COMPARED if n != "outcome")
    return same and expired and (before["outcome"], now["outcome"]) == ("WAIVED", "FAIL")


def _counts_differ_by_expired_waivers(
    stated: Mapping[str, Any], rejudged: Mapping[str, Any]
) -> bool:
    """Whether as many verdicts more are FAIL as fewer are WAIVED."""
    expired = stated["counts"].get("waived", 0) - rejudged["counts"].get("waived", 0)
    return bool(expired) and rejudged["counts"]["fail"] - stated["counts"]["fail"] == expired


def _page_differences(
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


def _suite_version(directory: RunDirectory) -> str:
    """Return the suite version that wrote run.json; version 0.1.0 did not state its own."""
    return str(read_json(directory.run_json).get("suite_version") or "0.1.0")


def _page_fact_differences(
    directory: RunDirectory, verdict: Mapping[str, Any], names: Iterable[str]
) -> Iterator[str]:
    """Yield what is wrong in pages of another suite version, whose wording may differ.

    The certificate must state the verdict and the hashes of the evidence; results.csv must have
    the same rows in all columns that are not text.
    """
    for name in names:
        try:
            text = (directory.root / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            yield f"{name}: missing; `python -m reports render RUN` makes it"
            continue
        except UnicodeDecodeError as error:
            yield f"{name}: cannot be read: {error}"
            continue
        if name == certificate.NAME:
            accepted = verdict["verdict"] == "ACCEPTED"
            word = "ACCEPTED" if accepted else f"NOT ACCEPTED: {verdict['verdict']}"
            if f'<p class="word">{html.escape(word)}</p>' not in text:
                yield f"{name}: does not say {word}"
            for file, digest in certificate.hashes(directory).items():
                if digest not in text:
                    yield f"{name}: does not state the SHA-256 of {file}, {digest[:12]}..."
        elif _rows_without_text(text) != _rows_without_text(export.results(verdict)):
            yield f"{name}: its figures are not those of verdict.json"


def _rows_without_text(text: str) -> list[dict[str, str]]:
    """Return the rows of results.csv without the columns that are text."""
    return [
        {key: value for key, value in row.items() if key not in export.TEXT_COLUMNS}
        for row in csv.DictReader(io.StringIO(text))
    ]


# --- signatures


def sign(directory: RunDirectory, key: Path) -> Path:
    """Sign certificate.html with an SSH key and return the path of the signature.

    Raises OSError or CalledProcessError where ssh-keygen fails.
    """
    page = directory.root / certificate.NAME
    signature = page.with_name(f"{page.name}.sig")
    signature.unlink(missing_ok=True)
    subprocess.run(
        ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", certificate.NAMESPACE, str(page)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return signature


def _check_signature(directory: RunDirectory, signers: Path | None) -> tuple[bool, str]:
    """Return (whether the signature is wrong, the line to print)."""
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
        done = _ssh_keygen(text, "check-novalidate", "-s", str(signature))
        signer = "by a key that nobody vouched for: give --allowed-signers FILE"
    else:
        principals = _ssh_keygen(text, "find-principals", "-s", str(signature), "-f", str(signers))
        names = principals.stdout.decode("utf-8", "replace").strip().splitlines()
        if principals.returncode or not names:
            return True, f"signature: its key is not in {signers}"
        done = _ssh_keygen(text, "verify", "-f", str(signers), "-I", names[0], "-s", str(signature))
        signer = f"by {names[0]}"
    if done.returncode:
        return True, "certificate.html.sig: is not a signature of this certificate.html"
    return False, f"signature: good, {signer}"


def _ssh_keygen(text: bytes, operation: str, *options: str) -> subprocess.CompletedProcess[bytes]:
    command = ["ssh-keygen", "-Y", operation, "-n", certificate.NAMESPACE, *options]
    return subprocess.run(command, input=text, capture_output=True)
