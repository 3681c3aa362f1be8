"""Whether everything that a person reads of a run follows from its evidence (login side).

Five checks, each of which finds what the others cannot: the manifest names every changed, added and
missing file of the evidence; the records are judged again, which finds a verdict or a limit that
does not follow from them; every page and list is made again from the evidence and compared byte by
byte; what is not known is named as not checked; and a signature on the certificate covers manifest
and verdict, since whoever rewrites the evidence can write a new manifest; so does the statement's.
"""

# Length: one command, whose checks add to the same findings.

from __future__ import annotations

import csv
import html
import io
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fixtures.paths import version
from fixtures.records.files import RecordError, read_json
from fixtures.records.foreign_files import (
    is_below,
    linked_beside,
    read_bytes,
    read_text,
    sha256_of,
    text_lines,
)
from fixtures.records.foreign_folders import files_in, list_folder
from fixtures.records.run_directory import RunDirectory
from fixtures.records.run_schema import refused_schema
from fixtures.records.verdict_file import SPLIT_SCHEMA, read_verdict
from fixtures.wording import counted
from reports import certificate, export, page, recertified, signature, statement
from reports.artefacts import Artefacts
from reports.differences import (
    Rejudged,
    differences,
    is_of_this_version,
    malformed,
    suite_version,
)
from reports.run_files import INCOMPLETE

MAX_MISSING = 100
"""Missing files that are named one by one."""
COMPANIONS = ("drills.json", "proposal.yaml")
"""Files that a run may have beside its evidence, and that nothing of the run can confirm."""
PAPERS = frozenset(
    {".html", ".htm", ".xhtml", ".pdf", ".xml", ".csv", ".md", ".svg", ".png", ".jpg", ".docx"}
)
"""Suffixes of what people read; no job of the suite writes such a file."""
_TOOLS = re.compile(
    r"<svg.*?</svg>|<style.*?</style>|<script>.*?</script>|<meta name=\"generator\"[^>]*>"
    r"|&#34;environment&#34;: \{.*?\}|pytest-html</a>\s*v\S+</p>",
    re.DOTALL,
)
"""The parts of report.html whose bytes depend on the versions of page.TOOLS."""


@dataclass
class Findings:
    """Lines to print."""

    wrong: list[str] = field(default_factory=list)
    confirmed: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    """What cannot be made again, by name."""
    judged: bool = True
    """Whether the records were judged again: else nothing confirms the verdict."""


def check(
    directory: RunDirectory,
    rejudge: Callable[[], Rejudged],
    signers: Path | None,
    *,
    thresholds: Path | None = None,
    with_signature: bool = True,
    dsse_key: Path | None = None,
) -> Findings:
    """Compare a run directory with what its evidence gives.

    `thresholds`: the run's file of limits, where it is no longer at the path that run.json names.
    `dsse_key`: the public key of who signed the statement.
    """
    found = check_verdict(directory, rejudge)
    verdict = _read(directory)
    if not malformed(verdict):
        artefacts = Artefacts(directory, verdict, thresholds)
        _check_recertified(artefacts, found)
        _check_artefacts(artefacts, found)
        found.unchecked += _unknown_files(artefacts)
        if certificate.NAME in artefacts.names and with_signature:
            is_wrong, line = signature.check(directory, signers)
            (found.wrong if is_wrong else found.confirmed).append(line)
            wrong, confirmed, unchecked = statement.check(directory, dsse_key)
            found.wrong += wrong
            found.confirmed += confirmed
            found.unchecked += unchecked
    return found


