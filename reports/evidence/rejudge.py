"""`python -m reports rejudge RUN`: a second judge for a run (login side).

Here are the limits as plain data, as they stand in their file, and the comparison of the answers of
reports/second_judge with verdict.json.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fixtures.conclusion.run_verdict import JUDGED
from fixtures.paths import THRESHOLDS
from fixtures.records.foreign_files import read_text
from fixtures.records.foreign_folders import files_in
from fixtures.records.inert import inert
from fixtures.records.ledger import is_by_life
from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import read_verdict
from fixtures.thresholds import loader
from fixtures.thresholds.conditions import Range
from fixtures.thresholds.limits import Limit
from fixtures.thresholds.loader import Criterion, Thresholds
from fixtures.thresholds.order import order_of
from fixtures.thresholds.published import is_published
from fixtures.verdict.claims import is_of_a_claim
from fixtures.verdict.like_nodes import judged_by_word, ordered_as
from fixtures.wording import counted
from reports.evidence.run_files import CommandError, require_same_limits
from reports.second_judge import order
from reports.second_judge.judge import SecondJudge
from reports.second_judge.physics import Json, Unknown
from reports.second_judge.records import Records


def plain(thresholds: Thresholds) -> Json:
    """Return limits as plain data: sizes in bytes, shares of the order as numbers."""
    ordered = thresholds.cluster
    return {
        "order": ordered and {"names": ordered.node_names, "count": ordered.node_count},
        "compared": thresholds.compared_criteria,
        "criteria": [_criterion(c, thresholds) for c in thresholds.criteria.values()],
        "not_applicable": [
            {"criteria": list(e.criteria), "when": {name: value for name, value in
             _plain(e.when.given()).items() if name != "model" or value}}
            for e in thresholds.exemptions
        ],
        "waivers": [{"criterion": w.criterion, "node": w.node, "expires": str(w.expires)}
                    for w in thresholds.waivers],
    }  # fmt: skip


def _plain(conditions: Mapping[str, Any]) -> Json:
    def one(value: Any) -> Any:
        if isinstance(value, Range):
            return {"min": value.min, "max": value.max}
        return list(value) if isinstance(value, tuple) else value

    return {name: one(value) for name, value in conditions.items()}


def _criterion(c: Criterion, thresholds: Thresholds) -> Json:
    spread = thresholds.spread[c.spread] if c.spread else None
    names = ("key", "per", "unit", "workload", "metric", "statistic", "over", "tier", "ceiling",
             "within", "measured_unit")  # fmt: skip
    return {
        **{name: getattr(c, name) for name in names},
        "may_lack": c.may_lack and not ordered_as(c, thresholds.cluster),
        "by_word": c.key in judged_by_word([c]), "sweep": c.sweep, "valid": dict(c.valid),
        "at": dict(c.at), "facts": list(c.when),
        "valid_where": [_bounds(entry) for entry in c.valid_where],
        "spread": spread and {m: spread.for_model(m).model_dump() for m in ("", *spread.models)},
        "tail": thresholds.tails[c.tail].model_dump() if c.tail else None,
        "rows": [_row(row, thresholds) for row in c.limits],
    }  # fmt: skip


def _bounds(entry: Any) -> Json:
    model = {"model": entry.model} if entry.model else {}
    return {"bounds": dict(entry.bounds), "when": _plain({**model, **entry.when.given()})}


def _row(row: Limit, thresholds: Thresholds) -> Json:
    number = row.fail_below or row.fail_above
    value: Any = row.equals if number is None else number.number
    of = number.of_contract if number is not None else ""
    if isinstance(row.equals, str) and row.equals.startswith("cluster."):
        value, of = 1, row.equals.removeprefix("cluster.")
    if of:
        whole = c.value(of) if (c := thresholds.cluster) is not None and c.states(of) else None
        value = whole if row.equals is not None or whole is None else value * whole
    kinds = {"recorded": row.recorded, "calibrate": row.calibrate, "below": row.fail_below,
             "above": row.fail_above, "equals": row.equals}  # fmt: skip
    return {
        "kind": next(k for k, v in kinds.items() if v is not None), "value": value,
        "when": _plain(row.all_conditions), "valid": dict(row.valid),
        "of_ceiling": number is not None and number.of_ceiling,
        "of_model": number is not None and number.of_model, "published": bool(row.published),
    }  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """The second judge's results of a run, beside those of verdict.json."""

    wrong: list[str]
    uncovered: list[str]
    """Rows that it does not judge, with the rule that it does not know."""
    rows: int
    verdict: str


