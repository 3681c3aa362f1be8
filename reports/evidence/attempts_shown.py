"""Whether ledger and records of a run tell of the same attempts (login side).

The ledger is the list of the attempts: one that no record shows any more is named, and so are rows
and records that the ledger does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fixtures.records.evidence_digest import last_line, other_evidence
from fixtures.records.fast_reader import read_record
from fixtures.records.files import RecordError
from fixtures.records.foreign_folders import files_in
from fixtures.records.inert import inert
from fixtures.records.ledger import OF_ROW, Ledger, RowKey, read_ledger
from fixtures.records.run_directory import RunDirectory, attempt_of
from fixtures.wording import abbreviated, counted
from reports.evidence.findings import Findings, bounded

Row = Mapping[str, Any]


def check(
    directory: RunDirectory,
    run: Mapping[str, Any],
    stated: Mapping[str, Any],
    rejudged: Iterable[Row],
    found: Findings,
) -> None:
    """Compare the attempts of the ledger with the records, and with verdict.json.

    `stated`: verdict.json; `rejudged`: the rows that the records give.
    """
    rows = stated["criteria"]
    if not directory.ledger.exists():
        text = "attempts: there is no ledger.jsonl, which lists them"
        (found.notes if run.get("origin") == "by-hand" else found.wrong).append(text)
        return
    last: dict[RowKey, Row] = {}
    ledger = read_ledger(directory, last)
    ended = _has_ended(ledger, run, found)
    named = set(ledger.outcomes)
    known = {str(row["record"]) for row in rejudged if row.get("record")}
    shown = {n for n in named if n in known and (directory.records / n).exists()}
    shown |= {n for n in named - shown if _is_usable(directory, n, str(run.get("nonce")))}
    line = f"attempts: the ledger has {len(named)}, records show {len(shown)}"
    if lost := sorted(named - shown):
        names = abbreviated([f"{inert(n)} ({ledger.outcomes[n]})" for n in lost])
        found.unchecked.append(f"{line}: not {names}")
    else:
        found.confirmed.append(line)
    wrong = [f"ledger.jsonl: {line}" for line in ledger.unreadable[:1]]
    wrong += list(_rows_not_in_ledger(last, rows)) if ended else []
    wrong += list(_other_end(ledger, stated)) if ended else []
    unnamed = sorted(_unnamed(directory, ledger, rows, str(run.get("nonce"))))
    if unnamed:
        text = f"ledger.jsonl: does not name {counted(len(unnamed), 'attempt')}, as {unnamed[0]}"
        if _left_some(ledger, run, ended=ended):
            found.notes.append(f"{text}: a session ended before it was judged")
        else:
            wrong.append(text)
    if changed := other_evidence(directory, last_line(directory)):
        wrong.insert(0, changed)
    found.wrong += bounded(wrong)


def _is_usable(directory: RunDirectory, name: str, nonce: str) -> bool:
    """Whether a record can be read, and is the attempt after which it is named."""
    try:
        record = read_record(directory.records / name, nonce=nonce, without_facts=True)
    except (OSError, RecordError, ValueError, TypeError, KeyError, AttributeError):
        return False
    return record.name == name


def _rows_not_in_ledger(last: Mapping[RowKey, Row], rows: Iterable[Row]) -> Iterator[str]:
    """Yield the rows that the last line of the ledger on them does not give."""
    judged = {(str(v["criterion"]), str(v["subject"])): v for v in rows if v.get("record")}
    for key, row in judged.items():
        line = last.get(key)
        if line is None:
            yield f"ledger.jsonl: has no line on {' '.join(key)}, verdict.json {row['outcome']}"
        elif differing := [n for n in OF_ROW if line.get(n) != row.get(n)]:
            what = differing[0]
            yield (
                f"ledger.jsonl: {what} of {' '.join(key)} is {line.get(what)!r:.60}, "
                f"in verdict.json {row.get(what)!r:.60}"
            )


def _other_end(ledger: Ledger, stated: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the last line on an end says of the verdict and verdict.json does not."""
    end = ledger.ends[-1] if ledger.ends else {}
    for name in ("verdict", "counts"):
        if name in end and end[name] != stated.get(name):
            was = f"{end[name]!r:.80}"
            yield f"ledger.jsonl: ended with another {name} than verdict.json has: {was}"


def _unnamed(
    directory: RunDirectory, ledger: Ledger, rows: Iterable[Row], nonce: str
) -> Iterator[str]:
    """Yield the usable records, of what rows are judged by, that the ledger does not name."""
    of_rows = {attempt[:2] for v in rows if (attempt := attempt_of(str(v.get("record"))))}
    for path in files_in(directory.records, "*@*.json"):
        attempt = attempt_of(path.name)
        if attempt is None or attempt[:2] not in of_rows or path.name in ledger.outcomes:
            continue
        if _is_usable(directory, path.name, nonce):
            yield inert(path.name)


def _has_ended(ledger: Ledger, run: Mapping[str, Any], found: Findings) -> bool:
    """Whether the run has ended: by its ledger, with which run.json is compared."""
    if run.get("origin") == "by-hand":
        return bool(run.get("ended"))
    if not isinstance(run.get("owner"), Mapping):
        found.wrong.append("run.json: does not say which process owned the run")
    by_ledger = ledger.last_event == "end"
    if run.get("ended"):
        if not by_ledger:
            found.wrong.append("ledger.jsonl: has no line on the end of the run, run.json has")
        return True
    if by_ledger and not _was_killed(ledger, run):
        found.wrong.append("ledger.jsonl: has the end of the run, run.json has not")
        return True
    return False


def _was_killed(ledger: Ledger, run: Mapping[str, Any]) -> bool:
    """Whether a session has no line on its end."""
    return len(ledger.ends) < len(run.get("commands") or ())


def _left_some(ledger: Ledger, run: Mapping[str, Any], *, ended: bool) -> bool:
    """Whether a session of a run was killed or interrupted: it may have measured without judging.

    A killed one has no line on its end; one that was interrupted says so there.
    """
    if run.get("recertifies") or _was_killed(ledger, run) or not ended:
        return True
    return any(line.get("interrupted") for line in ledger.ends)