def check_hashes(
    directory: RunDirectory, signers: Path | None, *, dsse_key: Path | None = None
) -> Findings:
    """Check hashes and signatures of a run that is no longer judged; parameters as of check()."""
    found = Findings(judged=False)
    _check_manifest(directory, found)
    page = directory.root / certificate.NAME
    if page.exists():
        text = read_bytes(page).decode("utf-8", "replace")
        missing = list(_missing_hashes(directory, text))
        found.wrong += missing
        if not missing:
            found.confirmed.append(f"{certificate.NAME}: states the hashes of the evidence")
        is_wrong, line = signature.check(directory, signers)
        (found.wrong if is_wrong else found.confirmed).append(line)
        for lines, more in zip(
            (found.wrong, found.confirmed, found.unchecked),
            statement.check(directory, dsse_key),
            strict=True,
        ):
            lines += more
    found.unchecked.append(f"verdict, limits and pages: {refused_schema({'schema': 1})}")
    return found


def show(source: Path, found: Findings) -> int:
    """Print what was checked; 1 where something is wrong, 2 where the verdict was not checked."""
    for line in found.confirmed:
        print(f"ok     {line}")
    for line in found.unchecked:
        print(f"not checked: {line}")
    for line in found.wrong:
        print(f"WRONG  {line}")
    word = "VERIFIED, except for what is not checked" if found.unchecked else "VERIFIED"
    if not found.judged:
        word = "HASHES AND SIGNATURES ARE RIGHT, THE VERDICT WAS NOT CHECKED"
    print(f"{'CHANGED SINCE THE RUN' if found.wrong else word}: {source}")
    return 1 if found.wrong else 0 if found.judged else INCOMPLETE


def check_verdict(directory: RunDirectory, rejudge: Callable[[], Rejudged]) -> Findings:
    """Compare manifest, verdict.json and limits.csv with what the evidence gives."""
    found = Findings()
    _check_manifest(directory, found)
    if not directory.verdict.exists():
        remedy = f"`python -m reports render {shlex.quote(str(directory.root))}` makes it"
        found.wrong.append(f"verdict.json: missing; {remedy}")
        return found
    try:
        stated = read_verdict(directory)
    except (OSError, RecordError) as error:
        found.wrong.append(f"verdict.json: {error}")
        return found
    if why := malformed(stated):
        found.wrong.append(f"verdict.json: {why}")
        return found
    try:
        run = read_json(directory.run_json)
        rejudged = rejudge()
        compared = differences(directory, run, stated, rejudged.verdict)
    except (OSError, RecordError, KeyError, TypeError, ValueError, AttributeError) as error:
        found.wrong.append(f"verdict.json: cannot be compared: {error!r}")
        return found
    found.wrong += compared.wrong
    found.unchecked += compared.unchecked
    if not compared.wrong:
        count = len(stated["criteria"])
        found.confirmed.append(f"verdict: {count} verdicts follow from the records")
    if is_of_this_version(run):
        _compare(found, directory.limits, rejudged.limits_csv, "judging the records again")
    elif directory.limits.exists():
        found.unchecked.append(f"limits.csv: written by suite version {suite_version(run)}")
    return found


def _read(directory: RunDirectory) -> Any:
    """Return the whole verdict; None where it cannot be read."""
    try:
        return read_verdict(directory)
    except (OSError, RecordError):
        return None


def _check_manifest(directory: RunDirectory, found: Findings) -> None:
    found.wrong += _evidence_differences(directory)
    if not found.wrong:
        count = sum(1 for _ in text_lines(directory.manifest))
        found.confirmed.append(f"evidence: {counted(count, 'file')}, all match manifest.sha256")


