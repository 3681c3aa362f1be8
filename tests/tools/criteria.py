"""docs/criteria.md, made from thresholds.yaml and fixtures/criteria: title, unit, next step.

python -m tests.tools.criteria --write    write the page anew
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

import yaml

from fixtures.paths import CHECKOUT
from fixtures.thresholds.definitions import shipped

PAGE = CHECKOUT / "docs" / "criteria.md"
HEAD = """# Criteria

Every criterion: what is required, and what a red row usually means and what to do first. Made by
`python -m tests.tools.criteria --write`; what one does not prove is in the pages of the areas.
"""


def page() -> str:
    """Return the text of the page; one section per area, one row per criterion."""
    limits = yaml.load((CHECKOUT / "thresholds.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    known = shipped()
    parts = [HEAD]
    for area in dict.fromkeys(known.areas.values()):
        rows = ["| criterion | requires | unit | when it is red |", "|---|---|---|---|"]
        for key in (k for k, a in known.areas.items() if a == area):
            said = limits["criteria"].get(key, {})
            # A title names the parameter of its points in braces: {size}.
            title = re.sub(r"\{(\w+)\}", r"each \1", str(said.get("title", "")))
            cells = (f"`{key}`", title, said.get("unit", ""), known.red_of(key))
            rows.append(f"| {' | '.join(str(c).replace('|', chr(92) + '|') for c in cells)} |")
        parts.append(f"## {area.capitalize()}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page; 1 where it is out of date and --write is not given."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.criteria", description=__doc__)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args(argv).write:
        PAGE.write_text(page(), encoding="utf-8")
    return int(PAGE.read_text(encoding="utf-8") != page())


if __name__ == "__main__":
    sys.exit(main())
