"""Whether a run can be a reference for others: its verdict is confirmed first (login side).

The records are judged again once; afterwards the hashes of the evidence show that it is still the
same. A run that is REJECTED or INCOMPLETE cannot be one.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fixtures.errors import EvidenceError
from fixtures.paths import version
from fixtures.records.files import RecordError, read_json, write_json
from fixtures.records.foreign_files import read_bytes
from fixtures.records.run_directory import RunDirectory
from reports.evidence import statement
from reports.evidence.findings import Findings
from reports.evidence.run_files import CommandError, read_verdict
from reports.handover import verify

NAME = "certificate.json"
"""In the state of who uses a reference: which evidence was confirmed."""
REFERENCES = ("ACCEPTED", "PARTIAL", "DEMONSTRATION")

Confirm = Callable[[Path], Mapping[str, Any]]
"""Returns the verdict of a run; EvidenceError where evidence, manifest and it do not agree."""


def confirmed(source: Path, state: Path, confirm: Confirm) -> Mapping[str, Any]:
    """Return the verdict of a run that is a reference for others.

    EvidenceError where it is not confirmed, or is not one of REFERENCES. `state`: a directory
    that remembers what was confirmed.
    """
    verdict: Mapping[str, Any] = read_verdict(source)
    word = verdict["verdict"]
    if word not in REFERENCES:
        raise EvidenceError(
            f"{source} is {word}, so it cannot be a reference: give an accepted run, expected one "
            f"of {', '.join(REFERENCES)}"
        )
    directory = RunDirectory(source)
    if _known(state) == _identity(directory):
        found = Findings()
        verify.check_manifest(directory, statement.listing(source), found)
        if found.wrong:
            raise EvidenceError(
                f"{source} has changed since it was confirmed: {found.wrong[0]}; see "
                f"`python -m reports verify {shlex.quote(str(source))}`"
            )
        return verdict
    verdict = confirm(source)
    state.mkdir(parents=True, exist_ok=True)
    write_json(state / NAME, _identity(directory))
    return verdict


def _identity(directory: RunDirectory) -> dict[str, str]:
    """Return what changes whenever the evidence, the verdict or the judge does."""
    paths = [directory.manifest, directory.verdict, directory.verdict_rest]
    digests = {p.name: hashlib.sha256(read_bytes(p)).hexdigest() for p in paths if p.exists()}
    return {**digests, "suite_version": version()}


def _known(state: Path) -> Any:
    with suppress(OSError, RecordError):
        return read_json(state / NAME)
    return None


def remark(source: Path, confirm: Confirm) -> str:
    """Return what to say of a run whose figures are used, "" for an accepted one.

    EvidenceError where it has a verdict that its evidence does not give.
    """
    if not RunDirectory(source).verdict.exists():
        return f"note   {source.name} has no verdict: what it measured was not judged"
    try:
        word = confirm(source)["verdict"]
    except CommandError as error:  # its limits are not at hand: it can still be read
        return f"note   the verdict of {source.name} is not confirmed here: {error}"
    return "" if word == "ACCEPTED" else f"note   {source.name} is {word}"