def _evidence_differences(directory: RunDirectory) -> Iterator[str]:
    """Yield differences between the files of the evidence and the manifest's list of them."""
    try:
        lines = list(text_lines(directory.manifest))
    except (OSError, RecordError) as error:
        yield f"manifest.sha256: {error}: the original evidence is unknown"
        return
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    present = {str(p.relative_to(directory.root)): p for p in directory.evidence()}
    missing = 0
    for name, digest in listed.items():
        if (
            name not in present
            and is_below(name)
            and (beside := linked_beside(directory.root / name)) is not None
        ):
            present[name] = beside  # earlier manifests name submitit's links
        if name not in present:
            missing += 1
            if missing > MAX_MISSING:
                yield f"{len(listed) - len(present)} more files that manifest.sha256 names: missing"
                return
            yield f"{name}: missing, though manifest.sha256 names it"
            continue
        try:
            now = sha256_of(present[name])
        except (OSError, RecordError) as error:
            yield f"{name}: {error}"
            continue
        if now != digest:
            yield f"{name}: changed: SHA-256 {now[:12]}..., manifest.sha256 says {digest[:12]}..."
    for name in present:
        if name not in listed:
            yield f"{name}: added: manifest.sha256 does not name it"


# --- what is made of the evidence


def _check_artefacts(artefacts: Artefacts, found: Findings) -> None:
    if not is_of_this_version(artefacts.run):
        _check_facts(artefacts, found)
        return
    confirmed = []
    for name in artefacts.names:
        try:
            made = artefacts.make(name)
        except Exception as error:  # an error in the evidence affects this file only
            found.wrong.append(f"{name}: cannot be made again from this evidence: {error!r}")
            continue
        if name == page.NAME and _by_other_tools(artefacts, made, found):
            continue
        if _compare(found, artefacts.directory.root / name, made, "the evidence"):
            confirmed.append(name)
    if confirmed:
        found.confirmed.append(f"{', '.join(confirmed)}: match the evidence")


def _check_recertified(artefacts: Artefacts, found: Findings) -> None:
    """Check a return to service against the evidence of the accepted run."""
    if repairs := artefacts.run.get("recertifies"):
        directory = artefacts.directory
        wrong = list(recertified.differences(directory, read_json(directory.run_json)))
        found.wrong += wrong
        if not wrong:
            runs = ", ".join(str(repair["run"]) for repair in repairs)
            found.confirmed.append(f"recertified: all evidence of {runs} matches its manifest")


def _compare(found: Findings, path: Path, made: bytes, source: str) -> bool:
    """Add a line on the first difference of a file from what is made again; True if none."""
    if path.is_symlink():
        found.wrong.append(f"{path.name}: a link to {path.readlink()}")
        return False
    try:
        stated = read_bytes(path)
    except RecordError as error:
        found.wrong.append(str(error))
        return False
    except OSError as error:
        remedy = f"`python -m reports render {shlex.quote(str(path.parent))}` makes it"
        missing = isinstance(error, FileNotFoundError)
        found.wrong.append(f"{path.name}: {f'missing; {remedy}' if missing else error}")
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


def _by_other_tools(artefacts: Artefacts, made: bytes, found: Findings) -> bool:
    """Whether other versions of page.TOOLS made report.html: those of the run; compare the rest."""
    path = artefacts.directory.root / page.NAME
    try:
        stated = read_text(path)
    except (OSError, RecordError):
        return False
    makers = page.generator_of(stated), page.generator()
    if makers[0] == makers[1] or makers[0] != page.generator(artefacts.run):
        return False
    rest, rest_made = (_TOOLS.sub("", text) for text in (stated, made.decode("utf-8")))
    if rest != rest_made:
        return False
    found.unchecked.append(
        f"{path.name}: charts, style and script: made by {makers[0]}, here by {makers[1]}; "
        "verdict, texts and rows match the evidence"
    )
    return True


