"""Differences between verdict.json and the verdicts that the records of its run give (login side).

Everything in it must follow: each field of each row from judging the records again, the verdict on
the run from the rows. Facts that only the run could know, such as why it was interrupted, are
named.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fixtures.conclusion.next_steps import RunCommand
from fixtures.conclusion.run_verdict import conclude
from fixtures.paths import version
from fixtures.records import located
from fixtures.records.fast_reader import read_json_fast
from fixtures.records.fields import is_number
from fixtures.records.foreign_types import mistyped
from fixtures.records.interface import VerdictJson
from fixtures.records.ledger import BY_LIFE, verdict_lines
from fixtures.records.model import VERDICT_SCHEMA
from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import is_as_written
from fixtures.thresholds.limits import RECORDED_TEXT
from fixtures.verdict.causes import NEXT_STEP, RESUME, Cause
from fixtures.verdict.model import Outcome, Verdict
from fixtures.wording import counted

_EXPIRED = re.compile(r"waiver expired \((?P<waiver>.*until (?P<until>[0-9-]{10}): .*)\)")
NEVER_JUDGED = "never judged"
SUITE_FAILED = (
    "the suite failed: ",
    "the xdist worker that judged it died: ",
    "the test itself failed: ",
)
"""How the reason of a row begins in whose test the suite itself failed."""
MAX_NAMED = 20
"""Most differences that are named one by one."""

Row = Mapping[str, Any]
Key = tuple[str, str]


@dataclass(frozen=True)
class Rejudged:
    """The result of judging the records of a run again."""

    verdict: Mapping[str, Any]
    limits_csv: bytes = b""


@dataclass
class Differences:
    """Errors in verdict.json, and the parts of it that cannot be made again."""

    wrong: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)


COMPARED = ("outcome", "value", "unit", "limit", "ceiling", "margin", "worst", "devices", "record")
"""Fields of a row that judging again must reproduce; reasons and notes are only text."""
VERDICT_KEYS = {
    "run_id": str, "verdict": str, "exit_status": int, "reasons": list, "scope": dict,
    "counts": dict, "criteria": list,
}  # fmt: skip
ROW_KEYS = {
    "criterion",
    "title",
    "subject",
    "unit",
    "reason",
    "next_step",
    "notes",
    *COMPARED,
}
KNOWN_KEYS = {*Verdict.__dataclass_fields__, "id"}
"""With a code that rows of earlier versions have."""


def malformed(verdict: Any) -> str:
    """Return why this is not the content of a verdict.json, "" if it is one."""
    if not isinstance(verdict, dict):
        return f"it is a {type(verdict).__name__}, not an object"
    for name, kind in VERDICT_KEYS.items():
        if not isinstance(verdict.get(name), kind):
            return f"{name} is {'missing' if name not in verdict else 'of another type'}"
    for k, row in enumerate(verdict["criteria"]):
        if not isinstance(row, dict) or not row.keys() >= ROW_KEYS:
            return f"criteria[{k}] is not a row of a verdict"
        if unknown := row.keys() - KNOWN_KEYS:
            return f"criteria[{k}] has the unknown field {min(unknown)}"
    return mistyped(verdict, VerdictJson, partly=True)


def is_of_this_version(run: Mapping[str, Any]) -> bool:
    """Whether this suite words verdicts and pages as the one that wrote the run."""
    return suite_version(run) == version()


def suite_version(run: Mapping[str, Any]) -> str:
    """Return the suite version that wrote run.json; that of a run by hand is not stated."""
    return str(run.get("suite_version") or "(not stated)")


def differences(
    directory: RunDirectory,
    run: Mapping[str, Any],
    stated: Mapping[str, Any],
    rejudged: Mapping[str, Any],
) -> Differences:
    """Compare verdict.json with what judging its records again gives."""
    found = Differences()
    exact = is_of_this_version(run)
    rows = _row_differences(directory, run, stated, rejudged, found, exact=exact)
    found.wrong += [f"verdict.json: {line}" for line in rows[:MAX_NAMED]]
    if len(rows) > MAX_NAMED:
        found.wrong.append(f"verdict.json: {len(rows) - MAX_NAMED} more rows differ")
    if not rows:
        check = _head_differences if exact else _other_head_differences
        found.wrong += [f"verdict.json: {line}" for line in check(directory, run, stated, rejudged)]
    if exact and not is_as_written(directory, stated):
        # A key that stands twice, for instance: programs differ in which of them counts.
        found.wrong.append("verdict.json: is not in the format that the suite writes")
    interrupted = (stated.get("basis") or {}).get("interrupted")
    if exact and interrupted and not rejudged["basis"]["interrupted"]:
        found.unchecked.append(f"verdict.json: that the run was interrupted: {interrupted}")
    return found


# --- rows


def _row_differences(
    directory: RunDirectory,
    run: Mapping[str, Any],
    stated: Mapping[str, Any],
    rejudged: Mapping[str, Any],
    found: Differences,
    *,
    exact: bool,
) -> list[str]:
    stated_rows, rejudged_rows = _by_key(stated), _by_key(rejudged)
    lines = []
    if len(stated_rows) != len(stated["criteria"]):
        lines.append("names a criterion twice for one subject")
    unjudged: dict[Key, Row] = {}
    expired = 0
    for key in {**stated_rows, **rejudged_rows}:
        before, now = stated_rows.get(key), rejudged_rows.get(key)
        if before is None or now is None:
            lines.append(f"{key[0]} {key[1]}: {'added' if now is None else 'missing'}")
            continue
        names = dict.fromkeys([*COMPARED, *before, *now] if exact else COMPARED)
        differing = [n for n in names if before.get(n) != now.get(n)]
        if not differing:
            continue
        if _waiver_expired_since(directory, run, before, now, names):
            expired += 1
        elif exact and now["outcome"] != "FAIL" and before == _not_judged(run, stated, before, now):
            unjudged[key] = before
        else:
            old, new = (repr(row.get(differing[0]))[:60] for row in (before, now))
            lines.append(f"{' '.join(key)}: {differing[0]} is {old}, from the records {new}")
    if expired:
        found.unchecked.append(f"verdict.json: {expired} waivers that have expired since")
    if unjudged:
        lines += _ledger_differences(directory, unjudged)
        again = RunCommand(str(directory.root), tuple(run.get("options") or ())).completed(RESUME)
        found.unchecked.append(
            f"verdict.json: {counted(len(unjudged), 'row')} not judged by the run, although their "
            f"records exist: {again}"
        )
    return lines


def _by_key(verdict: Mapping[str, Any]) -> dict[Key, Row]:
    return {(v["criterion"], v["subject"]): v for v in verdict["criteria"]}


def _not_judged(run: Mapping[str, Any], stated: Mapping[str, Any], before: Row, now: Row) -> Row:
    """Return the row as the run leaves it where it, or the row's test, ended before the verdict."""
    reason = str(before["reason"])
    interrupted = str((stated.get("basis") or {}).get("interrupted"))
    if not reason.startswith(SUITE_FAILED):
        reason = interrupted if reason == interrupted else NEVER_JUDGED
    command = RunCommand.of(run, "RUN")
    row = Verdict(
        criterion=now["criterion"], title=now["title"], subject=now["subject"],
        outcome=Outcome.NOT_MEASURED, unit=now["unit"], reason=reason, cause=Cause.INTERRUPTED,
        limit=RECORDED_TEXT if now["limit"] == RECORDED_TEXT else "",
        next_step=command.completed(NEXT_STEP[Cause.INTERRUPTED]),
    )  # fmt: skip
    return row.to_json()


