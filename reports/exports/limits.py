"""`python -m reports limits`: the limits that hold for an order, and changes in them."""

from __future__ import annotations

import argparse
import itertools
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fixtures.hardware import MODELS
from fixtures.paths import THRESHOLDS
from fixtures.thresholds import loader, published
from fixtures.thresholds.contract import NVLS_GPUS
from fixtures.thresholds.loader import Thresholds
from fixtures.thresholds.overview import LimitRow, OrderedSite, csv_text, limit_rows
from fixtures.wording import counted

WIDTH = 112
"""Columns of a printed page of the text form: A4 in 8 point Courier, margins of 10 mm."""
NAME_COLUMN, LIMIT_COLUMN = 33, 26


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand `limits`."""
    parser = commands.add_parser("limits", help="print the limits of an order, or their changes")
    parser.add_argument(
        "--model", choices=MODELS, metavar="MODEL", help="for this GPU model, of any order"
    )
    parser.add_argument(
        "--thresholds", type=Path, default=THRESHOLDS, metavar="FILE",
        help="file of limits (default: the shipped one); without --model for its `cluster:`",
    )  # fmt: skip
    parser.add_argument("--diff", type=Path, metavar="OTHER", help="differences from this file")
    parser.add_argument("--csv", action="store_true", help="as CSV")


def main(options: argparse.Namespace) -> int:
    """Print the limits; return 0, or with --diff 1 where something differs."""
    limits = loader.load(options.thresholds)
    model = options.model
    if options.diff is not None:
        lines = list(differences(rows_of(limits, model), rows_of(loader.load(options.diff), model)))
        print("\n".join(lines) or "no limit differs")
        return int(bool(lines))
    rows = rows_of(limits, model)
    text = csv_text(rows) if options.csv else "\n".join([*page(rows, heading(limits, model)), ""])
    print(text, end="")
    return 0


def rows_of(limits: Thresholds, model: str | None) -> list[LimitRow]:
    """Return the rows for the file's order, or for a model of any order."""
    if model is None and limits.cluster is not None:
        return limit_rows(limits, OrderedSite.of(limits.cluster), sized=True)
    return limit_rows(limits, OrderedSite(gpu_model=model, nvls=model in NVLS_GPUS), sized=False)


def heading(limits: Thresholds, model: str | None) -> str:
    """Return the heading of the limits: the order or the model, the file and its SHA-256."""
    what = f"{model}, any order" if model else "any order"
    if model is None and (order := limits.cluster) is not None:
        what = f"{counted(order.node_count, 'node')} of {order.gpus_per_node} {order.gpu_model}"
    return f"Limits for {what}; {limits.path.name}, SHA-256 {limits.sha256[:12]}"


def page(rows: Sequence[LimitRow], heading: str) -> Iterator[str]:
    """Yield the text form: limits, then their sources by number, then what is not judged."""
    yield from (heading, "")
    judged = [row for row in rows if row.limit]
    sources = list(dict.fromkeys(_source(row) for row in judged))
    previous = ""
    for name, row in _alike_in_one(judged):
        shown = "" if name == previous else name
        previous = name
        beside = "; ".join(filter(None, (row.expect and f"expect {row.expect}", row.when)))
        number = f"[{sources.index(_source(row)) + 1}]"
        if len(shown) > NAME_COLUMN:
            *before, shown = _wrapped(shown, indent=4)
            yield from before
        # A long name takes the room of its limit's column, where all of it fits on the line.
        one_line = f"{shown} {_limit(row)} {number} {beside}".rstrip()
        if len(shown) > NAME_COLUMN and len(one_line) <= WIDTH:
            yield one_line
            continue
        if len(shown) > NAME_COLUMN:
            yield shown
            shown = ""
        line = f"{shown:<{NAME_COLUMN}} {_limit(row):<{LIMIT_COLUMN}} {number:<5} {beside}"
        yield from _wrapped(line.rstrip(), indent=NAME_COLUMN + 3)
    yield from ("", "Sources")
    yield from _wrapped("   ".join(f"[{k}] {s}" for k, s in enumerate(sources, 1)), indent=0)
    yield from ("", "Not judged")
    for reason in dict.fromkeys(row.not_judged for row in rows if row.not_judged):
        names = [(row.criterion, row.when) for row in rows if row.not_judged == reason]
        yield from _wrapped(f"{reason}: {', '.join(_together(names))}", indent=4)


def _alike_in_one(rows: Sequence[LimitRow]) -> Iterator[tuple[str, LimitRow]]:
    """Yield (name, row): neighbours that differ in the last part of their names only are one row.

    a.b and a.c with the same limit of the same source are "a (b, c)". A criterion with several
    limits stands alone.
    """
    count = Counter(row.criterion for row in rows)

    def alike(row: LimitRow) -> tuple[object, ...]:
        head = row.criterion.rpartition(".")[0]
        alone = row.criterion if count[row.criterion] > 1 else ""
        return (replace(row, criterion=head, title=""), alone)

    for _, group in itertools.groupby(rows, alike):
        members = list(group)
        names = [row.criterion for row in members]
        (name,) = _together([(n, "") for n in dict.fromkeys(names)])
        if count[names[0]] > 1:
            yield from ((name, row) for row in members)
        else:
            yield name, members[0]


def _together(names: Sequence[tuple[str, str]]) -> list[str]:
    """Return criteria with their conditions; those that differ in their last part only as one.

    a.b and a.c under one condition are "a (b, c; condition)".
    """
    parts: dict[tuple[str, str], list[str]] = {}
    for name, when in names:
        head, _, last = name.rpartition(".")
        parts.setdefault((head, when), []).append(last)
    found = []
    for (head, when), ends in parts.items():
        one = len(ends) == 1
        beside = "; ".join(filter(None, ("" if one else ", ".join(ends), when)))
        found.append(f"{f'{head}.{ends[0]}' if one else head}{f' ({beside})' if beside else ''}")
    return found


def differences(rows: Sequence[LimitRow], others: Sequence[LimitRow]) -> Iterator[str]:
    """Yield what changes from `others` to `rows`: a line each for the old and the new limit."""
    old, new = ({(r.criterion, r.when): r for r in each} for each in (others, rows))
    for key in dict.fromkeys([*old, *new]):
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        yield f"{key[0]}{f' ({key[1]})' if key[1] else ''}"
        for sign, row in (("-", before), ("+", after)):
            if row is not None:
                yield from (f"  {line}" for line in _wrapped(f"{sign} {_said(row)}", indent=4))


def _said(row: LimitRow) -> str:
    if not row.limit:
        return f"not judged: {row.not_judged}"
    expect = f", expect {row.expect}" if row.expect else ""
    return f"{_limit(row)}{expect}; {row.source}"


def _source(row: LimitRow) -> str:
    """Return the source; why a limit is lenient stands in the CSV and in the file of limits."""
    return row.source.partition("; lenient: ")[0]


def _limit(row: LimitRow) -> str:
    """Return limit and unit; of a fraction whose ceiling is known, the number alone."""
    number = replace(row, limit=row.limit.partition(" (")[0]).shown_limit
    return published.shown(number) if published.is_shown_in(row.limit) else number


def _wrapped(line: str, *, indent: int) -> list[str]:
    return textwrap.wrap(
        line, WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False,
        drop_whitespace=True, replace_whitespace=False,
    )  # fmt: skip
