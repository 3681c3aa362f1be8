"""Whether everything that a person reads of a run follows from its evidence (login side).

First the hashes: the statement lists every file of the directory, and who signed it vouches for
all of them. Then, by the version that wrote the run, the records are judged again, and every page
and list is made again and compared byte by byte. A run of another version, or of other libraries,
is confirmed by a known signer or not at all: nothing in a run decides how strictly it is checked.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import Any

from fixtures.paths import version
from fixtures.records.files import RecordError, read_json
from fixtures.records.foreign_files import is_below, linked_beside, read_bytes
from fixtures.records.inert import inert
from fixtures.records.run_directory import RunDirectory, read_manifest
from fixtures.records.run_schema import refused_schema
from fixtures.records.verdict_file import SPLIT_SCHEMA, read_verdict
from fixtures.wording import counted
from reports.evidence import attempts_shown, basis, proof, statement
from reports.evidence.differences import (
    Rejudged,
    differences,
    is_of_this_version,
    malformed,
    suite_version,
)
from reports.evidence.findings import Findings, bounded
from reports.evidence.run_files import Limits
from reports.facts import recertified
from reports.handover import signature
from reports.pages import certificate, page
from reports.pages.artefacts import CERTIFIED_ORIGINS, Artefacts

FINETUNED = "finetune"
"""Folder of what the fine-tuning leaves: data, adapters, summary. No verdict follows from it, and
the statement lists it."""
COMPANIONS = ("drills.json", "proposal.yaml")
"""Files that a run may have beside its evidence, and that cannot be made again."""
PAPERS = frozenset(
    {".html", ".htm", ".xhtml", ".pdf", ".xml", ".csv", ".md", ".svg", ".png", ".jpg", ".docx"}
)
"""Suffixes of what people read; no job of the suite writes such a file."""


def check(
    directory: RunDirectory,
    rejudge: Callable[[], Rejudged],
    limits: Limits,
    *,
    signers: Path | None = None,
    demanded: Sequence[str] = (),
    dsse_key: Path | None = None,
    covered: bool = False,
) -> Findings:
    """Compare a run directory with what its signers and its evidence say.

    `demanded`: who has to have signed. `dsse_key`: the public key of a signer by DSSE. `covered`:
    a known signer has signed all files in a directory that this one is a part of.
    """
    found, now = Findings(covered=covered), statement.listing(directory.root)
    run = _read_run(directory, found)
    certified = run.get("origin") in CERTIFIED_ORIGINS
    if certified or (directory.root / statement.NAME).exists():
        check_signed(directory.root, now, found, signers, demanded=demanded, dsse_key=dsse_key)
    elif signers is not None or demanded or dsse_key is not None:
        found.wrong.append("signature: none: a replay, or a run by hand, is not signed")
    else:
        found.notes.append("unsigned: a replay, or a run by hand, is not signed")
    check_manifest(directory, now, found)
    check_others(directory.root, now, found)
    if covered:  # whoever signed the whole has also signed what stands here
        found.notes += found.strangers
        found.strangers.clear()
    if limits.foreign:
        found.unchecked.append(limits.foreign)
    found.basis += basis.lines(directory, run, limits.file)
    if (shown := proof.of_run(directory)) is not None:
        into = found.confirmed if shown.proven else found.notes
        into.append(f"challenge: {shown.sentence}")
    if found.wrong:  # what is not as it was is not judged
        return found
    if not is_of_this_version(run):
        found.leave(
            f"verdict, limits, pages and lists: written by suite version {suite_version(run)}, "
            f"this is {version()}"
        )
    else:
        _check_judged(directory, rejudge, found)
        _check_pages(directory, limits.file, now, found)
    if certified and not found.judged:
        check_word(directory.root, now, found)
    return found


def _check_pages(
    directory: RunDirectory, limits: Path | None, now: statement.Listing, found: Findings
) -> None:
    verdict = _read(directory)
    if not malformed(verdict):
        artefacts = Artefacts(directory, verdict, limits)
        _check_recertified(artefacts, found)
        _check_artefacts(artefacts, now, found)
        unknown = list(_unknown_files(artefacts, now.files))
        found.unchecked += [] if found.covered else unknown
        found.notes += [f"not judged again: {n}: the records do not give it"
                        for n in COMPANIONS if n in now.files]  # fmt: skip


def check_signed(
    root: Path,
    now: statement.Listing,
    found: Findings,
    signers: Path | None,
    *,
    demanded: Sequence[str] = (),
    dsse_key: Path | None = None,
) -> None:
    """Check the statement of a directory against its files, and who signed it."""
    statement.check(root, now, found)
    known = signature.check(root, signers, found, demanded=demanded)
    known |= statement.check_envelope(root, dsse_key, found)
    found.covered |= known and found.whole and not found.wrong


def check_hashes(
    directory: RunDirectory, signers: Path | None, *, dsse_key: Path | None = None
) -> Findings:
    """Check hashes and signatures of a run that is no longer judged; parameters as of check()."""
    found, now = Findings(), statement.listing(directory.root)
    if (directory.root / statement.NAME).exists():
        check_signed(directory.root, now, found, signers, dsse_key=dsse_key)
    else:
        signature.check(directory.root, signers, found)
    check_manifest(directory, now, found)
    if certificate.NAME in now.files:
        text = read_bytes(directory.root / certificate.NAME).decode("utf-8", "replace")
        for file, digest in certificate.hashes(directory).items():
            if digest not in text:
                found.wrong.append(
                    f"{certificate.NAME}: does not state the SHA-256 of {file}, {digest[:12]}..."
                )
    found.unchecked.append(f"verdict, limits and pages: {refused_schema({'schema': 1})}")
    return found


def check_others(root: Path, now: statement.Listing, found: Findings) -> None:
    """Name what no hash covers: links, special files, and what cannot be read."""
    for name, what in now.others.items():
        if not statement.is_of_submitit(root, name):
            found.unchecked.append(f"{inert(name)}: {what}")


def check_verdict(directory: RunDirectory, rejudge: Callable[[], Rejudged]) -> Findings:
    """Compare manifest, verdict.json and limits.csv with what the evidence gives."""
    found = Findings()
    now = statement.listing(directory.root)
    check_manifest(directory, now, found)
    _check_judged(directory, rejudge, found)
    return found


def _check_judged(
    directory: RunDirectory, rejudge: Callable[[], Rejudged], found: Findings
) -> None:
    if not directory.verdict.exists():
        remedy = f"`python -m reports render {shlex.quote(str(directory.root))}` makes it"
        found.wrong.append(f"verdict.json: missing; {remedy}")
        return
    try:
        stated = read_verdict(directory)
    except (OSError, RecordError) as error:
        found.wrong.append(f"verdict.json: {error}")
        return
    if why := malformed(stated):
        found.wrong.append(f"verdict.json: {why}")
        return
    try:
        run = read_json(directory.run_json)
        rejudged = rejudge()
        compared = differences(directory, run, stated, rejudged.verdict)
    except (OSError, RecordError, KeyError, TypeError, ValueError, AttributeError) as error:
        found.wrong.append(f"verdict.json: cannot be compared: {error!r}")
        return
    found.wrong += compared.wrong
    found.notes += [f"not judged again: {line}" for line in compared.unchecked]
    if not compared.wrong:
        count = len(stated["criteria"])
        found.confirmed.append(f"verdict: {count} verdicts follow from the records")
    try:
        attempts_shown.check(directory, run, stated, rejudged.verdict["criteria"], found)
    except (OSError, RecordError) as error:
        found.wrong.append(f"ledger.jsonl: {error}: the attempts of the run are unknown")
    if is_of_this_version(run):
        _compare(found, directory.limits, rejudged.limits_csv, "judging the records again")


def _read_run(directory: RunDirectory, found: Findings) -> Mapping[str, Any]:
    """Return run.json; {} with a line where it cannot be read."""
    try:
        run = directory.read_run()
        if isinstance(run, dict):
            return run
        error: Exception = RecordError("is not an object")
    except (OSError, RecordError) as raised:
        error = raised
    found.wrong.append(f"run.json: {error}")
    return {}


def _read(directory: RunDirectory) -> Any:
    """Return the whole verdict; None where it cannot be read."""
    try:
        return read_verdict(directory)
    except (OSError, RecordError):
        return None


def check_manifest(directory: RunDirectory, now: statement.Listing, found: Findings) -> None:
    """Compare the files of the evidence with the manifest's list of them."""
    try:
        listed = read_manifest(directory.manifest)
    except (OSError, ValueError) as error:
        found.wrong.append(f"manifest.sha256: {error}: the original evidence is unknown")
        return
    wrong = []
    present = {n: digest for n, digest in now.files.items() if directory.is_evidence(n)}
    for name, digest in listed.items():
        current = present.get(name)
        if (
            current is None
            and is_below(name)
            and (beside := linked_beside(directory.root / name)) is not None
        ):
            # Earlier manifests name submitit's links.
            current = present.get(str(PurePosixPath(name).with_name(beside.name)))
        if current is None:
            wrong.append(f"{inert(name)}: missing, though manifest.sha256 names it")
        elif current != digest:
            wrong.append(
                f"{inert(name)}: changed: SHA-256 {current[:12]}..., manifest.sha256 "
                f"says {digest[:12]}..."
            )
    wrong += [f"{inert(name)}: added: manifest.sha256 does not name it"
              for name in present if name not in listed]  # fmt: skip
    found.wrong += bounded(wrong)
    if not wrong:
        found.confirmed.append(
            f"evidence: {counted(len(listed), 'file')}, all match manifest.sha256"
        )


