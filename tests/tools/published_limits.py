"""Which limits are not set, which are published figures, and what these would find.

python -m tests.tools.published_limits            say which table of docs/limits.md is out of date
python -m tests.tools.published_limits --write    write them anew
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Iterable, Iterator

from fixtures.hardware import GPUS
from fixtures.paths import CHECKOUT, THRESHOLDS
from fixtures.thresholds import loader, published, strict_yaml
from fixtures.thresholds.limits import Limit
from fixtures.thresholds.overview import NO_FIGURE, file_key
from fixtures.thresholds.published import Publication, rule_of
from fixtures.wording import digits
from tests.tools import sections
from tests.tools.gpu_models import SIZES, missing, unset_count

PAGE = CHECKOUT / "docs" / "limits.md"
LOSSES = (0.05, 0.10, 0.15, 0.20)
"""Parts of its rate that a planted slow device has lost."""


@functools.cache
def publications() -> dict[str, Publication]:
    """Return the publications of the shipped limits."""
    return published.table_of(strict_yaml.read(THRESHOLDS).data[published.TABLE])


def limits_by(name: str) -> Iterator[tuple[str, Limit]]:
    """Yield the criterion and the row of every limit that is a figure of a publication."""
    for criterion in loader.load(THRESHOLDS).written.values():
        yield from ((criterion.key, row) for row in criterion.limits if row.published == name)


def rows_by(name: str) -> Iterator[tuple[str, Limit]]:
    """Yield the key in the file and the row of every limit that is a figure of a publication."""
    written = loader.load(THRESHOLDS).written
    found = {(file_key(written[key]), row.text()): row for key, row in limits_by(name)}
    yield from ((key, row) for (key, _), row in found.items())


def orders_table() -> str:
    """Return the table of models: how many limits their orders lack, and how many are figures."""
    rows = [
        "| model | one node | four nodes | by published figures |",
        "|---|---|---|---|",
    ]
    for model in GPUS:
        one, four = (unset_count(model, n) for n in SIZES)
        rows.append(f"| {model} | {one} | {four} | {published_count(model)} |")
    return "\n".join(rows) + "\n"


def published_count(model: str) -> int:
    """Return how many criteria of the file have a row of a published figure for this model."""
    written = loader.load(THRESHOLDS).written
    return sum(
        any(row.published and model in row.model for row in criterion.limits)
        for criterion in written.values()
    )


def unset_table() -> str:
    """Return the table of limits that are not set: criteria, models, and the reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for model in GPUS:
        for key, reason in reasons(model).items():
            found.setdefault((key, reason), []).append(model)
    merged: dict[tuple[str, str], list[str]] = {}
    for (key, reason), models in found.items():
        merged.setdefault((", ".join(models), reason), []).append(key)
    rows = ["| not set for | criteria | why |", "|---|---|---|"]
    rows += [
        f"| {models} | {', '.join(f'`{key}`' for key in keys)} | {reason} |"
        for (models, reason), keys in merged.items()
    ]
    return "\n".join(rows) + "\n"


def reasons(model: str) -> dict[str, str]:
    """Return the criteria in the file that an order of this model lacks limits of -> why."""
    written = loader.load(THRESHOLDS).written
    found = {}
    for key in (key for n in SIZES for keys in missing(model, n).values() for key in keys):
        criterion = written[key]
        rows = [row for row in criterion.limits if row.calibrate and model in row.model]
        found[file_key(criterion)] = rows[0].source or NO_FIGURE if rows else NO_FIGURE
    return found


def publications_table() -> str:
    """Return the table of publications: where, how measured, and what follows."""
    rows = [
        "| publication | source | measured | ours of published | expected, limit | used for |",
        "|---|---|---|---|---|---|",
    ]
    for name, p in publications().items():
        rule = rule_of(name, publications())
        ours = ", ".join(f"{m} {o:g} of {f:g}" for m, (f, o) in p.ours.items()) or "none"
        used = dict.fromkeys(key for key, _ in rows_by(name))
        rows.append(
            f"| {name} | {p.title}: {p.place}, {p.date} | {p.hardware}; {p.software}; {p.measured} "
            f"| {ours} | {digits(rule.expect)}, {digits(rule.fail_below)} "
            f"| {', '.join(f'`{key}`' for key in used)} |"
        )
    return "\n".join(rows) + "\n"


def losses_table() -> str:
    """Return which planted losses the limits by publications find on models that we measured."""
    head = [f"{loss:.0%}" for loss in LOSSES]
    rows = [f"| publication | model | {' | '.join(head)} |", "|---|---|" + "---|" * len(head)]
    for name, p in publications().items():
        for model in p.ours:
            cells = ["found" if is_found(name, model, loss) else "-" for loss in LOSSES]
            rows.append(f"| {name} | {model} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def is_found(name: str, model: str, loss: float) -> bool:
    """Whether a device of a model that lost this part of our figure is below the limit."""
    figure, own = publications()[name].ours[model]
    return own * (1 - loss) < figure * rule_of(name, publications()).fail_below


TABLES = (
    ("orders", orders_table), ("unset", unset_table), ("publications", publications_table),
    ("losses", losses_table),
)  # fmt: skip


def main(arguments: Iterable[str] | None = None) -> int:
    """Write the tables, or say which is out of date; 1 where one is."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.published_limits")
    parser.add_argument("--write", action="store_true", help="write the tables anew")
    options = parser.parse_args(None if arguments is None else [*arguments])
    return max(sections.update(PAGE, n, made(), write=options.write) for n, made in TABLES)


if __name__ == "__main__":
    sys.exit(main())