def _ledger_differences(directory: RunDirectory, unjudged: Mapping[Key, Row]) -> list[str]:
    """Rows that were judged according to the ledger, but not according to verdict.json."""
    newest: dict[Key, str] = {}
    for key, line in verdict_lines(directory, unjudged) if unjudged else ():
        newest[key] = str(line.get("outcome"))
    return [
        f"{' '.join(key)}: outcome is 'NOT_MEASURED', ledger.jsonl has {outcome!r}"
        for key, outcome in newest.items()
        if outcome != "NOT_MEASURED"
    ]


def _waiver_expired_since(
    directory: RunDirectory, run: Mapping[str, Any], before: Row, now: Row, names: Iterable[str]
) -> bool:
    """Whether only a waiver that held on the day of the run makes the difference."""
    match = _EXPIRED.search(str(now.get("reason")))
    if match is None or now["outcome"] != "FAIL":
        return False
    day = max(str(run.get("ended") or run.get("created") or "")[:10], _judged_on(directory, now))
    reason = str(now["reason"]).replace(match[0], f"waived by {match['waiver']}")
    waived = {**now, "outcome": "WAIVED", "reason": reason}
    return day <= match["until"] and all(before.get(n) == waived.get(n) for n in names)


def _judged_on(directory: RunDirectory, row: Row) -> str:
    """Return the last day on which a row was judged by the ledger, or measured by its record."""
    key = row["criterion"], row["subject"]
    times = [line.get("time") for _, line in verdict_lines(directory, (key,))]
    with suppress(OSError, ValueError, KeyError, TypeError):
        record = read_json_fast(directory.records / str(row["record"]))
        times += [rank["end"] for rank in record["ranks"]]
    newest = max(filter(is_number, times), default=0.0)
    with suppress(OverflowError, ValueError, OSError):
        return datetime.datetime.fromtimestamp(newest, datetime.UTC).date().isoformat()
    return datetime.date.max.isoformat()