# --- what is made of the evidence


def _check_artefacts(artefacts: Artefacts, now: statement.Listing, found: Findings) -> None:
    confirmed = []
    for name in artefacts.names:
        if name == statement.NAME and not found.whole:
            continue  # what is wrong with it has been named
        try:
            made = artefacts.make(name, now)
        except Exception as error:  # an error in the evidence affects this file only
            found.wrong.append(f"{name}: cannot be made again from this evidence: {error!r}")
            continue
        tools = page.other_tools(artefacts.run) if name.endswith(".html") else ""
        if tools and now.files.get(name) != hashlib.sha256(made).hexdigest():
            found.leave(f"{name}: made by {tools}")
            continue
        if _compare(found, artefacts.directory.root / name, made, "the evidence"):
            confirmed.append(name)
    if confirmed:
        found.confirmed.append(f"{', '.join(confirmed)}: match the evidence")


def _check_recertified(artefacts: Artefacts, found: Findings) -> None:
    """Check a return to service against the evidence of the accepted run."""
    directory = artefacts.directory
    repairs = artefacts.run.get("recertifies") or []
    if repairs or directory.recertified.exists():
        wrong = list(recertified.differences(directory, read_json(directory.run_json)))
        found.wrong += wrong
        if not wrong:
            runs = ", ".join(str(repair["run"]) for repair in repairs)
            found.confirmed.append(f"recertified: all evidence of {runs} matches its manifest")