def judges_of(root: Path, thresholds: Thresholds) -> SecondJudge:
    """Return the second judge of a run directory; `thresholds` with the order of the run."""
    limits, ordered = plain(thresholds), order.in_file(thresholds.path, read_text)
    records = Records(root, limits["criteria"], read=read_text, files=files_in)
    records.population.differing = order.settle(records.run, ordered, records.population)
    return SecondJudge(records.run, limits, records)


def compare(root: Path, thresholds: Thresholds) -> Compared:
    """Judge a run again by the second judge, and compare verdict.json with the result."""
    judge = judges_of(root, thresholds)
    stated = read_verdict(RunDirectory(root))
    scope = [(key[0], key[1]) for key in judge.run.get("scope", ())]
    rows = {(row["criterion"], row["subject"]): row for row in stated["criteria"]}
    wrong = [f"{' '.join(key)}: in the plan of the run, but not in verdict.json"
             for key in scope if key not in rows]  # fmt: skip
    wrong += [f"{' '.join(key)}: not in the plan of the run" for key in rows.keys() - set(scope)]
    wrong += ["verdict.json has a row twice"] * (len(rows) < len(stated["criteria"]))
    uncovered, outcomes = [], {}
    for key in scope:
        row = rows.get(key, {"outcome": "NOT_MEASURED", "value": None})
        try:
            outcomes[key], value = judge.outcome(key)
            if is_by_life(row) or (outcomes[key] == "PASS" and is_of_a_claim(row)):
                raise Unknown("a claim that its second source contradicts, or a life counter")
            if outcomes[key] != "FAIL" and key[0].startswith("fabric."):
                raise Unknown("what all slices of a load on the fabric show together")
        except Unknown as error:
            outcomes[key] = row["outcome"]
            uncovered.append(f"{' '.join(key)}: {error}")
            continue
        if outcomes[key] != row["outcome"]:
            wrong.append(f"{' '.join(key)}: {row['outcome']}, second judge {outcomes[key]}")
        elif is_other_number(value, row["value"]):
            wrong.append(f"{' '.join(key)}: {row['value']}, second judge {value}")
        elif row["outcome"] in JUDGED and is_published(row) is not judge.by_figure.get(key):
            wrong.append(f"{' '.join(key)}: {row['limit']}, second judge: of another source")
    basis = stated.get("basis") or {}
    if any(judge.by_figure.values()) and (judge.run.get("contract") or {}).get("limits"):
        wrong.append("published figures were judged by, and the order takes measured limits")
    wrong += [] if basis.get("order") else judge.p.differing
    interrupted = bool(basis.get("interrupted") or basis.get("order") or judge.p.differing)
    verdict = judge.conclude(outcomes, interrupted or not judge.run.get("ended"))
    mtbf = basis.get("mtbf") or {}
    if mtbf.get("decision") in ("reject", "go on"):
        uncovered.append(f"the plan for the MTBF ({mtbf['decision']}): {mtbf['sentence']}")
    elif verdict != stated["verdict"]:
        wrong.append(f"the run is {stated['verdict']}, second judge {verdict}")
    counts = Counter(outcome.lower() for outcome in outcomes.values())
    wrong += [f"{counted(count, 'row')} {name}, second judge {counts[name]}"
              for name, count in stated["counts"].items()
              if name != "planned" and counts[name] != count]  # fmt: skip
    return Compared(wrong, uncovered, len(scope), verdict)


def main(root: Path, run: Json, file: Path | None) -> int:
    """Print the differences of both judges; `file`: the run's limits, None for those shipped."""
    found = order_of(loader.load(file or THRESHOLDS), run)
    require_same_limits(run, {"thresholds": found.limits.identity()})
    if found.differences:
        raise CommandError(f"{root}: {found.differences[0]}")
    try:
        compared = compare(root, found.limits)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CommandError(f"{root}: the run cannot be judged again: {error!r}") from None
    return show(compared, root)


def is_other_number(value: Any, stated: Any) -> bool:
    """Whether two values are numbers, and not the same within rounding."""
    numbers = [x for x in (value, stated) if isinstance(x, (int, float)) and x is not True]
    return len(numbers) == 2 and not math.isclose(*numbers, rel_tol=1e-9, abs_tol=1e-12)


def show(compared: Compared, root: Path) -> int:
    """Print differences and rows not covered; 0 only where both judges agree."""
    lines = [f"WRONG  {line}" for line in compared.wrong]
    for line in (*lines, *(f"not covered: {line}" for line in compared.uncovered)):
        print(inert(line))
    covered = compared.rows - len(compared.uncovered)
    rows = counted(compared.rows, "row")
    print(f"second judge: {compared.verdict}; {covered} of {rows} judged again")
    print(f"{'THE JUDGES DISAGREE' if compared.wrong else 'BOTH JUDGES AGREE'}: {root}")
    return 1 if compared.wrong else 0
