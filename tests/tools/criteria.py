"""The list of criteria on the page of each area, made from thresholds.yaml and fixtures/criteria.

python -m tests.tools.criteria            1 where a page is out of date
python -m tests.tools.criteria --write    write the lists anew

It stands between two comments of docs/AREA.md; what is above it is written by hand.
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


def pages() -> dict[str, Path]:
    """Return the page of each area."""
    return {area: CHECKOUT / "docs" / f"{area}.md" for area in shipped().titles}


def listing(area: str, limits: Mapping[str, Any]) -> str:
    """Return the list of an area: one row per criterion."""
    known = shipped()
    rows = ["| criterion | requires | unit | when it is red |", "|---|---|---|---|"]
    for key in (k for k, a in known.areas.items() if a == area):
        required = limits.get(key, {})
        # A title names the parameter of its points in braces: {size}.
        title = re.sub(r"\{(\w+)\}", r"each \1", str(required.get("title", "")))
        cells = (f"`{key}`", title, required.get("unit", ""), known.red_of(key))
        rows.append(f"| {' | '.join(str(c).replace('|', chr(92) + '|') for c in cells)} |")
    return "\n".join(rows) + "\n"


def made(area: str, text: str, limits: Mapping[str, Any]) -> str:
    """Return the text of a page with its list as it is today; ValueError without its place."""
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