# --- the run


def _head_differences(
    directory: RunDirectory,
    run: Mapping[str, Any],
    stated: Mapping[str, Any],
    rejudged: Mapping[str, Any],
) -> Iterator[str]:
    """Yield facts on the run that do not follow from its rows and scope."""
    basis, basis_now = stated.get("basis") or {}, rejudged["basis"]
    for name in {**basis, **basis_now}:
        if name != "interrupted" and basis.get(name) != basis_now.get(name):
            yield f"{name} is {basis.get(name)!r}, from the records {basis_now.get(name)!r}"
    interrupted = str(basis_now["interrupted"] or basis.get("interrupted") or "")
    concluded = conclude(
        map(Verdict.from_json, stated["criteria"]), planned=len(stated["criteria"]),
        **{**basis_now, "interrupted": interrupted},
    )  # fmt: skip
    in_life = [r for r in rejudged["reasons"] if str(r).startswith(f"{BY_LIFE}: ")]
    reasons = [*concluded.reasons, *in_life, *located.lines(directory, str(run.get("nonce")))]
    budget = run.get("budget") or {}
    if budget.get("left_out") and "replay" not in stated:
        reasons.append(str(budget.get("line")))
    expected = {
        "run_id": run["id"], "verdict": concluded.verdict, "exit_status": concluded.exit_status,
        "counts": concluded.counts, "reasons": reasons, "scope": rejudged["scope"],
        "replay": run.get("replay_of"), "schema": _expected_schema(stated, rejudged),
        "power": _expected_power(stated, rejudged),
        "fleet": _expected_fleet(stated, rejudged), "fabric_load": rejudged.get("fabric_load"),
    }  # fmt: skip
    for name, value in expected.items():
        if stated.get(name) != value:
            yield f"{name} is {_short(stated.get(name))}, from the records {_short(value)}"
    for name in stated:
        if name not in (*expected, "basis", "criteria"):
            yield f"{name}: added"


def _expected_schema(stated: Mapping[str, Any], rejudged: Mapping[str, Any]) -> Any:
    """Return the schema of verdict.json; before there was 3, a run of any size had 2."""
    return VERDICT_SCHEMA if stated.get("schema") == VERDICT_SCHEMA else rejudged["schema"]


def _expected_power(stated: Mapping[str, Any], rejudged: Mapping[str, Any]) -> list[Any]:
    """Return the power of each criterion; that of one of which rows were not judged as stated."""
    before, now = _by_key(stated), _by_key(rejudged)
    other = {key[0] for key in now if before[key]["outcome"] != now[key]["outcome"]}
    of_run = {row["criterion"]: row for row in stated.get("power") or ()}
    of_records = {row["criterion"]: row for row in rejudged.get("power") or ()}
    chosen = {k: (of_run if k in other else of_records).get(k) for k in {**of_records, **of_run}}
    order = [row["criterion"] for row in stated.get("power") or ()]
    missing = [key for key, row in chosen.items() if row is not None and key not in order]
    return [row for key in (*order, *missing) if (row := chosen[key]) is not None]


def _expected_fleet(stated: Mapping[str, Any], rejudged: Mapping[str, Any]) -> list[Any]:
    """Return the differences of the fleet; of criteria not judged as stated, those stated."""
    before, now = _by_key(stated), _by_key(rejudged)
    other = {key[0] for key in now if before[key]["outcome"] != now[key]["outcome"]}
    of_run, of_records = (list(v.get("fleet") or ()) for v in (stated, rejudged))
    order = dict.fromkeys(row["criterion"] for row in (*of_run, *of_records))
    return [row for key in order for row in (of_run if key in other else of_records)
            if row["criterion"] == key]  # fmt: skip


def _other_head_differences(
    directory: RunDirectory,
    run: Mapping[str, Any],
    stated: Mapping[str, Any],
    rejudged: Mapping[str, Any],
) -> Iterator[str]:
    """Yield differences of a run of another suite version, whose words may differ."""
    # A waiver that expired since makes of a WAIVED a FAIL, and so another verdict.
    now = rejudged["counts"]
    expired = stated["counts"]["waived"] - now["waived"]
    if expired and now["fail"] - stated["counts"]["fail"] == expired:
        return
    for name in ("verdict", "counts", "exit_status"):
        if stated.get(name) != rejudged.get(name):
            yield f"{name} is {stated.get(name)}, from the records {rejudged.get(name)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
