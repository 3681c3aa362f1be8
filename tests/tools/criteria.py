"""The table of criteria on the page of each area, made from thresholds.yaml and fixtures/criteria.

python -m tests.tools.criteria            1 where a page is out of date
python -m tests.tools.criteria --write    write the tables anew

It stands between two comments of docs/AREA.md; what is above it is written by hand. Criteria with
the same texts are one row, and a long text that stands further up is not said again.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fixtures.paths import CHECKOUT
from fixtures.thresholds.definitions import shipped

BEGIN, END = "<!-- criteria: made by python -m tests.tools.criteria --write -->", "<!-- end -->"
HEADING = ("check, key, unit and requirement", "proves", "does not prove", "when it is red")
COLUMNS = ("proves", "not", "red")
"""The texts of a criterion that are columns, in this order."""
SHORT = 60
"""Texts up to here are said again."""
_KEY = re.compile(r"(?<![/\w.])[a-z]\w*(?:\.\w+)+")
_PAGE = re.compile(r"\bdocs/([\w-]+\.md)")


def pages() -> dict[str, Path]:
    """Return the page of each area."""
    return {area: CHECKOUT / "docs" / f"{area}.md" for area in shipped().titles}


def listing(area: str, limits: Mapping[str, Any]) -> str:
    """Return the table of an area."""
    known = shipped()
    alike: dict[tuple[str, ...], list[str]] = {}
    for key in (k for k, a in known.areas.items() if a == area):
        texts = known.texts_of(key)
        alike.setdefault(tuple(texts[column] for column in COLUMNS), []).append(key)
    lines = [HEADING, ["---"] * len(HEADING)]
    said: dict[str, str] = {}
    for texts, keys in alike.items():
        cells = [
            markdown(text) if said.setdefault(text, keys[0]) == keys[0] or len(text) <= SHORT
            else f"as `{said[text]}`"
            for text in texts
        ]  # fmt: skip
        lines.append(["<br>".join(_check(key, limits.get(key, {})) for key in keys), *cells])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _check(key: str, required: Mapping[str, Any]) -> str:
    """Return what a criterion checks: its noun, key, unit and the sentence of the contract."""
    # A title names the parameter of its points in braces: {size}.
    title = re.sub(r"\{(\w+)\}", r"each \1", str(required.get("title", "")))
    unit = f" ({required['unit']})" if required.get("unit") else ""
    return f"**{shipped().noun_of(key)}**<br>`{key}`{unit}: {markdown(title)}"


def markdown(text: str) -> str:
    """Return a text of a definition for a cell: keys as code, pages as links."""
    parts = text.replace("|", "\\|").split("`")
    for k in range(0, len(parts), 2):  # the others are code already
        part = parts[k].replace("<", "&lt;")
        part = _KEY.sub(lambda m: f"`{m[0]}`" if m[0] in shipped().criteria else m[0], part)
        parts[k] = _PAGE.sub(r"[\1](\1)", part)
    return "`".join(parts)


def made(area: str, text: str, limits: Mapping[str, Any]) -> str:
    """Return the text of a page with its table as it is today; ValueError without its place."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"docs/{area}.md: expected one {BEGIN} and one {END}")
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n{listing(area, limits)}{END}{rest.partition(END)[2]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages; 1 where one is out of date and --write is not given."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.criteria", description=__doc__)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args(argv).write
    limits = yaml.safe_load((CHECKOUT / "thresholds.yaml").read_text(encoding="utf-8"))
    differ = 0
    for area, page in pages().items():
        text = page.read_text(encoding="utf-8")
        now = made(area, text, limits["criteria"])
        differ += text != now
        if write:
            page.write_text(now, encoding="utf-8")
    return int(differ > 0 and not write)


if __name__ == "__main__":
    sys.exit(main())