def _compare(found: Findings, path: Path, made: bytes, source: str) -> bool:
    """Add a line on the first difference of a file from what is made again; True if none."""
    try:
        stated = read_bytes(path)
    except FileNotFoundError:
        remedy = f"`python -m reports render {shlex.quote(str(path.parent))}` makes it"
        found.wrong.append(f"{path.name}: missing; {remedy}")
        return False
    except (OSError, RecordError) as error:
        found.wrong.append(str(error))
        return False
    if stated != made:
        found.wrong.append(
            f"{path.name}: does not match {source}: {_first_difference(stated, made)}"
        )
        return False
    return True


def _first_difference(stated: bytes, made: bytes) -> str:
    """Return where two texts begin to differ, with the text of each."""
    texts = [data.decode("utf-8", "replace") for data in (stated, made)]
    pairs = enumerate(zip(*texts, strict=False))
    at = next((k for k, (a, b) in pairs if a != b), min(map(len, texts)))
    line = texts[1].count("\n", 0, at) + 1
    begin = max(0, at - 20)
    shown = [repr(text[begin : at + 40]) for text in texts]
    return f"line {line} has {shown[0]}, expected {shown[1]}"


def _unknown_files(artefacts: Artefacts, names: Iterable[str]) -> Iterator[str]:
    """Yield the files that are neither evidence nor made from it."""
    directory = artefacts.directory
    of_run = {FINETUNED, directory.proof.name, *(path.name for path in directory.evidence_folders)}
    if not artefacts.run.get("recertifies"):
        of_run.discard(directory.recertified.name)
    known = {
        *(path.name for path in directory.evidence_files), directory.verdict.name,
        directory.manifest.name, "token", *artefacts.names, *COMPANIONS,
    }  # fmt: skip
    if artefacts.verdict.get("schema") == SPLIT_SCHEMA:
        known.add(directory.verdict_rest.name)
    for name in names:
        folder, _, rest = name.partition("/")
        if name not in known and not (rest and folder in of_run):
            yield f"{inert(name)}: not a file of the suite in a run like this"
            continue
        path = PurePosixPath(name)
        is_limits = folder == "recertified" and path.name == directory.limits.name
        is_result = path.parent.name == folder == "guests"
        if rest and path.suffix.lower() in PAPERS and not (is_limits or is_result):
            yield f"{inert(name)}: not a page of the suite, though among the evidence"


# --- the word of a page


def check_word(
    root: Path, now: statement.Listing, found: Findings, prefix: str = "NOT ACCEPTED"
) -> None:
    """Hold the word of a certificate that is not made again against the verdict of the statement.

    As a browser shows it: comments and other elements are not its word.
    """
    accepted = found.word == "ACCEPTED" and prefix == "NOT ACCEPTED"
    expected = found.word if accepted else f"{prefix}: {found.word}"
    said = _Words()
    if certificate.NAME in now.files:
        said.feed(read_bytes(root / certificate.NAME).decode("utf-8", "replace"))
    if said.words != [expected]:
        found.wrong.append(f"{certificate.NAME}: says {said.words}, {statement.NAME} {expected!r}")


class _Words(HTMLParser):
    """Collects the texts of the elements of the class `word`."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if "word" in (dict(attrs).get("class") or "").split():
            self.words.append("")
            self._inside = True

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.words[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = False