def _unknown_files(artefacts: Artefacts) -> Iterator[str]:
    """Yield files in the run directory that are neither evidence nor made from it."""
    directory = artefacts.directory
    known = {
        directory.run_json, directory.limits, directory.ledger, directory.verdict,
        directory.manifest, directory.jobs, directory.records, directory.guests,
        directory.root / "token",
        *([directory.recertified] if artefacts.run.get("recertifies") else ()),
        *(directory.root / name for name in artefacts.names),
    }  # fmt: skip
    if artefacts.verdict.get("schema") == SPLIT_SCHEMA:
        known.add(directory.verdict_rest)
    if certificate.NAME in artefacts.names:
        known |= {directory.root / signature.NAME, directory.root / statement.ENVELOPE}
    listing = list_folder(directory.root, named=True)
    yield from (f"{line}, which nothing covers" for line in listing.refused)
    for path in sorted([*listing.files, *listing.folders]):
        if path.name in COMPANIONS:
            yield f"{path.name}: the run has no record of its original content"
        elif path not in known:
            yield f"{path.name}: not a file of the suite in a run like this"
    others = {directory.limits, *files_in(directory.guests)}
    yield from directory.left_out()
    for path in directory.evidence():
        name = path.relative_to(directory.root)
        if path.is_symlink():
            yield f"{name}: a link to {path.readlink()}, which may change"
        is_limits = path.name == directory.limits.name and path.parent.parent in (
            directory.root.parent, directory.recertified
        )  # fmt: skip
        if path.suffix.lower() in PAPERS and path not in others and not is_limits:
            yield f"{name}: not a page of the suite; only manifest.sha256 names it"


# --- pages of another suite version


def _check_facts(artefacts: Artefacts, found: Findings) -> None:
    """Compare in files of another suite version what does not depend on its wording.

    The certificate must state the verdict and the hashes of the evidence, the report the verdict;
    results.csv must have the same rows in all columns that are not text.
    """
    root, verdict = artefacts.directory.root, artefacts.verdict
    wrong: list[str] = []
    compared = []
    for name in artefacts.names:
        try:
            text = read_text(root / name)
        except FileNotFoundError:
            if name in (certificate.NAME, "results.csv"):
                remedy = f"`python -m reports render {shlex.quote(str(root))}` makes it"
                wrong.append(f"{name}: missing; {remedy}")
            continue
        except (OSError, RecordError) as error:
            wrong.append(f"{name}: cannot be read: {error}")
            continue
        if name == certificate.NAME:
            wrong += _certificate_differences(artefacts.directory, verdict, text)
        elif name == "results.csv":
            if _rows_without_text(text) != _rows_without_text(export.results(verdict)):
                wrong.append(f"{name}: its figures are not those of verdict.json")
        elif name == page.NAME and f": {verdict['verdict']}</title>" not in text:
            wrong.append(f"{name}: its title does not say {verdict['verdict']}")
        if name in (certificate.NAME, "results.csv"):
            compared.append(name)
        else:
            found.unchecked.append(
                f"{name}: written by suite version {suite_version(artefacts.run)}"
            )
    found.wrong += wrong
    found.confirmed.append(
        f"{' and '.join(compared)}: text not compared: written by suite version "
        f"{suite_version(artefacts.run)}, this is {version()}; verdict, hashes and figures were "
        "compared"
    )


def _certificate_differences(
    directory: RunDirectory, verdict: Mapping[str, Any], text: str
) -> Iterator[str]:
    accepted = verdict["verdict"] == "ACCEPTED"
    word = "ACCEPTED" if accepted else f"NOT ACCEPTED: {verdict['verdict']}"
    if f'<p class="word">{html.escape(word)}</p>' not in text:
        yield f"{certificate.NAME}: does not say {word}"
    yield from _missing_hashes(directory, text)


def _missing_hashes(directory: RunDirectory, text: str) -> Iterator[str]:
    """Yield the files whose hashes a certificate ought to state, and does not."""
    for file, digest in certificate.hashes(directory).items():
        if digest not in text:
            yield f"{certificate.NAME}: does not state the SHA-256 of {file}, {digest[:12]}..."


def _rows_without_text(text: str) -> list[dict[str, str]]:
    """Return the rows of results.csv without the columns that are text."""
    return [
        {key: value for key, value in row.items() if key not in export.TEXT_COLUMNS}
        for row in csv.DictReader(io.StringIO(text))
    ]
